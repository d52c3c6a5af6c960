"""The simulation of several nodes finds bugs: those that are planted are each found within 1,000 histories."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from reach.testing.sim.run import explain, run_seed, run_seeds
from tests.sim.planted_nodes import PLANTED

SEEDS = 1_000


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_of_nodes_is_found(bug: str, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    PLANTED[bug](monkeypatch)
    found = next((verdict for verdict in run_seeds(range(SEEDS), nodes=3) if not verdict.ok), None)
    assert found is not None, f"{bug} was not found in {SEEDS} histories"
    record_property("seed", found.seed)
    sys.stdout.write(f"{bug}: found in history {found.seed}, {found.violations[0]}\n")
    assert f"SEED={found.seed}" in explain(found)
    again = run_seed(found.seed, nodes=3)
    assert again.violations[0] == found.violations[0], "the same seed is the same history"
