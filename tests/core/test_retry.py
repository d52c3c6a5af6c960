"""Retry policies and the retry budget, by their figures (DLV-4, DLV-5, fault F14)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core.retry import BUDGET_LIMIT, DEFAULT, JITTER, POLICIES, RetryBudget, RetryPolicy
from reach.errors import ErrorClass
from tests.core.harness import fault

LADDERS = {
    "ladder": (300, 1_500, 5_000),
    "exponential": (1_000, 2_000, 4_000, 8_000, 16_000),
    "quick": (200, 400, 800),
    "patient": (2_000, 4_000),
    "never": (),
}
RETRIED = (ErrorClass.RESOURCE_EXHAUSTED, ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT)


@pytest.mark.parametrize("name", LADDERS)
def test_the_presets_are_those_of_the_specification(name):
    assert POLICIES[name].delays_ms == LADDERS[name]
    assert POLICIES[name].retry_on == set(RETRIED)
    assert set(POLICIES) == set(LADDERS)
    assert DEFAULT is POLICIES["ladder"]


@given(st.sampled_from([name for name in LADDERS if name != "never"]), st.integers(0, 2**64 - 1))
def test_each_delay_is_within_a_fifth_and_after_the_last_there_is_none(name, seed):
    policy = POLICIES[name]
    for retries, delay in enumerate(LADDERS[name]):
        waits = policy.delay_ms(retries, fault(ErrorClass.TIMEOUT), seed)
        assert waits is not None
        assert delay * (1 - JITTER) - 1 <= waits <= delay * (1 + JITTER) + 1
    assert policy.delay_ms(len(LADDERS[name]), fault(ErrorClass.TIMEOUT), seed) is None


def test_the_jitter_uses_its_whole_range_evenly_and_follows_from_the_seed():
    waits = [DEFAULT.delay_ms(0, fault(ErrorClass.TIMEOUT), seed) or 0 for seed in range(2_000)]
    assert waits == [DEFAULT.delay_ms(0, fault(ErrorClass.TIMEOUT), seed) for seed in range(2_000)]
    assert min(waits) <= 243
    assert max(waits) >= 357
    assert abs(sum(waits) / len(waits) - 300) < 3


def test_full_jitter_reaches_from_zero_to_the_delay():
    policy = RetryPolicy("own", (1_000,), full_jitter=True)
    waits = [policy.delay_ms(0, fault(ErrorClass.TIMEOUT), seed) or 0 for seed in range(2_000)]
    assert min(waits) < 10
    assert 990 < max(waits) <= 1_000
    assert abs(sum(waits) / len(waits) - 500) < 20


@pytest.mark.parametrize("error_class", ErrorClass)
def test_only_three_classes_are_retried(error_class):
    waits = DEFAULT.delay_ms(0, fault(error_class), 1)
    assert (waits is not None) is (error_class in RETRIED)


def test_a_policy_may_leave_classes_out():
    policy = RetryPolicy("impatient", (100,), retry_on=frozenset({ErrorClass.UNAVAILABLE}))
    assert policy.delay_ms(0, fault(ErrorClass.RESOURCE_EXHAUSTED), 1) is None
    assert policy.delay_ms(0, fault(ErrorClass.UNAVAILABLE), 1) is not None


def test_it_is_never_sooner_than_the_fault_asks_for():
    assert DEFAULT.delay_ms(0, fault(ErrorClass.RESOURCE_EXHAUSTED, retry_after_ms=9_000), 1) == 9_000
    waits = DEFAULT.delay_ms(2, fault(ErrorClass.RESOURCE_EXHAUSTED, retry_after_ms=1), 1)
    assert waits is not None
    assert waits >= 4_000


def test_the_budget_has_three_in_reserve_and_earns_a_fifth_per_first_attempt():
    budget = RetryBudget()
    assert [budget.take(5_000) for _ in range(4)] == [True, True, True, False]
    for _ in range(4):
        budget.first_attempt()
    assert not budget.take(5_000)
    budget.first_attempt()
    budget.first_attempt()
    assert budget.take(5_000)
    assert not budget.take(5_000)


def test_where_nobody_pays_one_retry_a_second_goes_all_the_same():
    budget = RetryBudget()
    taken = [at for at in range(10_000, 20_000, 100) if budget.take(at)]
    assert taken == [10_000, 10_100, 10_200, *range(11_200, 20_000, 1_000)]


def test_F14_after_a_storm_good_retries_pay_for_the_next_ones():
    """1,000 wait for tokens, no new task comes, and all goes well again: gone after a few rounds, not after 1,000 s."""
    budget, waiting, rounds = RetryBudget(), 1_000, 0
    while waiting:
        rounds += 1
        began = 0
        while began < waiting and budget.take(10_000 + rounds):
            began += 1
        for _ in range(began):
            budget.went_well()
        waiting -= began
    assert rounds < 25
    assert budget.tokens <= BUDGET_LIMIT


def test_F14_those_that_wait_for_tokens_ask_in_turn_and_not_all_at_once():
    budget = RetryBudget()
    asked = [budget.ask_again_ms(10_000) for _ in range(5_000)]
    assert asked == sorted(asked)
    assert (asked[0], asked[-1]) == (10_100, 10_100 + 4_999)
    assert budget.ask_again_ms(60_000) == 60_100


def test_a_quiet_hour_does_not_pay_for_a_storm():
    budget = RetryBudget()
    for _ in range(100_000):
        budget.first_attempt()
    assert sum(budget.take(5_000) for _ in range(1_000)) <= BUDGET_LIMIT + 1


@given(st.lists(st.booleans(), max_size=300))
def test_retries_stay_within_a_fifth_of_the_first_attempts(acts):
    budget, firsts, retries = RetryBudget(), 0, 0
    assert budget.take(5_000)
    for first in acts:
        if first:
            budget.first_attempt()
            firsts += 1
        else:
            retries += budget.take(5_000)
        assert retries <= 2 + 0.2 * firsts + 1e-6
