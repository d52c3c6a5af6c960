"""PRF-4: one routing decision with its in-flight update, in the core alone, with filters, pins and circuits on.

Half of the instances carry the tag that three of four tasks require, one in a hundred is unhealthy and one in a hundred
has an open circuit, one in ten tasks belongs to a session that has a pin. Figures are of decisions in a row on one pool
that is a quarter full; what is timed is what a submitted task costs: finding its instance and taking its slot.
"""

from __future__ import annotations

import gc
import statistics
import time
from random import Random

from reach.core.effects import Turn
from reach.core.instance_states import Condition
from reach.core.model import Instance, PoolKey, Profile, Requirement, Task
from reach.core.pool import Pool
from reach.core.routing import Router
from reach.core.row_numbers import RowNumbers

SLOTS = 16
DECISIONS = 4_000
OTHER_POOLS = 1_000
BEAT_MS = 5_000
NOW = 1_000_000_000


def _instance(pool: Pool, number: int, random: Random) -> Instance:
    profile = Profile(
        "echo", "1", (("echo", "1"),), (), (("gpu",) if number % 2 else ("cpu",)), (), (), (), "", ()
    )  # fmt: skip
    one = Instance(f"echo-{number}", profile, pool.key)
    one.max_concurrency = SLOTS
    one.blocked_by = "unhealthy" if number % 100 == 51 else ""
    if number % 100 == 53:
        one.blocked_by = "circuit_open"
        one.conditions[Condition.CIRCUIT_OPEN] = ("5 calls in a row failed", NOW)
    one.link = "link"
    one.latency_ms, one.moved_ms = random.uniform(50, 500), NOW
    one.beats = [NOW - age for age in range(0, 30_000, BEAT_MS)][::-1]
    one.inflight = random.randrange(SLOTS // 2)
    return one


def pool_of(instances: int, name: str = "echo") -> Pool:
    """A pool as it is in the middle of its work."""
    random = Random(instances)
    router = Router()
    pool = Pool(PoolKey("acme", name), 0, RowNumbers(1), 7, lambda one, two: one == two, router=router)
    router.figures.baseline_ms, router.now_ms = 200.0, NOW
    for number in range(instances):
        one = _instance(pool, number, random)
        pool.instances[one.instance_id] = one
        router.add(one)
        pool.pins.ring.add(one.instance_id)
    return pool


def _tasks(pool: Pool, count: int) -> list[Task]:
    random = Random(count)
    gpu, any_ = Requirement(capability="echo", required_tags=("gpu",)), Requirement(capability="echo")
    names = [one.instance_id for one in pool.instances.values() if not one.blocked_by and one.bit % 2]
    tasks = []
    for number in range(count):
        task = Task("acme", f"t{number}", b"", gpu if number % 4 else any_)
        task.row = number
        if number % 10 == 0:
            task.session = f"app:user:{number}"
            pool.pins.set((task.tenant, task.session), random.choice(names), NOW)
        tasks.append(task)
    return tasks


def decide_us(instances: int, scale: float, *, others: int = 0) -> float:
    """p50 of a decision with its in-flight update, in µs."""
    beside = [pool_of(10, f"other-{number}") for number in range(others)]
    pool = pool_of(instances)
    router, turn = pool.router, Turn(NOW, NOW)
    took, held = [], []
    gc.collect()
    gc.disable()
    try:
        for task in _tasks(pool, int(DECISIONS * max(scale, 0.1))):
            began = time.perf_counter_ns()
            instance = pool.assignment.find(task, turn)
            if instance is not None:
                instance.inflight += task.cost
                router.place(instance)
            took.append(time.perf_counter_ns() - began)
            assert instance is not None, task.pending_reason
            held.append(instance)
            if len(held) > instances // 4:
                ended = held.pop(0)
                ended.inflight -= 1
                router.place(ended)
    finally:
        gc.enable()
    assert len(beside) == others
    return statistics.median(took) / 1_000


def rescoring_share(instances: int, scale: float) -> float:
    """Share of a core, in CPU time, that scores take while every instance beats each 5 s, and twice in 10 s the usual
    latency of the pool moves, so that all scores are to be made anew."""
    pool = pool_of(instances)
    everybody = list(pool.instances.values())
    per_refresh = max(1, instances * 200 // BEAT_MS)
    now, took = NOW, []
    for number in range(max(10, int(50 * scale))):
        now += 200
        begin = number * per_refresh % instances
        for one in everybody[begin : begin + per_refresh]:
            one.beats = [*one.beats[1:], now]
            pool.scores.changed(one)
        for one in everybody[:: max(1, instances // 500)] if number % 25 == 0 else ():
            one.latency_ms *= 1.1
        began = time.process_time_ns()
        pool.scores.refresh(Turn(now, now))
        took.append(time.process_time_ns() - began)
    return statistics.mean(took) / 200e6
