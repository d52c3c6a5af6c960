"""What every journal does to a batch before it keeps it."""

from __future__ import annotations

from typing import Any

from reach.core.rows import ContextRow, MoveRow, PinRow, Writes


def latest_pins(pins: list[PinRow]) -> tuple[list[PinRow], list[PinRow]]:
    """The last word of the batch on each pin: (pins that hold, pins that are no more)."""
    last = {pin[1:5]: pin for pin in pins}
    return [pin for pin in last.values() if pin.instance_id], [pin for pin in last.values() if not pin.instance_id]


def latest_contexts(contexts: list[ContextRow]) -> tuple[list[ContextRow], list[ContextRow]]:
    """The last word of the batch on each session: (contexts that hold, contexts that are no more)."""
    last = {one[1:3]: one for one in contexts}
    return [one for one in last.values() if one.state is not None], [one for one in last.values() if one.state is None]


def whole_moves(moves: list[MoveRow]) -> list[MoveRow]:
    """One move for each task: from where its first one began to where the last one led."""
    whole: dict[int, MoveRow] = {}
    for move in moves:
        first = whole.get(move.row)
        whole[move.row] = move if first is None else move._replace(shard=first.shard)
    return list(whole.values())


def storable(writes: Writes) -> Writes:
    """The same batch with what no database takes made harmless: halves of UTF-16 pairs, numbers beyond 64 bits."""
    repaired = Writes()
    for kind in Writes.__slots__:
        setattr(repaired, kind, [type(item)._make(map(storable_value, item)) for item in getattr(writes, kind)])
    return repaired


def storable_value(value: Any) -> Any:
    """The nearest value that can be stored."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return max(-(1 << 63), min(value, (1 << 63) - 1))
    return value
