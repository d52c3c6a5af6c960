"""The section about HTTP."""

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
