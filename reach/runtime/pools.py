"""The pools of a node: found, made when they are first needed, dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from reach.core.context import Context, Exchange, Facts
from reach.core.directory import UNRESOLVED
from reach.core.handoff import Snapshots
from reach.core.joining import Joining
from reach.core.model import PoolKey, Task, TaskKey
from reach.core.placement import shard_of
from reach.core.policies import Policy
from reach.core.pool import Pool
from reach.core.queue import WaitQueue
from reach.core.resolving import Selector
from reach.core.routing import Router
from reach.core.row_numbers import RowNumbers
from reach.core.session import Pins
from reach.core.wake import Waker
from reach.runtime.clock import Clock
from reach.runtime.settings import Settings
from reach.runtime.shard import Shard

NOWHERE = -1
"""In place of the shard of a pool that is forgotten."""
MAX_POOLS = 10_000
"""Pools of a node, before tasks for types that nobody has share one."""


class Codec(Protocol):
    """What the runtime needs to know of the contract: how a stored request becomes a task again."""

    def task_of(self, tenant: str, spec: bytes) -> Task:
        """The task of a request that was accepted once."""

    def restored(self, tenant: str, spec: bytes) -> tuple[Task, Selector]:
        """Both that and the next, for the price of one."""

    def selector_of(self, spec: bytes) -> Selector:
        """What the request named to choose a pool."""

    def mismatches(self, spec: bytes, schemas: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, str]]:
        """Which schemas (id, text) the parameters of a request do not fit: id -> (JSON Pointer, words)."""

    def names_cost(self, spec: bytes) -> bool:
        """Whether a request says how many slots it takes."""

    def bounded(self, spec: bytes, parent: bytes) -> bytes:
        """A request with its budget bounded by that of the request which asks for it. Raises InvalidRequest."""

    def budget_of(self, spec: bytes) -> bytes:
        """The budget of a request, as a request that has nothing else; empty if it has none."""

    def joining_of(self, registration: bytes, boot_id: str) -> Joining:
        """The registration as it was taken."""

    def same_content(self, one: bytes, other: bytes) -> bool:
        """Whether two requests ask for the same (DLV-3)."""

    def exchange_of(self, task: Task) -> tuple[Exchange, Facts]:
        """The turn of a task that ended, and the names and values that it brings."""

    def turn_bytes(self, task: Task) -> bytes:
        """The same for another node."""

    def turn_of(self, content: bytes) -> tuple[Exchange, Facts]:
        """What another node has made so."""

    def context_bytes(self, context: Context) -> bytes:
        """What is known of a conversation, as agents get it."""

    def offered_context(self, context: bytes, snapshot: bytes, number: int) -> bytes:
        """What an offer says of a conversation, in the form of the links."""


class Pools:
    """See the module."""

    def __init__(self, codec: Codec, clock: Clock, settings: Settings) -> None:
        self.codec = codec
        self.clock = clock
        self.settings = settings
        self.tasks: dict[TaskKey, Task] = {}
        """Every task that is in memory, from the moment it comes in; each says in which pool it is."""
        self.shards: dict[int, Shard] = {}
        self._pools: dict[PoolKey, Pool] = {}
        self._by_type: dict[str, dict[PoolKey, Pool]] = {}
        self.certainly: Callable[[Callable[[], object]], object] = lambda act: act()
        """Does something once it is known that this node still owns what it has now, or has forgotten what it does not.
        For what nobody could take back: what an overtaken owner knows is old, for as long as it does not know that."""
        self._rows = RowNumbers(1)
        self._snapshots = Snapshots()

    def pool(self, key: PoolKey) -> Pool:
        """The pool of a key, made when it is first needed."""
        pool = self._pools.get(key)
        if pool is None:
            pool = self.made(key)
            self.add(pool)
        return pool

    def add(self, pool: Pool) -> None:
        """A pool that was `made` is found from now on, and stepped. There is no other one of its key."""
        key, pool.tasks = pool.key, self.tasks
        self._pools[key] = pool
        self.shards.setdefault(pool.shard, Shard(pool.shard)).pools[key] = pool
        self._by_type.setdefault(key.agent_type, {})[key] = pool

    def home(self, key: PoolKey) -> Pool:
        """The pool in which a new task is taken; if there are too many already, no other one for what nobody does."""
        pool = self._pools.get(key)
        if pool is None:
            pool = self.pool(PoolKey(key.tenant, UNRESOLVED) if len(self._pools) >= MAX_POOLS else key)
        return pool

    def drop(self, pool: Pool) -> None:
        """Forgets a pool that nobody needs (see `idle_pools`)."""
        del self.shards[pool.shard].pools[pool.key]
        self.forget(pool)

    def forget(self, pool: Pool) -> None:
        """Forgets a pool whose shard is gone already. Whoever still knows it finds that nobody takes its mail."""
        pool.handoffs.clear()
        pool.shard = NOWHERE
        del self._pools[pool.key]
        of_type = self._by_type[pool.key.agent_type]
        del of_type[pool.key]
        if not of_type:
            del self._by_type[pool.key.agent_type]

    def of_type(self, agent_type: str) -> list[Pool]:
        """All pools of one type, whoever owns them."""
        return list(self._by_type.get(agent_type, {}).values())

    def look_at(self, key: PoolKey) -> Pool:
        """The pool of a key, or an empty one that nobody keeps: for those who only ask."""
        return self._pools.get(key) or self.made(key)

    def _policy_of(self, key: PoolKey) -> Policy:
        settings = self.settings
        return settings.policies.get(settings.pool_policies.get(key.agent_type, ""), settings.policy)

    def redefine(self, policies: dict[str, Policy], policy: Policy, by_type: dict[str, str]) -> None:
        """Takes other routing policies, for all pools."""
        settings = self.settings
        settings.policies, settings.policy, settings.pool_policies = policies, policy, by_type
        for pool in self._pools.values():
            pool.router.redefine(policies, self._policy_of(pool.key))

    def made(self, key: PoolKey, tasks: dict[TaskKey, Task] | None = None) -> Pool:
        """An empty pool that nobody knows. `tasks`: where its tasks are until it is added."""
        settings, policy = self.settings, self._policy_of(key)
        queue = WaitQueue(settings.queue_limit, settings.queue_bytes, settings.weights)
        router = Router(policy, settings.overcommit, settings.policies)
        router.canary.share = settings.canary_share
        pins = Pins(settings.session_ttl_ms)
        seed, same = self.clock.seed(), self.codec.same_content
        pool = Pool(key, shard_of(key), self._rows, seed, same, queue, router, pins,
                    self.tasks if tasks is None else tasks)  # fmt: skip
        pool.handoffs.room = self._snapshots
        pool.heartbeat_ms = settings.heartbeat_ms
        pool.names_cost = self.codec.names_cost
        pool.dead_letters = settings.dead_letters
        pool.pin_wait_ms = settings.pin_wait_ms
        pool.backlog.alert = settings.backlog_alert
        pool.questions.limit_ms = settings.input_wait_ms
        pool.thresholds = settings.thresholds
        pool.waker = Waker(pool) if key in settings.wake else None
        return pool

    def pool_if_any(self, key: PoolKey) -> Pool | None:
        """The pool of a key, if it was ever needed."""
        return self._pools.get(key)

    def pools(self) -> list[Pool]:
        """All pools of this node."""
        return list(self._pools.values())

    def by_health(self) -> dict[str, int]:
        """How many instances there are, by the name of their health."""
        return dict(Counter(one.health.name for pool in self.pools() for one in pool.instances.values()))
