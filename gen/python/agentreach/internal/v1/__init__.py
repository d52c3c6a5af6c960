"""agentreach.internal.v1: generated from protos/ by `make gen`; never edited."""
