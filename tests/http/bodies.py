"""Hostile bodies for each path of the JSON door: odd messages, odd values, odd bytes (GOV-5, G1, G2)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from reach.http.known import KNOWN
from reach.http.routes import ROWS, descriptor_of
from tests.rpc.hostile import odd_messages

PATHS = [
    (f"/v1{row.path}".replace("{", "").replace("}", ""), row.rpc) for row in ROWS if row.has_body and not row.streams
]
"""Paths that take a body, and the methods behind them."""
PATHS += [(known.path, known.rpcs[0]) for known in KNOWN if known.verb == "POST"]
TASK = b'{"task": {"selector": {"agent_type": "none"}, "payload": {"text": "%s"}}}'
RAW = (
    b"",
    b" ",
    b"nothing",
    b"\xef\xbb\xbf{}",
    '{"task": {}}'.encode("utf-16"),
    '{"task": {}}'.encode("utf-32"),
    b"\0" * 99,
    b"{}{}",
    b"[]",
    b"[{}]",
    b"0",
    b'"x"',
    b"true",
    b"{'a': 1}",
    b"{a: 1}",
    b"{,}",
    b'{"task":{},}',
    b"{}//x",
    b"{}\n\n",
    b'{"task": {}, "task": {}}',
    b'{"wait": "1s", "wait": "2s"}',
    b'{"\\u0000": 1}',
    b'{"\xff": 1}',
    b'{"task": NaN}',
    b'{"task": {"priority": 1e999}}',
    b'{"task": {"priority": Infinity}}',
    b'{"task": {"priority": %s}}' % (b"9" * 5_000),
    b'{"task": {"priority": 9007199254740993}}',
    b'{"task": {"priority": 9223372036854775808}}',
    b'{"task": {"labels": {"a": "%s"}}}' % (b"x" * 70_000),
    TASK % b"\\ud800",
    TASK % b"\\udc00\\ud800",
    TASK % b"\xed\xa0\x80",
    TASK % b"a\nb\tc",
    TASK % b"\x1b[2J",
    TASK % (b"x" * 100_000),
    TASK % b"\xff\xfe",
    b'{"task": {"payload": {"data": "*"}}}',
    *(
        opening * depth + closing * depth
        for depth in (10, 100, 100_000)
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"))
    ),
    *(b'{"task": {"payload": {"json": ' + b"[" * depth + b"]" * depth + b"}}}" for depth in (10, 100, 100_000)),
)
"""Bodies that are wrong whatever the path, or as good as."""
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -0.0, 1 << 70, "", "x" * 5_000, "\0", "\u202e", [], {}, [[]], [{}], [None], {"": None},
    {"json": []}, {"json": {}, "text": 1}, "NaN", "-Infinity", "1s", "99999999999999s", "9999-99-99T99:99:99Z",
    "Infinity",
)  # fmt: skip
BYTES = (
    b"",
    b"\xff",
    b"\0",
    b'"',
    b"\\",
    b"\\ud800",
    b"{",
    b"]",
    b",",
    b"1e999",
    b"-",
    b"\n",
    b"\xed\xa0\x80",
    b"null",
)


def spoiled(chance: random.Random, fields: Any) -> Any:
    """The same object with something else somewhere."""
    here = fields
    while True:
        if isinstance(here, dict) and here:
            key = chance.choice(sorted(here))
            if isinstance(here[key], dict | list) and here[key] and chance.random() < 0.7:
                here = here[key]
                continue
            if chance.random() < 0.2:
                here[chance.choice(("", "json", "x", "@type", key.upper()))] = chance.choice(VALUES)
            here[key] = chance.choice(VALUES)
        elif isinstance(here, list) and here:
            here[chance.randrange(len(here))] = chance.choice(VALUES)
        return fields


def bodies_for(rpc: str, count: int, seed: int) -> Iterator[bytes]:
    """Odd messages as JSON: as they are, with odd values, and with odd bytes."""
    chance = random.Random(seed)
    descriptor = descriptor_of(rpc).input_type
    messages = odd_messages(descriptor, max(5, count // 8), seed)
    for number in range(count):
        message = GetMessageClass(descriptor).FromString(chance.choice(messages))
        try:
            fields = json_format.MessageToDict(message, preserving_proto_field_name=chance.random() < 0.5)
        except (ValueError, json_format.Error):
            fields = {}  # what JSON cannot say
        if number % 3:
            fields = spoiled(chance, fields)
        body = bytearray(json.dumps(fields, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass"))
        if number % 3 == 2:
            for _ in range(chance.randint(1, 3)):
                place = chance.randint(0, len(body))
                body[place : place + chance.randint(0, 4)] = chance.choice(BYTES)
        yield bytes(body)


def hostile(seed: int) -> Iterator[tuple[str, bytes]]:
    """Paths and bodies without end: each of RAW for each path, then odd ones, path by path in turns."""
    yield from ((path, body) for path, _ in PATHS for body in RAW)
    for number in itertools.count(seed):
        for path, rpc in PATHS:
            yield from ((path, body) for body in bodies_for(rpc, 40, number))
