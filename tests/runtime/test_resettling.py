"""Very many tasks that wait for an agent, and the agent comes: the loop is not held up (REG-5, PRF-8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import agent_pb2
from reach.core.directory import UNRESOLVED
from reach.core.events import Arrived
from reach.core.model import PoolKey, Requirement, Task
from reach.core.placement import shard_of
from reach.core.sifting import ANYBODY
from reach.core.stream import Interest
from reach.errors import InvalidRequest, ReachError, Reason
from reach.runtime import resettling
from reach.runtime.ownership import NOBODY, Peer
from reach.wire.agents import read_registration
from tests.runtime.hosts import TENANT, Shell

MANY = 1_050


class Turns:
    """Who came to a pool, by turns of the loop."""

    def __init__(self, shell: Shell) -> None:
        self.turns: list[list[str]] = [[]]
        post = shell.host.post

        def posted(pool: Any, event: Any, **how: Any) -> None:
            if isinstance(event, Arrived):
                self.turns[-1].append(event.task.task_id)
            post(pool, event, **how)

        shell.host.post = posted  # type: ignore[method-assign]

    async def watch(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
            self.turns.append([])

    def all(self) -> list[str]:
        return [name for turn in self.turns for name in turn]


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    shell = Shell()
    for number in range(MANY):
        shell.submit(f"t{number}", Interest.ACCEPTANCE, capability="late" if number % 7 else "later")
    await shell.settle()
    yield shell
    await shell.stop()


class _Nobody:
    """Waits for an answer, and does nothing with it."""

    def done(self, _: Any) -> None: ...


def come(shell: Shell, capability: str) -> PoolKey:
    """An instance registers; it takes nothing."""
    said = agent_pb2.Registration(agent_id=f"of-{capability}", boot_id="b", instance_id=f"{capability}-1")
    said.capabilities.add(name=capability)
    shell.reach.register(TENANT, *read_registration(said), _Nobody())
    return PoolKey(TENANT, f"of-{capability}")


def names(*, later: bool) -> list[str]:
    return [f"t{number}" for number in range(MANY) if (number % 7 == 0) is later]


async def test_those_who_wait_move_some_at_a_time_in_order_and_once(shell):
    turns = Turns(shell)
    key = come(shell, "late")
    await turns.watch(40)
    assert turns.all() == names(later=False)
    assert max(map(len, turns.turns)) == resettling.MOST_TASKS
    assert len(shell.host.pool(key).queue) == len(names(later=False))
    assert len(shell.host.pool(PoolKey(TENANT, UNRESOLVED)).queue) == len(names(later=True))


async def test_who_comes_meanwhile_gets_theirs_too(shell):
    turns = Turns(shell)
    come(shell, "late")
    await turns.watch(4)
    assert 0 < len(turns.all()) < len(names(later=False)), "it is under way"
    come(shell, "later")
    await turns.watch(60)
    assert sorted(turns.all()) == sorted([*names(later=False), *names(later=True)])
    assert not shell.host.pool(PoolKey(TENANT, UNRESOLVED)).queue


async def test_what_is_cancelled_meanwhile_does_not_move_and_what_is_new_need_not(shell):
    turns = Turns(shell)
    key = come(shell, "late")
    await turns.watch(4)
    shell.cancel(f"t{MANY - 1}", "no longer")
    shell.submit("new", Interest.ACCEPTANCE, capability="late")
    await turns.watch(40)
    assert turns.all() == [name for name in names(later=False) if name != f"t{MANY - 1}"]
    assert len(shell.host.pool(key).queue) == len(names(later=False))


async def test_a_turn_is_over_after_so_many_bytes(shell, monkeypatch):
    monkeypatch.setattr(resettling, "MOST_BYTES", 1)
    turns = Turns(shell)
    come(shell, "late")
    await turns.watch(20)
    assert max(map(len, turns.turns)) == 1


async def test_a_task_that_cannot_be_looked_at_holds_up_no_others(shell, monkeypatch, caplog):
    turns = Turns(shell)
    resettle = resettling.resettle
    monkeypatch.setattr(resettling, "resettle", None)
    come(shell, "late")
    await turns.watch(10)
    assert "could not be looked at" in caplog.text
    monkeypatch.setattr(resettling, "resettle", resettle)
    come(shell, "later")
    await turns.watch(60)
    assert sorted(turns.all()) == sorted([*names(later=False), *names(later=True)])


HERE, THERE = PoolKey(TENANT, "here"), PoolKey(TENANT, "there")
BEFORE, AFTER = Requirement(capability="x"), Requirement(capability="x", capability_version="2")


class Scene:
    """One task that waits in a pool, and what level 1 says of it by now."""

    def __init__(self, *, waits_in: PoolKey = HERE) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.pools = {key: self._pool(key) for key in (waits_in, HERE, THERE)}
        self.pool = self.pools[waits_in]
        self.task = Task(TENANT, "t", b"", BEFORE)
        self.task.pool, self.task.pending_reason = self.pool, "no_match: of before"
        self.place: PoolKey | ReachError = THERE
        self.after = AFTER
        self.far = False
        self.somebody: list[PoolKey] = [THERE]
        self.owner: Peer | None = Peer("two", "two:1")
        self.host: Any = SimpleNamespace(
            level_1=SimpleNamespace(place=self._place),
            departures=SimpleNamespace(
                goes=lambda pool, key: self.far,
                depart=lambda pool, task, key, after: self.did.append(("departs", pool.key, key, after)),
            ),
            directory=SimpleNamespace(resolve=lambda tenant, selector: SimpleNamespace(pools=self.somebody)),
            owners=SimpleNamespace(node_of=lambda shard: self.owner if shard == shard_of(THERE) else None),
            pool=lambda key: self.pools[key],
            post=lambda pool, event: self.did.append((type(event).__name__, pool.key, event)),
            shards={pool.shard: None for pool in self.pools.values()},
        )

    def _pool(self, key: PoolKey) -> Any:
        def hand_over(task: Task, to: Any) -> None:
            assert task.requirement == BEFORE, "by which the queue knows it"
            self.did.append(("handed over", key, to.key))

        pool = SimpleNamespace(key=key, hand_over=hand_over, masks=1, shard=shard_of(key))
        pool.router = SimpleNamespace(static_mask=lambda requirement: pool.masks)
        return pool

    def _place(self, task: Task, selector: Any) -> PoolKey:
        task.requirement = self.after
        if isinstance(self.place, ReachError):
            raise self.place
        return self.place

    def looks(self) -> list[tuple[Any, ...]]:
        resettling.resettle(self.host, self.pool, self.task, None)  # type: ignore[arg-type]
        return [act[:3] for act in self.did]


def test_CLU_1_a_task_that_somebody_elsewhere_can_take_goes_there_with_what_it_asks_for_now():
    scene = Scene()
    scene.far = True
    scene.looks()
    assert scene.did == [("departs", HERE, THERE, AFTER)]
    assert scene.task.requirement == BEFORE, "until it has gone"


def test_DLV_13_a_task_of_a_shard_that_is_about_to_be_given_up_stays_in_it():
    scene = Scene()
    scene.far = True
    del scene.host.shards[scene.pool.shard]
    assert scene.looks() == []
    assert scene.task.requirement == BEFORE


@pytest.mark.parametrize("how", ["nobody could take it", "nobody owns that shard"])
def test_CLU_1_a_task_stays_where_it_is_known_while_nobody_could_have_it_elsewhere(how):
    scene = Scene()
    scene.far = True
    if how == "nobody could take it":
        scene.somebody = []
    else:
        scene.owner = NOBODY
    assert scene.looks() == []
    assert scene.task.requirement == BEFORE


@pytest.mark.parametrize(
    ("waits_in", "masks", "moves"), [(PoolKey(TENANT, UNRESOLVED), 0, True), (HERE, 1, True), (HERE, 0, False)]
)
def test_REG_5_a_task_leaves_its_pool_for_one_where_somebody_can_take_it(waits_in, masks, moves):
    """From where no pool is known it goes in any case: there it is found by who comes."""
    scene = Scene(waits_in=waits_in)
    scene.pools[THERE].masks = masks
    acts = scene.looks()
    if not moves:
        assert acts == []
        assert (scene.task.requirement, scene.task.pending_reason) == (BEFORE, "no_match: of before")
        return
    assert acts[0] == ("handed over", waits_in, THERE)
    assert acts[1][:2] == ("Arrived", THERE)
    assert acts[1][2].left == shard_of(waits_in)
    assert (scene.task.requirement, scene.task.pending_reason) == (AFTER, "")


@pytest.mark.parametrize("after", [BEFORE, AFTER])
def test_RTE_12_a_task_that_stays_asks_for_what_the_rules_of_today_say(after):
    scene = Scene()
    scene.place, scene.after = HERE, after
    acts = [act[:2] for act in scene.looks()]
    assert acts == [("Respecified", HERE)] * (after != BEFORE)
    assert scene.task.requirement == BEFORE
    if acts:
        assert scene.did[0][2].requirement == AFTER


def test_REG_5_a_task_that_cannot_be_any_more_is_refused():
    scene = Scene()
    scene.place = InvalidRequest("there is no such skill", Reason.INVALID_FIELD, skill="x")
    ((what, key, event),) = scene.looks()
    assert (what, key) == ("Refuted", HERE)
    assert (event.fault.reason, event.fault.message) == (Reason.INVALID_FIELD, "there is no such skill")
    assert dict(event.fault.metadata) == {"skill": "x"}
    assert scene.task.requirement == BEFORE


async def test_REG_5_who_registers_is_looked_for_by_those_of_the_tenants_that_may_call_it_alone(shell, monkeypatch):
    looked: list[list[str]] = []
    look = shell.host.resettling
    monkeypatch.setattr(look, "look", lambda pools: looked.append(sorted(pool.key.tenant for pool in pools)))
    for tenant in (TENANT, "friend", "stranger"):
        shell.host.pool(PoolKey(tenant, UNRESOLVED))
    profile = read_registration(agent_pb2.Registration(agent_id="a", boot_id="b"))[1].profile
    for allowed in ((), ("friend",), (ANYBODY,)):
        look.heard_of(PoolKey(TENANT, "a"), profile._replace(allowed_tenants=allowed))
    assert looked == [[TENANT], [TENANT, "friend"], [TENANT, "friend", "stranger"]]
