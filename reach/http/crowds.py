"""How many connections each address has, so that one machine leaves some for others (GOV-5)."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from reach.errors import Reason, ResourceExhausted
from reach.http.problems import problem

_RETRY_AFTER_MS: Final = 1_000
_SITE_BITS: Final = 64
"""Of an IPv6 address: what lies within is one machine's, or one household's."""
_HOPELESS: Final = 2
"""Whoever holds so many times what he may is not answered any more: answers take memory, too."""


class Crowds:
    """Counts connections by where they come from. Only addresses with a connection are held, so it is no larger than
    the connections are many.

    Args:
        limit: Connections that one address may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self._held: dict[str, int] = {}

    def enter(self, host: str) -> str:
        """A connection from a host is there. Returns for whom it counts, which is to be given to `leave`; empty:
        for nobody, as it comes from this machine, where proxies are."""
        whence = _whence(host)
        if whence:
            self._held[whence] = self._held.get(whence, 0) + 1
        return whence

    def leave(self, whence: str) -> None:
        """It is gone."""
        if not whence:
            return
        if left := self._held[whence] - 1:
            self._held[whence] = left
        else:
            del self._held[whence]

    def is_full(self, whence: str) -> bool:
        """Whether an address has more connections than it may."""
        return self._held.get(whence, 0) > self.limit

    def is_hopeless(self, whence: str) -> bool:
        """Whether it has so many that nothing is to be said to it."""
        return self._held.get(whence, 0) > _HOPELESS * self.limit

    async def refuse(self, scope: Any, receive: Any, send: Any) -> None:
        """The application that connections above the limit meet."""
        error = ResourceExhausted(
            f"your address has {self.limit} connections already",
            Reason.TOO_MANY_STREAMS,
            retry_after_ms=_RETRY_AFTER_MS,
            limit=str(self.limit),
        )
        await problem(error, headers={"connection": "close"})(scope, receive, send)


def _whence(host: str) -> str:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return "" if found.is_loopback else str(ipaddress.ip_network((int(found), _SITE_BITS), strict=False))
        found = found.ipv4_mapped
    return "" if found.is_loopback else str(found)
