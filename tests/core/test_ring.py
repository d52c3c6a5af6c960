"""The hash ring: who is proposed, what moves, and the bound on load (RTE-7, case E4)."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from reach.core.ring import BOUND, POINTS, Ring, position

KEYS = [f"app:user:{number}" for number in range(600)]


def ring_of(names):
    ring = Ring()
    for name in names:
        ring.add(name)
    return ring


def first(ring, key):
    return next(ring.walk(key))


def anybody(_):
    return True


def test_the_walk_names_each_member_once():
    ring = ring_of("abcde")
    for key in KEYS[:50]:
        assert sorted(ring.walk(key)) == list("abcde")
    assert list(Ring().walk("key")) == []
    assert Ring().propose("key", {}, anybody) is None


def test_the_walk_equals_a_slow_search_of_all_points():
    names = ["a", "b", "c", "d"]
    ring = ring_of(names)
    points = sorted((position(f"{name}\0{number}"), name) for name in names for number in range(POINTS))
    for key in KEYS[:100]:
        at = position(key)
        after = [name for point, name in points if point >= at] + [name for _, name in points]
        assert list(ring.walk(key)) == list(dict.fromkeys(after))


def test_only_the_leavers_keys_move_and_a_joiner_takes_only_for_itself():
    ring = ring_of("abcd")
    before = {key: first(ring, key) for key in KEYS}
    ring.remove("c")
    for key in KEYS:
        assert first(ring, key) == (before[key] if before[key] != "c" else next(n for n in ring.walk(key)))
        assert before[key] == "c" or first(ring, key) == before[key]
    ring.add("c")
    assert {key: first(ring, key) for key in KEYS} == before
    ring.add("e")
    after = {key: first(ring, key) for key in KEYS}
    moved = [key for key in KEYS if after[key] != before[key]]
    assert {after[key] for key in moved} == {"e"}
    assert 0 < len(moved) < 2 * len(KEYS) / 5


def test_adding_and_removing_twice_is_once():
    ring = ring_of("ab")
    ring.add("a")
    assert len(ring) == 2
    ring.remove("a")
    ring.remove("a")
    assert list(ring.walk("key")) == ["b"]


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 400))
def test_nobody_gets_more_than_the_bound(members, sessions):
    """Bounded load: at most ceil(1.25 × mean) sessions each."""
    ring = ring_of([f"m{number}" for number in range(members)])
    counts: Counter[str] = Counter()
    for number in range(sessions):
        name = ring.propose(f"session {number}", counts, anybody)
        assert name is not None
        counts[name] += 1
    assert max(counts.values()) <= -(-sessions * BOUND // members)
    assert sum(counts.values()) == sessions


def test_who_is_not_allowed_is_skipped_and_a_full_ring_still_answers():
    ring = ring_of("abc")
    for key in KEYS[:50]:
        walk = list(ring.walk(key))
        assert ring.propose(key, {}, anybody) == walk[0]
        assert ring.propose(key, {}, lambda name, walk=walk: name != walk[0]) == walk[1]
        assert ring.propose(key, {walk[0]: 50}, anybody) == walk[1]
        assert ring.propose(key, {walk[0]: 50}, lambda name, walk=walk: name == walk[0]) == walk[0]
        assert ring.propose(key, {}, lambda _: False) is None
