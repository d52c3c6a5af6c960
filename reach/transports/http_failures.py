"""What it means that a request to an agent got no answer: refused, unreachable, broken off, or no HTTP at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import httpcore

from reach.core.model import Fault
from reach.errors import ErrorClass, Reason
from reach.transports.guarded import said_of
from reach.transports.refusals import all_refuse
from reach.transports.seam import Failed
from reach.wire.agent_answers import unreadable

_CLOSED: Final = ("disconnected", "closed connection", "without sending")
"""In the words of h11 for a connection that ended too early; nothing else tells it from nonsense."""


async def end_of(failure: Exception, ips: Iterable[str], port: int) -> Failed:
    """What becomes of the attempt."""
    said = said_of(failure)
    if isinstance(failure, httpcore.PoolTimeout):
        text = "all connections to the agent are in use"
        return Failed(Fault(ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY, text), unbegun=True)
    if isinstance(failure, httpcore.ConnectError | httpcore.ConnectTimeout):
        if isinstance(failure, httpcore.ConnectError) and await all_refuse(ips, port):
            return Failed(None, lost="connection refused", unbegun=True)
        fault = Fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, f"the agent cannot be connected to: {said}")
        return Failed(fault, unbegun=True, doubtful=True)
    if isinstance(failure, httpcore.RemoteProtocolError) and not any(word in said for word in _CLOSED):
        return Failed(unreadable(f"is not HTTP: {said}", b""))
    fault = Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, f"the connection to the agent broke: {said}")
    return Failed(fault, doubtful=True)
