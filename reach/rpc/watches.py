"""One stream made of those of all nodes: watches of tasks and of agents (REG-9, CLU-1).

Each node tells of what it owns. A node that cannot be heard is named in the answer (`lost_nodes`): what happens there
is missing meanwhile. Nodes that come are watched as soon as they are known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple, Protocol

from reach.core.placement import SHARDS
from reach.errors import ReachError
from reach.rpc.peer_messages import Unreachable
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import NOBODY, Owners, Peer

log = logging.getLogger(__name__)

HELD: Final = 64
"""Messages that wait for a watcher that does not read; then the nodes hold theirs, and count what is missed."""
LOOK_SECONDS: Final = 0.5
"""How often we look which nodes there are, and try those anew that were lost."""
FIRST_SECONDS: Final = 3.0
"""How long the first answer waits for all nodes. Who has not answered by then is lost."""
HERE: Final = ""
"""This node, among the names of nodes."""


class StartAnew(Exception):
    """What was told before is void: all is to be told from the beginning."""


class Lost(NamedTuple):
    """A node cannot be heard."""

    gone: bool
    """It is no member any more, and what it owned has other owners."""


class Merge(Protocol):
    """Makes one stream of several."""

    def request(self, node: str) -> Any:
        """What is asked of a node."""

    def take(self, node: str, came: bytes | Lost | None) -> list[Any]:
        """A message came, a node was lost, or (None) it is time to go on without those that have said nothing: what the
        watcher is told. Raises StartAnew."""


Ask = Callable[[Any, Elsewhere], AsyncGenerator[bytes, None]]
"""Makes the call at another node."""


class FanIn:
    """See the module.

    Args:
        owners: Which nodes there are.
        here: Makes the call at this node.
        there: Makes it at another one.
        merge: What becomes of the answers.
    """

    def __init__(self, owners: Owners, here: Callable[[Any], AsyncIterator[Any]], there: Ask, merge: Merge) -> None:
        self._owners = owners
        self._here = here
        self._there = there
        self._merge = merge
        self._came: asyncio.Queue[tuple[str, bytes | Lost | BaseException | None]] = asyncio.Queue(HELD)
        self._streams: dict[Peer, asyncio.Task[None]] = {}
        self._lost: set[str] = set()

    async def messages(self) -> AsyncGenerator[Any, None]:
        """What the watcher is told. Raises what this node's part ends with."""
        own = asyncio.create_task(self._listen_here(), name="watch-here")
        self._look()
        look = asyncio.create_task(self._keep_looking(), name="watch-nodes")
        try:
            while True:
                node, came = await self._came.get()
                if isinstance(came, BaseException):
                    raise came
                for answer in self._merge.take(node, came):
                    yield answer
        finally:
            tasks = [own, look, *self._streams.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_looking(self) -> None:
        await asyncio.sleep(FIRST_SECONDS)
        await self._came.put((HERE, None))
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look()
            names = {peer.node_id for peer in self._owners.others()}
            if self._lost - names and self._is_whole():
                for name in self._lost - names:
                    self._lost.discard(name)
                    await self._came.put((name, Lost(True)))

    def _is_whole(self) -> bool:
        return all(self._owners.node_of(shard) != NOBODY for shard in range(SHARDS))

    def _look(self) -> None:
        for peer in [peer for peer, task in self._streams.items() if task.done()]:
            del self._streams[peer]
        for peer in self._owners.others():
            if peer not in self._streams:
                self._streams[peer] = asyncio.create_task(self._listen(peer), name="watch-there")

    async def _listen_here(self) -> None:
        try:
            async for answer in self._here(self._merge.request(HERE)):
                await self._came.put((HERE, answer.SerializeToString()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the watch ends with it
            await self._came.put((HERE, error))

    async def _listen(self, peer: Peer) -> None:
        name = peer.node_id
        try:
            async with aclosing(self._there(self._merge.request(name), Elsewhere(peer))) as answers:
                async for answer in answers:
                    self._lost.discard(name)
                    await self._came.put((name, answer))
        except (Unreachable, Elsewhere, ReachError) as error:
            log.info("a node cannot be watched", extra={"node": name, "why": str(error)})
        if name not in self._lost:
            self._lost.add(name)
            await self._came.put((name, Lost(False)))
