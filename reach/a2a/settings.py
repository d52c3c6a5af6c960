"""What the A2A door is told by the configuration."""

from __future__ import annotations

from typing import NamedTuple


class A2aSettings(NamedTuple):
    """See the module."""

    url: str
    """Where others reach our HTTP: `https://host`, without a slash at the end."""
    grpc: str
    """Where they reach our gRPC: `host:port`; empty: cards do not name it."""
    name: str
    """Of the fleet, on its card."""
    description: str
    """The same."""
    keys: bool
    """Whether callers need credentials."""
