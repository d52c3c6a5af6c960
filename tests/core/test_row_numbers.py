"""What row numbers tell of time (HAZARDS 2: what was deleted stays so)."""

from reach.core.row_numbers import BLOCK_BITS, RowNumbers, accepted_before


def row(block, number):
    return (block << BLOCK_BITS) + number


def test_a_task_is_before_a_moment_by_the_number_of_its_node():
    lasts = [row(3, 70), row(5, 20)]
    assert accepted_before(lasts, row(3, 70))
    assert not accepted_before(lasts, row(3, 71))
    assert accepted_before(lasts, row(5, 1))
    assert not accepted_before(lasts, row(5, 21))
    assert accepted_before(lasts, row(4, 999)), "its node had gone by then"
    assert not accepted_before(lasts, row(6, 1)), "its node has come since"
    assert not accepted_before([], row(1, 1))


def test_a_node_that_is_alone_has_one_block():
    assert accepted_before([7], 7)
    assert not accepted_before([7], 8)
    assert not accepted_before([0], 1)


def test_rows_are_numbered_from_the_first():
    numbers = RowNumbers(8)
    assert (numbers.last, numbers.take(), numbers.last) == (7, 8, 8)
