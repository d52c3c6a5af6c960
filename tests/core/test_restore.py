"""After a restart: what ran goes on, what waited waits, no clock expires anything (DLV-2, CLU-3, fault F9)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core import effects as fx
from reach.core.instance_states import Condition
from reach.core.model import EffectKind, Requirement, TaskState
from reach.core.restore import restore_task, restore_waiting
from reach.errors import ErrorClass, Reason
from tests.core.harness import Shell, ended, heads_of, named, outcome_of, running


def test_running_work_survives_a_restart():
    """CLU-3: agents come back with what they run, and it is kept."""
    shell, task, _ = running("one")
    shell.crash_and_load()
    (task,) = shell.pool.tasks.values()
    shell.advance(20_000)
    assert task.attempt == 1
    shell.step(shell.joined("one", running=named(task)))
    shell.report(task, "42")
    ended(task, TaskState.SUCCEEDED)
    assert outcome_of(task).attempts == 1


@pytest.mark.parametrize("asked", [False, True])
def test_HAZARD_4_the_first_hello_after_a_restart_that_lacks_work_is_asked_for_again(asked):
    """It may be one from before that comes late: which numbers came by then nobody knows any more."""
    shell, task, _ = running("one")
    if asked:
        shell.ask(task)
    shell.crash_and_load()
    (task,) = shell.pool.tasks.values()
    late = shell.joined("one", hello=3)
    assert [(type(send), send.link) for send in shell.step(late)] == [(fx.AskReopen, late.link)]
    assert shell.pool.instances["one"].link is None
    shell.step(shell.joined("one", running=named(task), hello=5))
    assert (task.attempt, task.instance_id, task.state) == (1, "one", TaskState.WAITING if asked else TaskState.RUNNING)


@pytest.mark.parametrize("how", ["asked again", "it does not count", "a new process", "later"])
def test_HAZARD_4_a_hello_that_cannot_be_old_is_complete(how):
    shell, task, _ = running("one")
    shell.crash_and_load()
    (task,) = shell.pool.tasks.values()
    if how == "asked again":
        shell.step(shell.joined("one", hello=3))
    elif how == "later":
        shell.step(shell.joined("one", running=named(task), hello=3))
    boot = "b2" if how == "a new process" else "b1"
    sends = shell.step(shell.joined("one", boot, hello=0 if how == "it does not count" else 4))
    assert [type(send) for send in sends if type(send) in (fx.Welcome, fx.Offer)] == [fx.Welcome, fx.Offer]
    assert task.attempt == 2


def test_HLT_8_an_agent_that_comes_back_is_not_stalled_by_what_happened_before():
    """Nobody knows when its work last went on: it is judged from here."""
    shell, task, _ = running("one")
    shell.now_ms += 600_000  # nobody was there meanwhile
    shell.crash_and_load()
    shell.step(shell.joined("one", running=named(task)))
    one = shell.pool.instances["one"]
    shell.advance_beating(2_000, one)
    assert Condition.STALLED not in one.conditions


@pytest.mark.parametrize("back", [False, True])
def test_after_a_restart_what_nobody_claims_runs_again(back):
    shell, _, _ = running("one", "two", schedule_to_start_ms=1_000)
    (task,) = shell.crash_and_load()
    shell.join("two")
    if back:
        shell.join("one")
    else:
        shell.advance_beating(31_000, shell.pool.instances["two"])
    assert (task.attempt, task.instance_id, task.state) == (2, "two", TaskState.DELIVERED)


def test_DLV_7_an_effect_of_an_attempt_that_was_given_up_and_came_back_is_not_anothers():
    """Found by the simulation: its failure is written down, and so is the grant that followed; it runs."""
    shell, task, one = running("one", effects=EffectKind.IRREVERSIBLE)
    shell.lose(one)
    assert (task.state, task.attempt) == (TaskState.PENDING, 1)
    shell.step(shell.joined("one", running=named(task)))
    assert (task.state, task.attempt) == (TaskState.RUNNING, 1)
    shell.ask_effect(task)
    assert task.effect_granted == 1
    (task,) = shell.crash_and_load()
    shell.join("two")
    shell.advance_beating(20_000, shell.pool.instances["two"])
    assert task.attempt == 1, "it waits for the one that has the grant"
    shell.advance_beating(20_000, shell.pool.instances["two"])
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)


def test_retries_are_remembered_over_a_restart():
    shell, task, _ = running("one")
    shell.report(task, error=(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE))
    (task,) = shell.crash_and_load()
    assert (task.state, task.attempt, task.retries, task.avoided) == (TaskState.PENDING, 1, 1, ("one",))
    shell.join("one")
    shell.advance(400)
    assert task.attempt == 2


@pytest.mark.parametrize("limits", [{"schedule_to_close_ms": 60_000}, {"schedule_to_start_ms": 60_000}])
def test_a_clock_that_leapt_while_we_were_down_expires_nothing(limits, monkeypatch):
    """F9."""
    shell = Shell()
    for _ in range(3):
        shell.submit(**limits)
    monkeypatch.setattr(Shell, "wall_ms", property(lambda self: 1_700_003_600_000 + self.now_ms))
    made = shell.crash_and_load()
    shell.advance(20_000)
    assert {task.state for task in made} == {TaskState.PENDING}


TIMES = st.none() | st.sampled_from([1, 10_000, 40_000, 300_000])
WAITING = st.lists(
    st.tuples(
        st.sampled_from([Requirement(), Requirement(agent_id="echo"), Requirement(agent_id="nobody")]),
        st.integers(0, 9),
        st.sampled_from(["acme", "other"]),
        st.sampled_from(["", "one", "two"]),
        TIMES,
        TIMES,
        st.integers(-100_000, 10_000),
        st.sampled_from(["", "no_match: nobody has it"]),
    ),
    max_size=30,
)


@given(WAITING, st.booleans())
def test_PRF_8_many_that_wait_come_back_together_as_they_would_one_by_one(kinds, there):
    found = []
    for together in (True, False):
        shell = Shell()
        if there:
            shell.join("one")
            shell.crash_and_load()
        shell.pool.backlog.alert = 10
        tasks = []
        for row, (requirement, priority, tenant, key, close, start, accepted, pending) in enumerate(kinds, 1):
            made = shell.task(f"t{row}", tenant=tenant, requirement=requirement, priority=priority, fairness_key=key,
                              schedule_to_close_ms=close, schedule_to_start_ms=start, row=row, reserved=1_000,
                              accepted_wall_ms=shell.wall_ms + accepted, pending_reason=pending)  # fmt: skip
            tasks.append(made)
        turn = fx.Turn(shell.now_ms, shell.wall_ms)
        if together:
            restore_waiting(shell.pool, tasks, turn)
        else:
            for task in tasks:
                restore_task(shell.pool, task, [], [], turn)
        queue = shell.pool.queue
        standing = [
            (task.state, task.accepted_ms, task.sequence, task.pending_reason, task.timer_slot, task.pool is shell.pool)
            for task in tasks
        ]
        order: list[tuple[int, int]] = []
        while queue:
            head = heads_of(queue, shell.now_ms + 500 * len(order))[0]
            queue.serve(head, shell.now_ms)
            order.append((head.row, queue.bytes))
        said = sorted((type(send).__name__, getattr(send, "kind", "")) for send in turn.sends)
        found.append((standing, shell.pool.next_wake_ms(), order, said, set(shell.pool.tasks), shell.pool.slot_freed))
    assert found[0] == found[1]


@pytest.mark.parametrize("leap_ms", [3_600_000, -3_600_000, 86_400_000, -86_400_000, -5_000])
def test_S3_F9_no_lease_looks_at_a_wall_clock(leap_ms, monkeypatch):
    """It leaps with each look at it: a lease neither ends early while the agent beats, nor late when it does not."""

    def silence_ms() -> int:
        """How long an agent may be silent before its attempt is another's."""
        shell, task, one = running("one", "two")
        shell.advance_beating(60_000, *shell.pool.instances.values())
        assert (task.state, task.attempt, task.instance) == (TaskState.RUNNING, 1, one)
        began = shell.now_ms
        while task.attempt == 1:
            assert shell.now_ms - began < 120_000
            shell.advance_beating(500, shell.pool.instances["two"], every_ms=500)
        return shell.now_ms - began

    honest = silence_ms()
    looks = iter(range(1, 1_000_000))
    wall = property(lambda self: 1_700_000_000_000 + self.now_ms + leap_ms * (next(looks) % 7))
    monkeypatch.setattr(Shell, "wall_ms", wall)
    assert silence_ms() == honest
