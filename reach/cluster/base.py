"""What the nodes of a cluster share, whoever keeps it: memory (`single.py`) or etcd (`etcd.py`).

    async with cluster:                       # or start() / stop()
        await cluster.membership.join(info)   # one lease per node; lost and won again by itself
        cluster.membership.nodes()            # who is there, from the cache
        cluster.registry.agents()             # static records of all agents, whole, from the cache
        cluster.election.term                 # not None while this node leads
        cluster.placement.wish()              # which node should own which shard, says the leader

Rules of every implementation:

* **Reads are from a cached whole** and never wait; a cache follows the changes and is compared with the truth every
  minute. After a failure of the service the last known state stays readable: without it nothing moves and all goes on.
* **Listeners** are plain functions, called on the loop after the cache changed. They must not raise and must not wait.
* **Writes** either are done when they return, or raise: `ClusterUnavailable` says whether the write may still have
  happened. Each can be repeated.
* **Nothing here is the truth of ownership.** That is `shard.epoch` of the journal. A wrong conviction or a late wish
  costs a move, never data.
* No heartbeat, score or count is ever written here: revisions stand still while nothing joins, leaves or registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Protocol, Self

Unsubscribe = Callable[[], None]


class ClusterError(Exception):
    """Base of what is raised here."""


class ClusterUnavailable(ClusterError):
    """The service could not be asked, or did not answer in time."""

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown
        """The request was sent and not answered: it may have been done. False: it surely was not."""


class ClusterRefused(ClusterError):
    """The service answered that this must not be: credentials, no space, a request too large.

    Repeating does not help.
    """


class NotLeading(ClusterError):
    """A write of the leader came from a node that is not, or no longer, the leader. Nothing was changed."""


class DocumentChanged(ClusterError):
    """The document is not at the revision that the writer had read. Nothing was changed."""


class NodeInfo(NamedTuple):
    """What the others must know of a node."""

    node_id: str
    boot: str
    """Random per process."""
    peer_address: str
    """Where other nodes reach this one: host:port."""
    weight: int = 1
    """Share of the shards in proportion to the others'; 0: a door that owns none (also how a node is drained)."""
    version: str = ""
    store_reachable: bool = True
    """False once the node has not reached the journal for 3 s: the leader moves its shards while others have it."""
    advertise: str = ""
    """Address for agents and callers that follow redirects; empty: never redirect here."""
    hands_over: bool = False
    """It says in the journal that it has given a shard up. Earlier versions do not: nobody waits for that."""


class Standing(Enum):
    """How this node stands in the membership."""

    OUT = "out"
    """Not joined, or left."""
    MEMBER = "member"
    """The lease is surely held, by the own clock."""
    LOST = "lost"
    """The lease may have lapsed: others may take this node for dead. It joins again by itself."""
    REPLACED = "replaced"
    """Another process has joined under the same node id. This one stays out."""


class Membership(Protocol):
    """Who is there. One lease per node: it lapses a TTL after the node stopped renewing it."""

    @property
    def standing(self) -> Standing:
        """As of now, by the own clock: MEMBER only until (time the last renewal was sent) + TTL."""
        ...

    @property
    def ttl_ms(self) -> int:
        """How long a lease holds; 0: for ever."""
        ...

    @property
    def lease_age_ms(self) -> int | None:
        """How long ago the last renewal was sent that was granted; None: there is no lease."""
        ...

    async def join(self, info: NodeInfo) -> None:
        """Joins, or takes the place of an earlier process with this node id. From now on the lease is renewed."""
        ...

    async def update(self, info: NodeInfo) -> None:
        """Changes what the others know (weight, store_reachable); node_id and boot stay.

        Kept for the next join when LOST.
        """
        ...

    async def leave(self) -> None:
        """Goes at once, with the candidacy. Never raises: the lease lapses if nothing else works."""
        ...

    async def convict(self, node_id: str, boot: str) -> bool:
        """Says that this process is surely dead (its address refuses connections).

        False: it is not there, or is another boot already.
        """
        ...

    def nodes(self) -> Mapping[str, NodeInfo]:
        """All that are there, by node id."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener when nodes() or standing has changed."""
        ...


class AgentKey(NamedTuple):
    """Names a registered instance."""

    tenant: str
    """The owning tenant."""
    instance_id: str


class AgentChange(NamedTuple):
    """One change of the registry."""

    key: AgentKey
    data: bytes | None
    """None: deregistered."""


class Document(NamedTuple):
    """A text that all nodes share: routes, policies, vocabulary."""

    data: bytes
    revision: int
    """Grows with each change."""


class Registry(Protocol):
    """The static records of all agents, published by the owner of their pool, and shared documents.

    Survives all nodes.
    """

    async def publish(self, changes: Sequence[AgentChange]) -> None:
        """Writes what differs; what is there already costs no revision. Not all or nothing: repeat after an error."""
        ...

    def agents(self) -> Mapping[AgentKey, bytes]:
        """All of them: a live view, to be copied if kept."""
        ...

    async def put_document(self, name: str, data: bytes, expected: int | None = None) -> None:
        """Replaces a document.

        With expected: only if it is at this revision (0: only if it is not there), else DocumentChanged.
        """
        ...

    def documents(self) -> Mapping[str, Document]:
        """All of them, by name."""
        ...

    def subscribe(self, listener: Callable[[Sequence[AgentChange]], None]) -> Unsubscribe:
        """Calls the listener with what has changed of the agents, each once, latest state."""
        ...

    def subscribe_documents(self, listener: Callable[[str], None]) -> Unsubscribe:
        """Calls the listener with the name of a document that has changed."""
        ...


class Election(Protocol):
    """At most one node leads; the leader's writes carry its term and are refused after another's has begun."""

    @property
    def term(self) -> int | None:
        """Number of this node's term while it leads, else None. Grows from leader to leader."""
        ...

    @property
    def leader(self) -> str | None:
        """Node id of the leader as far as known here."""
        ...

    async def campaign(self) -> None:
        """Becomes a candidate, until resign() or leave(); again by itself after the lease was lost.

        Needs to have joined.
        """
        ...

    async def resign(self) -> None:
        """Withdraws; the next candidate leads within milliseconds. Never raises."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener when term or leader has changed."""
        ...


class Wish(NamedTuple):
    """The leader's wish: which node should own which shard."""

    nodes: tuple[str, ...] = ()
    """Node id by shard; "" for a shard that nobody can own. Empty: no leader has placed anything yet."""
    term: int = 0
    """Of the leader who said so."""
    revision: int = 0
    """Grows with each wish."""

    def shards_of(self, node_id: str) -> list[int]:
        """The shards that this node should own."""
        return [shard for shard, node in enumerate(self.nodes) if node == node_id]


class Placement(Protocol):
    """The wish, one key. Who owns what in truth says the journal."""

    def wish(self) -> Wish:
        """The last one known here."""
        ...

    async def publish(self, nodes: Sequence[str], term: int) -> None:
        """Replaces the wish; NotLeading unless term is the current leader's own."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener when the wish has changed."""
        ...


class Cluster(Protocol):
    """All of it, as one node sees it."""

    @property
    def membership(self) -> Membership: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def election(self) -> Election: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def behind_ms(self) -> int:
        """Since when the caches have not surely followed the service; 0 while they do. For readiness and metrics."""
        ...

    async def start(self) -> None:
        """Returns when the caches are filled; ClusterUnavailable if they cannot be within the configured time."""
        ...

    async def stop(self) -> None:
        """Leaves if joined, and ends all that runs here. Never raises."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
