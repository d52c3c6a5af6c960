"""agentreach.internal.etcd: generated from protos/ by `make gen`; never edited."""
