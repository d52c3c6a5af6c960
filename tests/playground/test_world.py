"""Simulations with the real core: the same seed gives the same run, and the stories show what they say."""

import pytest

from reach.core.policies import POLICIES, Policy
from reach.errors import InvalidRequest
from reach.playground.trace import Trace, load, read
from reach.playground.world import World, simulate


def made(instances: str, tasks: str = "{rate: 20}", more: str = "") -> Trace:
    text = f"name: made\nduration: 60s\ninstances: [{instances}]\ntasks: [{tasks}]\n{more}"
    return read(text.encode(), "made")


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    trace = load("cold-restart")
    assert simulate(trace, "balanced", 5) == simulate(trace, "balanced", 5)
    assert simulate(trace, "balanced", 5) != simulate(trace, "balanced", 6)


def test_the_figures_of_a_run_that_can_be_worked_out_by_hand():
    """One instance with one slot, tasks of exactly 100 ms, one each 200 ms: nobody ever waits."""
    trace = made("{name: a, slots: 1, service: {median: 100ms, sigma: 0}}", "{rate: 5, arrivals: even}")
    report = simulate(trace, "balanced")
    assert (report.tasks, report.succeeded, report.failed, report.unfinished) == (299, 299, 0, 0)
    assert (report.p50_ms, report.p95_ms, report.p99_ms, report.mean_ms) == (100, 100, 100, 100)
    (one,) = report.instances
    assert (one.attempts, one.share, one.fair, one.done, one.peak, one.hot) == (299, 1.0, 1.0, 299, 1, "")
    assert one.busy == pytest.approx(299 * 0.1 / 60)


def test_a_recorded_stream_is_replayed():
    rows = ", ".join(f"{{at: {at}ms, work: {work}}}" for at, work in ((0, 1), (50, 3), (1_000, 2)))
    text = f"name: r\ninstances: [{{name: a, slots: 1, service: {{median: 100ms, sigma: 0}}}}]\nrecorded: [{rows}]\n"
    world = World(read(text.encode(), "r"), POLICIES["balanced"], 1)
    world.run()
    assert sorted(world._latencies) == [100, 200, 350], "the second waits for the first, by 50 ms"


def test_every_task_ends_somehow_whatever_happens():
    happens = "[{at: 5s, restart: 3s}, {at: 15s, freeze: 20s}, {at: 40s, hang: true}, {at: 50s, hang: false}]"
    instances = f"{{name: a, count: 2}}, {{name: b, fail: 0.3, happens: {happens}}}"
    tasks = "{rate: 20, sessions: 30, timeout: 5s}"
    trace = made(f"{instances}, {{name: c, happens: [{{at: 9s, stop: true}}]}}", tasks)
    report = simulate(trace, "balanced")
    assert report.unfinished == 0
    assert report.succeeded + report.failed == report.tasks > 1_000
    assert report.retries > 0


def test_there_is_no_such_policy():
    with pytest.raises(InvalidRequest, match=r"there is: .*balanced"):
        simulate(load("slow-node"), "best")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_that_there_is_can_be_played(policy):
    report = simulate(made("{name: a, count: 3}", "{rate: 5, sessions: 9}"), policy)
    assert (report.succeeded, report.unfinished) == (report.tasks, 0)


# -- stories ----------------------------------------------------------------------------------------------------------


def test_RTE_3_balanced_gives_a_slow_node_less_than_a_quarter_of_what_round_robin_would():
    """Four instances: round-robin gives each a quarter of the tasks, whatever they are like."""
    report = simulate(load("slow-node"), "balanced")
    assert report.share("slow") < 0.25 * 0.25
    assert report.error_rate == 0


def test_HLT_10_a_restarted_instance_gets_nothing_before_it_is_ready_and_ramps():
    trace = load("cold-restart")
    world = World(trace, POLICIES["balanced"], 1)
    got: list[int] = []
    offered = world._offered

    def listen(offer) -> None:
        if offer.instance.instance_id == "restarted" and world.now_ms > 90_000:
            got.append(world.now_ms - 90_000)
        offered(offer)

    world._offered = listen  # type: ignore[method-assign]
    world.run()
    assert world.report().error_rate == 0
    assert got[0] >= 12_000, "2 s gone, 10 s not ready"
    ramp = [sum(1 for at in got if begin <= at - 12_000 < begin + 10_000) for begin in (0, 10_000, 40_000)]
    assert ramp[0] < ramp[1] < ramp[2] / 2


def test_HLT_8_a_leaking_instance_whose_beats_look_fine_loses_its_share():
    report = simulate(load("leak"), "balanced")
    assert report.error_rate == 0
    assert report.share("leaking") < 0.5 * 0.25


def test_a_hot_capability_is_a_hot_spot_on_those_who_have_it():
    report = simulate(load("hot-capability"), "balanced")
    assert {one.name for one in report.instances if one.hot} == {"both-1", "both-2"}
    assert report.error_rate == 0
    assert report.share("text") > 0.15, "what others can do goes to others"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_RTE_3_balanced_beats_round_robin_where_one_node_is_ten_times_slower(seed):
    trace = load("slow-node")
    balanced, other = simulate(trace, "balanced", seed), simulate(trace, "round_robin", seed)
    assert balanced.share("slow") < 0.25 * other.share("slow")
    assert balanced.p99_ms * 3 <= other.p99_ms


def test_RTE_10_an_instance_that_fails_at_once_is_out_after_five_calls():
    world = World(load("black-hole"), POLICIES["balanced"], 1)
    got: list[int] = []
    offered = world._offered

    def listen(offer) -> None:
        if offer.instance.instance_id == "hole" and world.now_ms >= 80_000:
            got.append(world.now_ms - 80_000)
        offered(offer)

    world._offered = listen  # type: ignore[method-assign]
    world.run()
    report = world.report()
    assert report.error_rate == 0
    assert sum(1 for at in got if at < 4_900) <= 5 + 2, "five, and what was on its way"
    assert len(got) <= 5 + 2 + 100_000 // 5_000, "then one probe each 5 s"


def hot_peak(trace: Trace, policy: str) -> int:
    """Most tasks that one instance held at a time, once those who are below the mean load have been so for a while."""
    world, peak = World(trace, POLICIES[policy], 1), 0
    offered = world._offered

    def listen(offer) -> None:
        nonlocal peak
        if world.now_ms >= 120_000:
            peak = max(peak, offer.instance.inflight)
        offered(offer)

    world._offered = listen  # type: ignore[method-assign]
    world.run()
    assert world.report().error_rate == 0
    return peak


def test_RTE_3_the_bonus_for_the_underloaded_lowers_the_peak_of_the_hot_instance_by_30_percent(monkeypatch):
    """Many slots and few tasks: capacity tells nobody apart, and the one that is faster draws everything."""
    adaptive = POLICIES["adaptive"]
    without = {name: weight for name, weight in adaptive.weights.items() if name != "underload"}
    monkeypatch.setitem(POLICIES, "plain", Policy("plain", without, adaptive.near_tie))
    instances = ", ".join(
        f"{{name: {name}, slots: 2000, count: {count}, service: {{median: {median}ms, sigma: 0.2}}}}"
        for name, count, median in (("fast", 1, 500), ("usual", 19, 1_000))
    )
    text = f"name: hot\nduration: 180s\ninstances: [{instances}]\ntasks: [{{rate: 100}}]\n"
    trace = read(text.encode(), "hot")
    assert hot_peak(trace, "adaptive") <= 0.7 * hot_peak(trace, "plain")


def test_RTE_3_round_robin_gives_each_of_those_who_can_the_same():
    report = simulate(load("hot-capability"), "round_robin")
    text = [one.attempts for one in report.instances if one.name.startswith("text")]
    both = [one.attempts for one in report.instances if one.name.startswith("both")]
    assert max(text) - min(text) <= 0.1 * max(text)
    assert max(both) - min(both) <= 0.1 * max(both)
