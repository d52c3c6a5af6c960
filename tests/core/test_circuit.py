"""Circuit breakers (RTE-10, case C8)."""

import pytest

from reach.core import events as ev
from reach.core.circuit import PROBE_MS, Circuit
from reach.core.effects import Noted
from reach.core.instance_states import Condition
from reach.core.model import EffectKind, Requirement, TaskState
from reach.errors import ErrorClass, Reason
from tests.core.harness import LONG, UNAVAILABLE, Shell, instance_of, of

AGENT_ERROR = (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED)
INTERNAL = (ErrorClass.INTERNAL, Reason.AGENT_CRASHED)
TIMEOUT = (ErrorClass.TIMEOUT, Reason.START_TO_CLOSE)
BUSY = (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY)
BAD_REQUEST = (ErrorClass.INVALID_REQUEST, Reason.INVALID_FIELD)
BAD = Requirement(instance_id="bad")


def shell_of(*others, slots=8):
    """A pool with an instance that will fail, and some that stay out of the way."""
    shell = Shell()
    bad = shell.join("bad", slots=slots, heartbeat_ms=60_000)
    for name in others:
        shell.join(name, slots=slots, heartbeat_ms=60_000)
    return shell, bad


def fail(shell, times, error=AGENT_ERROR, gap_ms=0):
    for _ in range(times):
        task = shell.submit(requirement=BAD, retry="never", **LONG)
        shell.report(task, error=error)
        shell.now_ms += gap_ms


def succeed(shell, times):
    for _ in range(times):
        shell.report(shell.submit(requirement=BAD))


def is_open(instance):
    return Condition.CIRCUIT_OPEN in instance.conditions


@pytest.mark.parametrize("error", [AGENT_ERROR, INTERNAL, TIMEOUT, UNAVAILABLE])
def test_RTE_10_five_in_a_row_open_it(error):
    shell, bad = shell_of("good")
    fail(shell, 4, error)
    assert not is_open(bad)
    fail(shell, 1, error)
    assert is_open(bad)
    assert bad.blocked_by == "circuit_open"
    assert [note.instance for note in of(shell.sends, Noted) if note.kind == "circuit_open"] == [bad]
    assert bad.history[-1][1] == "CIRCUIT_OPEN"
    assert bad.conditions[Condition.CIRCUIT_OPEN][0].startswith("5 calls in a row failed")
    assert {shell.submit(**LONG).instance_id for _ in range(4)} == {"good"}


@pytest.mark.parametrize("error", [BUSY, BAD_REQUEST])
def test_RTE_10_what_says_nothing_about_the_instance_does_not_count(error):
    shell, bad = shell_of()
    fail(shell, 20, error)
    assert not is_open(bad)


def test_RTE_10_cancelled_and_lost_attempts_do_not_count():
    shell, bad = shell_of(slots=60)
    for _ in range(10):
        shell.cancel(shell.submit(requirement=BAD, **LONG))
        shell.report(shell.submit(requirement=BAD, **LONG), released="drains")
    assert not is_open(bad)


def test_RTE_10_half_of_the_last_minute_opens_it_and_less_does_not():
    shell, bad = shell_of()
    succeed(shell, 6)
    fail(shell, 4)
    succeed(shell, 1)
    assert not is_open(bad)
    fail(shell, 2)
    assert not is_open(bad)  # 6 of 13
    fail(shell, 1)
    assert is_open(bad)  # 7 of 14


def test_RTE_10_what_is_older_than_a_minute_is_forgotten():
    shell, bad = shell_of()
    succeed(shell, 1)
    fail(shell, 3)
    succeed(shell, 1)
    shell.now_ms += 61_000
    fail(shell, 1)
    assert not is_open(bad)  # 1 of 1: too few to judge


def test_the_minute_slides():
    circuit = Circuit(instance_of("one"))
    for second in range(300):
        circuit.went_well(second * 1_000)
        assert not circuit.went_wrong(second * 1_000 + 500) or second >= 2  # half, from the 5th call on
    assert 100 <= sum(circuit._good) + sum(circuit._bad) <= 120
    circuit.went_well(1_000_000)
    assert (sum(circuit._good), sum(circuit._bad)) == (1, 0)


def test_RTE_10_three_good_probes_close_it_with_a_clean_history():
    shell, bad = shell_of("good")
    fail(shell, 5)
    opened = shell.now_ms
    for number in range(3):
        assert shell.submit(**LONG).instance_id == "good"
        shell.advance(opened + (number + 1) * PROBE_MS + 10 - shell.now_ms)
        probe = shell.submit(**LONG)
        assert probe.instance_id == "bad"
        assert probe.decision.cause == "probe"
        assert is_open(bad)
        shell.report(probe)
    assert not is_open(bad)
    assert not bad.blocked_by
    fail(shell, 4)
    assert not is_open(bad), "the history is clean"


def test_RTE_10_a_bad_probe_begins_the_count_anew():
    shell, bad = shell_of("good")
    fail(shell, 5)
    for good in (True, True, False, True, True, True):
        assert is_open(bad)
        shell.advance(PROBE_MS + 10)
        shell.report(shell.submit(retry="never", **LONG), error=None if good else AGENT_ERROR)
    assert not is_open(bad)


def test_C8_many_at_the_instant_the_window_opens_are_one_probe():
    shell, _ = shell_of("good", slots=60)
    fail(shell, 5)
    shell.now_ms += PROBE_MS + 10
    tasks = [shell.task(**LONG) for _ in range(50)]
    shell.step()
    shell.step(*(ev.Submitted(task, shell.reader()) for task in tasks))
    assert [task.instance_id for task in tasks].count("bad") == 1
    shell.advance(3 * PROBE_MS)
    assert shell.submit(**LONG).instance_id == "good", "while the probe runs there is no other"


@pytest.mark.parametrize("how", ["cancel", "timeout", "lost and back"])
def test_RTE_10_a_lost_probe_frees_its_place(how):
    shell, bad = shell_of("good")
    fail(shell, 5)
    shell.advance(PROBE_MS + 10)
    probe = shell.submit(start_to_close_ms=7_000, retry="never")
    assert probe.instance_id == "bad"
    if how == "cancel":
        shell.cancel(probe)
        shell.step(shell.reported(probe, instance=bad, error=BAD_REQUEST))
    elif how == "timeout":
        shell.advance(7_010)
    else:
        shell.lose(bad)
        shell.join("bad", slots=8, heartbeat_ms=60_000)
    shell.advance(PROBE_MS + 10)
    assert shell.submit(**LONG).instance_id == "bad"


def test_an_irreversible_task_and_one_of_a_session_that_has_begun_are_no_probes():
    shell, _ = shell_of("good")
    fail(shell, 5)
    shell.submit(session="a:b:c", **LONG)
    shell.advance(PROBE_MS + 10)
    assert shell.submit(effects=EffectKind.IRREVERSIBLE, **LONG).instance_id == "good"
    assert shell.submit(session="a:b:c", **LONG).instance_id == "good"
    assert shell.submit(**LONG).instance_id == "bad"


def test_a_waiting_task_becomes_the_probe_when_its_time_comes():
    shell, _ = shell_of("good")
    fail(shell, 5)
    waits = shell.submit(requirement=BAD, **LONG)
    assert waits.state is TaskState.PENDING
    shell.advance(PROBE_MS + 10)
    assert waits.instance_id == "bad"


def test_an_open_instance_that_drains_is_not_probed():
    shell, bad = shell_of("good")
    fail(shell, 5)
    shell.step(ev.Drained(bad, 0, False, "reply"))
    shell.advance(PROBE_MS + 10)
    assert shell.submit(**LONG).instance_id == "good"


def test_another_process_begins_with_a_closed_circuit():
    shell, bad = shell_of("good")
    fail(shell, 5)
    bad = shell.join("bad", "b2", slots=8, heartbeat_ms=60_000)
    assert not is_open(bad)
    fail(shell, 4)
    assert not is_open(bad)
    fail(shell, 1)
    assert is_open(bad)


def test_the_attempts_that_a_new_process_does_not_know_are_not_held_against_it():
    shell, bad = shell_of("good")
    for _ in range(6):
        shell.submit(requirement=BAD, **LONG)
    bad = shell.join("bad", "b2", slots=8, heartbeat_ms=60_000)
    assert not is_open(bad)


def test_an_instance_that_fails_at_once_and_looks_idle_is_out_after_five_calls():
    """It attracts everything, for it is always idle: the breaker ends that."""
    shell = Shell()
    shell.join("bad", slots=4, heartbeat_ms=60_000)
    shell.join("good", slots=4, heartbeat_ms=60_000)
    calls = 0
    for _ in range(60):
        task = shell.submit(retry="never", **LONG)
        if task.instance_id == "bad":
            calls += 1
            shell.report(task, error=AGENT_ERROR)
        else:
            shell.report(task)
        shell.now_ms += 10
    assert calls == 5


def test_attempts_of_before_it_opened_do_not_close_it():
    shell, bad = shell_of("good")
    early = [shell.submit(requirement=BAD, **LONG) for _ in range(3)]
    fail(shell, 5)
    shell.now_ms += 10
    for task in early:
        shell.report(task)
    assert is_open(bad)


def test_RTE_10_an_open_circuit_is_tried_also_after_the_words_of_its_instance_changed():
    shell, bad = shell_of("good")
    fail(shell, 5)
    shell.advance(PROBE_MS)
    shell.step(ev.Reworded(bad, bad.profile._replace(capabilities=(("other", "1"),))))
    probe = shell.submit(**LONG)
    assert (probe.instance_id, probe.decision.cause) == ("bad", "probe")


def test_RTE_10_a_new_process_begins_with_a_closed_circuit_and_no_probe_that_is_due():
    shell, bad = shell_of("good")
    fail(shell, 5)
    shell.advance(PROBE_MS)
    bad = shell.join("bad", boot="b2", slots=8, heartbeat_ms=60_000)
    fail(shell, 5)
    assert is_open(bad)
    assert shell.submit(**LONG).instance_id == "good", "the first probe comes 5 s later"


def test_RTE_10_new_sessions_show_whether_an_instance_works_again_and_old_ones_do_not():
    """Where all tasks have sessions, an open circuit must not stay open for ever."""
    shell, bad = shell_of("good")
    old = shell.submit(session="a:b:old")
    if old.instance is bad:
        old = shell.submit(session="a:b:other", requirement=Requirement(instance_id="good"))
    shell.report(old)
    fail(shell, 5)
    for number in range(3):
        shell.advance(PROBE_MS)
        assert shell.submit(session=old.session).instance_id == "good"
        probe = shell.submit(session=f"a:b:{number}")
        assert (probe.instance_id, probe.decision.cause) == ("bad", "probe")
        shell.report(probe)
    assert not is_open(bad)


def test_RTE_10_irreversible_tasks_show_it_only_if_nothing_else_comes_for_a_minute():
    shell, bad = shell_of("good")
    fail(shell, 5)
    irreversible = {"effects": EffectKind.IRREVERSIBLE, **LONG}
    shell.advance(PROBE_MS + 50_000)
    assert shell.submit(**irreversible).instance_id == "good"
    shell.advance(10_000)
    assert shell.submit(**irreversible).instance is bad


def test_RTE_10_a_session_that_can_go_nowhere_else_may_be_a_probe():
    shell, bad = shell_of("good")
    shell.report(shell.submit(session="a:b:c", requirement=Requirement(instance_id="good")))
    fail(shell, 5)
    waits = shell.submit(session="a:b:c", requirement=BAD)
    assert waits.state is TaskState.PENDING
    shell.advance(PROBE_MS)
    assert waits.instance is bad
