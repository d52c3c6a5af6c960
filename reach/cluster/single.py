"""A cluster in memory: of one node (embedded), or of several that share one `Memory` (tests, simulations).

`Memory` is the modelled service: it holds what etcd would hold and forgets a node when told that its lease lapsed
(`expire`). There is no clock in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Self

from reach.cluster.base import (
    AgentChange,
    AgentKey,
    ClusterError,
    Document,
    DocumentChanged,
    NodeInfo,
    NotLeading,
    Standing,
    Unsubscribe,
    Wish,
)
from reach.cluster.listeners import Listeners


@dataclass(slots=True)
class Memory:
    """What all nodes of the modelled cluster share."""

    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    agents: dict[AgentKey, bytes] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    candidates: dict[tuple[str, str], int] = field(default_factory=dict)
    """Revision at which (node id, boot) became a candidate: the lowest leads."""
    wish: Wish = field(default_factory=Wish)
    revision: int = 0
    nodes_changed: Listeners[[]] = field(default_factory=Listeners)
    agents_changed: Listeners[[Sequence[AgentChange]]] = field(default_factory=Listeners)
    document_changed: Listeners[[str]] = field(default_factory=Listeners)
    leader_changed: Listeners[[]] = field(default_factory=Listeners)
    wish_changed: Listeners[[]] = field(default_factory=Listeners)

    def next_revision(self) -> int:
        """Counts a change."""
        self.revision += 1
        return self.revision

    def leading(self) -> tuple[str, str] | None:
        """(node id, boot) of the leader."""
        return min(self.candidates, key=self.candidates.__getitem__, default=None)

    def expire(self, node_id: str, boot: str) -> bool:
        """The lease of this process is gone, and with it all that hung on it. False if it held none."""
        info = self.nodes.get(node_id)
        if info is None or info.boot != boot:
            return False
        del self.nodes[node_id]
        self.next_revision()
        was_candidate = self.candidates.pop((node_id, boot), None) is not None
        self.nodes_changed.tell()
        if was_candidate:
            self.leader_changed.tell()
        return True


class SingleMembership:
    """Membership; see base.py. LOST lasts until `join` or `update`, because nothing runs in the background here."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._info: NodeInfo | None = None

    @property
    def info(self) -> NodeInfo | None:
        """What was joined with; None before and after."""
        return self._info

    @property
    def standing(self) -> Standing:
        """As of now."""
        if self._info is None:
            return Standing.OUT
        there = self._memory.nodes.get(self._info.node_id)
        if there is None:
            return Standing.LOST
        return Standing.MEMBER if there.boot == self._info.boot else Standing.REPLACED

    @property
    def ttl_ms(self) -> int:
        """Memory never forgets by itself."""
        return 0

    @property
    def lease_age_ms(self) -> int | None:
        """It is always new."""
        return 0 if self.standing is Standing.MEMBER else None

    async def join(self, info: NodeInfo) -> None:
        """Takes the place of an earlier process, too."""
        there = self._memory.nodes.get(info.node_id)
        if there is not None and there.boot != info.boot:
            self._memory.expire(info.node_id, there.boot)
        self._info = info
        self._put(info)

    async def update(self, info: NodeInfo) -> None:
        """Changes what the others know."""
        if self._info is None or (info.node_id, info.boot) != (self._info.node_id, self._info.boot):
            raise ClusterError("update() is for the process that joined: node_id and boot stay")
        if self.standing is Standing.REPLACED:
            return
        self._info = info
        self._put(info)

    def _put(self, info: NodeInfo) -> None:
        if self._memory.nodes.get(info.node_id) != info:
            self._memory.next_revision()
            self._memory.nodes[info.node_id] = info
            self._memory.nodes_changed.tell()

    async def leave(self) -> None:
        """Goes at once."""
        if self._info is not None:
            info, self._info = self._info, None
            self._memory.expire(info.node_id, info.boot)

    async def convict(self, node_id: str, boot: str) -> bool:
        """Ends the lease of a process that is surely dead."""
        return self._memory.expire(node_id, boot)

    def nodes(self) -> Mapping[str, NodeInfo]:
        """All that are there."""
        return MappingProxyType(self._memory.nodes)

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener after changes."""
        return self._memory.nodes_changed.add(listener)


class SingleRegistry:
    """Registry; see base.py."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def publish(self, changes: Sequence[AgentChange]) -> None:
        """Writes what differs."""
        agents = self._memory.agents
        latest = {change.key: change.data for change in changes}
        real = [AgentChange(key, data) for key, data in latest.items() if agents.get(key) != data]
        for key, data in real:
            self._memory.next_revision()
            if data is None:
                del agents[key]
            else:
                agents[key] = data
        if real:
            self._memory.agents_changed.tell(real)

    def agents(self) -> Mapping[AgentKey, bytes]:
        """All of them."""
        return MappingProxyType(self._memory.agents)

    async def put_document(self, name: str, data: bytes, expected: int | None = None) -> None:
        """Replaces a document."""
        there = self._memory.documents.get(name)
        revision = there.revision if there is not None else 0
        if expected is not None and expected != revision:
            raise DocumentChanged(f"{name!r} is at revision {revision}, not {expected}")
        self._memory.documents[name] = Document(data, self._memory.next_revision())
        self._memory.document_changed.tell(name)

    def documents(self) -> Mapping[str, Document]:
        """All of them."""
        return MappingProxyType(self._memory.documents)

    def subscribe(self, listener: Callable[[Sequence[AgentChange]], None]) -> Unsubscribe:
        """Calls the listener with what has changed."""
        return self._memory.agents_changed.add(listener)

    def subscribe_documents(self, listener: Callable[[str], None]) -> Unsubscribe:
        """Calls the listener with the name."""
        return self._memory.document_changed.add(listener)


class SingleElection:
    """Election; see base.py."""

    def __init__(self, memory: Memory, membership: SingleMembership) -> None:
        self._memory = memory
        self._membership = membership

    def _me(self) -> tuple[str, str] | None:
        info = self._membership.info
        return None if info is None else (info.node_id, info.boot)

    @property
    def term(self) -> int | None:
        """While this node leads."""
        me = self._me()
        return self._memory.candidates[me] if me is not None and self._memory.leading() == me else None

    @property
    def leader(self) -> str | None:
        """Node id."""
        leading = self._memory.leading()
        return None if leading is None else leading[0]

    async def campaign(self) -> None:
        """Becomes a candidate."""
        me = self._me()
        if me is None or self._membership.standing is not Standing.MEMBER:
            raise ClusterError("a candidate must have joined")
        if me not in self._memory.candidates:
            self._memory.candidates[me] = self._memory.next_revision()
            self._memory.leader_changed.tell()

    async def resign(self) -> None:
        """Withdraws."""
        me = self._me()
        if me is not None and self._memory.candidates.pop(me, None) is not None:
            self._memory.next_revision()
            self._memory.leader_changed.tell()

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener after changes."""
        return self._memory.leader_changed.add(listener)


class SinglePlacement:
    """Placement; see base.py."""

    def __init__(self, memory: Memory, election: SingleElection) -> None:
        self._memory = memory
        self._election = election

    def wish(self) -> Wish:
        """The last one."""
        return self._memory.wish

    async def publish(self, nodes: Sequence[str], term: int) -> None:
        """Replaces the wish."""
        if self._election.term != term:
            raise NotLeading(f"term {term} is over")
        self._memory.wish = Wish(tuple(nodes), term, self._memory.next_revision())
        self._memory.wish_changed.tell()

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener after changes."""
        return self._memory.wish_changed.add(listener)


class SingleCluster:
    """A node's view of a Memory; without one given, its own: the cluster of one node."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = Memory() if memory is None else memory
        self.membership = SingleMembership(self.memory)
        self.registry = SingleRegistry(self.memory)
        self.election = SingleElection(self.memory, self.membership)
        self.placement = SinglePlacement(self.memory, self.election)

    @property
    def behind_ms(self) -> int:
        """Memory is never behind."""
        return 0

    async def start(self) -> None:
        """Nothing to wait for."""

    async def stop(self) -> None:
        """Leaves."""
        await self.membership.leave()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
