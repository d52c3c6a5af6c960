"""What the A2A door is told by the configuration."""

from __future__ import annotations

from typing import NamedTuple


class A2aSettings(NamedTuple):
    """See the module."""

    url: str
    """Where others reach our HTTP: `https://host`, without a slash at the end."""
    grpc: str
    """Where they reach our gRPC: `host:port`."""
    shows_grpc: bool
    """Whether cards say so, and not the extended ones alone: some callers (Google ADK 2.13) take no card at all that
    names more than the host and port that it came from."""
    name: str
    """Of the fleet, on its card."""
    description: str
    """The same."""
    keys: bool
    """Whether callers need credentials."""
