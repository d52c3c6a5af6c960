"""Several nodes in this process, with a journal in memory each, whose owners are what a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from reach.config import load
from reach.core.model import PoolKey
from reach.core.placement import SHARDS, shard_of
from reach.membership import peer_tls
from reach.node import Node
from reach.rpc.joining import join
from reach.runtime.moving import leave
from reach.runtime.ownership import Peer, Static
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, unique

SECRET = b"a secret of at least sixteen bytes"


class Member(Node):
    """One node of a cluster whose owners a test moves."""

    def __init__(self, name: str, folder: Path, nodes: dict[str, Peer], secret: bytes, **settings: Any) -> None:
        fields: dict[str, Any] = {
            "server.port": 0,
            "server.admin_port": 0,
            "server.drain_seconds": 1,
            "server.node_id": name,
            "storage.type": "memory",
            "storage.path": str(folder),
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        super().__init__(load(None, {"HOME": str(folder)}, fields))
        self.name = name
        self.owners = Static(name, nodes)
        self.secret = secret
        self.stubs: Any = None
        self.owners.watch(self._gives_up)

    def _gives_up(self, shard: int) -> None:
        """As `Claims` does, when it is another node's: whoever waits here is told to ask again."""
        if self.owners.node_of(shard) is not None:
            leave(self.host, [shard])

    def _join(self, services: Any, interceptor: Any) -> None:
        peers = self.peers = join(services, interceptor, self.owners, self.secret, peer_tls(self.config))
        assert self.reach.abroad is not None
        self._stack.push_async_callback(self.reach.abroad.stop)
        self._stack.push_async_callback(peers.stop)

    def tasks(self) -> set[str]:
        """The tasks in its memory."""
        return {task_id for _, task_id in self.host.tasks}

    async def down(self) -> None:
        """Ends like a process that is killed, as far as others see it."""
        await self._grpc._server.stop(0)


class Cluster:
    """Its nodes, by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, Member] = {}
        self.addresses: dict[str, Peer] = {}
        self.used: set[int] = set()
        """Shards that tests have given to somebody."""

    def __getitem__(self, name: str) -> Member:
        return self.nodes[name]

    def give(self, agent_type: str, name: str, *, seen_by: tuple[str, ...] = (), tenant: str = "default") -> None:
        """The pool of a type has this owner, as all nodes see it, or only some."""
        shard = shard_of(PoolKey(tenant, agent_type))
        for node in self.nodes.values():
            if not seen_by or node.name in seen_by:
                node.owners.give(shard, name)

    def stubs(self, name: str) -> Stubs:
        made: Stubs = self.nodes[name].stubs
        return made

    def share(self) -> None:
        """What one directory learns, all learn: stands for the registry of a cluster."""
        directories = [node.host.directory for node in self.nodes.values()]
        for own in directories:
            _shared(own, [one for one in directories if one is not own])


def _shared(own: Any, others: list[Any]) -> None:
    cls = type(own)

    class Shared(cls):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def add(self, pool: Any, instance_id: str, profile: Any) -> Any:
            for other in others:
                cls.add(other, pool, instance_id, profile)
            return cls.add(self, pool, instance_id, profile)

        def remove(self, pool: Any, instance_id: str) -> None:
            for other in others:
                cls.remove(other, pool, instance_id)
            cls.remove(self, pool, instance_id)

    own.__class__ = Shared


@asynccontextmanager
async def cluster(folder: Path, *names: str, secrets: dict[str, bytes] | None = None) -> AsyncIterator[Cluster]:
    """Nodes that know each other. All shards are the first one's."""
    made = Cluster()
    async with AsyncExitStack() as stack:
        for name in names:
            node = Member(name, folder, made.addresses, (secrets or {}).get(name, SECRET))
            await node.start()
            stack.push_async_callback(node.stop)
            made.nodes[name] = node
            made.addresses[name] = Peer(name, f"127.0.0.1:{node.port}")
            node.stubs = await stack.enter_async_context(Stubs(node.port))
        for node in made.nodes.values():
            for shard in range(SHARDS):
                node.owners.give(shard, names[0])
        made.share()
        yield made


def owned(nodes: Cluster, name: str) -> str:
    """A type of agents whose pool a node owns."""
    while shard_of(PoolKey("default", agent_type := unique("type"))) in nodes.used:
        pass  # two types of one shard have one owner
    nodes.used.add(shard_of(PoolKey("default", agent_type)))
    assert len(nodes.used) < SHARDS
    nodes.give(agent_type, name)
    return agent_type


async def agent_of(nodes: Cluster, agent_type: str, at: str) -> AgentByHand:
    agent = AgentByHand(nodes.stubs(at))
    await agent.join(unique("agent"), agent_type=agent_type, max_concurrency=10)
    return agent


def spec(agent_type: str, **fields: Any) -> dict[str, Any]:
    task_id = fields.pop("task_id", None) or unique("task")
    return {"task_id": task_id, "selector": {"agent_type": agent_type}, "payload": {"text": "ping"}, **fields}


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that no stream tells of."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def serve(agent: AgentByHand, count: int = 1, text: str = "pong") -> None:
    for _ in range(count):
        await agent.serve(await agent.next("offers"), text)
