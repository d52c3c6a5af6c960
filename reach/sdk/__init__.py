"""The Python SDK: Agent and Client."""

import os

# gRPC's own fork handlers sometimes crash the child of a process that uses its asyncio API (seen in about one of seven
# forks under load). Without them the child is left alone, and our guard tells it clearly what to do (case A7). Whoever
# sets the variable, or imports grpc first, keeps what they chose.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from reach.wire import grpc_start as _grpc_start  # noqa: F401 - before anything loads grpc
