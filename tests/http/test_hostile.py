"""Hostile bodies for every path that takes one: whatever comes, it is the caller's mistake or it is done, and never a
fault of the server (GOV-5, G1, G2). REACH_HOSTILE says how many; a few hundred where nothing is said."""

import json
import os
import random
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from reach.http.known import KNOWN
from reach.http.routes import ROWS, descriptor_of
from tests.rpc.hostile import odd_messages

COUNT = int(os.environ.get("REACH_HOSTILE", "250"))

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("no_tracebacks"),
    pytest.mark.timeout(60 + COUNT // 20),
]

PATHS = [
    (f"/v1{row.path}".replace("{", "").replace("}", ""), row.rpc) for row in ROWS if row.has_body and not row.streams
]
PATHS += [(known.path, known.rpcs[0]) for known in KNOWN if known.verb == "POST"]
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


def spoiled(chance, fields):
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


def bodies_for(rpc, count, seed):
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


async def test_GOV_5_hostile_bodies_are_no_fault_of_the_server(http):
    seen: dict[int, int] = {}
    for seed, (path, rpc) in enumerate(PATHS):
        for body in bodies_for(rpc, COUNT // len(PATHS) + 1, seed):
            answer = await http.post(path, content=body)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code != 500, (path, body, answer.text)
            answer.json()
    assert sum(seen.values()) >= COUNT
    assert seen.keys() >= {200, 400}, seen
