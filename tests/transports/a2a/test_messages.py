"""Tasks of ours as messages (API-3)."""

from __future__ import annotations

from google.protobuf import json_format

from agentreach.v1 import attempt_pb2, task_pb2
from reach.transports.a2a.contexts import Contexts
from reach.transports.a2a.handle import Handle, read_handle
from reach.transports.a2a.messages import first_message, next_message
from reach.wire.a2a.words import DISPATCH, TASK


def offer_of(**task):
    spec = task_pb2.TaskSpec(task_id="t1")
    spec.payload.text = "do it"
    for name, value in task.items():
        setattr(spec, name, value)
    return attempt_pb2.Offer(attempt=2, fencing_token=1 << 60, task=spec)


def test_API_3_a_task_is_a_message_with_its_name():
    offer = offer_of(method="sew", effects=task_pb2.EFFECTS_IRREVERSIBLE, priority=7)
    offer.start_to_close.FromMilliseconds(1_500)
    offer.task.attachments.add(name="plan").payload.data = b"\x00"
    offer.inputs.add(input_id="1").payload.text = "red"
    request = first_message(offer, Contexts(), waits=False).request
    message = request.message
    assert (message.message_id, message.context_id, request.configuration.return_immediately) == ("t1.2", "", True)
    assert [part.text or part.filename for part in message.parts] == ["do it", "plan", "red"]  # answers go along
    assert json_format.MessageToDict(request.metadata)[TASK] == {
        "task_id": "t1", "attempt": 2.0, "fencing_token": str(1 << 60), "method": "sew", "start_to_close_ms": 1_500.0
    }  # fmt: skip
    options = json_format.MessageToDict(message.metadata)[DISPATCH]
    assert options == {"method": "sew", "priority": 7.0, "effects": "irreversible", "deadline_ms": 1_500.0}
    assert not first_message(offer_of(), Contexts(), waits=True).request.message.metadata


def test_API_3_only_new_answers_are_said_to_a_task_that_asked():
    offer = offer_of()
    for text in ("one", "two", "three"):
        offer.inputs.add(input_id=text).payload.text = text
    message = next_message(offer, Handle("remote", "context", 1), waits=True).message
    assert (message.task_id, message.context_id, message.message_id) == ("remote", "context", "t1.2.3")
    assert [part.text for part in message.parts] == ["two", "three"]


def test_API_3_handles_are_read_as_they_were_written_and_nothing_else_is():
    handle = Handle('tä"sk', "context", 3)
    assert read_handle(handle.write()) == handle
    assert Handle("x" * 5_000, "c").write() == ""
    for text in ("", "/status/1", "[]", '["a2a/1","t"]', '["a2a/2","t","c",0]', '["a2a/1","t","c","0"]', "[" * 9_999):
        assert read_handle(text) is None
