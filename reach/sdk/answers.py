"""What a caller gets: results, events, and tasks as the server sees them. All read the message when asked."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from agentreach.v1 import event_pb2, payload_pb2, task_pb2
from reach.core.model import TaskState
from reach.errors import ErrorClass, Internal, InvalidRequest, ReachError, Reason, error_of
from reach.sdk.payloads import parse_json, payload_bytes, payload_media_type, payload_text, payload_value
from reach.wire.status import error_from_proto


def seconds(message: Duration) -> float:
    """A Duration in seconds."""
    return message.seconds + message.nanos / 1e9


class HasPayload:
    """Reads a payload in the ways one may want it."""

    __slots__ = ()

    def _payload(self) -> payload_pb2.Payload:
        raise NotImplementedError  # each kind of answer has its own

    @property
    def payload(self) -> bytes:
        """The content as bytes; text as UTF-8."""
        return payload_bytes(self._payload())

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are replaced."""
        return payload_text(self._payload())

    @property
    def data(self) -> Any:
        """The content read as JSON. Raises InvalidRequest, with the position, if it is not JSON."""
        return parse_json(self._payload())

    @property
    def value(self) -> Any:
        """The content by its media type: text as str, JSON parsed, else bytes; None if there is none."""
        return payload_value(self._payload())

    @property
    def media_type(self) -> str:
        """The media type of the content."""
        return payload_media_type(self._payload())


class Result(HasPayload):
    """What became of a task that ended."""

    __slots__ = ("message",)

    def __init__(self, message: task_pb2.Result) -> None:
        self.message = message

    def __repr__(self) -> str:
        return f"Result({self.task_id!r}, {self.state.name})"

    def _payload(self) -> payload_pb2.Payload:
        return self.message.output

    @property
    def task_id(self) -> str:
        """The task."""
        return self.message.task_id

    @property
    def state(self) -> TaskState:
        """A terminal state."""
        return TaskState(self.message.state)

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.message.state == task_pb2.TASK_STATE_SUCCEEDED

    @property
    def error(self) -> ReachError | None:
        """Why it did not succeed; None if it did."""
        if self.message.HasField("error"):
            return error_from_proto(self.message.error)
        if self.ok:
            return None
        text = f"the task ended as {self.state.name}"
        if self.state is TaskState.CANCELLED:
            return InvalidRequest(text, Reason.CANCELLED)
        if self.state is TaskState.REJECTED:
            return error_of(ErrorClass.AGENT_ERROR, Reason.AGENT_REJECTED, text)
        return Internal(text)

    @property
    def agent_id(self) -> str:
        """The logical agent that answered."""
        return self.message.agent_id

    @property
    def instance_id(self) -> str:
        """The instance that answered."""
        return self.message.instance_id

    @property
    def attempts(self) -> int:
        """How many attempts it took."""
        return self.message.attempts

    @property
    def transfers(self) -> int:
        """How often it moved from one instance to another."""
        return self.message.transfers

    @property
    def queued(self) -> float:
        """Seconds from accepted to the last start."""
        return seconds(self.message.queued)

    @property
    def ran(self) -> float:
        """Seconds from the last start to the end."""
        return seconds(self.message.ran)

    @property
    def confidence(self) -> float | None:
        """0 to 1, as the agent thinks; None if it did not say."""
        return self.message.confidence if self.message.HasField("confidence") else None

    @property
    def conflict_hint(self) -> str:
        """What else could be true, as the agent thinks."""
        return self.message.conflict_hint

    @property
    def executed_intent(self) -> str:
        """The intent that was executed, where it differs from the one asked."""
        return self.message.executed_intent

    @property
    def usage(self) -> dict[str, float]:
        """Figures the agent reports, such as tokens used."""
        return dict(self.message.usage)


class Event(HasPayload):
    """One event of a task. `kind` says which parts mean something:

    `accepted`, `started` (agent_id, instance_id), `delta` (text or payload, channel, mode), `progress` (fraction,
    note), `attempt_reset` (keep_up_to_sequence), `retrying` (reason, note), `gap` (snapshot), `resumed`, `handoff`,
    `degraded`, `waiting` (text: the question; question: its name; until), `input_given`
    (input_id), `complete` (result; always the last).
    """

    __slots__ = ("kind", "message")

    def __init__(self, message: event_pb2.TaskEvent) -> None:
        self.message = message
        self.kind: str = message.WhichOneof("kind") or "unknown"

    def __repr__(self) -> str:
        return f"Event({self.kind!r}, sequence={self.sequence})"

    def _payload(self) -> payload_pb2.Payload:
        if self.kind == "delta":
            return self.message.delta.payload
        if self.kind == "complete":
            return self.message.complete.output
        if self.kind == "waiting":
            return self.message.waiting.prompt
        return _EMPTY

    @property
    def task_id(self) -> str:
        """The task."""
        return self.message.task_id

    @property
    def sequence(self) -> int:
        """Its position; only grows."""
        return self.message.sequence

    @property
    def attempt(self) -> int:
        """The attempt it belongs to."""
        return self.message.attempt

    @property
    def time(self) -> float:
        """When the server saw it, in seconds since 1970."""
        return self.message.time.seconds + self.message.time.nanos / 1e9

    @property
    def agent_id(self) -> str:
        """Of `started`: the logical agent."""
        return self.message.started.agent_id

    @property
    def instance_id(self) -> str:
        """Of `started`: the instance."""
        return self.message.started.instance_id

    @property
    def channel(self) -> str:
        """Of `delta`: which of several texts it belongs to; empty is the main one."""
        return self.message.delta.channel

    @property
    def mode(self) -> str:
        """Of `delta`: `append` or `replace`."""
        return "replace" if self.message.delta.mode == event_pb2.DELTA_MODE_REPLACE else "append"

    @property
    def fraction(self) -> float | None:
        """Of `progress`: 0 to 1; None if unknown."""
        return self.message.progress.fraction if self.message.progress.HasField("fraction") else None

    @property
    def note(self) -> str:
        """Of `progress` and `retrying`: for people."""
        return self.message.retrying.message if self.kind == "retrying" else self.message.progress.note

    @property
    def reason(self) -> str:
        """Of `retrying`: name of the reason why the attempt failed."""
        return self.message.retrying.reason

    @property
    def keep_up_to_sequence(self) -> int:
        """Of `attempt_reset`: the text of all events after this one is void."""
        return self.message.attempt_reset.keep_up_to_sequence

    @property
    def snapshot(self) -> dict[str, str]:
        """Of `gap`: the text of each channel as it stands."""
        return {delta.channel: payload_text(delta.payload) for delta in self.message.gap.snapshot}

    @property
    def question(self) -> str:
        """Of `waiting` and `input_given`: name of the question."""
        return self.message.input_given.question if self.kind == "input_given" else self.message.waiting.question

    @property
    def wants_auth(self) -> bool:
        """Of `waiting`: credentials are asked for."""
        return self.message.waiting.waiting_for == task_pb2.WAITING_FOR_AUTH

    @property
    def until(self) -> float:
        """Of `waiting`: until when it may be answered, in seconds since 1970 by the clock of the server."""
        return self.message.waiting.until.seconds + self.message.waiting.until.nanos / 1e9

    @property
    def input_id(self) -> str:
        """Of `input_given`: the answer."""
        return self.message.input_given.input_id

    @property
    def result(self) -> Result | None:
        """Of `complete`: what became of the task."""
        return Result(self.message.complete) if self.kind == "complete" else None


class TaskInfo:
    """A task as the server sees it. `message` is the message of the contract, with everything there is."""

    __slots__ = ("message",)

    def __init__(self, message: task_pb2.Task) -> None:
        self.message = message

    def __repr__(self) -> str:
        return f"TaskInfo({self.task_id!r}, {self.state.name})"

    @property
    def task_id(self) -> str:
        """The task."""
        return self.message.spec.task_id

    @property
    def state(self) -> TaskState:
        """Where it stands."""
        return TaskState(self.message.state)

    @property
    def result(self) -> Result | None:
        """What became of it; None while it goes on."""
        return Result(self.message.result) if self.message.HasField("result") else None

    @property
    def attempts(self) -> int:
        """How many attempts it had so far."""
        return max((attempt.number for attempt in self.message.attempts), default=0)

    @property
    def waiting(self) -> task_pb2.Waiting | None:
        """What its agent asks, while it waits for that (state WAITING): the message of the contract."""
        return self.message.waiting if self.message.HasField("waiting") else None

    @property
    def pending_reason(self) -> str:
        """Why it is not running yet, for people."""
        return self.message.pending_reason


class TextPiece(str):
    """A piece of text of a stream. `restarts`: all pieces before are void, the text begins again with this one."""

    __slots__ = ("restarts",)
    restarts: bool

    def __new__(cls, text: str, restarts: bool = False) -> TextPiece:
        piece = super().__new__(cls, text)
        piece.restarts = restarts
        return piece


_EMPTY: Final = payload_pb2.Payload()
