"""What remote tasks say, as frames of our contract: pieces, snapshots, states, and what cannot be taken (API-3)."""

from __future__ import annotations

import pytest
from a2a.types.a2a_pb2 import (
    Artifact,
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from agentreach.v1 import event_pb2, task_pb2
from reach.core.questions import PROMPT_BYTES
from reach.errors import Reason
from reach.transports.a2a import told as told_module
from reach.transports.a2a.told import BrokenProtocol, Told

REPLACE, APPEND = event_pb2.DELTA_MODE_REPLACE, event_pb2.DELTA_MODE_APPEND
COMPLETED, WORKING = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_WORKING


def task(*texts, state=WORKING, note="", artifact="a"):
    artifacts = [Artifact(artifact_id=artifact, parts=[Part(text=text) for text in texts])] if texts else []
    status = TaskStatus(state=state, message=Message(parts=[Part(text=note)] if note else []))
    return Task(id="t", context_id="c", status=status, artifacts=artifacts)


def piece(text, artifact="a", *, append, task_id="t"):
    update = TaskArtifactUpdateEvent(
        task_id=task_id, context_id="c", append=append, artifact=Artifact(artifact_id=artifact, parts=[Part(text=text)])
    )
    return StreamResponse(artifact_update=update)


def state(value, text="", task_id="t"):
    message = Message(parts=[Part(text=text)] if text else [])
    status = TaskStatus(state=value, message=message)
    return StreamResponse(status_update=TaskStatusUpdateEvent(task_id=task_id, context_id="c", status=status))


def heard(told, *said):
    """(channel, mode, text) of all deltas, and the result."""
    frames = []
    for one in said:
        frames += list(told.snapshot(one) if isinstance(one, Task) else told.take(one))
    deltas = [(one.delta.channel, one.delta.mode, one.delta.payload.text) for f in frames for one in f.deltas]
    results = [frame.result for frame in frames if frame.HasField("result")]
    return deltas, results[0] if results else None


def test_API_3_pieces_are_deltas_and_the_whole_is_the_answer():
    said = [piece("a", append=False), piece("b", append=True), piece("c", append=True), state(COMPLETED)]
    deltas, result = heard(Told(), *said)
    assert deltas == [("", REPLACE, "a"), ("", APPEND, "b"), ("", APPEND, "c")]
    assert result.output.text == "abc"


def test_API_3_a_first_piece_that_says_it_goes_on_is_a_first_piece():
    assert heard(Told(), piece("a", append=True))[0] == [("", REPLACE, "a")]


def test_API_3_an_artifact_that_is_sent_again_replaces_its_text_or_is_passed_over():
    told = Told()
    assert heard(told, piece("a", append=False), piece("a", append=False), piece("b", append=False))[0] == [
        ("", REPLACE, "a"),
        ("", REPLACE, "b"),
    ]


def test_API_3_of_a_snapshot_only_what_is_new_is_told():
    told = Told()
    assert heard(told, piece("a", append=False), task("a"), task("a", "b"), task("a", "b", "c"))[0] == [
        ("", REPLACE, "a"),
        ("", APPEND, "b"),
        ("", APPEND, "c"),
    ]
    assert heard(told, task("another"))[0] == [("", REPLACE, "another")]


def test_API_3_other_artifacts_have_channels_of_their_own():
    deltas, result = heard(Told(), piece("x", append=False), piece("y", "b", append=False), state(COMPLETED))
    assert deltas == [("", REPLACE, "x"), ("b", REPLACE, "y")]
    assert result.output.text == "x\n\ny"


@pytest.mark.parametrize(
    ("value", "reason", "message"),
    [
        (TaskState.TASK_STATE_FAILED, Reason.AGENT_FAILED, "the agent failed: why"),
        (TaskState.TASK_STATE_REJECTED, Reason.AGENT_REJECTED, "the agent rejected it: why"),
        (TaskState.TASK_STATE_CANCELED, Reason.AGENT_FAILED, "the agent cancelled it by itself: why"),
    ],
)
def test_API_3_ends_that_are_no_answers(value, reason, message):
    _, result = heard(Told(), state(value, "why"))
    assert (result.error.reason, result.error.message) == (reason, message)


def test_API_3_an_answer_may_be_in_the_last_state_or_in_a_message():
    assert heard(Told(), state(COMPLETED, "done"))[1].output.text == "done"
    assert heard(Told(), StreamResponse(message=Message(parts=[Part(text="hi")])))[1].output.text == "hi"
    assert heard(Told(), state(COMPLETED))[1].output.text == ""


def test_API_3_questions_are_numbered_and_bounded():
    _, result = heard(Told(2), state(TaskState.TASK_STATE_INPUT_REQUIRED, "é" * PROMPT_BYTES))
    assert (result.waiting.waiting_for, result.waiting.question) == (task_pb2.WAITING_FOR_INPUT, "3")
    assert result.waiting.prompt.ByteSize() <= PROMPT_BYTES + 16
    _, result = heard(Told(), state(TaskState.TASK_STATE_AUTH_REQUIRED, "log in"))
    assert result.waiting.waiting_for == task_pb2.WAITING_FOR_AUTH


def test_API_3_a_note_is_said_once_and_nothing_after_the_end():
    told = Told()
    frames = [frame for one in (task(note="hm"), task(note="hm"), task(note="aha")) for frame in told.snapshot(one)]
    assert [one.progress.note for frame in frames for one in frame.progress] == ["hm", "aha"]
    assert heard(told, state(COMPLETED), piece("late", append=False), state(COMPLETED))[0] == []


def test_GOV_5_what_cannot_be_taken(monkeypatch):
    monkeypatch.setattr(told_module, "ARTIFACTS", 3)
    monkeypatch.setattr(told_module, "FOLD_LIMIT", 1_000)
    for said in (
        [StreamResponse()],
        [piece("a", append=False, task_id="")],
        [piece("a", append=False), piece("b", append=True, task_id="other")],
        [piece("a", str(number), append=False) for number in range(4)],
        [piece("a" * 600, append=False), piece("b" * 600, append=True)],
        [Task(id="", status=TaskStatus(state=WORKING))],
    ):
        with pytest.raises(BrokenProtocol):
            heard(Told(), *said)
