"""Instances: generations, loss, re-attachment, draining (REG-2, REG-3, REG-7, HLT-6, DLV-7, cases B5 … B7, A12)."""

import pytest

from reach.core import events as ev
from reach.core.delivery import LOST_MOVES
from reach.core.effects import CloseLink, Done, DrainLink, Noted, Offer, Refused, StopAttempt, Welcome
from reach.core.fleet import STALE_BOOTS
from reach.core.instance_states import Availability, Condition, Health
from reach.core.leases import REATTACH_MS, RETURN_MS
from reach.core.model import EffectKind, Requirement, TaskState
from reach.core.pieces import Kind
from reach.errors import Reason
from tests.core.harness import LONG, TENANT, Shell, ended, named, of, only, running

# -- registering -------------------------------------------------------------------------------------------------------


def test_the_same_process_is_updated_and_what_it_does_not_say_stays():
    """REG-2, REG-3."""
    shell = Shell()
    one = shell.join(slots=7, weight=50, priority=9, heartbeat_ms=2_000, ready=True)
    shell.step(ev.Beat(one, {"queue": 3}))
    assert shell.join() is one
    assert (one.generation, one.max_concurrency, one.weight, one.priority, one.heartbeat_ms) == (1, 7, 50, 9, 2_000)
    assert (one.ready, one.status) == (True, {"queue": 3})
    assert len(shell.journal.rows.agents) == 1
    shell.join(registration=b"changed")
    assert [row.registration for row in shell.journal.rows.agents] == [b"reg", b"changed"]


def test_a_new_process_is_a_new_generation_and_is_written_down():
    shell = Shell()
    shell.join(boot="b1")
    shell.join(boot="b2")
    rows = shell.journal.rows.agents
    assert [(row.boot_id, row.generation, row.stale_boots) for row in rows] == [("b1", 1, ()), ("b2", 2, ("b1",))]


@pytest.mark.parametrize("link", ["", None])
def test_an_older_process_is_told_that_it_is_stale(link):
    shell = Shell()
    for number in range(STALE_BOOTS + 1):
        shell.join(boot=f"b{number}")
    event = shell.joined("one", "b0", link=link, reply="reply")
    (sent,) = shell.step(event)
    assert type(sent) is (Refused if link is None else CloseLink)
    assert sent.fault.reason is Reason.STALE_GENERATION
    assert shell.pool.instances["one"].generation == STALE_BOOTS + 1


def test_the_link_of_the_older_process_is_closed():
    shell = Shell()
    before = shell.join(boot="b1").link
    sends = shell.step(shell.joined("one", "b2"))
    assert [(sent.link, sent.fault.reason) for sent in of(sends, CloseLink)] == [(before, Reason.STALE_GENERATION)]
    one = shell.pool.instances["one"]
    after = one.link
    shell.step(ev.LinkEnded(one, before, False))
    assert (one.link, one.blocked_by) == (after, "")


def test_a_new_process_fails_the_old_ones_attempts_at_once_and_never_gets_them_by_mistake():
    """B5: none stays bound to the old process; none is offered to it before the new one is attached."""
    shell, task, _ = running("one")
    sends = shell.step(shell.joined("one", "b2"))
    kinds = [type(send) for send in sends if type(send) in (Welcome, Offer)]
    assert kinds == [Welcome, Offer]
    assert only(sends, Offer).link == shell.pool.instances["one"].link
    assert (task.attempt, task.state) == (2, TaskState.DELIVERED)
    assert [past.fault.reason for past in task.history] == [Reason.INSTANCE_LOST]


def test_a_new_process_is_free_of_what_was_held_against_the_old_one():
    shell, task, one = running("one")
    shell.cancel(task)
    one.conditions[Condition.STALLED] = ("hung", 0)
    shell.step(ev.Drained(one, 0, False, None))
    shell.join("one", "b2")
    assert (one.inflight, one.blocked_by) == (0, "")


def test_a_registration_without_a_link_gets_no_work():
    shell = Shell()
    sends = shell.step(shell.joined("one", link=None, reply="reply"))
    assert only(sends, Done).value is shell.pool.instances["one"]
    assert shell.pool.instances["one"].blocked_by == "no_link"
    task = shell.submit()
    shell.join("one")
    assert task.state is TaskState.DELIVERED


@pytest.mark.parametrize("how", ["beat", "hello"])
def test_more_slots_are_used_at_once(how):
    shell, _, one = running("one")
    waits = shell.submit()
    if how == "beat":
        shell.step(ev.Beat(one, {"max_concurrency": 2}))
    else:
        shell.step(shell.joined("one", link=None, slots=2))
    assert waits.instance is one


def test_a_new_capability_is_used_at_once():
    shell = Shell()
    shell.join("one")
    waits = shell.submit(requirement=Requirement(capability="sum"))
    assert (waits.state, waits.pending_reason) == (TaskState.PENDING, "no_match")
    shell.step(shell.joined("one", link=None, capabilities=(("sum", "1"),)))
    assert waits.state is TaskState.DELIVERED


@pytest.mark.parametrize(
    "status", [{"ready": False}, {"availability": Availability.UNAVAILABLE}, {"availability": Availability.DRAINING}]
)
def test_what_an_instance_says_of_itself_counts(status):
    shell = Shell()
    one = shell.join()
    shell.step(ev.Beat(one, status))
    waits = shell.submit()
    assert waits.state is TaskState.PENDING
    shell.step(ev.Beat(one, {"ready": True, "availability": Availability.READY}))
    assert (waits.state is TaskState.PENDING) is (status.get("availability") is Availability.DRAINING)


# -- loss --------------------------------------------------------------------------------------------------------------


def test_lost_work_moves_in_the_same_step_outside_of_the_budget():
    shell, task, one = running("one", "two")
    shell.pool.budget.tokens = 0.0
    sends = shell.lose(one)
    assert only(sends, Offer).instance.instance_id == "two"
    assert of(sends, StopAttempt) == []
    assert (task.attempt, task.retries, task.transfers, task.avoided) == (2, 0, 1, ("one",))
    assert (one.health, one.inflight) == (Health.OFFLINE, 0)
    assert [row.reason for row in shell.journal.rows.failures] == [Reason.INSTANCE_LOST]


def test_a_task_that_takes_its_instances_down_is_buried():
    shell, task, _ = running(*(f"i{number}" for number in range(9)))
    for _ in range(LOST_MOVES + 1):
        shell.lose(task.instance)
    ended(task, TaskState.DEAD_LETTERED, Reason.INSTANCE_LOST)


def test_a_late_end_of_an_older_link_is_nothing():
    shell, task, one = running("one")
    before = one.link
    shell.step(shell.joined("one", running=named(task)))
    shell.step(ev.LinkEnded(one, before, False), ev.LinkEnded(one, before, True))
    assert (task.state, task.instance, one.health) == (TaskState.RUNNING, one, Health.HEALTHY)


def test_a_link_that_we_closed_is_waited_for():
    """A12: 5 s for the same process to come back; the attempt goes on."""
    shell, task, one = running("one", "two")
    shell.lose(one, ours=True)
    shell.advance(REATTACH_MS - 20)
    assert (task.attempt, task.instance) == (1, one)
    sends = shell.step(shell.joined("one", running=named(task)))
    assert only(sends, Welcome).unknown == []
    shell.advance(REATTACH_MS * 2)
    assert (task.attempt, task.state) == (1, TaskState.RUNNING)


def test_CLU_3_who_came_by_a_node_that_is_gone_has_longer_to_come_back():
    shell, task, one = running("one", "two")
    shell.lose(one, ours=True, unheard=True)
    shell.advance(RETURN_MS - 20)
    assert (task.attempt, task.instance) == (1, one)
    shell.advance(40)
    assert (task.attempt, task.instance_id) == (2, "two")


def test_and_if_it_does_not_come_its_work_moves():
    shell, task, one = running("one", "two")
    shell.lose(one, ours=True)
    shell.advance(REATTACH_MS + 20)
    assert (task.attempt, task.instance_id) == (2, "two")
    assert shell.pool.instances["one"].inflight == 0


def test_leaving_moves_the_work_and_removes_the_record():
    shell, task, one = running("one", "two")
    sends = shell.step(ev.Left(one, "reply"))
    assert task.instance_id == "two"
    assert only(sends, Done).reply == "reply"
    assert [note.kind for note in of(sends, Noted) if note.kind == "removed"] == ["removed"]
    assert shell.pool.instances.keys() == {"two"}
    shell.step(ev.Left(one), ev.LinkEnded(one, one.link, False), ev.Drained(one, 0, False, None))
    assert shell.pool.instances.keys() == {"two"}
    assert shell.submit().state is TaskState.PENDING


# -- coming back -------------------------------------------------------------------------------------------------------


def test_the_hello_is_complete_what_it_does_not_name_is_not_running():
    shell, task, one = running("one")
    sends = shell.step(shell.joined("one"))
    assert [type(send) for send in sends if type(send) in (Welcome, Offer)] == [Welcome, Offer]
    assert (task.attempt, task.instance, task.state) == (2, one, TaskState.DELIVERED)
    assert task.avoided == ()


def test_HAZARD_4_a_hello_that_comes_late_says_nothing_of_what_was_offered_since():
    """It came by an older stream. Of what may not happen twice nobody would know whether it has."""
    shell = Shell()
    one = shell.join("one", hello=2)
    task = shell.submit(**LONG, effects=EffectKind.IRREVERSIBLE)
    shell.step(ev.EffectAsked(one, TENANT, task.task_id, 1, "pay"))
    former, now = shell.joined("one", hello=1), one.link
    (closed,) = shell.step(former)
    assert (type(closed), closed.link, closed.fault.reason) == (CloseLink, former.link, Reason.INSTANCE_LOST)
    assert (one.link, task.attempt, task.instance, task.effect_granted) == (now, 1, one, 1)
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)


@pytest.mark.parametrize(
    "later", [{"hello": 3}, {"hello": 2}, {"hello": 0}, {"hello": 1, "boot": "b2"}, {"hello": 1, "lost": True}]
)
def test_HAZARD_4_all_other_hellos_are_taken(later):
    """A newer one, the same again by another way, one of an agent that does not count them, of a new process, and of
    one that was gone."""
    shell = Shell()
    one = shell.join("one", hello=2)
    if later.pop("lost", False):
        shell.step(ev.Left(one))
    event = shell.joined("one", **later)
    assert only(shell.step(event), Welcome).link == event.link
    assert shell.pool.instances["one"].link == event.link


def test_a_lost_attempt_that_comes_back_before_another_began_is_kept():
    shell, task, one = running("one")
    shell.lose(one)
    assert task.state is TaskState.PENDING
    sends = shell.step(shell.joined("one", running=named(task)))
    assert of(sends, Offer) == []
    assert (task.attempt, task.state, one.inflight) == (1, TaskState.RUNNING, 1)
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)


def test_one_that_comes_back_too_late_is_told_so():
    shell, task, one = running("one", "two")
    shell.lose(one)
    sends = shell.step(shell.joined("one", running=[*named(task, 1), (TENANT, "never heard of", 3, 0)]))
    assert only(sends, Welcome).unknown == [(TENANT, task.task_id, 1), (TENANT, "never heard of", 3)]
    assert task.instance_id == "two"
    assert one.inflight == 0


def test_only_the_current_attempt_can_be_claimed():
    shell, task, one = running("one")
    sends = shell.step(shell.joined("one", running=named(task, 7)))
    assert only(sends, Welcome).unknown == [(TENANT, task.task_id, 7)]
    assert (task.attempt, task.state, one.inflight) == (2, TaskState.DELIVERED, 1)


def test_an_attempt_that_was_offered_and_comes_back_running_has_started():
    shell = Shell()
    shell.join("one")
    task = shell.submit(**LONG)
    reader = shell.read(task)
    shell.step(shell.joined("one", running=named(task)))
    assert (task.state, shell.kinds(reader)) == (TaskState.RUNNING, [Kind.ACCEPTED, Kind.STARTED])


def test_deltas_that_we_missed_are_asked_for_again_and_the_text_is_not_doubled():
    shell, task, one = running("one")
    reader = shell.read(task)
    shell.delta(task, 1, "Hel")
    sends = shell.step(shell.joined("one", running=named(task, last=3)))
    assert only(sends, Welcome).replay == [(TENANT, task.task_id, 1)]
    for number, text in enumerate(("Hel", "lo", "!"), 1):
        shell.delta(task, number, text)
    shell.report(task, folded=3, instance=one)
    assert task.outcome.content == "Hello!"
    assert shell.kinds(reader)[2:] == [Kind.DELTA] * 3 + [Kind.COMPLETE], "what came, came once"


def test_slots_of_a_stopping_attempt_are_free_if_the_hello_does_not_name_it():
    shell, task, one = running("one")
    shell.cancel(task)
    assert one.inflight == 1
    shell.step(shell.joined("one"))
    assert one.inflight == 0
    other = shell.submit(**LONG)
    shell.cancel(other)
    shell.step(shell.joined("one", running=named(other)))
    assert one.inflight == 1, "it is told only now"


def test_an_instance_that_left_and_registers_anew_takes_its_attempt_with_it():
    shell, task, one = running("one")
    shell.ask_effect(task)
    shell.step(ev.Left(one))
    assert task.instance is one
    shell.step(shell.joined("one", running=named(task)))
    again = shell.pool.instances["one"]
    assert again is not one
    assert (task.instance, again.inflight, one.inflight) == (again, 1, 0)
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)


# -- draining ----------------------------------------------------------------------------------------------------------


def test_draining_finishes_what_runs_and_takes_nothing_new_until_it_is_undone():
    shell, task, one = running("one")
    sends = shell.step(ev.Drained(one, 30_000, False, "reply"))
    assert (only(sends, DrainLink).deadline_ms, only(sends, Done).reply) == (30_000, "reply")
    waits = shell.submit()
    for said in (Availability.READY, Availability.BUSY):
        shell.step(ev.Beat(one, {"availability": said}))
        shell.step(shell.joined("one", link=None, availability=said))
    shell.report(task)
    ended(task, TaskState.SUCCEEDED)
    assert (waits.state, one.blocked_by) == (TaskState.PENDING, "draining")
    sends = shell.step(ev.Drained(one, 0, True, "reply"))
    assert of(sends, DrainLink) == []
    assert waits.instance is one


def test_DLV_5_an_attempt_whose_agent_comes_back_each_time_was_never_lost():
    """Its connection breaks more often than a task may lose its agent: nothing is buried, and it ends once."""
    shell, task, one = running("one")
    for _ in range(3 * LOST_MOVES):
        shell.lose(one)
        assert (task.state, task.attempt) == (TaskState.PENDING, 1)
        shell.step(shell.joined("one", running=named(task)))
        assert (task.state, task.attempt) == (TaskState.RUNNING, 1)
    assert not task.history
    shell.report(task, "done")
    ended(task, TaskState.SUCCEEDED)


def test_REG_2_what_a_process_said_before_another_came_is_not_said_by_that_one():
    """Both are stepped together: its last beat and its goodbye are behind the registration of the next."""
    shell = Shell()
    one = shell.join()
    beat, left = ev.Beat(one, {"availability": Availability.DRAINING}), ev.Left(one)
    shell.step(shell.joined("one", "b2"), beat, left)
    now = shell.pool.instances["one"]
    assert (now.boot_id, now.availability, now.blocked_by) == ("b2", Availability.READY, "")
    shell.step(ev.Left(now))
    assert "one" not in shell.pool.instances
