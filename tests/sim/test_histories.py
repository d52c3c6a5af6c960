"""Histories in CI: always the same first ones, and then as many others as there is time for."""

from __future__ import annotations

import sys
import time
from itertools import count

import pytest

from reach.testing.sim.__main__ import main
from reach.testing.sim.run import explain, run_seed, run_seeds

SEEDS = 100
"""Always run."""
SECONDS = 60.0
"""Of real time, for all of them."""


@pytest.mark.timeout(SECONDS + 60)
def test_DLV_nothing_is_lost_and_nothing_doubled_whatever_goes_wrong(record_property) -> None:
    began, seeds, tasks = time.monotonic(), 0, 0
    for verdict in run_seeds(count()):
        assert verdict.ok, explain(verdict)
        seeds, tasks = seeds + 1, tasks + verdict.tasks
        if seeds >= SEEDS and time.monotonic() > began + SECONDS:
            break
    record_property("seeds", seeds)
    sys.stdout.write(f"{seeds} histories with {tasks} tasks in {time.monotonic() - began:.0f} s\n")


def test_one_seed_is_one_history() -> None:
    one, other = (run_seed(3, full=True, lines=10_000).story for _ in range(2))
    assert one == other
    assert len(one.splitlines()) > 20


def test_the_command_tells_what_it_did(capsys) -> None:
    assert main(["--first", "3", "--seeds", "2", "--jobs", "1"]) == 0
    assert "2 histories (3 … 4)" in capsys.readouterr().out
    assert main(["--first", "3", "--story"]) == 0
    assert "starts (process 1)" in capsys.readouterr().out
