"""Level 1 with pools by hand: spill over full queues, routes that do not override, restored tasks (RTE-6, RTE-15)."""

from types import SimpleNamespace
from typing import Any

import pytest

from reach.core.directory import UNRESOLVED, Directory
from reach.core.documents import Document
from reach.core.instance_states import Health
from reach.core.intents import Route, Routes
from reach.core.model import PoolKey, Profile, Requirement, Task
from reach.core.resolving import Selector
from reach.core.retry import POLICIES, RetryPolicy
from reach.core.vocabulary import Vocabulary
from reach.errors import InvalidRequest, Reason
from reach.runtime.level_1 import LevelOne
from tests.core.harness import instance_of, profile

TENANT = "acme"


class Pool:
    """As much of a pool as level 1 looks at."""

    def __init__(self, key: PoolKey, slots: int, queue_room: bool = True) -> None:
        self.key, self.shard, self.slots, self.queue_room = key, 0, slots, queue_room
        self.router = SimpleNamespace(room=lambda _: (self.slots, 3, 0.5, 1))
        self.queue: Any = _Queue(self)
        self.pins = SimpleNamespace(get=lambda *_: None)
        self.instances: dict[str, Any] = {}


class _Queue:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return 0

    def has_room(self, size: int) -> bool:
        return self._pool.queue_room


class Host:
    """As much of a host."""

    by_shard = False

    def __init__(self, *pools: Pool) -> None:
        self.pools = {pool.key: pool for pool in pools}
        self.shards = {0: SimpleNamespace(mail={})}
        self.clock = SimpleNamespace(now_ms=lambda: 0)
        self.codec = SimpleNamespace(mismatches=lambda spec, schemas: self.faults)
        self.faults: dict[str, tuple[str, str]] = {}

    def pool(self, key: PoolKey) -> Pool:
        return self.pools[key]

    def pool_if_any(self, key: PoolKey) -> Pool | None:
        return self.pools.get(key)


def declares(name: str, **parts: Any) -> Profile:
    document = Document(name, name, digest=name, **parts)
    return profile(capabilities=((name, ""),), documents=(document,))


def world(*pools: Pool, routes: tuple[Route, ...] = ()) -> tuple[LevelOne, Host]:
    directory, host = Directory(), Host(*pools)
    for pool in pools:
        directory.add(pool.key, f"i-{pool.key.agent_type}", declares("x"))
    directory.routes = Routes(routes)
    return LevelOne(host, directory, 7), host  # type: ignore[arg-type]


def task(**fields: Any) -> Task:
    made = Task(TENANT, "t", b"", Requirement())
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def key(name: str, tenant: str = TENANT) -> PoolKey:
    return PoolKey(tenant, name)


X = Selector(capability="x")


def test_RTE_15_what_was_sent_in_this_turn_is_counted_and_forgotten_with_the_next():
    level_1, host = world(Pool(key("a"), 2), Pool(key("b"), 3))
    placed = [level_1.place(task(), X).agent_type for _ in range(5)]
    assert sorted(placed) == ["a", "a", "b", "b", "b"]
    host.shards[0].mail = {}
    assert sorted(level_1.place(task(), X).agent_type for _ in range(5)) == ["a", "a", "b", "b", "b"]


def test_who_only_wants_to_know_is_not_counted():
    level_1, _ = world(Pool(key("a"), 1), Pool(key("b"), 1))
    for _ in range(20):
        level_1.place(task(), X, send=False)
    assert {level_1.place(task(), X).agent_type for _ in range(2)} == {"a", "b"}


def test_RTE_15_a_full_pool_with_a_full_queue_spills_to_the_next():
    level_1, _ = world(Pool(key("a"), 0, queue_room=False), Pool(key("b"), 0), Pool(key("c"), 0, queue_room=False))
    assert {level_1.place(task(), X).agent_type for _ in range(10)} == {"b"}


def test_DLV_9_if_all_are_full_one_of_them_says_so():
    level_1, _ = world(Pool(key("a"), 0, queue_room=False), Pool(key("b"), 0, queue_room=False))
    assert level_1.place(task(), X).agent_type in ("a", "b")


def test_REG_7_of_several_pools_the_one_whose_draining_instance_has_the_session():
    a, b = Pool(key("a"), 0), Pool(key("b"), 5)
    level_1, _ = world(a, b)
    one = instance_of("one")
    one.health = Health.HEALTHY
    a.instances["one"] = one
    a.pins = SimpleNamespace(get=lambda *_: SimpleNamespace(instance_id="one", moving_to=""))
    for blocked_by, until_ms, pool in (("", 0, "a"), ("draining", 1, "a"), ("draining", 0, "b"), ("stalled", 1, "b")):
        one.blocked_by, one.drain_until_ms = blocked_by, until_ms
        assert level_1.place(task(session="s"), X).agent_type == pool


ROUTE = Route("i", "x", policy="balanced", session_ttl_ms=60_000, timeout_ms=500, retry=POLICIES["quick"])


def test_RTE_6_a_route_says_what_the_request_does_not():
    level_1, _ = world(Pool(key("a"), 1), routes=(ROUTE,))
    own = RetryPolicy("own", (1,))
    level_1.default_retry = RetryPolicy("ladder", (1, 2))
    selector = Selector(intent="i.j")
    plain = task(retry=level_1.default_retry)
    level_1.place(plain, selector)
    assert (plain.policy, plain.start_to_close_ms, plain.session_ttl_ms) == ("balanced", 500, 60_000)
    assert plain.retry is POLICIES["quick"]
    said = task(retry=own, policy="mine", start_to_close_ms=9)
    level_1.place(said, selector)
    assert (said.policy, said.start_to_close_ms, said.retry) == ("mine", 9, own)


def test_REG_4_a_mismatch_is_told_with_its_place():
    pool = Pool(key("a"), 1)
    directory, host = Directory(), Host(pool)
    directory.add(pool.key, "i", declares("x", schema="{}", schema_id="s"))
    level_1 = LevelOne(host, directory, 7)  # type: ignore[arg-type]
    assert level_1.place(task(), X) == pool.key
    host.faults = {"s": ("/a", "the value is not of type")}
    with pytest.raises(InvalidRequest) as refused:
        level_1.place(task(), X)
    assert refused.value.reason is Reason.SCHEMA_MISMATCH
    assert refused.value.metadata == {"path": "/a", "capability": "x"}


# -- restored tasks ---------------------------------------------------------------------------------------------------


def test_DLV_2_a_restored_task_knows_again_what_it_needs():
    level_1, _ = world(Pool(key("a"), 1), Pool(key("b"), 1), routes=(ROUTE,))
    for pool in (key("a"), key("b")):
        restored = task()
        level_1.restore(restored, Selector(intent="i"), pool)
        assert (restored.requirement.capability, restored.start_to_close_ms) == ("x", 500)


def test_GOV_1_a_restored_task_of_another_tenant_keeps_to_those_who_let_it():
    level_1, _ = world(Pool(key("a", "owner"), 1))
    restored = task()
    level_1.restore(restored, X, key("a", "owner"))
    assert restored.requirement.tenant == TENANT


def test_RTE_6_a_restored_task_whose_intent_is_gone_goes_to_nobody():
    level_1, _ = world(Pool(key("a"), 1))
    restored = task()
    level_1.restore(restored, Selector(intent="gone"), key("a"))
    assert restored.requirement.instance_id == UNRESOLVED
    assert "no route has intent 'gone'" in restored.pending_reason


def test_REG_5_a_new_vocabulary_is_seen_at_once():
    pool = Pool(key("a"), 1)
    directory, host = Directory(), Host(pool)
    directory.add(pool.key, "i", declares("x"))
    level_1 = LevelOne(host, directory, 7)  # type: ignore[arg-type]
    assert level_1.place(task(), X) == pool.key
    directory.succeed(directory.successor(Vocabulary(), Routes()))
    assert level_1.place(task(), X) == key(UNRESOLVED)
