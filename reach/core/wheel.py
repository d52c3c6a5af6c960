"""A timer wheel: very many deadlines, of which nearly all are cancelled before they are due.

Deadlines are rounded up to slots of 10 ms. A slot is a dict of its entries, so arming and disarming cost two dict
operations each; only the slot numbers are in a heap. An entry is any object with an attribute `timer_slot` (0 = not
armed), and is in at most one slot.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

SLOT_MS = 10
"""Resolution. Deadlines are met at most this much late."""


class Timed(Protocol):
    """What can be armed."""

    timer_slot: int


class TimerWheel:
    """Deadlines of the entries of one pool."""

    __slots__ = ("_order", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, dict[int, Timed]] = {}
        self._order: list[int] = []

    def arm(self, entry: Timed, at_ms: int) -> None:
        """Sets the deadline of `entry`, replacing the one it had."""
        number = -(-at_ms // SLOT_MS)
        if number < 1:
            number = 1
        if entry.timer_slot == number:
            return
        if entry.timer_slot:
            self._slots[entry.timer_slot].pop(id(entry), None)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heappush(self._order, number)
        slot[id(entry)] = entry
        entry.timer_slot = number

    def disarm(self, entry: Timed) -> None:
        """Forgets the deadline of `entry`, if it has one."""
        if entry.timer_slot:
            self._slots[entry.timer_slot].pop(id(entry), None)
            entry.timer_slot = 0

    @staticmethod
    def comes(entry: Timed, by_ms: int) -> bool:
        """Whether `entry` has a deadline that is met by then."""
        return 0 < entry.timer_slot * SLOT_MS <= by_ms + SLOT_MS

    def due(self, now_ms: int) -> list[Timed]:
        """Takes out all entries whose deadline has come, earliest slot first."""
        entries: list[Timed] = []
        while self._order and self._order[0] * SLOT_MS <= now_ms:
            for entry in self._slots.pop(heappop(self._order)).values():
                entry.timer_slot = 0
                entries.append(entry)
        return entries

    def next_ms(self) -> int | None:
        """When something can be due at the earliest; empty slots are dropped on the way."""
        while self._order:
            if self._slots[self._order[0]]:
                return self._order[0] * SLOT_MS
            del self._slots[heappop(self._order)]
        return None
