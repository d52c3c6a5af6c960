"""Hosts that own the shards they claimed in one journal in memory, and agents of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from reach.core.placement import SHARDS
from reach.runtime.claims import Claims
from reach.runtime.clock import Clock
from reach.store.memory_shared import MemoryNode, MemoryShared
from tests.runtime.hosts import TENANT, HeldReads, Shell

ALL = range(SHARDS)


class Leaping(Clock):
    """The real one, which the test may set ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Node(Shell):
    """A host that owns what it claimed."""

    def __init__(self, shared: MemoryShared) -> None:
        self.store = MemoryNode(shared)
        self.clock = Leaping()
        super().__init__(self.store, self.clock)  # type: ignore[arg-type]
        self.loads = HeldReads()
        self.claims = Claims(self.host, self.store, self.loads)
        self.claims.process = f"process {id(self)}"
        self._running: asyncio.Task[None] | None = None

    async def own(self, shards: Any) -> None:
        """Claims until it owns just these."""
        self.claims.wish(shards)
        if self._running is None:
            self._running = asyncio.create_task(self.claims.run())
        while not self.claims._settled.is_set():
            await self.settle(2)
            if self._running.done():
                self._running.result()

    async def confirm(self) -> None:
        """Lets it look after what it owns."""
        self.claims._stirred.set()
        await self.settle()

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self.clock.ahead_ms = 0
        self.claims._confirmed_ms = self.clock.now_ms()
        await super().stop()


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Node, Node]]:
    """The first one owns all shards."""
    shared = MemoryShared()
    both = Node(shared), Node(shared)
    await both[0].own(ALL)
    yield both
    for node in both:
        await node.stop()


class Link:
    """An agent that does one task, and says so when it is told to."""

    tenant = TENANT

    def __init__(self) -> None:
        self.instance: Any = None
        self.offers: list[tuple[Any, int]] = []
        self.acknowledged: list[int] = []
        self.reopened = 0
        self.unknown: list[Any] = []

    def welcome(self, effect: Any) -> None:
        self.instance = effect.instance
        self.unknown += effect.unknown

    def offer(self, task: Any, instance: Any, traceparent: str, context: bytes = b"") -> None:
        self.offers.append((task, task.attempt))

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        self.acknowledged.append(attempt)

    def reopen(self) -> None:
        self.reopened += 1

    def stop(self, *_: Any) -> None: ...

    def refuse(self, *_: Any) -> None:
        raise AssertionError("what an agent says of work that goes on elsewhere is not refused: it would stop it")
