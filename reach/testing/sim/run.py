"""Runs histories: one by its seed, or many, on several cores."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reach.testing.sim.nodes.world import NodesWorld
from reach.testing.sim.truth import Violation
from reach.testing.sim.world import World

COLLECT_EVERY = 5
"""Histories between two collections of garbage."""


class Verdict(NamedTuple):
    """What became of one history."""

    seed: int
    violations: list[Violation]
    story: str
    """What happened before the first violation; empty if there was none."""
    tasks: int
    seconds: float
    """Virtual time."""
    nodes: int = 1

    @property
    def ok(self) -> bool:
        """Nothing was wrong."""
        return not self.violations


def run_seed(seed: int, *, nodes: int = 1, lines: int = 150, full: bool = False) -> Verdict:
    """One history. The same seed is the same history, each time.

    Args:
        seed: Which one.
        nodes: Of how many nodes; 1: of one that is alone, with its own journal.
        lines: How much of the story is told if something was wrong.
        full: Tell the story of all tasks, not only of the one that it is about; and also if nothing was wrong.
    """
    world = World(seed) if nodes == 1 else NodesWorld(seed, nodes)
    violations = world.run()
    story = ""
    if violations or full:
        about = "" if full or not violations else violations[0].task_id
        story = world.story.text(about, lines)
    return Verdict(seed, violations, story, len(world.checker.tasks), world.loop.now, nodes)


def run_seeds(
    seeds: Iterable[int], deadline: float | None = None, *, nodes: int = 1, collects: bool = True
) -> Iterator[Verdict]:
    """One history after the other, until a time (`time.monotonic`).

    Args:
        seeds: Which ones.
        deadline: When no more begin.
        nodes: See `run_seed`.
        collects: Garbage is collected, between histories only; False: it is left to the end of the process, which is
            near.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    if collects:
        gc.collect()
    gc.freeze()  # what is loaded by now need not be looked at again
    try:
        for number, seed in enumerate(seeds, 1):
            if deadline is not None and time.monotonic() > deadline:
                return
            yield run_seed(seed, nodes=nodes)
            if collects and number % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def explain(verdict: Verdict) -> str:
    """A violation as people read it."""
    first, several = verdict.violations[0], verdict.nodes > 1
    make, command = (f" NODES={verdict.nodes}", f" --nodes {verdict.nodes}") if several else ("", "")
    return (
        f"seed {verdict.seed} violates {first.name}\n  {first.message}\n\n{verdict.story}\n\n"
        f"again: make sim{make} SEED={verdict.seed}   "
        f"(or python -m reach.testing.sim{command} --first {verdict.seed} --seeds 1)\n"
    )
