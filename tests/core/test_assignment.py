"""Who gets a free slot: order, nobody overtaken, nobody forgotten (DLV-9, RTE-1, cases C3, C4, P7)."""

import pytest

from reach.core import events as ev
from reach.core.effects import Offer
from reach.core.model import Requirement, TaskState
from reach.core.session import PIN_WAIT_MS
from tests.core.harness import LONG, Shell, of

GPU = Requirement(required_tags=("gpu",))


def test_a_freed_slot_goes_to_who_waited_not_to_who_comes_in_the_same_step():
    """Also where the newcomer asks for something else than those who wait."""
    for requirement in (Requirement(), Requirement(capability="echo")):
        shell = Shell()
        shell.join()
        running, waits = shell.submit(), shell.submit()
        newcomer = shell.task(requirement=requirement)
        sends = shell.step(shell.reported(running), ev.Submitted(newcomer, shell.reader()))
        assert [offer.task for offer in of(sends, Offer)] == [waits]
        shell.report(waits)
        assert newcomer.state is TaskState.DELIVERED


def test_slots_that_come_back_in_one_step_count_for_who_comes_behind_them_and_for_all_who_look_afterwards():
    shell = Shell()
    shell.join(slots=2)
    first, second, third = shell.submit(), shell.submit(), shell.task()
    room = lambda: shell.pool.router.room(Requirement())[0]  # noqa: E731
    assert room() == 0
    sends = shell.step(shell.reported(first), ev.Submitted(third, shell.reader()))
    assert [offer.task for offer in of(sends, Offer)] == [third]
    assert room() == 0
    shell.step(shell.reported(second), shell.reported(third))
    assert room() == 2


def test_a_newcomer_goes_at_once_where_who_waits_cannot():
    shell = Shell()
    shell.join("one")
    shell.submit(requirement=GPU)
    assert shell.submit().state is TaskState.DELIVERED


def test_when_the_first_leaves_the_queue_the_next_one_is_looked_at():
    for leave in ("cancel", "deadline", "row"):
        shell = Shell()
        shell.join(slots=4)
        shell.submit(cost=2, **LONG)
        first = shell.submit(cost=4, schedule_to_close_ms=1_000 if leave == "deadline" else None)
        behind = shell.submit(cost=1, **LONG)
        assert behind.state is TaskState.PENDING
        if leave == "cancel":
            shell.cancel(first)
        elif leave == "row":
            shell.step(ev.RowTaken(first))
        else:
            shell.advance(1_010)
        assert behind.instance_id == "one"


def test_priority_decides_among_those_who_wait():
    shell = Shell()
    one = shell.join()
    running = shell.submit()
    low, high = shell.submit(priority=1), shell.submit(priority=8)
    shell.report(running)
    assert (high.instance, low.instance) == (one, None)


def test_short_tasks_do_not_wait_behind_a_long_one_while_another_instance_is_free():
    """C3: nothing is handed out in advance."""
    shell = Shell(overcommit=1.0)
    shell.join("one")
    shell.join("two")
    shell.submit(**LONG)
    short = [shell.submit() for _ in range(9)]
    for _ in range(9):
        (task,) = [task for task in short if task.state is TaskState.DELIVERED]
        shell.report(task)
    assert all(task.state is TaskState.SUCCEEDED for task in short)


def test_a_constant_flood_does_not_starve_the_lowest():
    """C4: the low one starts within the ageing bound, 9 s."""
    shell = Shell()
    shell.join()
    running = shell.submit(priority=9)
    low = shell.submit(priority=0)
    began = shell.now_ms
    while low.state is TaskState.PENDING:
        assert shell.now_ms - began < 9_500
        shell.now_ms += 100
        fresh = shell.task(priority=9)
        shell.step(ev.Submitted(fresh, shell.reader()))
        shell.step(shell.reported(running))
        (running,) = [task for task in shell.pool.tasks.values() if task.state is TaskState.DELIVERED]


def test_one_requirement_does_not_block_another():
    """DLV-9."""
    shell = Shell()
    shell.join("gpu", tags=("gpu",), slots=1)
    shell.submit(requirement=GPU, **LONG)
    blocked = shell.submit(requirement=GPU)
    shell.join("plain", slots=1)
    assert shell.submit().state is TaskState.DELIVERED
    assert blocked.state is TaskState.PENDING


def test_new_figures_are_used_within_a_fifth_of_a_second_and_new_instances_at_once():
    """RTE-4."""
    shell = Shell()
    one, two = shell.join("one", slots=10), shell.join("two", slots=10)
    base = shell.pool.router.main.base
    assert base[one.bit] == base[two.bit] > 0
    for _ in range(20):
        task = shell.submit()
        shell.now_ms += 2_000 if task.instance is one else 100
        shell.report(task)
    shell.now_ms += 200
    shell.step()
    assert base[two.bit] > base[one.bit]
    assert {shell.submit().instance_id for _ in range(2)} == {"two"}


def test_a_baseline_that_creeps_reaches_everybody():
    shell = Shell()
    names = [shell.join(f"i{number}", heartbeat_ms=60_000) for number in range(3)]
    for one in names:
        one.latency_ms, one.moved_ms = 100.0, shell.now_ms
        shell.pool.scores.changed(one)
    shell.now_ms += 200
    shell.step()
    base = shell.pool.router.main.base
    still = base[names[0].bit]
    for step in range(1, 40):
        names[1].latency_ms = names[2].latency_ms = 100.0 + 3 * step
        shell.pool.scores.changed(names[1])
        shell.now_ms += 200
        shell.step(*(ev.Beat(one, {}) for one in names[1:]))
    assert base[names[0].bit] > still


@pytest.mark.parametrize("avoided", [False, True])
def test_C3_nobody_stands_behind_those_that_wait_for_one_instance(avoided):
    """Many tasks of one session, or that failed elsewhere, wait for a full instance: others go where there is room."""
    shell = Shell()
    shell.join("one", slots=1, heartbeat_ms=60_000)
    running = shell.submit(session="a:b:c", **LONG)
    others = {"avoided": ("two",)} if avoided else {"session": "a:b:c"}
    shell.join("two", slots=1, heartbeat_ms=60_000)
    waiting = [shell.submit(**others, **LONG) for _ in range(20)]
    assert {task.instance_id for task in waiting} == {""}
    for _ in range(30):
        other = shell.submit(**LONG)
        assert other.instance_id == "two"
        shell.report(other)
    for task in waiting[:3]:
        shell.report(running)
        assert task.instance_id == "one", "in their order"
        running = task
    if not avoided:
        shell.advance(PIN_WAIT_MS)
        assert waiting[3].instance_id == "two", "it has waited long enough"
    assert len(shell.pool.queue) == 17 - (not avoided)


def test_RTE_8_nobody_stands_behind_those_that_wait_for_a_session_slot():
    shell = Shell()
    shell.join("one", slots=4, max_sessions=1, heartbeat_ms=60_000)
    shell.submit(session="a:b:first", **LONG)
    for number in range(20):
        shell.submit(session=f"a:b:{number}", **LONG)
    assert shell.submit(**LONG).instance_id == "one"


def test_RTE_7_those_that_waited_for_an_instance_go_elsewhere_when_it_is_gone():
    shell = Shell()
    one = shell.join("one", slots=1, heartbeat_ms=60_000)
    shell.submit(session="a:b:c", **LONG)
    two = shell.join("two", slots=1, heartbeat_ms=60_000)
    full = shell.submit(**LONG)
    waiting = [shell.submit(session="a:b:c", **LONG) for _ in range(400)]
    shell.lose(one)
    done = full
    for _ in range(401):
        shell.report(done)
        (done,) = two.running.values()
    shell.report(done)
    assert {task.state for task in waiting} == {TaskState.SUCCEEDED}
    assert not len(shell.pool.queue)
