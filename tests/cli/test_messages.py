"""Messages of the contract as plain values."""

from __future__ import annotations

import json

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from agentreach.v1 import agent_pb2, event_pb2, payload_pb2, task_pb2
from reach.cli.messages import name_of, plain, seconds


def test_everything_has_a_plain_form() -> None:
    task = task_pb2.Task(
        spec=task_pb2.TaskSpec(
            task_id="t",
            selector=task_pb2.Selector(agent_type="x", required_tags=["a", "b"]),
            payload=payload_pb2.Payload(data=b"\x00\xff"),
            priority=0,
            labels={"b": "2", "a": "1"},
        ),
        state=task_pb2.TASK_STATE_DEAD_LETTERED,
        attempts=[task_pb2.Attempt(number=1, queued=Duration(seconds=1, nanos=500_000_000), fencing_token=2**63)],
        accepted_at=Timestamp(seconds=1_700_000_000, nanos=250_000_000),
    )
    made = plain(task)
    assert made == {
        "spec": {
            "task_id": "t",
            "selector": {"agent_type": "x", "required_tags": ["a", "b"]},
            "payload": {"data": "AP8="},
            "priority": 0,
            "labels": {"a": "1", "b": "2"},
        },
        "state": "DEAD_LETTERED",
        "attempts": [{"number": 1, "queued": 1.5, "fencing_token": 2**63}],
        "accepted_at": "2023-11-14T22:13:20.250Z",
    }
    assert json.loads(json.dumps(made)) == made


def test_enums_lose_their_prefix_and_unknown_ones_are_numbers() -> None:
    agent = agent_pb2.Agent(health=agent_pb2.HEALTH_HEALTHY)
    assert name_of(agent, "health") == "HEALTHY"
    assert name_of(agent, "availability") == "UNSPECIFIED"
    event = event_pb2.TaskEvent.FromString(b"")
    assert plain(event) == {}
    strange = agent_pb2.Condition.FromString(b"\x08\x63")
    assert name_of(strange, "type") == "99"


def test_maps_of_messages_and_numbers() -> None:
    decision = task_pb2.Decision(dropped={"full": 3}, candidates=[task_pb2.Candidate(signals={"load": 0.5})])
    assert plain(decision) == {"dropped": {"full": 3}, "candidates": [{"signals": {"load": 0.5}}]}
    assert seconds(task_pb2.Attempt(queued=Duration(nanos=1_000_000)).queued) == 0.001
