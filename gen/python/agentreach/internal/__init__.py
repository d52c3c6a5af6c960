"""agentreach.internal: generated from protos/ by `make gen`; never edited."""
