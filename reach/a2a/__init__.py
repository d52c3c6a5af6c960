"""The A2A door: every pool is an A2A agent, over gRPC, JSON-RPC and REST, with its cards (API-3).

It converts and calls what all doors call (`rpc/inner_calls.py`). `door.py` and `settings.py` are there from the start;
all else needs a2a-sdk, and is loaded with the first call of A2A that comes (`loaded.py`).
"""
