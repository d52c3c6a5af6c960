"""The HTTP routes."""

from reach.wire import grpc_start as _grpc_start  # noqa: F401 - before anything loads grpc
