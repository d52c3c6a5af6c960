"""Streams between processes: ordered, late, and fragile."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from reach.testing.sim.loop import Process, VirtualLoop

Frame = list[Any]

LINGERS = 0.3
"""Share of broken streams of which the server hears late."""
LINGER_SECONDS = 3.3
"""How late: longer than any frame takes."""


class Network:
    """How long frames take, and how streams come to fail."""

    def __init__(self, loop: VirtualLoop, random: Random, slow: float) -> None:
        self.loop = loop
        self.random = random
        self.slow = slow
        """Share of frames that take long."""

    def delay(self) -> float:
        """How long the next frame takes, in seconds."""
        chance = self.random.random()
        if chance < self.slow:
            return 0.2 + 3 * self.random.random()
        return 0.0005 + 0.02 * chance


class Pipe:
    """One direction of a stream. What is put while a frame is on its way travels along: order is never changed."""

    __slots__ = ("_hear", "_items", "_network", "_to", "cut", "deaf", "shut")

    def __init__(self, network: Network, to: Process, hear: Callable[[Frame], None]) -> None:
        self._network = network
        self._to = to
        self._hear = hear
        self._items: Frame = []
        self.cut = False
        self.deaf = False
        """What is put gets lost, and nobody knows."""
        self.shut = False
        """Nothing more is put; what is on its way arrives."""

    def put(self, item: Any) -> None:
        """Sends an item."""
        if self.cut or self.deaf or self.shut:
            return
        self._items.append(item)
        if len(self._items) == 1:
            self._network.loop.call_later(self._network.delay(), self._arrive)

    def _arrive(self) -> None:
        if not self.cut and not self.deaf:
            items, self._items = self._items, []
            self._to.call_soon(self._heard, items)

    def _heard(self, items: Frame) -> None:
        if not self.cut:
            self._hear(items)


class Stream:
    """One stream between a client and the server. Frames in flight are lost when it breaks."""

    def __init__(
        self,
        network: Network,
        client: Process,
        server: Process,
        client_end: ClientEnd,
        server_end: ServerEnd,
    ) -> None:
        self._network = network
        self._client = client
        self._server = server
        self._client_end = client_end
        self._server_end = server_end
        self.up = Pipe(network, server, server_end.heard)
        self.down = Pipe(network, client, client_end.heard)
        self.broken = False

    def break_now(self) -> None:
        """The connection is reset: both sides learn of it soon. Or the client gives it up: what it had said by then may
        have to be sent again by its machine, and arrive after what it says on its next stream."""
        if self._network.random.random() < LINGERS:
            self.up.shut = True
            self._end(0.05, 0.2, server_least=LINGER_SECONDS)
        else:
            self._end(0.05, 0.05)

    def break_half(self, up: bool) -> None:
        """One direction is dead; both sides find out when nobody answers their pings, each in its time."""
        (self.up if up else self.down).deaf = True
        self._end(4.0, 4.0, least=4.0, server_least=4.0, half=True)

    def _end(
        self, client: float, server: float, *, least: float = 0.0, server_least: float = 0.0, half: bool = False
    ) -> None:
        if self.broken and not half:
            return
        self.broken = True
        random = self._network.random
        if not half:
            self.down.cut = True
            self.up.cut = not self.up.shut
        loop = self._network.loop
        loop.call_later(least + client * random.random(), self._lost, self._client, self.down, self._client_end.lost)
        late = server_least + server * random.random()
        loop.call_later(late, self._lost, self._server, self.up, self._server_end.lost)

    def _lost(self, process: Process, pipe: Pipe, lost: Callable[[], None]) -> None:
        def tell() -> None:
            pipe.cut = True
            lost()

        process.call_soon(tell)


class ClientEnd(Protocol):
    """What speaks to the server over a stream."""

    def heard(self, items: Frame) -> None:
        """A frame came."""

    def lost(self) -> None:
        """The stream is over."""


class ServerEnd(Protocol):
    """What the server has of a stream."""

    def heard(self, items: Frame) -> None:
        """A frame came."""

    def lost(self) -> None:
        """The stream is over."""
