"""What a remote task says, as frames of our contract. Knows no connection: it is told events, and answers frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from a2a.types.a2a_pb2 import (
    Artifact,
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)

from agentreach.v1 import attempt_pb2, endpoint_pb2, error_pb2, event_pb2, payload_pb2, task_pb2
from reach.core.pieces import FOLD_LIMIT
from reach.core.questions import PROMPT_BYTES
from reach.errors import ErrorClass, InvalidRequest, Reason
from reach.wire.a2a.parts import one_payload, payload_of
from reach.wire.a2a.states import INTERRUPTED, WAITING_FOR
from reach.wire.agents import NOTE_BYTES
from reach.wire.requests import ID_BYTES
from reach.wire.status import bounded_text

Frame = endpoint_pb2.ExecuteResponse

ARTIFACTS: Final = 256
"""Artifacts of one task; a task with more breaks the protocol as we can carry it."""
RAW_BYTES: Final = 1_024
"""How much of what could not be read is kept with the error."""

_FAULTS: Final = {
    TaskState.TASK_STATE_FAILED: (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "the agent failed"),
    TaskState.TASK_STATE_REJECTED: (ErrorClass.AGENT_ERROR, Reason.AGENT_REJECTED, "the agent rejected it"),
    TaskState.TASK_STATE_CANCELED: (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "the agent cancelled it by itself"),
}


class BrokenProtocol(Exception):
    """The agent said what A2A does not allow, or what cannot be carried.

    Attributes:
        raw: What it said, bounded.
    """

    def __init__(self, message: str, raw: str = "") -> None:
        super().__init__(message)
        self.raw = bounded_text(raw, RAW_BYTES)


class Told:
    """What one attempt has heard.

    Args:
        asked: How many answers to questions the task has been told: numbers its next question.
    """

    def __init__(self, asked: int = 0) -> None:
        self.task = ""
        self.context = ""
        self._over = False
        self.heard = False
        """The agent has said which task it is."""
        self._asked = asked
        self._artifacts: dict[str, list[Part]] = {}
        self._size = 0
        self._note = ""

    def over(self) -> bool:
        """Its outcome, or its question, was told."""
        return self._over

    def take(self, response: StreamResponse) -> Iterator[Frame]:
        """One event of a stream, or the one answer of a call. What follows an outcome is not looked at.

        Raises:
            BrokenProtocol: The agent's ids change, its events come to too much, or there is no event in it.
        """
        if self._over:
            return
        match response.WhichOneof("payload"):
            case "task":
                yield from self.snapshot(response.task)
            case "message":
                self.context = self.context or response.message.context_id
                yield from self._answered(response.message)
            case "status_update":
                update = response.status_update
                yield from self._is(update.task_id, update.context_id)
                yield from self._state(update.status)
            case "artifact_update":
                update_of = response.artifact_update
                yield from self._is(update_of.task_id, update_of.context_id)
                yield from self._artifact(update_of)
            case _:
                raise BrokenProtocol("the agent sent an event with nothing in it")

    def snapshot(self, task: Task) -> Iterator[Frame]:
        """A whole task: only what is new of it is told.

        Raises:
            BrokenProtocol: As `take`.
        """
        if self._over:
            return
        yield from self._is(task.id, task.context_id)
        for artifact in task.artifacts:
            yield from self._compared(artifact)
        yield from self._state(task.status)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _is(self, task: str, context: str) -> Iterator[Frame]:
        """Which remote task it is; the first event says so."""
        if not task:
            raise BrokenProtocol("the agent names no task")
        if self.task and task != self.task:
            raise BrokenProtocol(f"the agent speaks of another task than {bounded_text(self.task, 64)}", task)
        self.task, self.context = task, context or self.context
        if not self.heard:
            self.heard = True
            yield Frame(accept=attempt_pb2.AttemptAccept())

    def _answered(self, message: Message) -> Iterator[Frame]:
        """An answer without a task."""
        self._over = True
        yield Frame(result=attempt_pb2.AttemptResult(output=_content(one_payload, list(message.parts))))

    def _artifact(self, update: TaskArtifactUpdateEvent) -> Iterator[Frame]:
        name, parts = update.artifact.artifact_id, list(update.artifact.parts)
        known = self._artifacts.get(name)
        if known is not None and not update.append and known == _merged(parts):
            return  # at its end some say the whole once more
        if known is None or not update.append:  # the first piece of an artifact is no continuation, whatever it says
            yield from self._set(name, parts)
        else:
            self._grow(parts)
            self._artifacts[name] = _merged([*known, *parts])
            yield from self._deltas(name, parts, event_pb2.DELTA_MODE_APPEND)

    def _compared(self, artifact: Artifact) -> Iterator[Frame]:
        """An artifact as a whole, when a part of it may be told already."""
        name, parts = artifact.artifact_id, _merged(artifact.parts)
        known = self._artifacts.get(name)
        if known is None:
            yield from self._set(name, parts)
            return
        rest = _rest(known, parts)
        if rest is None:
            yield from self._set(name, parts)
        elif rest:
            self._grow(rest)
            self._artifacts[name] = parts
            yield from self._deltas(name, rest, event_pb2.DELTA_MODE_APPEND)

    def _set(self, name: str, parts: list[Part]) -> Iterator[Frame]:
        former = self._artifacts.get(name)
        if former is None and len(self._artifacts) >= ARTIFACTS:
            raise BrokenProtocol(f"the agent's task has more than {ARTIFACTS} artifacts")
        self._size -= sum(part.ByteSize() for part in former or ())
        self._grow(parts)
        self._artifacts[name] = _merged(parts)
        yield from self._deltas(name, parts, event_pb2.DELTA_MODE_REPLACE)

    def _grow(self, parts: Iterable[Part]) -> None:
        self._size += sum(part.ByteSize() for part in parts)
        if self._size > FOLD_LIMIT:
            raise BrokenProtocol(f"the agent's artifacts have more than {FOLD_LIMIT} bytes")

    def _deltas(self, name: str, parts: list[Part], mode: event_pb2.DeltaMode.ValueType) -> Iterator[Frame]:
        """The first artifact is the answer, and has the channel without a name; others have one each."""
        first = next(iter(self._artifacts)) == name
        channel = "" if first else bounded_text(name, ID_BYTES) or "artifact"
        frame = Frame()
        for part in parts:
            if not part.WhichOneof("content"):
                continue
            delta = frame.deltas.add().delta
            delta.channel, delta.mode = channel, mode
            delta.payload.CopyFrom(_content(payload_of, part))
            mode = event_pb2.DELTA_MODE_APPEND
        if frame.deltas:
            yield frame

    # -- states -------------------------------------------------------------------------------------------------------

    def _state(self, status: TaskStatus) -> Iterator[Frame]:
        state, parts = status.state, status.message.parts
        if state == TaskState.TASK_STATE_COMPLETED:
            yield self._result(output=self._output(parts))
        elif state in _FAULTS:
            error_class, reason, what = _FAULTS[state]
            yield self._result(error=_error(error_class, reason, what, words_of(parts)))
        elif state in INTERRUPTED:
            question = task_pb2.Waiting(question=f"{self._asked + 1}")
            question.waiting_for = WAITING_FOR[state]  # type: ignore[assignment]
            question.prompt.CopyFrom(_content(one_payload, list(parts)))
            if question.prompt.ByteSize() > PROMPT_BYTES:
                text = bounded_text(words_of(parts), PROMPT_BYTES)
                question.prompt.Clear()
                question.prompt.text = text
            yield self._result(waiting=question)
        elif (note := bounded_text(words_of(parts), NOTE_BYTES)) and note != self._note:
            self._note = note  # a poll says the same again and again
            yield Frame(progress=[attempt_pb2.AttemptProgress(progress=event_pb2.Progress(note=note))])

    def _output(self, said: Iterable[Part]) -> object:
        """The artifacts; where there are none, what the agent says with its last state."""
        parts = [part for artifact in self._artifacts.values() for part in artifact]
        return _content(one_payload, parts or list(said))

    def _result(self, **outcome: object) -> Frame:
        self._over = True
        return Frame(result=attempt_pb2.AttemptResult(**outcome))  # type: ignore[arg-type]


def _merged(parts: Iterable[Part]) -> list[Part]:
    """Pieces of one text as one part, so that what was streamed can be compared with what is stored."""
    merged: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is None or not last.WhichOneof("content") == part.WhichOneof("content") == "text":
            if texts:
                merged[-1].text = "".join(texts)
            texts = [part.text] if part.WhichOneof("content") == "text" else []
            merged.append(Part())
            merged[-1].CopyFrom(part)
        else:
            texts.append(part.text)
    if texts:
        merged[-1].text = "".join(texts)
    return merged


def _rest(known: list[Part], parts: list[Part]) -> list[Part] | None:
    """What is new in a list that begins as the known one; None if it does not."""
    if len(parts) < len(known) or parts[: len(known) - 1] != known[:-1]:
        return None
    if not known:
        return parts
    before, now = known[-1], parts[len(known) - 1]
    if before == now:
        return parts[len(known) :]
    if before.WhichOneof("content") != "text" or now.WhichOneof("content") != "text":
        return None
    if not now.text.startswith(before.text):
        return None
    grown = Part()
    grown.CopyFrom(now)
    grown.text = now.text[len(before.text) :]
    return [grown, *parts[len(known) :]] if grown.text else parts[len(known) :]


def _content(read: Callable[[Any], payload_pb2.Payload], said: Any) -> payload_pb2.Payload:
    try:
        return read(said)
    except InvalidRequest as error:
        raise BrokenProtocol(f"the agent said what cannot be carried: {error.message}", str(said)) from error


def words_of(parts: Iterable[Part]) -> str:
    """What parts say to people, for notes and errors."""
    return " ".join(part.text for part in parts if part.text)


def _error(error_class: ErrorClass, reason: Reason, what: str, said: str) -> error_pb2.Error:
    message = f"{what}: {bounded_text(said, RAW_BYTES)}" if said else what
    error = error_pb2.Error(message=message)
    error.error_class = int(error_class)  # type: ignore[assignment]
    error.reason = int(reason)  # type: ignore[assignment]
    return error
