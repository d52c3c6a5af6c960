"""Choosing among bits: samples, the next one round, and the policies that have no score (RTE-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reach.core.chance import mix
from reach.core.model import Instance

LOOKED_AT = 8
"""Candidates that a decision looks at one by one."""

CHUNK = 512
"""Bits that are looked at first, when some are wanted."""
_FIRST = (1 << CHUNK) - 1

Fits = Callable[[Instance], bool]


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def sample(mask: int, draw: int) -> list[int]:
    """At most LOOKED_AT positions of set bits: those that follow on a position that the draw names, round about. One
    shift of a large number instead of eight, no count of all, and no two alike."""
    if mask <= _FIRST and mask.bit_count() <= LOOKED_AT:
        return _lowest(mask, LOOKED_AT, 0)
    start = draw % mask.bit_length()
    chosen = _lowest(mask >> start, LOOKED_AT, start)
    if len(chosen) < LOOKED_AT and start:
        chosen += _lowest(mask & ((1 << start) - 1), LOOKED_AT - len(chosen), 0)
    return chosen


def _lowest(mask: int, count: int, start: int) -> list[int]:
    """The positions of the lowest set bits, at most `count`, each plus `start`."""
    width = CHUNK
    chunk = mask & _FIRST
    while chunk != mask and chunk.bit_count() < count:
        width *= 4
        chunk = mask & ((1 << width) - 1)
    chosen: list[int] = []
    while chunk and count:
        low = chunk & -chunk
        chosen.append(start + low.bit_length() - 1)
        chunk ^= low
        count -= 1
    return chosen


def next_round(mask: int, start: int) -> int:
    """The first set bit at or above `start`, else the lowest. The mask is not empty."""
    above = mask >> start
    return start + (above & -above).bit_length() - 1 if above else (mask & -mask).bit_length() - 1


def round_robin(instances: list[Instance | None], mask: int, after: int, fits: Fits) -> list[Instance]:
    """The next instance behind `after` in which the task fits, and those that were passed over."""
    looked: list[Instance] = []
    position = after
    for _ in range(LOOKED_AT):
        if not mask:
            break
        position = next_round(mask, position + 1)
        mask ^= 1 << position
        instance = instances[position]
        if instance is not None:
            if fits(instance):
                return [instance, *looked]
            looked.append(instance)
    return []


def power_of_two(instances: list[Instance | None], mask: int, seed: int, fits: Fits) -> list[Instance]:
    """Two at random in which the task fits, the less loaded one first.

    Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
    """
    found = [one for position in sample(mask, mix(seed, 0)) if (one := instances[position]) is not None and fits(one)]
    if len(found) <= 1:
        return found
    first = found.pop(mix(seed, LOOKED_AT) % len(found))
    second = found[mix(seed, LOOKED_AT + 1) % len(found)]
    held, other = first.inflight + first.foreign, second.inflight + second.foreign
    return [second, first] if other * first.max_concurrency < held * second.max_concurrency else [first, second]
