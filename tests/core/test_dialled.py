"""What is special about instances that are dialled: grants by sending, refused connections, the time after a restart
(DLV-7, HLT-6, HAZARDS 4)."""

import pytest

from reach.core import events as ev
from reach.core.dialled import Answered, Processes
from reach.core.endpoint import Endpoint
from reach.core.instance_states import Condition, Health
from reach.core.model import EffectKind, TaskState
from reach.errors import ErrorClass, Reason
from tests.core.harness import LONG, Shell, ended, fault, named

PLAIN = Endpoint("grpc://agent:1")
ASKS = Endpoint("grpc://agent:1", asks_effects=True)
IRREVERSIBLE = {"effects": EffectKind.IRREVERSIBLE, **LONG}
FULL = (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY)


def dialled(name: str = "one", endpoint: Endpoint | None = PLAIN, **parts):
    shell = parts.pop("shell", None) or Shell()
    return shell, shell.join(name, endpoint=endpoint, dialled=endpoint is not None, **parts)


@pytest.mark.parametrize(
    ("endpoint", "effects", "granted"),
    [
        (PLAIN, EffectKind.IRREVERSIBLE, 1),
        (ASKS, EffectKind.IRREVERSIBLE, 0),
        (None, EffectKind.IRREVERSIBLE, 0),
        (PLAIN, EffectKind.IDEMPOTENT, 0),
        (PLAIN, None, 0),
    ],
)
def test_DLV_7_sending_is_the_grant_only_for_those_that_cannot_ask(endpoint, effects, granted):
    shell, _ = dialled(endpoint=endpoint)
    task = shell.submit(effects=effects)
    assert task.effect_granted == granted
    assert [row.number for row in shell.journal.of("effects", task)] == [1] * granted


def test_DLV_7_it_is_committed_with_the_attempt_and_outlives_a_restart():
    shell, _ = dialled()
    shell.submit(**IRREVERSIBLE)
    (task,) = shell.crash_and_load()
    assert task.effect_granted == 1
    shell.join("two")
    shell.join("one", "b2")
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)


def test_DLV_7_a_volatile_one_is_granted_without_a_row():
    shell, _ = dialled()
    task = shell.submit(volatile=True, **IRREVERSIBLE)
    assert task.effect_granted == 1
    assert not shell.journal.of("effects", task)


def test_DLV_7_a_refusal_before_it_began_takes_the_grant_back():
    shell, one = dialled()
    task = shell.submit(**IRREVERSIBLE)
    shell.join("two", endpoint=ASKS, dialled=True)
    shell.report(task, error=fault(*FULL), begun=False)
    assert task.effect_granted == 0
    shell.advance_beating(1_000, *shell.pool.instances.values(), every_ms=100)
    assert (task.attempt, task.instance_id, task.effect_granted) == (2, "two", 0)
    assert one.inflight == 0


def test_DLV_7_a_grant_that_came_back_is_not_there_after_a_restart():
    """Found by the simulation: the row of the grant stays, and whoever had it next was refused its effect."""
    shell, _ = dialled()
    task = shell.submit(**IRREVERSIBLE)
    shell.report(task, error=fault(*FULL), begun=False)
    assert task.effect_granted == 0
    (task,) = shell.crash_and_load()
    assert (task.state, task.attempt, task.effect_granted) == (TaskState.PENDING, 1, 0)


def test_DLV_7_a_refusal_after_it_began_does_not():
    shell, _ = dialled()
    task = shell.submit(**IRREVERSIBLE)
    shell.join("two")
    shell.report(task, error=fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE))
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)


def test_DLV_7_one_that_was_not_delivered_moves_at_once():
    shell, _ = dialled()
    task = shell.submit(**IRREVERSIBLE)
    shell.join("two", endpoint=ASKS, dialled=True)
    shell.report(task, released="it was not delivered", begun=False)
    assert (task.attempt, task.instance_id) == (2, "two")


def test_DLV_7_a_grant_that_was_asked_for_is_not_taken_back_by_another_attempt():
    shell, one = dialled(endpoint=ASKS)
    task = shell.submit(**IRREVERSIBLE)
    shell.take_up(task)
    shell.ask_effect(task)
    shell.step(shell.reported(task, instance=one, attempt=7, error=fault(*FULL), begun=False))
    assert task.effect_granted == 1


def test_HLT_6_a_refused_connection_loses_an_instance_that_has_no_link():
    """After a restart it is not dialled yet, and its work is believed to run."""
    shell, _ = dialled()
    shell.submit(**LONG)
    (task,) = shell.crash_and_load()
    one = shell.pool.instances["one"]
    shell.join("two")
    assert task.instance_id == "one"
    shell.step(ev.LinkEnded(one, None, False, "connection refused"))
    assert (task.attempt, task.instance_id) == (2, "two")
    assert "connection refused" in task.history[-1].fault.message
    assert one.health is Health.OFFLINE


def test_HLT_6_but_not_one_that_has_a_link_by_now():
    shell, one = dialled()
    task = shell.submit(**LONG)
    shell.step(ev.LinkEnded(one, None, False, "connection refused"))
    assert (task.attempt, task.instance_id, one.blocked_by) == (1, "one", "")


@pytest.mark.parametrize(("endpoint", "moved"), [(PLAIN, False), (None, True)])
def test_HAZ4_after_a_restart_work_of_a_dialled_agent_has_the_time_it_was_given(endpoint, moved):
    shell, _ = dialled(endpoint=endpoint)
    shell.submit(start_to_close_ms=120_000)
    (task,) = shell.crash_and_load()
    two = shell.join("two")
    shell.advance_beating(60_000, two)
    assert (task.attempt == 2) is moved
    shell.advance_beating(62_000, two)
    assert task.attempt == 2


def test_HAZ4_what_its_check_names_is_adopted():
    shell, _ = dialled()
    shell.submit(start_to_close_ms=120_000)
    (task,) = shell.crash_and_load()
    shell.step(shell.joined("one", running=named(task), endpoint=PLAIN, dialled=True))
    assert (task.state, task.attempt) == (TaskState.RUNNING, 1)
    shell.report(task, "42")
    ended(task, TaskState.SUCCEEDED)


def test_REG_3_an_instance_that_dials_us_from_now_on_is_dialled_no_more():
    shell, one = dialled()
    assert one.endpoint == PLAIN
    shell.join("one", endpoint=None)
    assert one.endpoint is None


def test_REG_6_a_process_that_opens_a_stream_after_all_is_judged_by_its_beats():
    """It registered an address that did not answer, and then dialled us: what its address does says nothing of it."""
    shell = Shell()
    one = shell.join(link=None, dialled=True, heartbeat_ms=1_000)
    for _ in range(3):
        shell.step(ev.Probed(one, False, 0.0, "connection refused"))
    assert (one.dialled, one.probe_status, Condition.UNREACHABLE in one.conditions) == (True, "unreachable", True)
    shell.step(shell.joined("one", dialled=False, heartbeat_ms=1_000))
    assert (one.dialled, one.probe_status, Condition.UNREACHABLE in one.conditions) == (False, "none", False)
    shell.advance_beating(3_000, one)
    assert (one.health, one.reach_score) == (Health.HEALTHY, 100.0)
    shell.advance(3_000)
    assert one.health is Health.UNHEALTHY


def test_HLT_4_a_process_that_comes_back_is_one_of_several():
    same, another, several = Answered.SAME, Answered.ANOTHER, Answered.SEVERAL
    processes = Processes()
    assert [processes.answered(one) for one in "aabcca"] == [same, same, another, another, same, several]
    assert processes.answered("d") is several
    restarts = Processes()
    assert [restarts.answered(f"{one}") for one in range(200)][1:] == [another] * 199
    assert len(restarts._seen) == 64
