"""Repeatable chance: numbers that follow from a seed, so that every decision can be replayed."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix(seed: int, number: int) -> int:
    """The `number`-th 64-bit value of the sequence of `seed`.

    SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    z = (seed + number * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def fraction(seed: int, number: int) -> float:
    """As `mix`, but evenly spread over [0, 1)."""
    return (mix(seed, number) >> 11) / (1 << 53)
