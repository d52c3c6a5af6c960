"""What must hold of a pool after every step, recomputed from scratch."""

from collections import Counter
from functools import partial
from typing import Any

from reach.core import health
from reach.core.instance_states import Condition
from reach.core.model import FIRST_TERMINAL, Instance, Task, TaskState
from reach.core.pieces import Kind
from reach.core.pool import Pool
from reach.core.roster import Lane
from reach.core.rows import Writes
from reach.core.score_index import BANDS, BUCKETS, ScoreIndex
from tests.core.harness import heads_of


def check(pool: Pool, everyone: list[Instance]) -> None:
    """Tasks, instances and the routing index agree; `everyone` holds the instances that have left too."""
    for task in pool.tasks.values():
        check_task(pool, task)
    for instance in everyone:
        check_load(pool, instance)
    check_router(pool)
    check_admission(pool)
    check_queue(pool)
    check_circuits(pool)
    assert not pool.dirty
    assert not pool.slot_freed
    assert pool.pins.counts == Counter(pin.instance_id for pin in pool.pins._pins.values())


def check_task(pool: Pool, task: Task) -> None:
    assert task.pool is pool
    assert (task.outcome is not None) is (task.state >= FIRST_TERMINAL), task
    if task.state is TaskState.PENDING:
        assert task.instance is None, task
        assert task in pool.queue or task.timer_slot, f"{task} is forgotten"
        assert (task in pool.queue) is not (task in pool.queue.delayed()), f"{task} takes no room, or twice"
    elif task.state >= FIRST_TERMINAL:
        assert task.instance is None, task
        assert task not in pool.queue, task
        assert task not in pool.queue.delayed(), task
        assert not task.timer_slot, task
    else:
        assert task.instance is not None, task
        assert task.instance.running.get(task.key) is task, task
        assert task.instance_id == task.instance.instance_id, task
        assert task not in pool.waiting(), task
        assert task.timer_slot, f"{task} has no deadline"
        assert task.attempt > 0, task
    if not task.volatile:
        assert task.sequence <= max(task.reserved, 1) + 1, task
    if task.log is not None:
        numbers = [event[0] for event in task.log.events]
        assert numbers == list(range(task.sequence - len(numbers) + 1, task.sequence + 1)), task
        assert task.log.bytes == sum(size for _, size in task.log.ages), task
        assert len(task.log.ages) == len(numbers), task


def check_load(pool: Pool, instance: Instance) -> None:
    held = sum(one.cost for one in pool.held if one.instance is instance)
    running = sum(task.cost for task in instance.running.values())
    assert instance.inflight == held + running >= 0, instance
    for key, task in instance.running.items():
        assert task.key == key
        assert task.instance is instance, task
        assert pool.tasks.get(key) is task, task
    if pool.instances.get(instance.instance_id) is not instance:
        assert instance.bit == -1, f"{instance} has left and is still found"
        assert not instance.timer_slot, f"{instance} has left and has a timer"


def check_router(pool: Pool) -> None:
    router = pool.router
    found = {one.bit: one for one in router.instances if one is not None}
    assert set(found.values()) == set(pool.instances.values())
    assert router.filters.all == sum(1 << bit for bit in found)
    lanes = [0] * len(Lane)
    for bit, one in found.items():
        assert one.bit == bit
        assert one.blocked_by == health.blocked_by(one, pool.admission.panic), one
        held = one.inflight + one.foreign
        lane = Lane.OUT if one.blocked_by else Lane.FREE if held < one.max_concurrency else Lane.FULL
        if lane is Lane.FULL and held < int(one.max_concurrency * router.overcommit):
            lane = Lane.OVER
        assert one.lane == lane, one
        lanes[lane] |= 1 << bit
    assert router._masks == lanes
    reasons: dict[str, int] = {}
    for bit, one in found.items():
        if one.blocked_by:
            reasons[one.blocked_by] = reasons.get(one.blocked_by, 0) | 1 << bit
    assert router._blocked == reasons
    for index in router.indexes():
        router.index_for(index.policy, index.method)
        check_index(index, [one for one in found.values() if one.lane == Lane.FREE])
    for (kind, value), mask in router.filters._attributes.items():
        if kind == "tag":
            assert mask == sum(1 << bit for bit, one in found.items() if value in one.profile.tags)
    for one in found.values():
        full = one.max_sessions is not None and pool.pins.counts.get(one.instance_id, 0) >= one.max_sessions
        assert bool(router.sessions_full >> one.bit & 1) == full, one


def check_index(index: ScoreIndex, free: list[Instance]) -> None:
    buckets = [0] * (BUCKETS * BANDS)
    for one in free:
        buckets[BUCKETS * one.priority + index.bucket_of(index.score(one))] |= 1 << one.bit
    assert index.buckets == buckets
    assert index.occupied == sum(1 << number for number, mask in enumerate(buckets) if mask)


def check_admission(pool: Pool) -> None:
    """HLT-13: suspicion excludes at most half of those that nothing certain bars; and slow starts are where they are
    said to be."""
    members = [one for one in pool.instances.values() if not health.barred_by(one)]
    suspects = [one for one in members if health.suspected_by(one)]
    assert pool.admission.panic is (2 * len(suspects) > len(members)), (members, suspects)
    excluded = [one for one in members if one.blocked_by]
    assert 2 * len(excluded) <= len(members)
    cold = sum(1 << one.bit for one in pool.instances.values() if Condition.WARMING in one.conditions)
    assert pool.router.slow_start.cold == cold
    for one in pool.instances.values():
        assert len(one.history) <= health.HISTORY
        assert len(one.probes) <= 10
        assert (Condition.NOT_READY in one.conditions) is bool(one.unready_ms), one


def check_queue(pool: Pool) -> None:
    """Nobody waits that could go: whoever is first finds no instance."""
    assert pool.queue.bytes == sum(task.size for task in pool.queue)
    assert pool.queue._delayed_bytes == sum(task.size for task in pool.queue.delayed())
    now_ms = pool.router.now_ms
    for head in heads_of(pool.queue, pool.queue.looked_ms):
        pin, instance = pool.pins.look((head.tenant, head.session), now_ms) if head.session else None, None
        if (
            pin is not None
            and head.pin_until_ms
            and (now_ms >= head.pin_until_ms or pool.queue.waits_for(head) != (pin.moving_to or pin.instance_id))
        ):
            continue  # its wait is over, or its session has just moved, or begun to: its timer has it looked at again
        if pin is not None:
            instance, until_ms = pool.assignment.by_pin(head, pin, now_ms, max(head.accepted_ms, head.not_before_ms))
            assert instance is None or until_ms, f"{head} waits and its session's {instance} could take it"
        if instance is None:
            verdict = pool.router.undisturbed(partial(pool.assignment.decide, head, pin))
            assert verdict.chosen is None, f"{head} waits and {verdict.chosen} could take it by {verdict.cause}"


def check_circuits(pool: Pool) -> None:
    """RTE-10: an open circuit is tried again: now, at some time, or just so."""
    for one in pool.instances.values():
        if Condition.CIRCUIT_OPEN in one.conditions:
            circuit = one.circuit
            assert circuit.timer_slot or circuit.probe or pool.router.probing >> one.bit & 1, f"{one} is out for ever"
        else:
            assert not pool.router.probing >> one.bit & 1, one


def check_events(events: list[tuple[int, int, int, int, Any]], after: int) -> None:
    """What one reader got: dense, or told of the gap; the end comes once and last (P4)."""
    for number, _, _, kind, data in events:
        if kind == Kind.GAP:
            assert (data.first, data.last) == (after + 1, number), events
        else:
            assert number == after + 1, events
        after = number
    ends = [event for event in events if event[3] == Kind.COMPLETE]
    assert len(ends) <= 1, events
    assert not ends or events[-1] is ends[0], events


def check_rows(rows: Writes) -> None:
    """Each task is accepted once, ends at most once, and its attempts count up (P1, P2)."""
    accepted = Counter(row.row for row in rows.tasks)
    assert set(accepted.values()) <= {1}
    assert set(Counter((row.tenant, row.task_id) for row in rows.tasks).values()) <= {1}
    assert set(Counter(row.row for row in rows.outcomes).values()) <= {1}
    assert {row.row for kind in (rows.outcomes, rows.attempts, rows.failures) for row in kind} <= set(accepted)
    attempts = {row.row: row.attempt for row in rows.tasks}
    for row in rows.attempts:
        assert row.number == attempts[row.row] + 1, row
        attempts[row.row] = row.number
    for failure in rows.failures:
        assert 1 <= failure.number <= attempts[failure.row], failure
    for outcome in rows.outcomes:
        assert outcome.attempts == attempts[outcome.row], outcome
    assert set(Counter((row.row, row.number) for row in rows.effects).values()) <= {1}
