"""What agents declare of their capabilities, used where a task or experience says nothing (REG-4, DLV-6, DLV-7)."""

from __future__ import annotations

from typing import Any

import pytest

from reach.core import events as ev
from reach.core.documents import Document
from reach.core.model import EffectKind, Requirement, TaskState
from reach.errors import Reason
from tests.core.harness import Shell, ended

CHARGE = Requirement(capability="charge")


def documented(**parts: Any) -> dict[str, Any]:
    return {"capabilities": (("charge", ""),), "documents": (Document("charge", "charge", digest="c", **parts),)}


def test_DLV_6_a_long_task_after_quick_ones_has_the_time_that_is_declared():
    shell = Shell()
    one = shell.join("one", slots=1, **documented(latency_ms=60_000))
    for _ in range(5):
        quick = shell.submit(requirement=CHARGE)
        shell.advance_beating(100, one, every_ms=100)
        shell.report(quick)
    long = shell.submit(requirement=CHARGE)
    shell.take_up(long)
    assert shell.pool.deadlines.start_to_close_ms(long) == 1.5 * 60_000 * 2
    shell.advance_beating(170_000, one)
    assert long.attempt == 1
    shell.advance_beating(15_000, one)
    assert long.history[-1].fault.reason is Reason.START_TO_CLOSE


def test_DLV_6_a_method_may_declare_its_time_and_what_is_set_counts_more():
    shell = Shell()
    shell.join("one", slots=9, latencies=(("train", 100_000),))
    task = shell.submit(requirement=Requirement(method="train"))
    assert shell.pool.deadlines.start_to_close_ms(task) == 300_000
    other = shell.submit(requirement=Requirement(method="quick"))
    assert shell.pool.deadlines.start_to_close_ms(other) == 1.5 * 10_000 * 3
    own = shell.submit(requirement=Requirement(method="train"), start_to_close_ms=7_000)
    assert shell.pool.deadlines.start_to_close_ms(own) == 7_000


def test_DLV_7_a_capability_that_is_irreversible_is_so_for_tasks_that_do_not_say():
    shell = Shell()
    one = shell.join("one", **documented(effects=3))
    shell.join("two", **documented())
    task = shell.submit(requirement=CHARGE)
    assert task.effects is EffectKind.IRREVERSIBLE
    assert shell.submit(requirement=CHARGE, effects=EffectKind.NONE).effects is EffectKind.NONE
    assert shell.submit(requirement=Requirement(capability="other")).effects is None
    assert shell.submit(requirement=Requirement(agent_id="echo")).effects is EffectKind.IRREVERSIBLE, "it has no other"
    instance = task.instance
    shell.take_up(task)
    shell.ask_effect(task)
    shell.lose(instance)
    shell.advance(31_000)
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)
    assert one is not None


def test_REG_4_slots_that_a_capability_takes():
    shell = Shell()
    one = shell.join("one", slots=5, **documented(cost=3))
    task = shell.submit(requirement=CHARGE)
    assert (task.cost, one.inflight) == (3, 3)
    assert shell.submit(requirement=CHARGE, cost=2).cost == 2
    shell.pool.names_cost = lambda spec: spec == b"one slot"
    assert shell.submit(requirement=CHARGE, spec=b"one slot").cost == 1


@pytest.mark.parametrize("leaves", ["goes", "says otherwise"])
def test_REG_4_what_nobody_declares_any_more_does_not_count(leaves):
    shell = Shell()
    one = shell.join("one", **documented(effects=3))
    shell.join("two", **documented(effects=1))
    assert shell.submit(requirement=CHARGE).effects is EffectKind.IRREVERSIBLE
    if leaves == "goes":
        shell.step(ev.Left(one))
    else:
        shell.join("one", **documented())
    assert shell.submit(requirement=CHARGE).effects is EffectKind.NONE
    shell.join("two")
    shell.join("one")
    assert not shell.pool.router.declared.any


def test_DLV_2_a_restart_finds_what_is_declared_again():
    shell = Shell()
    one = shell.join("one", slots=5, **documented(effects=3, cost=2))
    task = shell.submit(requirement=CHARGE)
    assert (task.effects, one.inflight) == (EffectKind.IRREVERSIBLE, 2)
    shell.asked[task.row].effects, shell.asked[task.row].cost = None, 1  # as the request has it
    (task,) = shell.crash_and_load()
    assert (task.effects, shell.pool.instances["one"].inflight) == (EffectKind.IRREVERSIBLE, 2)
