"""What a journal that several nodes share promises of shards that are given up in peace (DLV-13)."""

from reach.core.handed import StreamRow
from reach.core.pieces import Delta, Kind, Mode
from reach.core.rows import MoveRow
from reach.store.base import SharedJournal
from tests.contracts.journal_rows import outcome, task, writes
from tests.contracts.shared_journals import by_parts

PIECES = (Delta("", Mode.REPLACE, "text/plain", "héllo\0"), Delta("raw", Mode.REPLACE, "", b"\0\xff"))

EVENTS = (
    (55, 1, 1_000, int(Kind.STARTED), ("one", "sql")),
    (56, 1, 1_001, int(Kind.DELTA), PIECES[1]),
    (57, 1, 1_002, int(Kind.PROGRESS), (0.5, "so")),
)


def told(row: int = 1, shard: int | None = None, sequence: int = 57, pieces=PIECES) -> StreamRow:
    return StreamRow(row, row if shard is None else shard, sequence, sequence - 2, pieces, EVENTS)


def streams(node: SharedJournal, shards=range(64)) -> dict[int, StreamRow | None]:
    """What a node finds, in both ways to load."""
    whole = {one.task.row: one.stream for one in node.load_shards(shards).tasks}
    assert whole == {one.task.row: one.stream for one in by_parts(node, shards, 2)[0].tasks}
    return whole


def test_DLV_13_the_next_owner_of_a_shard_finds_how_far_its_streams_were_told_and_nobody_else_does(cluster):
    first, second, third = cluster(), cluster(), cluster()
    first.claim([1, 2, 3])
    first.commit(writes(tasks=[task(1), task(2), task(3)]))
    first.give_up([1, 2], [told(1), told(2, pieces=None)])
    assert first.epochs().keys() == {3}
    second.claim([1, 2])
    assert streams(second) == {1: told(1), 2: told(2, pieces=None), 3: None}
    third.claim([2])
    assert streams(third) == {1: told(1), 2: None, 3: None}, "the second one may have told more"
    second.came([1])
    assert streams(second)[1] is None
    second.give_up([1], [told(1, sequence=99)])
    second.claim([1])
    assert streams(second)[1] == told(1, sequence=99)


def test_DLV_13_who_was_overtaken_hands_nothing_over(cluster):
    first, second, third = cluster(), cluster(), cluster()
    first.claim([1, 2])
    first.commit(writes(tasks=[task(1), task(2)]))
    second.claim([1])
    first.give_up([1, 2], [told(1), told(2)])
    third.claim([2])
    assert streams(third) == {1: None, 2: told(2)}
    second.give_up([1])
    first.give_up([1], [told(1)])
    third.claim([1])
    assert streams(third)[1] is None


def test_DLV_13_who_has_a_shard_is_known_until_it_is_given_up(cluster):
    first, second = cluster(), cluster()
    assert first.holders([1, 2]) == {}
    first.claim([1, 2, 3], "one")
    assert second.holders([1, 2, 4]) == {1: "one", 2: "one"}
    first.give_up([2])
    assert second.holders([1, 2]) == {1: "one"}
    second.claim([1], "two")
    first.give_up([1])
    assert first.holders([1, 2, 3]) == {1: "two", 3: "one"}, "who was overtaken gives nothing up"
    second.claim([3])
    assert first.holders([3]) == {}, "it did not say who it is"
    assert second.holders([]) == {}


def test_DLV_13_a_task_that_went_to_another_shard_is_told_as_that_one_knows_it(cluster):
    first, second = cluster(), cluster()
    first.claim([1, 5])
    first.commit(writes(tasks=[task(1)]))
    first.give_up([1], [told(1)])
    first.claim([1])
    first.commit(writes(moves=[MoveRow(1, 1, 5, "acme", "sql", 1, 60)]))
    first.give_up([5], [])
    second.claim([5])
    assert streams(second)[1] is None


def test_DLV_13_what_was_handed_over_once_is_not_kept_for_long(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    first.commit(writes(tasks=[task(1)]))
    first.give_up([1], [told(1)])
    second.claim([1])
    second.give_up([1])
    first.claim([1])
    assert streams(first)[1] is None


def test_DLV_13_who_never_served_a_shard_leaves_what_its_owner_before_left(cluster):
    first, second, third = cluster(), cluster(), cluster()
    first.claim([1, 2, 3])
    first.commit(writes(tasks=[task(1), task(2), task(3)]))
    first.give_up([1], [told(1)])
    second.claim([1])
    third.claim([2])  # overtakes
    second.claim([2])
    second.claim([3])
    second.give_up([3], [told(3)])
    third.claim([3])
    second.give_up([1, 2, 3], None)
    assert second.epochs() == {}
    first.claim([1, 2])
    assert streams(first) == {1: told(1), 2: None, 3: told(3)}
    third.claim([1])
    assert streams(third)[1] is None, "the first one may have told more"


def test_STR_2_what_was_told_before_the_end_of_a_task_is_known_to_all_until_it_was_given_up_twice_more(cluster):
    first, second = cluster(), cluster()
    first.claim([1, 2, 3])
    first.commit(writes(tasks=[task(1), task(2), task(3)]))
    first.commit(writes(outcomes=[outcome(1, sequence=57), outcome(2, sequence=60)]))
    first.give_up([1, 2, 3], [told(1), told(2), told(3)])
    for node in (first, second):
        assert node.told(1) == EVENTS
        assert node.told(2) == (), "something else was told behind that"
        assert node.told(3) == (), "it goes on"
        assert node.told(4) == ()
    for node in (second, first):
        node.claim([1])
        node.came([1])
        assert first.told(1) == EVENTS
        node.give_up([1], [])
        assert first.told(1) == EVENTS
    second.claim([1])
    second.came([1])
    second.give_up([1], [])
    assert first.told(1) == ()


def test_STR_2_what_was_told_of_a_task_goes_with_it(cluster):
    node = cluster()
    node.claim([1])
    node.commit(writes(tasks=[task(1)], outcomes=[outcome(1, sequence=57)]))
    node.give_up([1], [told(1)])
    node.remove([1])
    assert node.told(1) == ()
