"""agentreach.internal.etcd.v3: generated from protos/ by `make gen`; never edited."""
