"""Numbers of the rows of tasks, and what they tell of when tasks were accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BLOCK_BITS: Final = 40
"""Row numbers that a node takes when it starts, where nodes share a journal: 10^12; 8 million starts fit into 63 bits.
A node that starts later has a later block."""


class RowNumbers:
    """Numbers the rows of tasks, for all pools of a node."""

    __slots__ = ("_next",)

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self) -> int:
        """The next number."""
        number = self._next
        self._next += 1
        return number

    @property
    def last(self) -> int:
        """The one that was taken last."""
        return self._next - 1


def accepted_before(lasts: Sequence[int], row: int) -> bool:
    """Whether a task was accepted before a moment.

    Args:
        lasts: The last row that each node had numbered at that moment. What a node with another block numbered, it did
            before, if it had started before the last of these: it had gone by then.
        row: Of the task.
    """
    block = row >> BLOCK_BITS
    for last in lasts:
        if last >> BLOCK_BITS == block:
            return row <= last
    return bool(lasts) and block < max(lasts) >> BLOCK_BITS
