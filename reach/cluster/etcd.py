"""A cluster on etcd. Keys, all below /reach/NAME/:

    nodes/NODE_ID             NodeInfo as JSON, on the node's lease
    leader/LEASE              node id of a candidate, on its lease; the lowest create revision leads and is the term
    wish                      {"nodes": [node id by shard], "term": n}
    agents/TENANT/INSTANCE    static record of an agent; no lease
    documents/NAME            routes, policies, vocabulary; no lease

Written when nodes or agents come, change or go. Every write of the leader carries two conditions: its candidacy is
still there, and no candidacy is older. So a leader that was cut off or paused is refused, whatever it believes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar
from urllib.parse import quote_from_bytes, unquote

from reach.cluster.base import (
    AgentChange,
    AgentKey,
    ClusterError,
    ClusterUnavailable,
    Document,
    DocumentChanged,
    NotLeading,
    Standing,
    Unsubscribe,
    Wish,
)
from reach.cluster.etcd_api import Access, EtcdClient, LeaseGone, put, remove, unchanged, unless_equal
from reach.cluster.etcd_api.client import Step, created_at, none_created_before
from reach.cluster.etcd_member import TTL_S, EtcdMembership
from reach.cluster.etcd_mirror import RELIST_S, Mirror
from reach.cluster.listeners import Listeners

START_S = 10.0
BATCH, BATCH_BYTES = 64, 512 << 10
"""Of one transaction; etcd takes 128 steps and 1.5 MiB."""
REPEATS = 3
"""Of a write whose outcome is unknown, where doing it twice does no harm."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class EtcdRegistry:
    """Registry; see base.py."""

    def __init__(self, client: EtcdClient, mirror: Mirror, prefix: bytes) -> None:
        self._client = client
        self._mirror = mirror
        self._prefix = prefix
        self._agents: dict[AgentKey, bytes] = {}
        self._documents: dict[str, Document] = {}
        self._agents_changed: Listeners[[Sequence[AgentChange]]] = Listeners()
        self._document_changed: Listeners[[str]] = Listeners()
        mirror.subscribe(b"agents", self._take_agents)
        mirror.subscribe(b"documents", self._take_documents)

    async def publish(self, changes: Sequence[AgentChange]) -> None:
        """Writes what differs."""
        latest = {change.key: change.data for change in changes}
        for steps in _batches([self._step(key, data) for key, data in latest.items()]):
            await _repeated(partial(self._client.txn, steps))

    def _step(self, key: AgentKey, data: bytes | None) -> Step:
        name = self._prefix + _agent_key(key)
        return remove(name) if data is None else unless_equal(name, data)

    def agents(self) -> Mapping[AgentKey, bytes]:
        """All of them."""
        return MappingProxyType(self._agents)

    async def put_document(self, name: str, data: bytes, expected: int | None = None) -> None:
        """Replaces a document. With expected and an unknown outcome: read it, and see."""
        key = self._prefix + b"documents/" + _quoted(name)
        if expected is None:
            _, revision = await _repeated(lambda: self._client.txn([put(key, data)]))
        else:
            done, revision = await self._client.txn([put(key, data)], [unchanged(key, expected)])
            if not done:
                await self._mirror.reached(revision)
                raise DocumentChanged(f"{name!r} is not at revision {expected}")
        await self._mirror.reached(revision)

    def documents(self) -> Mapping[str, Document]:
        """All of them."""
        return MappingProxyType(self._documents)

    def subscribe(self, listener: Callable[[Sequence[AgentChange]], None]) -> Unsubscribe:
        """Calls the listener with what has changed."""
        return self._agents_changed.add(listener)

    def subscribe_documents(self, listener: Callable[[str], None]) -> Unsubscribe:
        """Calls the listener with the name."""
        return self._document_changed.add(listener)

    def _take_agents(self, keys: Sequence[bytes]) -> None:
        changes = []
        for name in keys:
            _, tenant, instance_id = name.split(b"/")
            key = AgentKey(unquote(tenant.decode()), unquote(instance_id.decode()))
            entry = self._mirror.get(name)
            changes.append(AgentChange(key, None if entry is None else entry.value))
            if entry is None:
                self._agents.pop(key, None)
            else:
                self._agents[key] = entry.value
        self._agents_changed.tell(changes)

    def _take_documents(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            name = unquote(key.removeprefix(b"documents/").decode())
            entry = self._mirror.get(key)
            if entry is None:
                self._documents.pop(name, None)
            else:
                self._documents[name] = Document(entry.value, entry.mod_revision)
            self._document_changed.tell(name)


class EtcdElection:
    """Election; see base.py. `run()` makes it a candidate again on each new lease."""

    def __init__(self, client: EtcdClient, mirror: Mirror, prefix: bytes, membership: EtcdMembership) -> None:
        self._client = client
        self._mirror = mirror
        self._prefix = prefix
        self._membership = membership
        self._wanted = False
        self._stirred = asyncio.Event()
        self._told: tuple[int | None, str | None] = (None, None)
        self._listeners: Listeners[[]] = Listeners()
        mirror.subscribe(b"leader", lambda _: self._tell())
        membership.subscribe(self._tell)
        membership.on_entered(self._stirred.set)

    @property
    def key(self) -> bytes:
        """Of this node's candidacy, on the lease of now."""
        return b"leader/%x" % self._membership.lease

    def _leading(self) -> tuple[int, bytes, str] | None:
        candidates = [(one.create_revision, key, one.value.decode()) for key, one in self._mirror.group(b"leader")]
        return min(candidates, default=None)

    @property
    def term(self) -> int | None:
        """While this node leads, and its lease is surely held."""
        if not self._wanted or self._membership.standing is not Standing.MEMBER:
            return None
        leading = self._leading()
        return leading[0] if leading is not None and leading[1] == self.key else None

    @property
    def leader(self) -> str | None:
        """Node id."""
        leading = self._leading()
        return None if leading is None else leading[2]

    async def campaign(self) -> None:
        """Becomes a candidate."""
        if self._membership.standing is not Standing.MEMBER:
            raise ClusterError("a candidate must have joined")
        self._wanted = True
        try:
            await self._put()
        except LeaseGone as error:  # once there is another lease, `run` sees to it
            raise ClusterUnavailable(f"the lease lapsed: {error}") from error

    async def _put(self) -> None:
        info, lease, key = self._membership.info, self._membership.lease, self._prefix + self.key
        if info is None or not lease:
            return
        step = put(key, info.node_id.encode(), lease)
        _, revision = await _repeated(lambda: self._client.txn([step], [created_at(key, 0)]))
        await self._mirror.reached(revision)

    async def resign(self) -> None:
        """Withdraws."""
        self._wanted = False
        if self._membership.lease:
            with contextlib.suppress(ClusterError):
                await _repeated(lambda: self._client.txn([remove(self._prefix + self.key)]))
        self._tell()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            if self._wanted and self._mirror.get(self.key) is None:
                try:
                    await self._put()
                except (ClusterError, LeaseGone) as error:
                    _log.warning("not a candidate yet: %s", error)
                    self._stirred.set()
                    await asyncio.sleep(0.1)

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener after changes."""
        return self._listeners.add(listener)

    def _tell(self) -> None:
        now = (self.term, self.leader)
        if now != self._told:
            self._told = now
            self._listeners.tell()


class EtcdPlacement:
    """Placement; see base.py."""

    def __init__(self, client: EtcdClient, mirror: Mirror, prefix: bytes, election: EtcdElection) -> None:
        self._client = client
        self._mirror = mirror
        self._prefix = prefix
        self._election = election
        self._wish = Wish()
        self._listeners: Listeners[[]] = Listeners()
        mirror.subscribe(b"wish", self._take)

    def wish(self) -> Wish:
        """The last one."""
        return self._wish

    async def publish(self, nodes: Sequence[str], term: int) -> None:
        """Replaces the wish."""
        leaders = self._prefix + b"leader/"
        conditions = [created_at(self._prefix + self._election.key, term), none_created_before(leaders, term)]
        step = put(self._prefix + b"wish", json.dumps({"nodes": list(nodes), "term": term}).encode())
        done, revision = await _repeated(lambda: self._client.txn([step], conditions))
        if not done:
            raise NotLeading(f"term {term} is over")
        await self._mirror.reached(revision)

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener after changes."""
        return self._listeners.add(listener)

    def _take(self, keys: Sequence[bytes]) -> None:
        entry = self._mirror.get(b"wish")
        if entry is None:
            self._wish = Wish()
        else:
            said = json.loads(entry.value)
            self._wish = Wish(tuple(said["nodes"]), said["term"], entry.mod_revision)
        self._listeners.tell()


class EtcdCluster:
    """A node's view of the cluster NAME on etcd, and the owner of all that runs for it."""

    def __init__(self, access: Access, name: str = "main", ttl_s: int = TTL_S, relist_s: float = RELIST_S) -> None:
        self.client = EtcdClient(access)
        prefix = b"/reach/" + _quoted(name) + b"/"
        self.mirror = Mirror(self.client, prefix, relist_s)
        self.membership = EtcdMembership(self.client, self.mirror, prefix, ttl_s)
        self.registry = EtcdRegistry(self.client, self.mirror, prefix)
        self.election = EtcdElection(self.client, self.mirror, prefix, self.membership)
        self.placement = EtcdPlacement(self.client, self.mirror, prefix, self.election)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def behind_ms(self) -> int:
        """Since when etcd has not been heard."""
        return self.mirror.behind_ms

    async def start(self) -> None:
        """Returns when the caches are filled."""
        loops = (self.mirror.run, self.membership.run, self.election.run)
        self._tasks = [asyncio.create_task(loop(), name=f"etcd {loop.__qualname__}") for loop in loops]
        try:
            async with asyncio.timeout(START_S):
                await self.mirror.filled.wait()
        except TimeoutError as error:
            await self.stop()
            raise ClusterUnavailable(f"etcd has not answered for {START_S:g} s") from error
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leaves, and ends all."""
        await self.membership.leave()
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.error("a loop of the cluster had failed", exc_info=outcome)
        self._tasks = []
        await self.client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _quoted(name: str) -> bytes:
    return quote_from_bytes(name.encode(), safe="").encode()


def _agent_key(key: AgentKey) -> bytes:
    return b"agents/" + _quoted(key.tenant) + b"/" + _quoted(key.instance_id)


def _batches(steps: Sequence[Step]) -> Iterator[list[Step]]:
    batch: list[Step] = []
    size = 0
    for step in steps:
        if batch and (len(batch) == BATCH or size + step.ByteSize() > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(step)
        size += step.ByteSize()
    if batch:
        yield batch


async def _repeated(write: Callable[[], Awaitable[T]]) -> T:
    """Does a write again whose outcome is unknown, where that does no harm."""
    for _ in range(REPEATS):
        try:
            return await write()
        except ClusterUnavailable as error:
            if not error.unknown:
                raise
    return await write()
