"""Decision records: bounded, cheap, kept with the attempt, true to the moment (RTE-13)."""

import sys

from reach.core.decision import candidates, dropped
from reach.core.model import Requirement, TaskState
from reach.core.picking import LOOKED_AT
from reach.core.policies import POLICIES
from tests.core.harness import LONG, UNAVAILABLE, Shell, instance_of
from tests.core.test_presets import router_of

BYTES = 512


def own_bytes(verdict):
    """What a record takes of its own: not the instances, static results, signals and policies that it refers to."""
    shared = verdict.dropped is verdict.static.not_free
    lists = (verdict.looked, verdict.loads, verdict.known, *(() if shared else (verdict.dropped,)))
    return sys.getsizeof(verdict) + sum(sys.getsizeof(one) for one in lists)


def test_RTE_13_a_record_has_at_most_8_candidates_and_takes_at_most_512_bytes():
    instances = [instance_of(f"i{number}", 9) for number in range(100)]
    for number, one in enumerate(instances):
        one.blocked_by = ("unhealthy", "not_ready", "draining", "", "", "", "", "", "", "")[number % 10]
        one.inflight = 9 * (number % 10 == 4)
    router = router_of(*instances)
    verdict = router.pick(Requirement(), (), 1, 1)
    assert len(verdict.looked) == len(candidates(verdict)) == LOOKED_AT
    assert dropped(verdict) == {"unhealthy": 10, "not_ready": 10, "draining": 10, "capacity": 10}
    assert own_bytes(verdict) <= BYTES, own_bytes(verdict)


def test_what_nobody_changed_is_shared_by_all_records():
    router = router_of(*(instance_of(f"i{number}", 99) for number in range(20)))
    one, two = router.pick(Requirement(), (), 1, 1), router.pick(Requirement(), (), 1, 2)
    assert one.static is two.static
    assert one.dropped is two.dropped
    shared = {id(known) for known in one.known} | {id(known) for known in two.known}
    assert shared <= {id(known) for known in router.main.known}


def test_RTE_13_a_record_tells_of_its_moment_whatever_comes_later():
    shell = Shell()
    one, two = shell.join("one", slots=20), shell.join("two", slots=20)
    shell.submit(requirement=Requirement(instance_id="one"), **LONG)
    task = shell.submit(**LONG)

    def told():
        return {row.instance.instance_id: row.signals["capacity"] for row in candidates(task.decision)}

    assert told() == {"one": 0.95, "two": 1.0}
    for _ in range(9):
        shell.submit(**LONG)
    shell.advance_beating(10_000, one, two)
    assert told() == {"one": 0.95, "two": 1.0}


def test_RTE_13_each_attempt_keeps_its_own_and_a_waiting_task_the_last_look():
    shell = Shell()
    shell.join("one")
    shell.join("two")
    task = shell.submit(**LONG)
    first = task.decision
    shell.report(task, error=UNAVAILABLE)
    assert task.history[0].decision is first
    shell.advance(1_000)
    assert task.decision is not first
    assert dropped(task.decision) == {"failed_before": 1}
    shell.submit(**LONG)
    waits = shell.submit(**LONG)
    assert waits.state is TaskState.PENDING
    assert waits.decision.chosen is None
    assert dropped(waits.decision) == {"capacity": 2}


def test_after_a_restart_it_is_no_longer_known():
    shell = Shell()
    shell.join("one")
    shell.submit(**LONG)
    (task,) = shell.crash_and_load()
    assert task.decision is None


def test_RTE_13_the_seed_replays_the_decision():
    router = router_of(*(instance_of(f"i{number}", 99) for number in range(40)))
    for seed in range(100):
        verdict = router.pick(Requirement(), (), 1, seed)
        again = router.pick(Requirement(), (), 1, verdict.seed)
        assert again.chosen is verdict.chosen
        assert [row.instance for row in candidates(again)] == [row.instance for row in candidates(verdict)]


def test_a_preview_and_a_record_tell_the_hash_of_the_policy():
    router = router_of(instance_of("one", 9))
    for policy in POLICIES.values():
        assert router.pick(Requirement(), (), 1, 1, policy).policy.digest == policy.digest
