"""The checker finds what must not be of instances and versions on trial, and lets pass what is right (REG-7, RTE-9)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentreach.v1 import agent_pb2
from reach.core.canary import Stage
from reach.core.model import Instance, PoolKey, Profile
from reach.core.rows import AgentGone, AgentRow, AttemptRow, MoveRow, TaskRow
from reach.testing.sim.loop import WALL_EPOCH_MS
from tests.sim.history import KEY, History, Planted, task_row

PLANTED = Planted()
POOL = PoolKey("acme", "echo")


def agent_row(trial: int = 0, instance: str = "one", version: str = "2") -> AgentRow:
    said = agent_pb2.Registration(agent_id="echo", version=version).SerializeToString()
    return AgentRow(POOL.tenant, instance, POOL.agent_type, "boot", 1, (), said, 0, 1, 0, trial)


def instance(name: str = "one", version: str = "2") -> Instance:
    return Instance(name, Profile("echo", version, (), (), (), (), (), (), "", ()), POOL)


def host(**trials: Stage) -> Any:
    """A host with these trials, by version."""
    found = {("echo", name[1:]): SimpleNamespace(stage=stage) for name, stage in trials.items()}
    router = SimpleNamespace(canary=SimpleNamespace(trials=found))
    return cast("Any", SimpleNamespace(pools=lambda: [SimpleNamespace(key=POOL, router=router)]))


def drain(h: History, now: float = 0.0) -> None:
    h.checker.fleet.drained("one", h.checker.fleet.drain_asked("one"))
    h.checker.now = lambda: now


def of_a_session(at: float, row: int = 1, task_id: str = KEY[1]) -> TaskRow:
    """A task of a session, whose attempt was decided at a time."""
    return task_row(row)._replace(task_id=task_id, session="s", accepted_wall_ms=WALL_EPOCH_MS + int(1_000 * at))


@PLANTED("DRAINED_TAKES_NOTHING")
def who_is_drained_gets_a_task(h: History) -> None:
    drain(h)
    h.accept()


@PLANTED("DRAINED_TAKES_NOTHING")
def who_is_drained_keeps_its_sessions_for_ever(h: History) -> None:
    drain(h, 5.1)
    h.write(tasks=[of_a_session(5.1)])


@PLANTED("DECISIONS_ARE_WRITTEN")
def a_version_is_rolled_back_in_memory_only(h: History) -> None:
    h.write(agents=[agent_row(1 + Stage.TRIAL)])
    h.checker.fleet.decided("canary_rolled_back", instance())


@PLANTED("DECISIONS_LAST")
def a_version_that_was_rolled_back_is_tried_again(h: History) -> None:
    h.write(agents=[agent_row(1 + Stage.ROLLED_BACK)])
    h.checker.fleet.compare(host(v2=Stage.TRIAL))


@PLANTED("ROW_TELLS_POOL")
def an_attempt_begins_elsewhere_than_its_row_says(h: History) -> None:
    h.write(agents=[agent_row()])
    h.write(tasks=[task_row(attempt=0)._replace(agent_type="~")])
    h.attempt(1, "one")


@PLANTED("ROW_TELLS_POOL")
def a_task_is_accepted_elsewhere_than_it_begins(h: History) -> None:
    h.write(agents=[agent_row()])
    h.write(tasks=[task_row()._replace(agent_type="~")])


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED.found(name) == [PLANTED[name][0]]


def test_who_is_drained_has_its_sessions_for_a_while_and_all_again_once_that_is_undone() -> None:
    h = History()
    drain(h, 6.0)
    h.write(tasks=[of_a_session(4.9)])  # it took long until it was kept
    asked = h.checker.fleet.drain_asked("one")
    h.checker.fleet.undrained("one")
    h.checker.fleet.drained("one", asked)  # its word comes late
    h.write(tasks=[task_row(2)._replace(task_id="other")])
    assert KEY in h.checker.tasks
    assert h.checker.violations == []


def test_who_is_drained_once_more_has_its_sessions_for_as_long_again() -> None:
    h = History()
    drain(h, 5.1)
    asked = h.checker.fleet.drain_asked("one")
    h.write(tasks=[of_a_session(5.1)])
    assert h.checker.violations == []
    h.checker.fleet.drained("one", asked)
    h.write(tasks=[of_a_session(10.2, 2, "other")])
    assert [one.name for one in h.checker.violations] == ["DRAINED_TAKES_NOTHING"]


def test_a_row_that_moves_with_what_begins_there_is_right_and_what_failed_may_move_on() -> None:
    h = History()
    h.write(agents=[agent_row()])
    h.write(tasks=[task_row(attempt=0)._replace(agent_type="~")])
    to = MoveRow(1, 0, 1, "acme", "echo", 1, 1_000)
    h.write(moves=[to], attempts=[AttemptRow(1, 0, 1, "one", "echo", 1, 0, 1_000)])
    h.fail()
    h.write(moves=[to._replace(agent_type="mail", hop=2)])
    assert h.checker.violations == []


def test_what_was_decided_and_written_is_so_after_a_restart() -> None:
    h = History()
    h.write(agents=[agent_row(1 + Stage.PROMOTED), agent_row(0, "old", "1")])
    h.checker.fleet.decided("canary_promoted", instance())
    h.checker.fleet.compare(host(v2=Stage.PROMOTED))
    h.write(agents_gone=[AgentGone(POOL.tenant, "one", POOL.agent_type)])
    h.checker.fleet.compare(host(v2=Stage.PROMOTED))  # nobody has it: memory may forget it when it likes
    assert h.checker.violations == []


def test_who_leaves_and_joins_again_in_one_batch_is_there() -> None:
    """In a store those who are gone come first."""
    h = History()
    h.write(agents=[agent_row(1 + Stage.TRIAL)])
    h.write(agents=[agent_row(1 + Stage.TRIAL)], agents_gone=[AgentGone(*agent_row()[:3])])
    h.checker.fleet.compare(host(v2=Stage.TRIAL))
    assert h.checker.violations == []
