"""Bytes for methods, by the hundred thousand: messages made from the descriptors by plain chance, and damaged ones.

`hostile.odd_messages` makes better ones with Hypothesis, fifty times slower: they are the stock that is damaged here.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from tests.fuzz.hail import Input
from tests.fuzz.orders import KEY, WORKER
from tests.rpc.hostile import METHODS, broken_bytes, is_map, odd_messages, values_of

STOCK = 20
"""Messages by Hypothesis for each method."""
REAL: dict[str, tuple[Any, ...]] = {
    "task_id": (KEY["task_id"], "fuzz-2"),
    "instance_id": (WORKER, "fuzz-1"),
    "agent_id": ("fuzz",),
    "agent_type": ("fuzz",),
    "boot_id": ("b",),
    "attempt": (1, 2),
    "link": (1, 1, 2),
}
"""Values that mean something, so that not each message ends at its first field."""
MANY = 10_000
"""Of a repeated field, now and then."""


def chance_fields(chance: random.Random, descriptor: Descriptor, depth: int = 4) -> dict[str, Any]:
    """Fields of a message, each there or not, as a dict that its class takes."""
    fields: dict[str, Any] = {}
    for field in descriptor.fields:
        if chance.random() < 0.6:
            continue
        if field.message_type is not None and is_map(field):
            values = values_of(field.message_type.fields_by_name["value"])
            fields[field.name] = {chance.choice(("", "k", "x" * 300, "\n")): chance.choice(values)}
            continue
        if field.message_type is not None:
            if depth == 0:
                continue
            one: Any = chance_fields(chance, field.message_type, depth - 1)
        elif field.name in REAL and chance.random() < 0.7:
            one = chance.choice(REAL[field.name])
        else:
            one = chance.choice(values_of(field))
        if not field.is_repeated:
            fields[field.name] = one
        elif isinstance(one, dict):
            fields[field.name] = [one] * (MANY if not one and chance.random() < 0.02 else chance.randrange(3))
        else:
            short = not isinstance(one, str | bytes) or len(one) < 10
            fields[field.name] = [one] * (MANY if short and chance.random() < 0.02 else chance.randrange(3))
    return fields


def inputs(seed: int, weights: dict[str, int] | None = None) -> Iterator[Input]:
    """Without end: half of them messages, half of them damaged."""
    chance = random.Random(seed)
    stock = {
        path: odd_messages(method.input_type, STOCK, seed + zlib.crc32(path.encode()))
        for path, method in METHODS.items()
    }
    paths = [path for path in METHODS for _ in range((weights or {}).get(path, 1))]
    while True:
        path = chance.choice(paths)
        if chance.random() < 0.5:
            made = GetMessageClass(METHODS[path].input_type)(**chance_fields(chance, METHODS[path].input_type))
            frames = [made.SerializeToString()]
        else:
            frames = [broken_bytes(chance, chance.choice(stock[path]))]
        if METHODS[path].client_streaming and chance.random() < 0.5:
            frames += [chance.choice(stock[path]) for _ in range(chance.randrange(1, 3))]
        yield Input(path, tuple(frames))
