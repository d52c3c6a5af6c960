"""Health by beats, probes, loss and silence (HLT-1, HLT-2, HLT-6 … HLT-8, cases B5, B8, B9, P5, F11)."""

import pytest

from reach.core import events as ev
from reach.core import health
from reach.core.effects import Noted
from reach.core.health import Sign
from reach.core.instance_states import Availability, Condition, Health
from reach.core.model import Requirement
from reach.core.vitals import KEEP_OFFLINE_MS
from tests.core.harness import Shell, instance_of, of

BEAT = 5_000


def at(silent_ms, heartbeat_ms=BEAT):
    instance = instance_of("one")
    instance.heartbeat_ms, instance.beat_ms = heartbeat_ms, 1_000
    return instance, 1_000 + silent_ms


@pytest.mark.parametrize(
    ("silent_ms", "sign"),
    [
        (0, None),
        (7_499, None),
        (7_500, Sign.MISSED),
        (14_999, Sign.MISSED),
        (15_000, Sign.TIMED_OUT),
        (299_999, Sign.TIMED_OUT),
        (300_000, Sign.GONE),
    ],
)
def test_what_silence_means(silent_ms, sign):
    assert health.judge(*at(silent_ms))[0] is sign


@pytest.mark.parametrize("heartbeat_ms", [1_000, 5_000, 60_000])
def test_the_next_check_is_where_the_meaning_changes(heartbeat_ms):
    instance, now = at(0, heartbeat_ms)
    signs = []
    while (check := health.next_check_ms(instance, now)) is not None:
        before = health.judge(instance, check - 1)[0]
        now = check
        assert health.judge(instance, now)[0] is not before
        signs.append(health.judge(instance, now)[0])
    assert signs == [Sign.MISSED, Sign.TIMED_OUT, Sign.GONE]


def test_a_change_is_kept_with_its_reason_and_history_is_bounded():
    instance = instance_of("one")
    instance.health = Health.SUSPECT
    assert health.move(instance, Sign.PROOF, "beat", 5, 1_005)
    assert not health.move(instance, Sign.PROOF, "beat", 6, 1_006)
    assert instance.history == [(1_005, "HEALTHY", "beat")]
    assert instance.health_since_ms == 5
    for number in range(200):
        health.move(instance, Sign.LOST if number % 2 else Sign.PROOF, "x", number, number)
    assert len(instance.history) == health.HISTORY


BLOCKS = [
    ({}, ""),
    ({"link": None}, "no_link"),
    ({"health": Health.STARTING}, "starting"),
    ({"health": Health.SUSPECT}, ""),
    ({"health": Health.UNHEALTHY}, "unhealthy"),
    ({"health": Health.OFFLINE}, "offline"),
    ({"conditions": {Condition.NOT_READY: ("it says so", 0)}}, "not_ready"),
    ({"availability": Availability.BUSY}, ""),
    ({"availability": Availability.DRAINING}, "draining"),
    ({"availability": Availability.UNAVAILABLE}, "unavailable"),
    *(
        ({"conditions": {one: ("seen", 0)}}, one.name.lower())
        for one in (Condition.DEAF, Condition.STALLED, Condition.SELF_REPORTED_FAILURES, Condition.CIRCUIT_OPEN)
    ),
    ({"conditions": {Condition.WARMING: ("new", 0), Condition.UNREACHABLE: ("probe", 0)}}, ""),
]


@pytest.mark.parametrize(("state", "reason"), BLOCKS)
def test_what_takes_new_work(state, reason):
    instance = instance_of("one")
    instance.link, instance.health = "link", Health.HEALTHY
    for name, value in state.items():
        setattr(instance, name, value)
    assert health.blocked_by(instance) == reason


# -- in a pool ---------------------------------------------------------------------------------------------------------


def test_silence_goes_down_step_by_step_and_a_beat_brings_it_back_at_once():
    shell = Shell()
    one = shell.join()
    shell.join("other", heartbeat_ms=60_000, slots=5, agent_id="other")
    assert one.health is Health.HEALTHY
    shell.advance(7_490)
    assert one.health is Health.HEALTHY
    shell.advance(20)
    assert (one.health, one.blocked_by) == (Health.SUSPECT, "")
    shell.advance(7_500)
    assert (one.health, one.blocked_by) == (Health.UNHEALTHY, "unhealthy")
    waits = shell.submit(requirement=Requirement(agent_id="echo"))
    shell.step(ev.Beat(one, {}))
    assert (one.health, one.blocked_by) == (Health.HEALTHY, "")
    assert waits.instance is one


def test_it_is_out_of_routing_within_three_beats_and_a_second():
    """P5."""
    shell = Shell()
    one = shell.join(heartbeat_ms=2_000)
    shell.join("other", heartbeat_ms=60_000)
    shell.advance(3 * 2_000 + 1_000)
    assert one.blocked_by == "unhealthy"


def test_after_five_silent_minutes_it_is_offline_and_later_removed_once_its_link_is_gone():
    shell = Shell()
    one = shell.join()
    shell.advance(300_010)
    assert one.health is Health.OFFLINE
    sends = shell.advance(KEEP_OFFLINE_MS + 60_000)
    assert shell.pool.instances == {"one": one}
    assert shell.pool.next_wake_ms() is None, "it must not be asked again and again"
    assert of(sends, Noted) == []
    shell.lose(one)
    sends = shell.advance(20)
    assert [note.kind for note in of(sends, Noted)] == ["removed"]
    assert shell.pool.instances == {}
    assert [row.instance_id for row in shell.journal.rows.agents_gone] == ["one"]


def test_traffic_is_proof_of_life():
    """HLT-2, HLT-7."""
    shell = Shell()
    one = shell.join()
    task = shell.submit(start_to_close_ms=100_000)
    for _ in range(10):
        shell.advance(6_000)
        shell.progress(task)
        assert one.health is Health.HEALTHY


def test_each_change_is_told_once():
    """B8."""
    shell = Shell()
    one = shell.join()
    sends = shell.advance(60_000)
    assert [note.reason for note in of(sends, Noted) if note.kind == "health"] == ["SUSPECT", "UNHEALTHY"]
    sends = shell.lose(one)
    assert [note.reason for note in of(sends, Noted) if note.kind == "health"] == ["OFFLINE"]


def test_after_a_stall_of_our_own_nobody_is_judged_by_what_we_did_not_hear():
    """F11, P5: the timers are long overdue, so it was we who stood still."""
    shell = Shell()
    one = shell.join()
    shell.join("other", heartbeat_ms=60_000)
    shell.now_ms += 60_000
    shell.step()
    assert (one.health, one.blocked_by) == (Health.HEALTHY, "")
    shell.advance(9_000)
    assert (one.health, one.blocked_by) == (Health.SUSPECT, "")
    shell.advance(2_000)
    assert (one.health, one.blocked_by) == (Health.UNHEALTHY, "unhealthy")


def test_a_flood_of_beats_is_remembered_in_bounds():
    shell = Shell()
    one = shell.join()
    for _ in range(50):
        shell.now_ms += 1
        shell.step(*(ev.Beat(one, {}) for _ in range(20)))
    assert len(one.beats) <= 65


def test_who_has_left_is_not_brought_back_by_what_was_on_its_way():
    shell = Shell()
    one = shell.join()
    task = shell.submit()
    shell.step(ev.Left(one))
    sends = shell.step(ev.Beat(one, {}), shell.reported(task, instance=one, attempt=1))
    assert of(sends, Noted) == []
    assert shell.pool.instances == {}
    assert shell.advance(1_000_000) == []
