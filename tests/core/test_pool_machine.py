"""A pool in a hostile world: every invariant after every step, and in the end every task ends (P1, P2, P4, F15)."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.driver import Driver


@pytest.mark.parametrize("seed", range(40))
def test_all_holds_after_every_step_and_all_tasks_end(seed):
    driver = Driver(Random(seed))
    driver.run(250)
    driver.heal()
    assert driver.shell.journal.rows.tasks


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_same_with_the_shortest_way_to_a_fault(random, steps):
    driver = Driver(random)
    driver.run(steps)
    driver.heal()


def test_the_same_seed_is_the_same_world():
    worlds = []
    for _ in range(2):
        driver = Driver(Random(3))
        driver.run(200)
        worlds.append([(type(send).__name__, getattr(send, "task_id", "")) for send in driver.shell.sends])
    assert worlds[0] == worlds[1]
