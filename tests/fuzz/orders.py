"""Every order of client frames up to a length, from an alphabet for each of the four streams that clients send on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from tests.fuzz.hail import Input
from tests.rpc.hostile import METHODS

WORKER = "fuzz-worker"
"""The instance that is there all the time, of the type `fuzz`; its boot id is `b`."""
KEY = {"task_id": "fuzz-task", "attempt": 1}
_HELLO = {"agent_id": "fuzz", "boot_id": "b", "instance_id": "fuzz-1"}
_REPORTER = {"instance_id": WORKER, "boot_id": "b"}

Alphabet = dict[str, dict[str, Any]]

ATTACH: Alphabet = {
    "opening": {"opening": {"protocol_version": "1"}},
    "hello": {"hellos": [{"link": 1, "registration": _HELLO}]},
    "other hello": {"hellos": [{"link": 1, "registration": {**_HELLO, "instance_id": "x"}}]},
    "beat": {"beats": [{"link": 1, "status": {"inflight": 1}}]},
    "accept": {"accepts": [{"link": 1, "key": KEY}]},
    "delta": {"deltas": [{"link": 1, "key": KEY, "attempt_sequence": 1, "delta": {"payload": {"text": "x"}}}]},
    "result": {"results": [{"link": 1, "key": KEY, "output": {"text": "x"}}]},
    "fold": {"results": [{"link": 1, "key": KEY, "folded": {"last_attempt_sequence": 1}}]},
    "effect": {"effects": [{"link": 1, "key": KEY, "effect": "e"}]},
    "goodbye": {"goodbyes": [{"link": 1}]},
}
DISPATCH: Alphabet = {
    "opening": {"opening": {"protocol_version": "1"}},
    "submit": {"submits": [{"reference": 1, "task": {"task_id": "fuzz-task", "selector": {"agent_id": "fuzz"}}}]},
    "events": {
        "submits": [
            {
                "reference": 2,
                "task": {"task_id": "fuzz-2", "selector": {"agent_id": "fuzz"}},
                "interest": "INTEREST_EVENTS",
            }
        ]
    },
    "bad submit": {"submits": [{"reference": 3, "task": {"task_id": "\n"}}]},
    "subscribe": {"subscribes": [{"reference": 4, "task_id": "fuzz-task", "interest": "INTEREST_EVENTS"}]},
    "unsubscribe": {"unsubscribes": [{"task_id": "fuzz-task"}]},
    "cancel": {"cancels": [{"reference": 5, "task_id": "fuzz-2"}]},
    "credit": {"credits": [{"task_id": "fuzz-task", "bytes": (1 << 64) - 1}]},
}
BEATS: Alphabet = {
    "nothing": {},
    "beat": {"beats": [{**_REPORTER, "status": {"inflight": 1, "ready": True}}]},
    "stranger": {"beats": [{"instance_id": "nobody", "boot_id": "b"}]},
    "stale": {"beats": [{**_REPORTER, "boot_id": "another"}]},
    "bad": {"beats": [{"instance_id": "\n", "boot_id": "b", "status": {"availability": 99}}]},
    "many": {"beats": [{"instance_id": WORKER, "boot_id": "b"}, {"instance_id": "nobody"}] * 20},
}
REPORTS: Alphabet = {
    "nothing": {},
    "reporter": {"reporter": _REPORTER},
    "stranger": {"reporter": {"instance_id": "nobody", "boot_id": "b"}},
    "delta": {"deltas": [{"key": KEY, "attempt_sequence": 1, "delta": {"payload": {"text": "x"}}}]},
    "progress": {"progress": [{"key": KEY, "progress": {"fraction": 0.5}}]},
    "result": {"result": {"key": KEY, "output": {"text": "x"}}},
    "bad key": {"result": {"key": {"task_id": "\n"}, "output": {"text": "x"}}},
}
ALPHABETS: dict[str, Alphabet] = {
    "/agentreach.v1.AgentService/Attach": ATTACH,
    "/agentreach.v1.DispatchService/DispatchStream": DISPATCH,
    "/agentreach.v1.HeartbeatService/StreamHeartbeats": BEATS,
    "/agentreach.v1.ResultService/ReportResultStream": REPORTS,
}


def orders(path: str, longest: int, shortest: int = 0) -> Iterator[Input]:
    """Every order of frames of these lengths, with a half-close behind the last one; the shortest first."""
    kind = GetMessageClass(METHODS[path].input_type)
    frames = {name: kind(**fields).SerializeToString() for name, fields in ALPHABETS[path].items()}
    for length in range(shortest, longest + 1):
        for names in itertools.product(frames, repeat=length):
            yield Input(path, tuple(frames[name] for name in names), " → ".join(names) or "nothing")


def count(path: str, longest: int) -> int:
    """How many these are."""
    return sum(len(ALPHABETS[path]) ** length for length in range(longest + 1))
