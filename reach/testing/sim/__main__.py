"""`python -m reach.testing.sim`: runs histories and tells of the first that goes wrong."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context

from reach.testing.sim.run import Verdict, explain, run_seed, run_seeds

BATCH = 25
"""Seeds of one process, which leaves its garbage to its end: to collect it takes longer than to begin anew."""
TELL_EVERY = 1_000
"""Histories between two words on how far it has come."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 if nothing was wrong, 1 if a history violates an invariant."""
    parser = argparse.ArgumentParser(prog="python -m reach.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--nodes", type=int, default=1, help="of how many nodes (default: 1)")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds of real time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--story", action="store_true", help="tell all that happens in the first history, and stop")
    chosen = parser.parse_args(arguments)
    if chosen.story:
        verdict = run_seed(chosen.first, nodes=chosen.nodes, lines=1_000_000, full=True)
        print(verdict.story)
        return 1 if verdict.violations else 0
    return _many(chosen.first, chosen.seeds, chosen.seconds, chosen.jobs, chosen.nodes)


def _many(first: int, seeds: int, seconds: float | None, jobs: int, nodes: int) -> int:
    began = time.monotonic()
    deadline = began + seconds if seconds is not None else None
    count, tasks, virtual = 0, 0, 0.0
    failed: list[Verdict] = []
    for verdict in _verdicts(range(first, first + seeds), deadline, jobs, nodes):
        count, tasks, virtual = count + 1, tasks + verdict.tasks, virtual + verdict.seconds
        if not verdict.ok:
            failed.append(verdict)
            if len(failed) == 1:
                print(explain(verdict), flush=True)
            else:
                print(f"seed {verdict.seed} violates {verdict.violations[0]}", flush=True)
        if count % TELL_EVERY == 0:
            print(f"… {verdict.seed}: {count} of {seeds}, {len(failed)} with violations", file=sys.stderr, flush=True)
    took = time.monotonic() - began
    print(
        f"{count} histories ({first} … {first + count - 1}), {tasks} tasks, {virtual / 3_600:.1f} hours of virtual time"
        f" in {took:.1f} s: {count / max(took, 1e-9):.1f} a second. {len(failed)} with violations."
    )
    return 1 if failed else 0


def _verdicts(seeds: range, deadline: float | None, jobs: int, nodes: int) -> Iterator[Verdict]:
    if len(seeds) <= BATCH:
        yield from run_seeds(seeds, deadline, nodes=nodes)
        return
    batches = [(seeds[at : at + BATCH], deadline, nodes) for at in range(0, len(seeds), BATCH)]
    with get_context("fork").Pool(max(1, jobs), maxtasksperchild=1) as pool:
        for verdicts in pool.imap(_batch, batches):
            yield from verdicts


def _batch(work: tuple[range, float | None, int]) -> list[Verdict]:
    """In another process; the clock is the same one on each."""
    seeds, deadline, nodes = work
    return list(run_seeds(seeds, deadline, nodes=nodes, collects=False))


if __name__ == "__main__":
    sys.exit(main())
