"""Stuck, deaf, failing by its own report, and what operators hear of it (HLT-7 … HLT-9, HLT-12, cases B1, B2)."""

from typing import Any

import pytest

from reach.core import events as ev
from reach.core import health
from reach.core.effects import AskReopen, DropLink, Noted, Offer
from reach.core.health import THRESHOLDS
from reach.core.instance_states import Availability, Condition, Health
from reach.core.model import Requirement, TaskState
from tests.core.harness import LONG, UNAVAILABLE, Shell, of, only, running


def kinds(sends):
    return [note.kind for note in of(sends, Noted)]


def usual(shell, took_ms=1_000, tasks=3):
    """Lets the pool learn how long a task usually takes."""
    for _ in range(tasks):
        task = shell.submit()
        shell.take_up(task)
        shell.advance(took_ms)
        shell.report(task)


def pair(took_ms=1_000):
    """Two instances that know their task time; `one` has two tasks running."""
    shell = Shell()
    one = shell.join("one", slots=2, heartbeat_ms=1_000)
    usual(shell, took_ms)
    tasks = [shell.submit(**LONG), shell.submit(**LONG)]
    for task in tasks:
        shell.take_up(task)
    two = shell.join("two", slots=9, heartbeat_ms=1_000)
    return shell, one, two, tasks


def test_HLT_8_stuck_is_out_within_twice_its_usual_task_time_and_a_beat():
    shell, one, two, tasks = pair()
    shell.advance_beating(1_000, one, two)
    assert not one.blocked_by
    sends = shell.advance_beating(2_000, one, two)
    assert (one.blocked_by, one.health) == ("stalled", Health.HEALTHY)
    (note,) = of(sends, Noted)
    said = "2 tasks running, nothing completed and no progress for 2000 ms; usual is 1000 ms"
    assert (note.kind, note.reason) == ("stalled", said)
    others = [shell.submit(**LONG) for _ in range(3)]
    assert {task.instance_id for task in others} == {"two"}
    for task in others:
        shell.report(task)
    sends = shell.advance_beating(60_000, one, two)
    assert kinds(sends) == [], "told once"
    assert {task.state for task in tasks} == {TaskState.RUNNING}, "its work stays until its own limits"
    shell.report(tasks[0])
    assert (one.blocked_by, one.history[-1][1:]) == ("", ("STALLED over", "its work goes on"))


@pytest.mark.parametrize("says", [True, False])
def test_HLT_8_it_is_stuck_no_longer_once_it_runs_nothing_any_more(says):
    """Its tasks were cancelled, and it says nothing of them: it must not be out for ever."""
    shell, one, two, tasks = pair()
    beat = {"inflight": 2} if says else {}
    shell.step(ev.Beat(one, beat))
    shell.advance_beating(3_000, one, two)
    for task in tasks:
        shell.cancel(task)
    shell.step(ev.Beat(one, beat))
    assert one.blocked_by == "stalled", "told to stop, it has its grace"
    shell.advance_beating(60_000, one, two)
    if says:
        shell.step(ev.Beat(one, beat))
        assert one.blocked_by == "stalled", "it still runs them"
        shell.step(ev.Beat(one, {"inflight": 0}))
    assert one.blocked_by == ""
    assert ("STALLED over", "it runs nothing any more") in [entry[1:] for entry in one.history]


@pytest.mark.parametrize("sign", ["progress", "delta"])
def test_HLT_7_HLT_8_progress_counts_as_much_as_a_completion(sign):
    shell, one, two, tasks = pair()
    for number in range(1, 41):
        shell.advance_beating(1_000, one, two)
        if sign == "progress":
            shell.progress(tasks[0])
        else:
            shell.delta(tasks[0], number)
        assert not one.blocked_by


def test_HLT_8_taking_up_more_work_is_no_progress():
    shell, one, _, _ = pair()
    one.max_concurrency = 9
    for _ in range(2):
        shell.advance(1_000)
        task = shell.submit(**LONG, requirement=Requirement(instance_id="one"))
        shell.take_up(task)
    shell.step(ev.Beat(one, {}))
    assert one.blocked_by == "stalled"


def test_HLT_8_an_idle_instance_is_not_stuck_and_the_clock_starts_with_its_first_task():
    shell, one, two, tasks = pair()
    for task in tasks:
        shell.report(task)
    shell.advance_beating(60_000, one, two)
    task = shell.submit(**LONG)
    while task.instance is not one:
        task = shell.submit(**LONG)
    shell.advance_beating(1_000, one, two)
    assert not one.blocked_by


def test_HLT_8_a_pause_shorter_than_a_second_means_nothing():
    shell, one, two, _ = pair(took_ms=5)
    shell.advance(900)
    shell.step(ev.Beat(one, {}))
    assert not one.blocked_by
    shell.advance(200)
    shell.step(ev.Beat(one, {}), ev.Beat(two, {}))
    assert one.blocked_by == "stalled"


def test_HLT_7_busy_with_a_declared_longest_task_is_left_in_peace_for_one_and_a_half_times_that():
    shell, one, two, _ = pair()
    shell.step(ev.Beat(one, {"availability": Availability.BUSY, "longest_task": 20_000}))
    shell.advance_beating(29_000, two)
    assert (one.health, one.blocked_by) == (Health.SUSPECT, "")
    shell.advance_beating(2_000, two)
    assert (one.health, one.blocked_by) == (Health.UNHEALTHY, "unhealthy")
    shell.step(ev.Beat(one, {}))
    assert (one.health, one.blocked_by) == (Health.HEALTHY, "stalled")
    shell.step(ev.Beat(one, {"longest_task": 60_000}))
    assert one.blocked_by == "stalled", "what has begun ends with progress only"


def test_HLT_7_one_that_may_be_silent_for_long_is_not_offline_meanwhile():
    """Its declared task, or its interval, is longer than the silence after which others are given up."""
    shell = Shell()
    busy, slow = shell.join("busy", heartbeat_ms=1_000), shell.join("slow", heartbeat_ms=60_000)
    shell.pool.thresholds = THRESHOLDS._replace(offline_ms=150_000)
    shell.step(ev.Beat(busy, {"availability": Availability.BUSY, "longest_task": 400_000}), ev.Beat(slow, {}))
    shell.advance(179_000)
    assert (busy.health, slow.health) == (Health.SUSPECT, Health.SUSPECT)
    shell.advance(2_000)
    assert (busy.health, slow.health) == (Health.SUSPECT, Health.UNHEALTHY)
    shell.advance(30_000)
    assert (busy.health, slow.health) == (Health.SUSPECT, Health.OFFLINE)
    for ms, expected in ((388_000, Health.SUSPECT), (2_000, Health.UNHEALTHY), (30_000, Health.OFFLINE)):
        shell.advance(ms)
        assert busy.health is expected


def test_HLT_7_progress_without_beats_never_evicts_and_silence_does():
    """40 s of computation under a heartbeat timeout of 3 s."""
    shell, one, two, tasks = pair()
    for _ in range(20):
        shell.advance_beating(2_000, two)
        shell.progress(tasks[0])
        assert (one.health, one.blocked_by) == (Health.HEALTHY, "")
    shell.advance_beating(4_000, two)
    assert one.blocked_by == "unhealthy"
    sends = shell.advance_beating(health.WAIT_UNHEALTHY_MS, two)
    assert {offer.instance.instance_id for offer in of(sends, Offer)} == {"two"}


def test_HLT_7_the_work_of_a_busy_instance_waits_as_long_as_it_may_be_silent():
    shell, one, two, tasks = pair()
    shell.step(ev.Beat(one, {"availability": Availability.BUSY, "longest_task": 60_000}))
    shell.advance_beating(90_000 + health.WAIT_UNHEALTHY_MS - 2_000, two)
    assert [task.attempt for task in tasks] == [1, 1]
    shell.advance_beating(4_000, two)
    assert [task.instance_id for task in tasks] == ["two", "two"]


def test_B1_a_blocked_loop_is_stalled_with_its_evidence_and_an_alert():
    shell, task, one = running("one", "two")
    sends = shell.step(ev.Beat(one, {"loop_stalled": 1_500}))
    assert [(note.kind, note.reason) for note in of(sends, Noted)] == [("stalled", "loop stalled for 1500 ms")]
    assert kinds(shell.step(ev.Beat(one, {"loop_stalled": 2_500}))) == []
    assert (task.attempt, one.blocked_by) == (1, "stalled")


# -- by its own report -------------------------------------------------------------------------------------------------


def test_HLT_12_three_failures_in_a_row_bar_an_instance_until_the_count_falls():
    shell = Shell()
    one = shell.join("one")
    two = shell.join("two", slots=9)
    sends = shell.step(ev.Beat(one, {"consecutive_failure_count": 2}))
    assert (one.blocked_by, kinds(sends)) == ("", [])
    sends = shell.step(ev.Beat(one, {"consecutive_failure_count": 3}))
    assert (one.blocked_by, kinds(sends)) == ("self_reported_failures", ["self_reported_failures"])
    assert {shell.submit().instance_id for _ in range(3)} == {"two"}
    shell.advance_beating(20_000, one, two)
    assert one.blocked_by == "self_reported_failures", "a beat without a count changes nothing (REG-3)"
    shell.step(ev.Beat(one, {"consecutive_failure_count": 0}))
    assert one.blocked_by == ""


def test_published_availability_ends_by_itself():
    shell = Shell()
    one = shell.join()
    shell.step(ev.Beat(one, {"availability": Availability.UNAVAILABLE, "availability_ttl": 8_000}))
    waits = shell.submit()
    shell.advance_beating(7_000, one)
    assert one.blocked_by == "unavailable"
    shell.advance(1_010)
    assert (one.blocked_by, waits.instance, one.availability_until_ms) == ("", one, 0)


# -- deaf --------------------------------------------------------------------------------------------------------------


def deaf():
    shell, task, one = running("one", "two")
    shell.step(ev.Beat(one, {}, 10, 10))
    shell.advance_beating(5_000, shell.pool.instances["two"], every_ms=5_000)
    shell.step(ev.Beat(one, {}, 12, 10))
    shell.advance_beating(5_000, shell.pool.instances["two"], every_ms=5_000)
    shell.step(ev.Beat(one, {}, 15, 10))
    assert not one.blocked_by, "frame 12 has been under way for one beat only"
    shell.advance_beating(5_000, shell.pool.instances["two"], every_ms=5_000)
    return shell, task, one, shell.step(ev.Beat(one, {}, 17, 10))


def test_HLT_9_a_frame_older_than_two_beats_that_did_not_arrive_stops_routing_and_asks_to_reopen():
    shell, task, one, sends = deaf()
    assert (one.blocked_by, one.health) == ("deaf", Health.HEALTHY)
    assert one.conditions[Condition.DEAF][0] == "frame 12 was sent two beats ago; the last that arrived is 10"
    assert only(sends, AskReopen).link == one.link
    assert kinds(sends) == ["deaf"]
    assert (task.state, task.attempt) == (TaskState.RUNNING, 1)
    shell.advance(5_000)
    assert of(shell.step(ev.Beat(one, {}, 18, 10)), AskReopen) == [], "asked once"


def test_HLT_9_a_new_stream_ends_it_and_its_work_goes_on():
    shell, task, one, _ = deaf()
    shell.step(shell.joined("one", running=[(task.tenant, task.task_id, 1, 0)]))
    assert (one.blocked_by, task.attempt) == ("", 1)
    sends = shell.advance(20_000)
    assert of(sends, DropLink) == []
    shell.step(ev.Beat(one, {}, 1, 1))
    assert one.blocked_by == ""


def test_HLT_9_only_if_it_does_not_reopen_its_stream_is_ended_and_then_its_work_moves():
    shell, task, one, _ = deaf()
    link, two = one.link, shell.pool.instances["two"]
    sends = shell.advance_beating(9_000, two)
    assert of(sends, DropLink) == []
    sends = shell.advance_beating(2_000, two)
    assert [drop.link for drop in of(sends, DropLink)] == [link]
    assert task.attempt == 1
    shell.step(ev.LinkEnded(one, link, True))
    assert task.attempt == 1, "it may still come back"
    shell.advance_beating(6_000, two)
    assert (task.attempt, task.instance_id) == (2, "two")


def test_HLT_9_frames_that_arrive_after_all_end_it():
    shell, _, one, _ = deaf()
    shell.advance(5_000)
    shell.step(ev.Beat(one, {}, 18, 18))
    assert Condition.DEAF not in one.conditions
    assert of(shell.advance_beating(60_000, one), DropLink) == []


def test_HLT_9_beats_in_a_row_are_no_measure_of_time():
    shell, one, _ = two_of()
    for sent in range(1, 20):
        shell.advance(10)
        shell.step(ev.Beat(one, {}, sent, 1))
    assert not one.blocked_by


def test_HLT_9_who_does_not_echo_is_not_judged_by_it():
    shell, one, two = two_of()
    for sent in range(10, 60, 10):
        shell.advance_beating(5_000, two, every_ms=5_000)
        shell.step(ev.Beat(one, {}, sent, 0))
    assert not one.blocked_by


# -- two sources -------------------------------------------------------------------------------------------------------


def probe(shell, one, *answers):
    """Probes one second apart."""
    sends = []
    for ok in answers:
        sends += shell.advance(1_000)
        sends += shell.step(ev.Probed(one, ok, 2.0, "" if ok else "no answer"))
    return sends


def two_of(**parts: Any) -> Any:
    shell = Shell()
    one = shell.join("one", **parts)
    two = shell.join("two", slots=9, heartbeat_ms=60_000)
    return shell, one, two


def test_HLT_6_one_failed_probe_makes_it_suspect_and_an_answer_brings_it_back():
    shell, one, _ = two_of(dialled=True)
    probe(shell, one, True, False)
    assert (one.health, one.probe_status, one.blocked_by) == (Health.SUSPECT, "failing", "")
    assert one.last_probe_error == "no answer"
    probe(shell, one, True)
    assert (one.health, one.probe_status) == (Health.HEALTHY, "ok")


def test_HLT_6_three_failed_probes_take_out_one_that_owes_no_beats():
    """A stopped process behind an endpoint: nothing else speaks for it."""
    shell, one, _ = two_of(dialled=True)
    probe(shell, one, True, False, False)
    assert one.blocked_by == ""
    sends = probe(shell, one, False)
    assert (one.health, one.blocked_by, one.probe_status) == (Health.UNHEALTHY, "unhealthy", "unreachable")
    assert kinds(sends) == ["unreachable", "health"]
    assert one.probe_due_ms == shell.now_ms + 30_000
    shell.advance(30_000)
    probe(shell, one, True)
    assert (one.health, one.blocked_by, one.probe_status) == (Health.HEALTHY, "", "ok")
    assert Condition.UNREACHABLE not in one.conditions
    shell.advance(400_000)
    assert one.health is Health.HEALTHY, "that nobody probes it is not its fault"


def test_HLT_6_failed_probes_do_not_take_out_one_that_beats():
    shell, one, _ = two_of(heartbeat_ms=2_000)
    for _ in range(10):
        probe(shell, one, False)
        shell.step(ev.Beat(one, {}))
    assert (one.health, one.blocked_by) == (Health.SUSPECT, "")
    assert Condition.UNREACHABLE in one.conditions
    assert one.reach_score < 60
    states = [state for _, state, _ in one.history]
    assert states.count("SUSPECT") == 1, "it does not flap between beats and probes"
    shell.advance(3_100)
    probe(shell, one, False)
    assert one.blocked_by == "unhealthy", "both are silent now"


def test_HLT_8_beats_gone_but_probes_answered_is_suspect_at_most_and_an_alert():
    shell, one, _ = two_of()
    sends = []
    for _ in range(400):
        sends += probe(shell, one, True)
        assert one.health in (Health.HEALTHY, Health.SUSPECT)
    assert (one.health, one.blocked_by) == (Health.SUSPECT, "")
    assert [kind for kind in kinds(sends) if kind != "health"] == ["beats_gone"]
    sends = shell.advance(20_000)
    assert one.health == Health.OFFLINE, "now the probes are silent too"
    shell.step(ev.Beat(one, {}))
    assert one.blocked_by == ""


def test_HLT_6_an_instance_that_fails_its_probes_for_five_minutes_is_offline():
    shell, one, _ = two_of(dialled=True)
    probe(shell, one, True, False, False, False)
    for _ in range(11):
        shell.advance(29_000)
        probe(shell, one, False)
    assert one.health is Health.OFFLINE


def test_HLT_6_two_misses_by_setting():
    shell, one, _ = two_of(dialled=True)
    periods = THRESHOLDS.periods._replace(fail_threshold=2)
    shell.pool.thresholds = THRESHOLDS._replace(periods=periods, unhealthy_beats=2)
    probe(shell, one, True, False, False)
    assert one.blocked_by == "unhealthy"
    shell, one, _ = two_of(heartbeat_ms=1_000)
    shell.pool.thresholds = THRESHOLDS._replace(unhealthy_beats=2)
    shell.advance(1_990)
    assert one.blocked_by == ""
    shell.advance(20)
    assert one.blocked_by == "unhealthy"


def test_F11_a_probe_that_failed_while_we_stood_still_proves_nothing():
    shell, one, _ = two_of(dialled=True)
    probe(shell, one, True)
    shell.now_ms += 60_000
    shell.step()
    shell.step(*(ev.Probed(one, False, 0.0, "no answer") for _ in range(3)))
    assert (one.health, one.probe_status) == (Health.HEALTHY, "ok")


def test_HLT_4_a_check_says_whether_it_is_ready_and_counts_as_a_beat_of_one_that_we_call():
    shell, one, _ = two_of(dialled=True)
    shell.step(ev.Checked(one, True, {"ready": False}, 0.25, ""))
    assert (one.blocked_by, one.status["worker_idle_share"]) == ("not_ready", 0.25)
    shell.step(ev.Checked(one, True, {"ready": True}, 1.0, ""))
    assert one.blocked_by == ""
    assert one.beats == [shell.now_ms] * 2


def test_HLT_4_a_check_that_fails_makes_it_suspect():
    shell, one, _ = two_of(dialled=True)
    shell.step(ev.Checked(one, False, None, None, "UNAVAILABLE"))
    assert (one.health, one.blocked_by) == (Health.SUSPECT, "")
    probe(shell, one, True)
    assert one.health is Health.SUSPECT
    shell.step(ev.Checked(one, True, {}, None, ""))
    assert one.history[-1][1:] == ("HEALTHY", "check")


def test_HLT_2_answers_of_one_that_we_call_make_it_ready_like_beats():
    shell, one, _ = two_of(dialled=True, ready=None)
    probe(shell, one, True)
    assert one.blocked_by == "not_ready"
    probe(shell, one, True)
    assert one.blocked_by == ""


def test_HLT_5_what_attempts_show_is_kept_per_method():
    shell = Shell()
    one = shell.join()
    task = shell.submit()
    shell.take_up(task)
    shell.advance(700)
    shell.report(task)
    shell.report(shell.submit(), error=UNAVAILABLE)
    shell.cancel(shell.submit())
    stats = one.methods[""]
    assert stats.mean_latency_ms(shell.now_ms) == 700
    assert stats.success_rate(shell.now_ms) == 0.5
