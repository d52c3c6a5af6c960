"""What we could not hear is held against nobody: our own standstill (F4, F11, P5), a restart, a blocked loop (B1)."""

import pytest

from reach.core import events as ev
from reach.core.instance_states import Condition, Health
from reach.core.model import TaskState
from reach.core.pieces import Kind
from reach.errors import ErrorClass, Reason
from tests.core.harness import UNAVAILABLE, ended, named, outcome_of, running


def stand_still(shell, ms):
    """Time goes by without a step, as when the process is stopped."""
    shell.now_ms += ms


def test_progress_that_waited_in_the_sockets_is_heard_first():
    shell, task, _ = running("one", "two", silence_ms=2_000)
    stand_still(shell, 5_000)
    shell.step()
    shell.advance(900)
    assert (task.attempt, task.state) == (1, TaskState.RUNNING)
    shell.progress(task)
    shell.advance(1_500)
    assert not task.history
    shell.advance(600)
    assert [past.fault.reason for past in task.history] == [Reason.SILENCE]


def test_who_stays_silent_is_judged_a_second_later():
    shell, task, _ = running("one", "two", silence_ms=2_000)
    stand_still(shell, 5_000)
    shell.advance(1_100)
    assert task.history[-1].fault.reason is Reason.SILENCE


def test_retries_do_not_wait_for_that():
    shell, task, _ = running("one", "two")
    shell.report(task, error=UNAVAILABLE)
    assert task.state is TaskState.PENDING
    stand_still(shell, 5_000)
    shell.step()
    assert (task.state, task.attempt) == (TaskState.DELIVERED, 2)


@pytest.mark.parametrize("back", [True, False])
def test_links_that_peers_gave_up_meanwhile_ended_by_our_doing(back):
    shell, task, one = running("one", "two", silence_ms=2_000)
    stand_still(shell, 20_000)
    shell.lose(one)
    shell.advance_beating(10_000, shell.pool.instances["two"])
    assert (task.attempt, task.instance_id) == (1, "one"), "it is waited for, and its silence means nothing"
    if back:
        shell.step(shell.joined("one", running=named(task)))
        shell.report(task, "42")
        ended(task, TaskState.SUCCEEDED)
        assert task.attempt == 1
    else:
        shell.advance_beating(21_000, shell.pool.instances["two"])
        assert (task.attempt, task.instance_id, task.history[0].fault.reason) == (2, "two", Reason.INSTANCE_LOST)


@pytest.mark.parametrize("named_as", [0, 5])
def test_pieces_that_were_lost_with_the_link_are_made_good_by_the_outcome(named_as):
    """The attempt has ended at the agent (it is named without a number), or it no longer holds the pieces (with)."""
    shell, task, one = running("one")
    reader = shell.read(task)
    shell.delta(task, 1, "a")
    shell.delta(task, 2, "b")
    stand_still(shell, 20_000)
    shell.lose(one)
    shell.step(shell.joined("one", running=named(task, last=named_as)))
    shell.report(task, "abcde")
    assert shell.kinds(reader)[-3:] == [Kind.DELTA, Kind.ATTEMPT_RESET, Kind.COMPLETE]
    assert outcome_of(task).content == "abcde"


@pytest.mark.parametrize(("pieces", "answer"), [("ab", "abcde"), (b"ab", b"abcde")])
def test_STR_1_an_answer_that_goes_on_where_the_pieces_end_tells_that_some_were_lost(pieces, answer):
    """Said between a hello and its answer: the agent had not yet heard where to go on, and then it had ended."""
    shell, task, _ = running("one")
    reader = shell.read(task)
    shell.delta(task, 1, pieces)
    shell.report(task, answer)
    assert shell.kinds(reader)[-3:] == [Kind.DELTA, Kind.ATTEMPT_RESET, Kind.COMPLETE]


def test_STR_1_a_gap_over_that_word_has_no_snapshot_of_the_pieces(monkeypatch):
    monkeypatch.setattr("reach.core.stream.KEEP_BYTES", 200)
    shell, task, _ = running("one")
    reader = shell.read(task)
    shell.delta(task, 1, "ab")
    shell.report(task, "ab" * 200)
    kinds = shell.kinds(reader)
    assert kinds[-2:] == [Kind.GAP, Kind.COMPLETE]
    assert [event[4].snapshot for event in shell.seen[reader.reference] if event[3] == Kind.GAP] == [[]]


def test_an_answer_that_is_not_its_pieces_is_left_alone():
    shell, task, _ = running("one")
    reader = shell.read(task)
    shell.delta(task, 1, "thinking")
    shell.report(task, "42")
    assert Kind.ATTEMPT_RESET not in shell.kinds(reader)


@pytest.mark.parametrize(("ms", "after_ms"), [(2_000, 0), (20_000, 1_100)])
def test_otherwise_the_end_of_a_link_is_certain(ms, after_ms):
    """After a short standstill, or a while after a long one."""
    shell, task, one = running("one", "two")
    stand_still(shell, ms)
    shell.step()
    shell.advance_beating(after_ms, shell.pool.instances["two"])
    shell.lose(one)
    assert (task.attempt, task.instance_id) == (2, "two")


@pytest.mark.parametrize("limits", [{"start_to_close_ms": 2_000}, {"silence_ms": 2_000}])
def test_limits_of_an_attempt_begin_anew_when_its_agent_is_back_after_a_restart(limits):
    shell, _, _ = running("one", "two", **limits)
    (task,) = shell.crash_and_load()
    shell.join("two")
    shell.advance_beating(10_000, shell.pool.instances["two"])
    assert (task.attempt, task.instance_id) == (1, "one")
    shell.step(shell.joined("one", running=named(task)))
    shell.advance(1_900)
    assert not task.history
    shell.advance(200)
    assert [past.fault.error_class for past in task.history] == [ErrorClass.TIMEOUT]


def test_a_blocked_loop_takes_nothing_new_and_loses_nothing():
    shell, task, one = running("one", "two")
    shell.step(ev.Beat(one, {"loop_stalled": 1_500}))
    evidence, since = one.conditions[Condition.STALLED]
    assert (evidence, shell.now_ms - since) == ("loop stalled for 1500 ms", 1_500)
    assert (one.blocked_by, one.health) == ("stalled", Health.HEALTHY)
    assert shell.submit().instance_id == "two"
    shell.advance(1_000)
    shell.step(ev.Beat(one, {"loop_stalled": 2_500}))
    assert one.conditions[Condition.STALLED] == ("loop stalled for 2500 ms", since)
    assert (task.state, task.attempt) == (TaskState.RUNNING, 1)
    shell.step(ev.Beat(one, {"inflight": 1}))
    assert Condition.STALLED not in one.conditions
    assert not one.blocked_by
