"""Histories of several nodes in CI: always the same first ones. `NODES_SECONDS=600` goes on with others for so long."""

from __future__ import annotations

import os
import sys
import time
from itertools import count

import pytest

from reach.testing.sim.__main__ import main
from reach.testing.sim.run import explain, run_seed, run_seeds

SEEDS = 12
"""Always run, of three nodes."""
SECONDS = float(os.environ.get("NODES_SECONDS", "0"))


@pytest.mark.timeout(SECONDS + 120)
def test_CLU_nothing_is_lost_and_nothing_doubled_whatever_befalls_nodes(record_property) -> None:
    began, seeds = time.monotonic(), 0
    for verdict in run_seeds(count(), nodes=3):
        assert verdict.ok, explain(verdict)
        seeds += 1
        if seeds >= SEEDS and time.monotonic() > began + SECONDS:
            break
    record_property("seeds", seeds)
    sys.stdout.write(f"{seeds} histories of three nodes in {time.monotonic() - began:.0f} s\n")


@pytest.mark.parametrize("nodes", [2, 4])
def test_one_seed_is_one_history(nodes: int) -> None:
    one, other = (run_seed(3, nodes=nodes, full=True, lines=10_000).story for _ in range(2))
    assert one == other
    assert len(one.splitlines()) > 20


def test_the_command_tells_of_several_nodes(capsys) -> None:
    assert main(["--nodes", "3", "--first", "3", "--story"]) == 0
    assert "n3        starts (process 1)" in capsys.readouterr().out


def test_who_reads_of_a_failure_can_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reach.testing.sim.nodes.world.CONVERGE_S", 0.0)
    monkeypatch.setattr("reach.testing.sim.nodes.world.MOVES_S", 0.0)
    found = next(verdict for verdict in run_seeds(count(), nodes=3) if not verdict.ok)
    assert f"make sim NODES=3 SEED={found.seed}" in explain(found)
