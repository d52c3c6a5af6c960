"""Slots that grow (API-3): additively while it goes well, by halves when the agent is full."""

from __future__ import annotations

from reach.core.growth import MOST, Growth


def test_API_3_each_full_round_of_successes_makes_one_slot_more():
    growth = Growth()
    grew = [growth.succeeded(10.0, growth.slots) for _ in range(1 + 2 + 3)]
    assert (grew, growth.slots) == ([True, False, True, False, False, True], 4)


def test_API_3_slots_that_are_not_in_use_prove_nothing():
    growth = Growth()
    growth.slots = 4
    assert not any(growth.succeeded(10.0, 3) for _ in range(100))


def test_API_3_an_agent_that_is_full_gets_half_and_never_less_than_one():
    growth = Growth()
    growth.slots = 5
    assert [growth.full() for _ in range(4)] == [True, True, False, False]
    assert growth.slots == 1


def test_API_3_slow_tasks_hold_the_slots_where_they_are():
    growth = Growth()
    growth.succeeded(10.0, 1)
    assert not any(growth.succeeded(60.0, growth.slots) for _ in range(5))
    assert growth.slots == 2


def test_API_3_growth_ends():
    growth = Growth()
    growth.slots = MOST
    assert not any(growth.succeeded(1.0, MOST) for _ in range(2 * MOST))
