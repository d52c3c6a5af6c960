"""What the upkeep of scores does, and what it does not do again and again (RTE-4, PRF-5)."""

import pytest

from reach.core import events as ev
from reach.core.admission import Admission
from reach.core.instance_states import Availability
from reach.core.scores import LOOK_MS_EACH
from tests.core.harness import Shell


def test_RTE_4_figures_of_a_large_pool_are_looked_at_in_proportion_to_their_cost():
    shell = Shell()
    everybody = [shell.join(f"i{number}", slots=1) for number in range(300)]
    shell.advance(1_000)
    looked = []
    for _ in range(20):
        for one in everybody:
            one.latency_ms, one.moved_ms = one.latency_ms * 1.1 + 1, shell.now_ms
        before = shell.pool.router.figures.baseline_ms
        shell.step(ev.Beat(everybody[0], {}))
        looked.append(shell.pool.router.figures.baseline_ms != before)
        shell.advance(200)
    assert 6 <= sum(looked) <= 7, "each 600 of 4,000 ms"
    assert LOOK_MS_EACH * len(everybody) == 600


@pytest.mark.parametrize(
    ("status", "placed"),
    [
        ({}, 0),
        ({"inflight": 0, "max_concurrency": 4, "ready": True, "availability": Availability.READY}, 0),
        ({"max_concurrency": 3}, 1),
        ({"inflight": 1}, 1),
        ({"availability": Availability.DRAINING}, 1),
        ({"consecutive_failure_count": 9}, 1),
        ({"loop_stalled": 900}, 1),
    ],
)
def test_PRF_5_a_beat_that_says_nothing_new_moves_nobody(monkeypatch, status, placed):
    shell = Shell()
    one = shell.join("one", slots=4)
    shell.advance_beating(60_000, one)  # its slow start is over
    shell.step(ev.Beat(one, {}))
    seen = []
    place = Admission.place

    def watched(*arguments):
        seen.append(arguments)
        place(*arguments)

    monkeypatch.setattr(Admission, "place", watched)
    shell.step(ev.Beat(one, status))
    assert len(seen) == placed
