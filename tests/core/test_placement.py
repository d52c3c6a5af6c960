"""Placement of shards: figures of CLU-4, and properties over all small clusters."""

from hypothesis import given
from hypothesis import strategies as st

from reach.core.placement import SHARDS, Candidate, place, wish_for

NAMES = st.lists(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=9, unique=True)


def counts(placed):
    return sorted(placed.count(node) for node in set(placed))


def moved(before, after):
    return [shard for shard in range(SHARDS) if before[shard] != after[shard]]


def test_CLU_4_a_fourth_node_gets_16_of_64_and_nothing_else_moves():
    three = place({"n1": 1, "n2": 1, "n3": 1})
    four = place({"n1": 1, "n2": 1, "n3": 1, "n4": 1}, three)
    assert counts(three) == [21, 21, 22]
    assert counts(four) == [16, 16, 16, 16]
    assert {four[shard] for shard in moved(three, four)} == {"n4"}
    assert len(moved(three, four)) == 16


def test_CLU_4_growing_and_shrinking_one_by_one_moves_the_fair_share_only():
    weights = {"n0": 1}
    placed = place(weights)
    for number in range(1, 12):
        weights[f"n{number}"] = 1
        bigger = place(weights, placed)
        assert len(moved(placed, bigger)) == SHARDS // len(weights)
        placed = bigger
    for number in range(11, 0, -1):
        del weights[f"n{number}"]
        smaller = place(weights, placed)
        assert moved(placed, smaller) == [shard for shard in range(SHARDS) if placed[shard] == f"n{number}"]
        placed = smaller


@given(NAMES, st.data())
def test_CLU_4_load_is_capped_and_only_what_must_move_moves(names, data):
    weights = dict.fromkeys(names, 1)
    first = place(weights)
    assert max(map(first.count, names)) <= -(-SHARDS // len(names))
    assert min(map(first.count, names)) >= SHARDS // len(names)
    gone = data.draw(st.sampled_from(names))
    rest = {name: 1 for name in names if name != gone}
    after = place(rest, first)
    if rest:
        assert moved(first, after) == [shard for shard in range(SHARDS) if first[shard] == gone]
        assert place(weights, after).count(gone) == SHARDS // len(names)
    else:
        assert after == ("",) * SHARDS


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=3), st.integers(0, 5), max_size=6), st.data())
def test_CLU_4_weights_in_proportion_deterministic_and_settled(weights, data):
    current = data.draw(st.lists(st.sampled_from(["", "gone", *weights]), max_size=SHARDS))
    placed = place(weights, current)
    total = sum(weights.values())
    for node, weight in weights.items():
        share = SHARDS * weight / total if total else 0
        assert int(share) <= placed.count(node) <= -(-share // 1)
    assert set(placed) <= ({name for name, weight in weights.items() if weight} if total else {""})
    assert place(dict(reversed(weights.items())), current) == placed
    assert place(weights, placed) == placed


@given(NAMES, st.lists(st.integers(0, 8), min_size=SHARDS, max_size=SHARDS))
def test_CLU_4_no_more_moves_than_the_caps_demand(names, owners):
    """The slow twin: whoever has more than its share gives up just the surplus, whatever the state was before."""
    current = [names[number] if number < len(names) else "gone" for number in owners]
    placed = place(dict.fromkeys(names, 1), current)
    fair, rest = divmod(SHARDS, len(names))
    had = sorted((current.count(name) for name in names), reverse=True)
    kept = sum(min(count, fair + (place_ < rest)) for place_, count in enumerate(had))
    assert len(moved(current, placed)) == SHARDS - kept


def test_CLU_1_a_door_owns_nothing():
    placed = place({"door": 0, "n1": 1})
    assert set(placed) == {"n1"}
    assert set(place({"door": 1, "n1": 1}, placed)) == {"door", "n1"}


def test_CLU_4_a_node_without_the_store_gives_its_shards_up_while_others_have_it():
    both = {"n1": Candidate(1), "n2": Candidate(1)}
    placed = wish_for(both, ())
    assert set(wish_for({**both, "n1": Candidate(1, store_reachable=False)}, placed)) == {"n2"}
    nobody = {name: Candidate(1, store_reachable=False) for name in both}
    assert wish_for(nobody, placed) == placed
    assert wish_for({"n1": Candidate(0)}, placed) == placed
