"""`make bench`: measures the budgets of docs/benchmarks.md, each beside its floor in the same minutes.

    python -m bench                    all of them
    python -m bench PRF-1 PRF-2        these
    python -m bench peers              the same work with AutoGen, NATS and Celery, each in an environment of its own
    python -m bench --rounds 5 --quick

One JSON line per id: {"id", "value", "unit", "floor", "ratio", "bar", "ok", "rounds"}. Absolute figures say nothing on
a shared machine: the ratio is the result. Ours and the floor alternate; the figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import NamedTuple

from bench import cluster, decisions, memory, peer_runs, recovery, runs


class Budget(NamedTuple):
    """One line of the budget."""

    text: str
    unit: str
    ours: Callable[[float], float]
    floor: Callable[[float], float] | None
    bar: float
    better: str
    """`higher`: value >= bar * floor; `lower`: value <= bar * floor. Where there is no floor: value against bar."""
    once: bool = False
    """One round, whatever is asked for: it is long, and several figures are of it."""


def _sdk_rate(inflight: int, tasks: int, *, volatile: bool = False) -> Callable[[float], float]:
    return lambda scale: runs.sdk(inflight, tasks * scale, volatile=volatile).rate


def _floor_rate(mode: str, inflight: int, tasks: int) -> Callable[[float], float]:
    return lambda scale: runs.floor(mode, inflight, tasks * scale).rate


def _closed_loop(scale: float) -> cluster.Load:
    return cluster.closed_loop(60 * cluster.MINUTES * scale)


def _decision(instances: int, bar: float) -> Budget:
    text = f"routing decision with its in-flight update, p50, {instances:,} instances"
    return Budget(text, "us", lambda scale: decisions.decide_us(instances, scale), None, bar, "lower")


BUDGETS = {
    "PRF-1": Budget(
        "durable, 64 in flight, SDK",
        "tasks/s",
        _sdk_rate(64, 20_000),
        _floor_rate("journal", 64, 20_000),
        1.0,
        "higher",
    ),
    "PRF-1@500": Budget(
        "durable, 500 in flight, SDK",
        "tasks/s",
        _sdk_rate(500, 30_000),
        _floor_rate("journal", 500, 30_000),
        1.0,
        "higher",
    ),
    "PRF-1b": Budget(
        "volatile, 64 in flight, SDK",
        "tasks/s",
        _sdk_rate(64, 40_000, volatile=True),
        _floor_rate("stream", 64, 60_000),
        0.4,
        "higher",
    ),
    "PRF-2": Budget(
        "durable, one in flight, p50",
        "ms",
        lambda scale: runs.sdk(1, 2_000 * scale).p50_ms,
        lambda scale: runs.floor("unary", 1, 2_000 * scale).p50_ms,
        2.0,
        "lower",
    ),
    "PRF-3": Budget(
        "unary Dispatch with wait, 64 in flight, stub",
        "calls/s",
        lambda scale: runs.unary(64, 8_000 * scale).rate,
        _floor_rate("unary", 64, 8_000),
        0.7,
        "higher",
    ),
    "PRF-4@142": _decision(142, 10.0),
    "PRF-4@10k": _decision(10_000, 30.0),
    "PRF-4@100k": _decision(100_000, 80.0),
    "PRF-4@pools": Budget(
        "the same in 142 instances beside 1,000 other pools, against alone",
        "us",
        lambda scale: decisions.decide_us(142, scale, others=decisions.OTHER_POOLS),
        lambda scale: decisions.decide_us(142, scale),
        1.2,
        "lower",
    ),
    "PRF-4@scores": Budget(
        "scores of 100,000 instances that beat each 5 s",
        "of a core",
        lambda scale: decisions.rescoring_share(100_000, scale),
        None,
        0.1,
        "lower",
    ),
    "PRF-5": Budget(
        "2,100 streamed heartbeats a second of 10,500 instances, CPU of the server",
        "% of a core",
        lambda scale: 100 * runs.beats(2_100, 5.0, max(1.0, 5 * scale)).cores,
        None,
        10.0,
        "lower",
    ),
    "PRF-5@20000": Budget(
        "20,000 streamed heartbeats a second of 20,000 instances, counted",
        "beats/s",
        lambda scale: runs.beats(20_000, 1.0, max(1.0, 5 * scale)).counted,
        None,
        20_000 * 0.99,
        "higher",
    ),
    "PRF-6": Budget(
        "500 callers, 8 agents x 300 ms at 3 nodes, one killed each minute, p99",
        "ms",
        lambda scale: _closed_loop(scale).p99_ms,
        None,
        400.0,
        "lower",
        once=True,
    ),
    "PRF-6@lost": Budget(
        "tasks of the same run that were lost or failed, and errors to callers",
        "tasks",
        lambda scale: _closed_loop(scale).wrong,
        None,
        0,
        "lower",
        once=True,
    ),
    "NODES@owners": Budget(
        "durable, 192 in flight, 3 nodes, callers and agents at the owners, against one node on PostgreSQL",
        "tasks/s",
        lambda scale: cluster.throughput(3, scale),
        lambda scale: cluster.throughput(1, scale),
        0.6,
        "higher",
    ),
    "NODES@proxied": Budget(
        "the same with callers and agents at other nodes than the owners",
        "tasks/s",
        lambda scale: cluster.throughput(3, scale, away=True),
        lambda scale: cluster.throughput(1, scale),
        0.25,
        "higher",
    ),
    "PRF-8": Budget(
        "100,000 waiting tasks after kill -9, to SERVING",
        "s",
        lambda scale: recovery.recover(int(100_000 * scale)).seconds,
        None,
        3.0,
        "lower",
    ),
    "PRF-9": Budget(
        "memory of a server with 10,000 agents",
        "MB",
        lambda scale: memory.agents(int(10_000 * scale)),
        None,
        200.0,
        "lower",
    ),
    "PRF-9@streaming": Budget(
        "growth of a server that streams without a pause for a minute",
        "MB",
        lambda scale: memory.streaming(60 * scale).growth_mb,
        None,
        10.0,
        "lower",
    ),
    "PRF-10": Budget("start to SERVING", "s", lambda scale: runs.start_seconds(), None, 1.5, "lower"),
}


def measure(name: str, budget: Budget, rounds: int, scale: float) -> dict[str, object]:
    """One id: rounds of ours and floor, alternating."""
    ours: list[float] = []
    floors: list[float] = []
    for _ in range(1 if budget.once else rounds):
        if budget.floor is not None:
            floors.append(budget.floor(scale))
        ours.append(budget.ours(scale))
    value = statistics.median(ours)
    floor = statistics.median(floors) if floors else None
    ratio = value / floor if floor else None
    measured = ratio if ratio is not None else value
    good = measured >= budget.bar if budget.better == "higher" else measured <= budget.bar
    return {
        "id": name,
        "what": budget.text,
        "value": round(value, 3),
        "unit": budget.unit,
        "floor": round(floor, 3) if floor is not None else None,
        "ratio": round(ratio, 3) if ratio is not None else None,
        "bar": budget.bar,
        "ok": good,
        "rounds": [round(one, 3) for one in ours],
    }


def _named(given: str) -> list[str]:
    """An id, or all parts of one that is only measured in parts (`PRF-4`)."""
    parts = [name for name in BUDGETS if name.startswith(f"{given}@")]
    return [given, *parts] if given == "PRF-6" else [given] if given in BUDGETS else parts or [given]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="PRF-…, or peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: to see that it runs")
    arguments = parser.parse_args()
    scale = 0.1 if arguments.quick else 1.0
    if "peers" in arguments.ids:
        for line in peer_runs.compare(scale):
            print(json.dumps(line), flush=True)
        return
    ids = [name for given in arguments.ids for name in _named(given)]
    unknown = [name for name in ids if name not in BUDGETS]
    if unknown:
        parser.error(f"no budget {', '.join(unknown)}; there is {', '.join(BUDGETS)}, peers")
    for name in ids or BUDGETS:
        print(json.dumps(measure(name, BUDGETS[name], arguments.rounds, scale)), flush=True)


if __name__ == "__main__":
    main()
