"""The life of a task: accepted, answered, failed, retried, cancelled, undone (DLV, cases A15, C1, C6, P1 … P3)."""

import pytest

from reach.core import events as ev
from reach.core.delivery import LOST_MOVES, STOP_GRACE_MS
from reach.core.effects import Accepted, Acknowledge, AskJournal, Ended, Full, Noted, Offer, Refused, StopAttempt
from reach.core.model import Requirement, TaskState
from reach.core.queue import WaitQueue
from reach.core.stream import Interest
from reach.errors import ErrorClass, Reason
from tests.core.harness import UNAVAILABLE, Shell, ended, of, only, outcome_of

BUSY = (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY)
CRASHED = (ErrorClass.INTERNAL, Reason.AGENT_CRASHED)


def one_agent(slots=1, **shell):
    made = Shell(**shell)
    return made, made.join("one", slots=slots)


# -- accepting ---------------------------------------------------------------------------------------------------------


def test_an_untroubled_task_is_one_row_at_first_and_one_at_the_end():
    shell, one = one_agent()
    reader = shell.reader(Interest.OUTCOME)
    task = shell.task()
    sends = shell.step(ev.Submitted(task, reader))
    assert [type(send) for send in sends] == [Offer]
    (row,) = shell.journal.rows.tasks
    assert (row.attempt, row.instance_id, row.generation, row.agent_id) == (1, "one", 1, "echo")
    shell.take_up(task)
    sends = shell.report(task, "42")
    assert only(sends, Ended).readers == [reader]
    assert only(sends, Acknowledge).attempt == 1
    rows = shell.journal.rows
    assert (len(rows.tasks), len(rows.outcomes)) == (1, 1)
    assert rows.attempts == rows.failures == rows.reserves == []
    outcome = outcome_of(task)
    assert (outcome.content, outcome.agent_id, outcome.instance_id, outcome.attempts) == ("42", "echo", "one", 1)
    assert one.inflight == 0


def test_what_was_queued_and_what_ran_are_told_apart():
    shell = Shell()
    task = shell.submit()
    shell.now_ms += 300
    shell.join()
    shell.now_ms += 20
    shell.take_up(task)
    shell.now_ms += 500
    shell.report(task)
    outcome = outcome_of(task)
    assert (outcome.queued_ms, outcome.ran_ms, outcome.ended_wall_ms) == (320, 500, shell.wall_ms)


@pytest.mark.parametrize("finished", [False, True])
def test_the_same_id_with_the_same_content_is_the_same_task(finished):
    """DLV-3, P3, C2."""
    shell, _ = one_agent()
    task = shell.submit("t", spec=b"do it")
    if finished:
        shell.report(task, "42")
    reader = shell.reader(Interest.ANSWER)
    sends = shell.step(ev.Submitted(shell.task("t", spec=b"DO IT"), reader))
    accepted = only(sends, Accepted)
    assert (accepted.task, accepted.deduplicated) == (task, True)
    assert of(sends, Offer) == []
    if not finished:
        sends = shell.report(task, "42")
    assert only(sends, Ended).readers == [reader]
    assert len(shell.journal.rows.tasks) == 1


def test_the_same_id_with_other_content_is_refused():
    shell, _ = one_agent()
    task = shell.submit("t")
    reader = shell.reader()
    sends = shell.step(ev.Submitted(shell.task("t", spec=b"other"), reader))
    refused = only(sends, Refused)
    assert (refused.reply, refused.fault.reason) == (reader, Reason.TASK_ID_REUSED)
    assert refused.fault.metadata == {"task_id": "t"}
    assert shell.pool.tasks == {task.key: task}


def test_another_tenants_same_id_is_another_task():
    shell, _ = one_agent(slots=2)
    one, two = shell.submit("t"), shell.submit("t", tenant="other", spec=b"else")
    shell.report(two)
    assert (one.state, two.state) == (TaskState.DELIVERED, TaskState.SUCCEEDED)


def test_a_full_queue_refuses_and_drops_nothing():
    """DLV-9, P6."""
    shell = Shell(queue=WaitQueue(max_tasks=2))
    waiting = [shell.submit() for _ in range(2)]
    sends = shell.step(ev.Submitted(shell.task(), shell.reader()))
    refused = only(sends, Full).fault
    assert (refused.reason, refused.error_class) == (Reason.QUEUE_FULL, ErrorClass.RESOURCE_EXHAUSTED)
    assert refused.retry_after_ms == 1_000
    assert len(shell.journal.rows.tasks) == 2
    one = shell.join()
    for task in waiting:
        assert task.instance is one
        shell.report(task)
    assert shell.submit().state is TaskState.DELIVERED


def test_a_start_delay_is_kept():
    shell, _ = one_agent()
    task = shell.submit(start_delay_ms=5_000)
    assert (task.state, task.pending_reason) == (TaskState.PENDING, "start_delay")
    shell.advance(4_900)
    assert task.attempt == 0
    shell.advance(120)
    assert task.state is TaskState.DELIVERED
    assert [row.number for row in shell.journal.rows.attempts] == [1]


def test_a_taken_row_undoes_the_acceptance():
    shell, one = one_agent()
    taken, waiting = shell.submit("t", volatile=False), shell.submit()
    assert waiting.state is TaskState.PENDING
    shell.step(ev.RowTaken(taken))
    assert shell.pool.find(*taken.key) is None
    assert (one.inflight, waiting.instance) == (1, one)
    again = shell.submit("t")
    shell.step(ev.RowTaken(taken))
    assert shell.pool.tasks[again.key] is again
    assert shell.advance(100) == []


def test_who_waits_for_a_task_whose_row_is_taken_is_told():
    """The shell answers them from the journal: their wait is for another task (DLV-3)."""
    shell, _ = one_agent()
    taken, first, second = shell.task("t"), shell.reader(Interest.OUTCOME), shell.reader(Interest.OUTCOME)
    shell.step(ev.Submitted(taken, first))
    shell.step(ev.Submitted(shell.task("t"), second))
    sends = shell.step(ev.RowTaken(taken))
    assert [(send.reply, send.task) for send in of(sends, Accepted)] == [(first, taken), (second, taken)]


def test_volatile_tasks_write_nothing():
    shell, one = one_agent()
    task = shell.submit(volatile=True)
    shell.report(task, error=BUSY)
    shell.advance(400)
    shell.progress(task, checkpoint=b"half")
    shell.ask_effect(task)
    shell.report(task)
    rows = shell.journal.rows
    assert rows.tasks == rows.attempts == rows.failures == rows.outcomes == rows.effects == rows.checkpoints == []
    assert one.inflight == 0


# -- ending ------------------------------------------------------------------------------------------------------------

AT_ONCE = [
    ((ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED), TaskState.FAILED),
    ((ErrorClass.INVALID_REQUEST, Reason.INVALID_FIELD), TaskState.FAILED),
    ((ErrorClass.INVALID_REQUEST, Reason.AGENT_REJECTED), TaskState.REJECTED),
    ((ErrorClass.INTERNAL, Reason.AGENT_CRASHED), TaskState.DEAD_LETTERED),
]


@pytest.mark.parametrize(("error", "state"), AT_ONCE)
def test_what_is_not_retried_ends_at_once(error, state):
    """DLV-4: INTERNAL is recorded and alerted; a business failure goes to the caller."""
    shell, one = one_agent()
    shell.join("two")
    task = shell.submit()
    sends = shell.report(task, error=error, instance=task.instance)
    ended(task, state, error[1])
    assert [note.kind for note in of(sends, Noted)] == (["dead_letter"] if state is TaskState.DEAD_LETTERED else [])
    assert of(sends, StopAttempt) == []
    (row,) = shell.journal.rows.outcomes
    assert (row.state, row.reason, row.error_class) == (state, error[1], error[0])
    assert (one.inflight, shell.pool.instances["two"].inflight) == (0, 0)


def test_the_first_outcome_wins_and_later_ones_are_counted():
    """DLV-1, DLV-14, P2."""
    shell, one = one_agent()
    task = shell.submit()
    shell.report(task, "first")
    for late in ({"content": "second"}, {"error": CRASHED}, {"released": "bye"}):
        sends = shell.report(task, instance=one, **late)
        assert [type(send) for send in sends] == [Acknowledge]
    assert outcome_of(task).content == "first"
    assert shell.pool.late_outcomes == 3
    assert len(shell.journal.rows.outcomes) == 1


def test_an_attempt_that_is_over_is_refused_and_changes_nothing():
    """P2: fencing."""
    shell, one = one_agent()
    two = shell.join("two")
    task = shell.submit(start_to_close_ms=1_000)
    first = task.instance
    shell.advance(1_020)
    shell.advance(400)
    assert (task.attempt, task.state) == (2, TaskState.DELIVERED)
    assert task.instance is (two if first is one else one)
    for act in (shell.take_up, shell.report, lambda *a, **k: shell.delta(a[0], 1, **k), shell.ask_effect):
        (refused,) = [send for send in act(task, instance=first, attempt=1) if hasattr(send, "fault")]
        assert refused.fault.reason is Reason.STALE_ATTEMPT
    for attempt in (0, 3, 99):
        assert shell.report(task, instance=task.instance, attempt=attempt)[0].fault.reason is Reason.STALE_ATTEMPT
    other = two if task.instance is one else one
    assert shell.report(task, instance=other)[0].fault.reason is Reason.STALE_ATTEMPT
    assert task.state is TaskState.DELIVERED
    assert task.effect_granted == 0


def test_of_tasks_that_are_not_in_memory_the_journal_is_asked():
    shell, one = one_agent()
    asked = only(shell.step(shell.reported(shell.task("gone"), instance=one, attempt=4)), AskJournal)
    assert (asked.task_id, asked.attempt, asked.link) == ("gone", 4, one.link)
    reader = shell.reader()
    assert only(shell.step(ev.Subscribed("acme", "gone", reader)), AskJournal).reply is reader
    assert only(shell.step(ev.Cancelled("acme", "gone", "", "reply")), AskJournal).reply == "reply"


# -- retrying ----------------------------------------------------------------------------------------------------------


def test_the_ladder_is_climbed_then_the_task_is_buried():
    """DLV-5, DLV-10: three retries, then a dead letter with its history."""
    shell, _ = one_agent()
    task = shell.submit()
    for attempt, delay in enumerate((300, 1_500, 5_000), 1):
        sends = shell.report(task, error=UNAVAILABLE)
        assert [note.kind for note in of(sends, Noted)] == ["retry"]
        assert (task.state, task.pending_reason) == (TaskState.PENDING, "retry")
        shell.advance(int(delay * 0.8) - 10)
        assert task.attempt == attempt
        shell.advance(int(delay * 0.4) + 20)
        assert (task.attempt, task.state) == (attempt + 1, TaskState.DELIVERED)
    sends = shell.report(task, error=UNAVAILABLE)
    ended(task, TaskState.DEAD_LETTERED, UNAVAILABLE[1])
    assert [past.number for past in task.history] == [1, 2, 3, 4]
    assert outcome_of(task).attempts == 4
    failures = shell.journal.rows.failures
    assert [(row.number, row.retries) for row in failures] == [(1, 1), (2, 2), (3, 3)]
    assert [row.number for row in shell.journal.rows.attempts] == [2, 3, 4]
    assert all(0 < row.next_try_wall_ms - row.ended_wall_ms <= 6_000 for row in failures)


def test_never_means_never():
    shell, _ = one_agent()
    shell.join("two")
    task = shell.submit(retry="never")
    shell.lose(task.instance)
    ended(task, TaskState.DEAD_LETTERED, Reason.INSTANCE_LOST)


def test_a_retry_goes_elsewhere_and_counts_as_a_transfer():
    shell, _ = one_agent()
    shell.join("two")
    task = shell.submit()
    first = task.instance_id
    shell.report(task, error=BUSY)
    shell.advance(400)
    assert {first, task.instance_id} == {"one", "two"}
    assert task.transfers == 1
    shell.report(task, error=BUSY)
    shell.advance(2_000)
    assert task.state is TaskState.DELIVERED, "both failed: either is as good as the other"


def test_a_failed_instance_is_taken_again_when_the_other_one_goes():
    shell, one = one_agent()
    two = shell.join("two", slots=1)
    block = shell.submit(requirement=Requirement(instance_id="two"), start_to_close_ms=90_000)
    task = shell.submit()
    assert task.instance is one
    shell.report(task, error=BUSY)
    shell.advance(400)
    assert task.state is TaskState.PENDING, "the other one exists, though it is full"
    shell.step(ev.Drained(two, 0, False, None))
    assert task.instance is one
    assert block.instance is two


def test_retries_without_a_token_wait_and_do_not_fail():
    """F14."""
    shell, one = one_agent(slots=20)
    tasks = [shell.submit() for _ in range(10)]
    shell.step(*(shell.reported(task, error=BUSY) for task in tasks))
    shell.advance(400)
    delivered = [task for task in tasks if task.state is TaskState.DELIVERED]
    assert len(delivered) == 4  # 3 in reserve and 10 × 0.19 earned
    assert {task.pending_reason for task in tasks if task not in delivered} == {"retry_budget"}
    for _ in range(5):
        shell.submit()
    shell.advance(150)
    assert sum(task.state is TaskState.DELIVERED for task in tasks) == 5
    assert one.inflight == 10


def test_what_a_stopped_agent_still_says_is_no_second_failure():
    shell, one = one_agent()
    task = shell.submit(start_to_close_ms=1_000)
    shell.advance(1_010)
    assert (task.state, task.retries) == (TaskState.PENDING, 1)
    for error in ((ErrorClass.INVALID_REQUEST, Reason.CANCELLED), BUSY, CRASHED):
        assert only(shell.report(task, error=error, instance=one), Acknowledge)
    shell.report(task, instance=one, released="bye")
    assert (task.state, task.retries, len(task.history)) == (TaskState.PENDING, 1, 1)
    assert len(shell.journal.rows.failures) == 1


def test_an_answer_of_an_attempt_that_we_gave_up_is_still_an_answer():
    shell, one = one_agent()
    task = shell.submit(start_to_close_ms=1_000)
    shell.advance(1_010)
    shell.report(task, "late", instance=one)
    ended(task, TaskState.SUCCEEDED)
    outcome = outcome_of(task)
    assert (outcome.content, outcome.attempts, outcome.instance_id, outcome.agent_id) == ("late", 1, "one", "echo")
    assert one.inflight == 0
    assert shell.advance(3_000) == []


def test_who_speaks_of_an_attempt_that_is_over_is_told():
    shell, one = one_agent()
    task = shell.submit(start_to_close_ms=1_000)
    shell.advance(1_010)
    for act in (shell.take_up, shell.progress, shell.ask_effect):
        (refused,) = [send for send in act(task, instance=one) if hasattr(send, "fault")]
        assert refused.fault.reason is Reason.STALE_ATTEMPT
    assert task.state is TaskState.PENDING


def test_what_is_given_back_moves_at_once_but_not_for_ever():
    """C7: no wait for a lease; an agent that gives all back is not asked in a hot loop."""
    shell, _ = one_agent()
    task = shell.submit()
    shell.report(task, released="drain")
    assert (task.attempt, task.retries) == (2, 0)
    for _ in range(LOST_MOVES):
        shell.report(task, released="drain")
    assert (task.state, task.retries) == (TaskState.PENDING, 1)


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancel_reaches_the_agent_and_late_results_change_nothing():
    """DLV-11, C6."""
    shell, one = one_agent()
    task, waits = shell.submit(), shell.submit()
    sends = shell.cancel(task, "no longer needed")
    ended(task, TaskState.CANCELLED, Reason.CANCELLED)
    assert only(sends, StopAttempt).reason is Reason.CANCELLED
    assert "no longer needed" in outcome_of(task).fault.message
    assert (one.inflight, waits.state) == (1, TaskState.PENDING), "its slot stays taken until it has stopped"
    shell.report(task, "late", instance=one)
    ended(task, TaskState.CANCELLED, Reason.CANCELLED)
    assert (one.inflight, waits.instance) == (1, one)
    shell.cancel(task)
    assert len(shell.journal.rows.outcomes) == 1


def test_an_agent_that_does_not_stop_loses_its_slot_after_the_grace():
    shell, one = one_agent()
    task, waits = shell.submit(), shell.submit()
    shell.cancel(task)
    shell.delta(task, 1, instance=one, attempt=1)
    shell.advance(STOP_GRACE_MS - 20)
    assert waits.state is TaskState.PENDING
    shell.advance(40)
    assert waits.instance is one
    shell.report(task, instance=one)
    assert one.inflight == 1


@pytest.mark.parametrize("when", ["queued", "delayed", "back-off"])
def test_cancel_of_a_task_that_does_not_run(when):
    shell, one = one_agent()
    block = shell.submit() if when == "queued" else None
    task = shell.submit(start_delay_ms=9_000 if when == "delayed" else 0)
    if when == "back-off":
        shell.report(task, error=BUSY)
    assert of(shell.cancel(task), StopAttempt) == []
    ended(task, TaskState.CANCELLED, Reason.CANCELLED)
    if block is not None:
        shell.report(block)
    assert one.inflight == 0
    assert of(shell.advance(20_000), Offer) == []
