"""Level 1 between pools (RTE-11, RTE-15): band, region, score, chance by free slots, spill."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from reach.core.spread import NEAR, TRIED, Room, ranked


def first(*rooms: Room, seed: int = 1) -> int:
    return next(ranked(rooms, seed))


def order_of(rooms: list[Room], seed: int) -> list[int]:
    return list(ranked(rooms, seed))


def slow_first(rooms: list[Room]) -> set[int]:
    """The twin: who may be the first, filter by filter."""
    free = [room for room in rooms if room.slots > 0]
    free = [room for room in free if room.priority == max(one.priority for one in free)]
    free = [room for room in free if room.near] or free
    free = [room for room in free if room.best >= max(one.best for one in free) - NEAR]
    return {at for at, room in enumerate(rooms) if room in free}


def test_RTE_11_the_priority_band_comes_before_scores_and_slots():
    assert {first(Room(50, 3, 1.0), Room(1, 7, 0.1), seed=seed) for seed in range(50)} == {1}


def test_RTE_15_a_full_pool_spills_to_the_next_even_out_of_its_band():
    assert order_of([Room(0, 9, 1.0), Room(1, 3, 0.2)], 1) == [1, 0]


def test_a_region_is_preferred_within_the_band_and_not_required():
    assert {first(Room(9, 3, 0.9, near=False), Room(1, 3, 0.1), seed=seed) for seed in range(50)} == {1}
    assert first(Room(9, 3, 0.9, near=False), Room(0, 3, 0.0)) == 0


def test_RTE_15_a_clearly_better_score_wins():
    assert {first(Room(5, 3, 0.9), Room(90, 3, 0.5), seed=seed) for seed in range(50)} == {0}


def test_RTE_15_among_equals_chance_is_in_proportion_to_free_slots():
    counts = Counter(first(Room(3, 3, 0.85), Room(1, 3, 0.9), seed=seed) for seed in range(4_000))
    assert 2_850 < counts[0] < 3_150


def test_with_nobody_free_the_shortest_queue_for_its_size_comes_first():
    assert order_of([Room(0, 3, queued=10, capacity=10), Room(0, 3, queued=3, capacity=1)], 1) == [0, 1]
    assert order_of([Room(0, 3, queued=9), Room(0, 5, queued=99)], 1) == [1, 0]


rooms = st.lists(
    st.builds(Room, st.integers(-2, 5), st.integers(0, 3), st.floats(0, 1), near=st.booleans()), min_size=1, max_size=6
)


@given(rooms, st.integers(0, 1 << 40))
def test_RTE_15_the_order_is_replayable_short_and_never_full_before_free(given, seed):
    order = order_of(given, seed)
    assert order == order_of(given, seed)
    assert len(order) == len(set(order)) == min(TRIED, len(given))
    free = [given[at].slots > 0 for at in order]
    assert free == sorted(free, reverse=True)
    assert free[0] == any(room.slots > 0 for room in given)
    assert not free[0] or order[0] in slow_first(given)
