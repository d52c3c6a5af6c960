"""Several nodes in this process that share a journal in memory; who owns what a test wishes, and claims decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from reach.core.model import PoolKey
from reach.core.placement import SHARDS, shard_of, shard_of_session
from reach.core.session import SessionName
from reach.runtime.claims import Claims
from reach.runtime.loading import restore
from reach.runtime.ownership import NOBODY, Moved, Peer
from reach.store.base import Journal, KeyStore
from reach.store.memory_shared import MemoryNode, MemoryShared
from tests.rpc.nodes import SECRET, Cluster, Member, until
from tests.rpc.peers import Stubs


class ByClaim:
    """Owners as the journal has it for this node, and as the test says for the others."""

    def __init__(self, here: str, nodes: dict[str, Peer]) -> None:
        self._here = here
        self._nodes = nodes
        self.owned: frozenset[int] = frozenset()
        self.wished: dict[int, str] = {}
        self._watchers: list[Moved] = []
        self._said: list[Peer | None] = [NOBODY] * SHARDS

    def node_of(self, shard: int) -> Peer | None:
        return self._said[shard]

    def _now(self, shard: int) -> Peer | None:
        if shard in self.owned:
            return None
        name = self.wished.get(shard, "")
        return self._nodes.get(name, NOBODY) if name != self._here else NOBODY

    def look(self) -> None:
        said, self._said = self._said, [self._now(shard) for shard in range(SHARDS)]
        for shard in range(SHARDS):
            if said[shard] != self._said[shard]:
                for moved in self._watchers:
                    moved(shard)

    def others(self) -> Sequence[Peer]:
        return [peer for name, peer in self._nodes.items() if name != self._here]

    def hands_over(self, node_id: str) -> bool:
        return False

    def watch(self, moved: Moved) -> None:
        self._watchers.append(moved)


class SharedMember(Member):
    """A node of such a cluster."""

    def __init__(self, name: str, folder: Path, nodes: dict[str, Peer], shared: MemoryShared, **settings: Any) -> None:
        super().__init__(name, folder, nodes, SECRET, **settings)
        self.store = MemoryNode(shared)
        self.owners: Any = ByClaim(name, nodes)
        self._claiming: asyncio.Task[None] | None = None

    def _open_store(self) -> tuple[Journal, KeyStore | None]:
        self.store.open()
        return self.store, None

    async def _restore(self, journal: Journal) -> int:
        self.claims = Claims(self.host, self.store)
        self.claims.on_change = self._changed
        return restore(self.host, self.store.load_shards(()))

    def _changed(self) -> None:
        self.owners.owned = self.claims.owned
        self.owners.look()

    async def _take_part(self, address: str) -> None:
        self._claiming = asyncio.create_task(self.claims.run(), name="claims")

    async def kill(self) -> None:
        """Ends like a process that is killed: nothing more is written or said."""
        assert self._claiming is not None
        self._claiming.cancel()
        self.store.cut_off = True
        self.claims._confirmed_ms = -1_000_000
        await self.down()

    async def stop(self) -> None:
        if self._claiming is not None:
            self._claiming.cancel()
        self.store.cut_off = False
        self.claims._confirmed_ms = self.host.clock.now_ms()
        await super().stop()


class SharedCluster(Cluster):
    """Its nodes."""

    nodes: dict[str, Any]

    def wish(self, shards: dict[int, str]) -> None:
        """These shards are to have these owners."""
        for node in self.nodes.values():
            node.owners.wished.update(shards)
            node.owners.look()
        for name, node in self.nodes.items():
            node.claims.wish([shard for shard, owner in node.owners.wished.items() if owner == name])

    def __getitem__(self, name: str) -> SharedMember:
        found: SharedMember = self.nodes[name]
        return found

    async def move(self, shard: int, name: str) -> None:
        """A shard gets an owner; returns when it has it."""
        self.wish({shard: name})
        await until(lambda: shard in self.nodes[name].claims.owned)

    def give(self, agent_type: str, name: str, *, seen_by: tuple[str, ...] = (), tenant: str = "default") -> None:
        self.wish({shard_of(PoolKey(tenant, agent_type)): name})

    async def lose(self, name: str, heir: str) -> None:
        """A node is killed, and its shards go to another."""
        node = self.nodes.pop(name)
        del self.addresses[name]
        self.dead.append(node)
        await node.kill()
        wished = next(iter(self.nodes.values())).owners.wished
        lost = [shard for shard, owner in wished.items() if owner == name]
        self.wish(dict.fromkeys(lost, heir))
        await until(lambda: self.nodes[heir].claims.owned >= set(lost))

    def session_of(self, name: str, but: Sequence[int] = ()) -> SessionName:
        """A session that lives at a node, in a shard that no test has given to somebody."""
        for number in range(10_000):
            session = ("default", f"shop:u{number}:s")
            shard = shard_of_session(session)
            if shard not in self.used and shard not in but:
                self.used.add(shard)
                self.wish({shard: name})
                return session
        raise AssertionError("no shard is left")

    def __init__(self) -> None:
        super().__init__()
        self.dead: list[SharedMember] = []


@asynccontextmanager
async def shared_cluster(folder: Path, *names: str, **settings: Any) -> AsyncIterator[SharedCluster]:
    """Nodes that know each other and share a journal. All shards are the first one's."""
    made, shared = SharedCluster(), MemoryShared()
    async with AsyncExitStack() as stack:
        for name in names:
            node = SharedMember(name, folder, made.addresses, shared, **settings)
            await node.start()
            stack.push_async_callback(node.stop)
            made.nodes[name] = node
            made.addresses[name] = Peer(name, f"127.0.0.1:{node.port}")
            node.stubs = await stack.enter_async_context(Stubs(node.port))
        made.share()
        made.wish(dict.fromkeys(range(SHARDS), names[0]))
        await until(lambda: len(made.nodes[names[0]].claims.owned) == SHARDS)
        yield made


async def owned_by(nodes: SharedCluster, name: str, make: Callable[[Any, str], str]) -> str:
    """As `nodes.owned`, and the node has it."""
    agent_type = make(nodes, name)
    shard = shard_of(PoolKey("default", agent_type))
    await until(lambda: shard in nodes.nodes[name].claims.owned)
    return agent_type
