"""agentreach: generated from protos/ by `make gen`; never edited."""
