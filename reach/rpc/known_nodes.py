"""Where the other nodes are, for those who are attached to this one: they go on there when it is gone (CLU-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from agentreach.v1 import dispatch_pb2

MOST: Final = 64
"""Addresses that a client is told."""


class KnownNodes:
    """See the module."""

    def __init__(self) -> None:
        self._message = dispatch_pb2.KnownNodes()
        self._says: dict[Callable[..., None], None] = {}
        """How each stream is told; one entry for each that is open."""

    def follow(self, say: Callable[..., None]) -> None:
        """A stream has opened: it is told now, and whenever something changes, until `leave`."""
        self._says[say] = None
        if self._message.addresses:
            say(nodes=self._message)

    def leave(self, say: Callable[..., None]) -> None:
        """A stream has ended."""
        self._says.pop(say, None)

    def hear(self, addresses: Iterable[str]) -> None:
        """These are the other nodes now. Costs little if they were so before."""
        message = dispatch_pb2.KnownNodes(addresses=sorted(addresses)[:MOST])
        if message != self._message:
            self._message = message
            for say in list(self._says):
                say(nodes=message)
