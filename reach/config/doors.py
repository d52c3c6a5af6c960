"""The sections about gRPC, HTTP and A2A."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from reach.config.fields import Section

Origin = Annotated[str, Meta(pattern=r"^(?:\*|https?://[^\s/?#@*]+)\Z", max_length=300)]


class Http(Section, frozen=True):
    """The JSON door, on `server.admin_port`."""

    cors_origins: Annotated[list[Origin], Meta(max_length=100)] = field(default_factory=list)
    """Sites whose pages may call this server from a browser, such as `https://console.example`; `*` is every site, and
    needs `server.auth: keys`. Pages that this server itself serves need not be named."""
    max_connections: Annotated[int, Meta(ge=16, le=100_000)] = 1_000
    """Connections at the same time; each stream of events holds one. Too small: callers and health checks are refused
    (503). Too large: memory and open files, about 30 KiB and one each."""

    max_connections_per_address: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Of them, how many may come from one address (IPv6: one /64); 0: half. Those of this machine itself (loopback)
    have no limit of their own. Too small: callers behind one proxy or NAT are refused (429, TOO_MANY_STREAMS). Too
    large: one machine leaves no connections for others."""


class Grpc(Section, frozen=True):
    """The gRPC door, on `server.port`."""

    max_connections: Annotated[int, Meta(ge=16, le=1_000_000)] = 20_000
    """Connections at the same time; more are closed as they come. Each agent and each caller has one, each other node
    of a cluster one or two. Too small: they are UNAVAILABLE. Too large: memory and open
    files, one each."""


class A2a(Section, frozen=True):
    """Every pool as an A2A agent, over HTTP and gRPC. It needs the extra `agentreach[a2a]`, and costs nothing until the
    first call of A2A comes."""

    enabled: bool = True
    """Whether A2A is served, where the extra is installed."""
    public_url: Annotated[str, Meta(pattern=r"^(?:https?://[^\s/?#@]+(?:/[^\s?#]*[^\s?#/])?)?\Z", max_length=300)] = ""
    """Where others reach the HTTP port, such as `https://agents.example`: cards say so, and never what a request calls
    this server. Empty: `server.host` if that is loopback, else the host of `server.advertise` or of this machine, with
    `server.admin_port`. Set it where anything stands between callers and this server."""
    public_grpc: Annotated[
        str, Meta(pattern=r"^(?:(?:\[[0-9a-fA-F:.]+\]|[^\s:/@]+):[0-9]{1,5})?\Z", max_length=300)
    ] = ""
    """`host:port` where others reach gRPC, for cards to say. Empty: only extended cards name it, found as `public_url`
    is, with `server.port`; there are callers who take no card that names another origin than its own (Google ADK)."""
    name: Annotated[str, Meta(min_length=1, max_length=200)] = "Agent-Reach"
    """What the card of the whole fleet is called."""
    description: Annotated[str, Meta(min_length=1, max_length=4_000)] = (
        "A fleet of agents: say what you need, and it goes to one that can do it."
    )
    """What it says of the fleet."""
