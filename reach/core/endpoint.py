"""Where an agent that is dialled serves."""

from __future__ import annotations

from typing import NamedTuple


class Endpoint(NamedTuple):
    """Where an agent that is dialled serves. Opaque to the core, but for whether there is one."""

    url: str
    auth_reference: str = ""
    rejoins: bool = False
    """Execute of an attempt that runs there, or has ended there, joins it (feature `rejoin`)."""
    asks_effects: bool = False
    """It asks before it begins an irreversible effect (feature `effects`); else sending is the grant (DLV-7)."""
    keeps_alive: bool = False
    """Its server allows pings each 10 s (feature `keepalive`); one with gRPC's defaults would cut us off for them."""
    cancels: bool = False
    """It takes DELETE of an attempt over HTTP (feature `cancel`)."""
    health_path: str = ""
    """Where its health is asked over HTTP; empty: where all have it."""
    gives_html: bool = False
    """Pages are what it answers with, so that one is not taken for an error page."""
    hands_over: bool = False
    """It says what it knows of a session that is about to move (feature `handoff`)."""
    card: bytes = b""
    """What the card of an A2A agent says of calls (`AdoptedCard` of the contract)."""
