"""Tasks that wait for input: asked, answered, lost, expired, restarted (DLV-1, issue 4 item 4)."""

import pytest

from reach.core import events as ev
from reach.core import questions as q
from reach.core.dialogue import Input
from reach.core.effects import Acknowledge, AskJournal, Done, GiveInput, Offer, Refused, RefuseItem, StopAttempt
from reach.core.model import EffectKind, Task, TaskState
from reach.core.pieces import Kind
from reach.core.restore import GRACE_MS
from reach.core.stream import KEEP_MS, RESERVE, Interest
from reach.errors import ErrorClass, Reason
from tests.core.harness import LONG, Shell, ended, named, of, only, running


def state(task: Task) -> TaskState:
    """Where it stands; mypy takes what it has seen of a field for lasting."""
    return task.state


def asking(*names: str, **fields):
    shell, task, one = running(*names, **fields)
    reader = shell.read(task)
    assert only(shell.ask(task), Acknowledge).attempt == 1
    return shell, task, one, reader


def test_DLV_1_a_task_that_asks_gives_its_slot_back_and_keeps_its_place():
    shell, task, one, reader = asking("one")
    assert task.state is TaskState.WAITING
    assert (one.inflight, one.running, task.instance) == (0, {}, one)
    assert shell.kinds(reader)[-1] == Kind.WAITING
    question = shell.seen[reader.reference][-1][4]
    assert (question.ask.content, question.until_ms - shell.now_ms) == ("May I?", q.WAIT_MS)
    other = shell.submit(**LONG)
    assert other.instance is one, "the slot is free for another task"


def test_DLV_1_the_answer_goes_to_the_same_attempt_once_it_is_durable():
    shell, task, one, reader = asking("one")
    shell.advance_beating(10_000, one)
    sends = shell.answer(task, "yes", "i-1")
    assert only(sends, Done).value == (task, False)
    given = only(sends, GiveInput)
    assert (given.attempt, given.link, given.input.content) == (1, one.link, "yes")
    assert (task.state, task.attempt, one.inflight) == (TaskState.RUNNING, 1, 1)
    assert [row.content for row in shell.journal.of("inputs", task)] == ["yes"]
    assert shell.kinds(reader)[-1] == Kind.INPUT_GIVEN
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)
    assert one.inflight == 0


def test_DLV_1_an_answer_counts_once_by_its_id():
    shell, task, _one, _ = asking("one")
    shell.answer(task, "yes", "i-1")
    again = shell.answer(task, "yes", "i-1")
    assert only(again, Done).value == (task, True)
    assert not of(again, GiveInput)
    assert only(shell.answer(task, "no", "i-1"), Refused).fault.reason is Reason.INPUT_ID_REUSED
    assert only(shell.answer(task, "no", "i-2"), Refused).fault.reason is Reason.WRONG_STATE
    shell.report(task)
    assert only(shell.answer(task, "yes", "i-1"), Done).value == (task, True), "also after the end"
    assert "has ended" in only(shell.answer(task, "no", "i-3"), Refused).fault.message


def test_DLV_1_answers_that_nobody_waits_for_are_refused():
    shell, task, _one = running("one")
    assert only(shell.answer(task), Refused).fault.reason is Reason.WRONG_STATE
    shell.ask(task, name="first")
    refused = only(shell.answer(task, question="second"), Refused).fault
    assert refused.reason is Reason.WRONG_STATE
    assert "'first'" in refused.message


def test_GOV_1_another_tenant_has_no_such_task():
    shell, task, _, _ = asking("one")
    given = Input("i", "", "", "yes")
    sends = shell.step(ev.InputCame("other", task.task_id, given, "", "reply"))
    assert only(sends, AskJournal).input is given
    assert task.state is TaskState.WAITING


def test_DLV_1_all_answers_together_are_bounded():
    shell, task, _, _ = asking("one")
    for _ in range(4):
        shell.answer(task, "x" * (q.INPUTS_BYTES // 4 - 10))
        shell.ask(task)
    assert only(shell.answer(task, "y" * 100), Refused).fault.reason is Reason.PAYLOAD_TOO_LARGE
    assert only(shell.answer(task, "y"), Done).value == (task, False)


def test_DLV_1_an_agent_that_asks_without_end_is_broken():
    shell, task, _, _ = asking("one")
    sends = []
    for _ in range(q.QUESTIONS):
        shell.answer(task, "more")
        sends = shell.ask(task)
    ended(task, TaskState.DEAD_LETTERED, Reason.PROTOCOL_VIOLATION)
    assert of(sends, StopAttempt)


def test_DLV_1_a_question_that_is_said_again_changes_nothing():
    shell, task, _, reader = asking("one")
    before = shell.kinds(reader)
    assert only(shell.ask(task), Acknowledge)
    assert shell.kinds(reader) == before
    assert len(shell.journal.of("questions", task)) == 1


def test_DLV_1_a_named_question_that_is_said_again_hears_its_answer_again():
    shell, task, _one = running("one")
    shell.ask(task, name="pay")
    shell.answer(task, "yes")
    sends = shell.ask(task, name="pay")
    assert only(sends, GiveInput).input.content == "yes"
    assert task.state is TaskState.RUNNING


def test_DLV_1_one_question_at_a_time():
    shell, task, _one = running("one")
    shell.ask(task, name="pay")
    assert only(shell.ask(task, name="ship"), RefuseItem).fault.reason is Reason.WRONG_STATE


def test_DLV_1_who_is_answered_goes_before_the_queue_and_waits_for_a_slot():
    shell, task, one, _ = asking("one")
    busy = shell.submit(**LONG)
    waiting = shell.submit(**LONG)
    assert waiting.state is TaskState.PENDING
    assert not of(shell.answer(task), GiveInput)
    assert task.state is TaskState.WAITING
    late = shell.submit(priority=9, **LONG)
    sends = shell.report(busy)
    assert only(sends, GiveInput).task is task
    assert not of(sends, Offer)
    assert (state(task), one.inflight) == (TaskState.RUNNING, 1)
    assert only(shell.report(task), Offer).task is late
    assert waiting.state is TaskState.PENDING


def test_DLV_1_several_that_are_answered_go_in_the_order_of_their_answers():
    shell = Shell()
    one = shell.join("one", slots=2)
    tasks = [shell.submit(**LONG) for _ in range(2)]
    for task in tasks:
        shell.ask(task)
    busy = [shell.submit(**LONG) for _ in range(2)]
    shell.answer(tasks[1])
    shell.answer(tasks[0])
    assert [send.task for send in of(shell.report(busy[0]), GiveInput)] == [tasks[1]]
    assert [send.task for send in of(shell.report(busy[1]), GiveInput)] == [tasks[0]]
    assert one.inflight == 2
    assert not shell.pool.questions.resuming


def test_DLV_1_an_answered_task_whose_instance_stays_full_moves_with_its_answer():
    shell, task, _one, _ = asking("one", "two")
    busy = [shell.submit(start_to_close_ms=3_000_000) for _ in range(2)]
    shell.answer(task, "yes")
    shell.advance_beating(q.RESUME_MS - 2_000, *shell.pool.instances.values())
    assert task.state is TaskState.WAITING
    shell.advance_beating(4_000, *shell.pool.instances.values())
    assert state(task) is TaskState.PENDING
    shell.report(next(one for one in busy if one.instance_id == "two"))
    shell.advance_beating(2_000, *shell.pool.instances.values())
    assert (task.state, task.attempt, task.instance_id) == (TaskState.DELIVERED, 2, "two")
    assert [given.content for given in task.dialogue.inputs] == ["yes"]


def test_DLV_6_time_limits_stand_still_while_a_task_waits():
    fields = {"start_to_close_ms": 10_000, "schedule_to_close_ms": 30_000, "silence_ms": 5_000}
    shell, task, one = running("one", **fields)
    shell.advance_beating(4_000, one)
    shell.ask(task)
    shell.advance_beating(600_000, one)
    assert task.state is TaskState.WAITING
    shell.answer(task)
    shell.advance_beating(4_000, one)
    shell.progress(task)
    assert state(task) is TaskState.RUNNING
    shell.advance_beating(3_000, one)
    assert task.history[-1].fault.reason is Reason.START_TO_CLOSE, "10 s of running are over, whatever it waited"


def test_DLV_6_an_attempt_is_not_given_the_time_that_an_earlier_one_waited():
    shell, task, one = running("one", "two", start_to_close_ms=10_000, silence_ms=60_000)
    two = shell.pool.instances["two"]
    shell.ask(task)
    shell.advance_beating(600_000, one, two)
    shell.answer(task)
    shell.report(task, error=(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE))
    shell.advance_beating(5_000, one, two)
    assert (task.attempt, task.instance_id) == (2, "two")
    shell.take_up(task)
    shell.advance_beating(9_000, one, two)
    assert (state(task), task.attempt) == (TaskState.RUNNING, 2)
    shell.advance_beating(3_000, one, two)
    assert task.history[-1].fault.reason is Reason.START_TO_CLOSE


def test_DLV_6_an_attempt_that_comes_back_after_a_restart_is_not_given_the_time_it_waited_before():
    shell, task, one = running("one", start_to_close_ms=10_000, silence_ms=60_000)
    shell.ask(task)
    shell.advance_beating(600_000, one)
    (task,) = shell.crash_and_load()
    shell.step(shell.joined("one", running=named(task)))
    one = shell.pool.instances["one"]
    shell.advance_beating(5_000, one)
    shell.answer(task)
    shell.advance_beating(9_000, one)
    assert (state(task), task.attempt) == (TaskState.RUNNING, 1)
    shell.advance_beating(3_000, one)
    assert task.history[-1].fault.reason is Reason.START_TO_CLOSE


@pytest.mark.parametrize(("asked_ms", "limit_ms"), [(None, q.WAIT_MS), (60_000, 60_000), (2 * q.WAIT_MS, q.WAIT_MS)])
def test_DLV_6_a_question_has_a_time_limit_of_its_own(asked_ms, limit_ms):
    shell, task, one = running("one")
    reader = shell.reader(Interest.OUTCOME)
    shell.step(ev.Subscribed(task.tenant, task.task_id, reader))
    shell.ask(task, timeout_ms=asked_ms)
    shell.advance_beating(limit_ms - 5_000, one, every_ms=5_000)
    assert task.state is TaskState.WAITING
    sends = shell.advance_beating(10_000, one)
    ended(task, TaskState.FAILED, Reason.INPUT_EXPIRED)
    assert task.outcome.fault.error_class is ErrorClass.TIMEOUT
    assert only(sends, StopAttempt).reason is Reason.INPUT_EXPIRED
    assert one.inflight == 0, "it had no slot to give back"
    assert not shell.pool.held


def test_DLV_11_a_waiting_task_is_cancelled():
    shell, task, one, _ = asking("one")
    sends = shell.cancel(task)
    ended(task, TaskState.CANCELLED, Reason.CANCELLED)
    assert only(sends, StopAttempt).attempt == 1
    assert (one.inflight, len(shell.pool.held), shell.pool.questions.of(one)) == (0, 0, [])


def test_DLV_1_an_agent_may_answer_or_fail_although_nobody_answered_it():
    shell, task, one, _ = asking("one")
    shell.report(task, "without you")
    ended(task, TaskState.SUCCEEDED)
    assert one.inflight == 0
    shell, task, one, _ = asking("one")
    shell.report(task, error=(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED))
    ended(task, TaskState.FAILED, Reason.AGENT_FAILED)


def test_DLV_7_a_lost_instance_gives_its_waiting_tasks_away_with_their_answers():
    shell, task, one, _ = asking("one", "two")
    shell.answer(task, "yes")
    shell.ask(task, "And this?")
    sends = shell.lose(one)
    assert only(sends, Offer).instance.instance_id == "two"
    assert (task.state, task.attempt) == (TaskState.DELIVERED, 2)
    assert [given.content for given in task.dialogue.inputs] == ["yes"]
    assert only(shell.answer(task), Refused).fault.reason is Reason.WRONG_STATE
    shell.ask(task, "And this?")
    shell.answer(task, "no")
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)


def test_DLV_7_after_its_effect_began_a_waiting_task_is_not_run_again():
    shell, task, one = running("one", "two", effects=EffectKind.IRREVERSIBLE)
    shell.ask_effect(task)
    shell.ask(task)
    shell.lose(one)
    assert task.state is TaskState.WAITING, "its instance has 30 s to come back"
    shell.advance(31_000)
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)


def test_DLV_7_who_comes_back_goes_on_waiting_and_hears_what_was_answered_meanwhile():
    shell, task, one, _ = asking("one", "two")
    shell.lose(one, ours=True)
    assert not of(shell.answer(task, "yes"), GiveInput), "there is nobody to be told"
    assert task.state is TaskState.WAITING
    sends = shell.step(shell.joined("one", running=named(task)))
    assert only(sends, GiveInput).link == one.link
    assert (task.state, task.attempt, one.inflight) == (TaskState.RUNNING, 1, 1)


def test_DLV_7_what_a_hello_does_not_name_waits_no_longer():
    shell, _task, one, _ = asking("one")
    shell.lose(one, ours=True)
    sends = shell.step(shell.joined("one"))
    assert only(sends, Offer).attempt == 2


def test_DLV_7_an_answer_that_may_not_have_arrived_is_told_again():
    shell, task, one, _ = asking("one")
    shell.answer(task, "yes")
    shell.lose(one, ours=True)
    sends = shell.step(shell.joined("one", running=named(task)))
    assert only(sends, GiveInput).input.content == "yes"


def test_HLT_6_an_instance_that_falls_silent_loses_what_waits_with_it():
    shell, task, _one, _ = asking("one")
    shell.join("two")
    two = shell.pool.instances["two"]
    shell.advance_beating(120_000, two)
    assert (task.attempt, task.instance_id) == (2, "two")


@pytest.mark.parametrize("answered", [False, True])
def test_DLV_2_a_restart_keeps_the_question_and_the_answers(answered):
    shell, task, one, _ = asking("one")
    shell.answer(task, "yes", "i-1")
    shell.ask(task, "And this?", name="this")
    if answered:
        shell.answer(task, "no", "i-2")
    shell.advance_beating(60_000, one)
    (task,) = shell.crash_and_load()
    one = shell.pool.instances["one"]
    assert [given.content for given in task.dialogue.inputs] == (["yes", "no"] if answered else ["yes"])
    assert only(shell.answer(task, "yes", "i-1"), Done).value == (task, True)
    if not answered:
        assert task.state is TaskState.WAITING
        assert 0 < task.dialogue.question.until_ms - shell.now_ms <= q.WAIT_MS - 60_000
        assert one.inflight == 0
    sends = shell.step(shell.joined("one", running=named(task)))
    if not answered:
        assert task.state is TaskState.WAITING
        sends = shell.answer(task, "no", "i-2")
    assert only(sends, GiveInput).input.content == "no"
    assert (task.state, task.attempt, one.inflight) == (TaskState.RUNNING, 1, 1)
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)


def test_STR_2_a_question_that_is_open_is_told_to_every_reader():
    """One who comes late, or after a restart, must know what is asked: it is never part of a gap."""
    shell, task, one, _ = asking("one")
    shell.answer(task, "yes", "i-1")
    shell.advance_beating(KEEP_MS + 1, one)
    shell.ask(task, "And this?", name="this")
    late = shell.read(task)
    assert shell.kinds(late) == [Kind.GAP, Kind.WAITING]
    assert shell.numbers(late) == [task.sequence - 1, task.sequence]
    (task,) = shell.crash_and_load()
    after = shell.read(task, after=task.sequence - RESERVE + 5)
    assert shell.kinds(after) == [Kind.GAP, Kind.RESUMED, Kind.WAITING]
    assert shell.seen[after.reference][-1][4].ask.content == "And this?"
    shell.step(shell.joined("one", running=named(task)))
    shell.answer(task, "no", "i-2")
    assert shell.kinds(after)[3:] == [Kind.INPUT_GIVEN]
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)
    assert shell.numbers(after) == sorted(set(shell.numbers(after)))


def test_STR_1_a_question_that_is_told_again_after_a_restart_has_a_number_that_no_later_process_uses():
    """Found by seed 4003055 of the simulation: the next process had nothing to ask any more, and used it again."""
    shell, _, _, _ = asking("one")
    (task,) = shell.crash_and_load()
    asked = shell.seen[shell.read(task).reference][-1]
    assert asked[3] == Kind.WAITING
    (task,) = shell.crash_and_load()
    shell.advance(GRACE_MS + 1)
    assert task.state is TaskState.PENDING, "its instance did not come back"
    told = shell.seen[shell.read(task).reference]
    assert [event[3] for event in told if event[0] == asked[0]] == []
    assert min(event[0] for event in told if event[3] != Kind.GAP) > asked[0]


def test_STR_2_a_question_is_told_also_where_a_hello_made_the_log():
    shell, task, _, _ = asking("one")
    (task,) = shell.crash_and_load()
    shell.step(shell.joined("one", running=[(task.tenant, task.task_id, task.attempt, 3)]))
    assert task.log is not None
    assert shell.kinds(shell.read(task))[-1] == Kind.WAITING


def test_DLV_2_after_a_restart_a_waiting_task_whose_instance_stays_away_moves():
    shell, task, _one, _ = asking("one", "two")
    (task,) = shell.crash_and_load()
    shell.join("two", boot="b1")
    shell.advance_beating(31_000, shell.pool.instances["two"])
    assert (task.attempt, task.instance_id) == (2, "two")


def test_RTE_7_the_session_of_a_waiting_task_stays_with_its_instance():
    shell, _task, one, _ = asking("one", "two", session="a:b:c")
    shell.advance_beating(1_800_000, *shell.pool.instances.values(), every_ms=5_000)
    turn = shell.submit(session="a:b:c", **LONG)
    assert turn.instance is one


def test_DLV_7_who_was_given_up_while_it_waited_and_comes_back_goes_on_waiting():
    shell, task, one, _ = asking("one", retry="patient")
    shell.lose(one, ours=True)
    shell.advance(6_000)  # it did not come back in time: given up, and tried again later or elsewhere
    assert state(task) is TaskState.PENDING
    shell.step(shell.joined("one", running=named(task)))
    assert (state(task), task.attempt, one.inflight) == (TaskState.WAITING, 1, 0)
    assert not of(shell.ask(task, name="other"), GiveInput)
    sends = shell.answer(task, "yes")
    assert only(sends, GiveInput).input.content == "yes"
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)


@pytest.mark.parametrize("how", ["ended", "given up", "forgotten"])
def test_DLV_1_who_asks_for_what_is_over_is_told_to_stop(how):
    """Acknowledged, it would wait for an answer for ever."""
    shell, task, one = running("one", retry="patient")
    if how == "given up":
        shell.step(ev.LinkEnded(one, one.link, True))
        shell.advance(6_000)
        assert state(task) is TaskState.PENDING
    else:
        shell.cancel(task)
    if how == "forgotten":
        del shell.pool.tasks[task.key]
    sends = shell.ask(task, instance=one, attempt=1)
    if how == "forgotten":
        assert only(sends, AskJournal).works
    else:
        assert only(sends, RefuseItem).fault.reason is Reason.STALE_ATTEMPT
    assert not of(sends, Acknowledge)
