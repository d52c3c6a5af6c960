"""The events of a task as A2A tells them.

A piece of an answer is an update of an artifact, one for each channel: the first with `append=false`, the next with
`true`. A new attempt says it with `append=false` again, which is A2A's only word for "start over".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from a2a.types import a2a_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from agentreach.v1 import event_pb2, payload_pb2, task_pb2
from reach.a2a.tasks import ANSWER, cursor, facts_of, said_by_agent, struct_of
from reach.wire.a2a.parts import parts_of
from reach.wire.a2a.states import INTERRUPTED, TERMINAL, WORKING, a2a_state

Told = a2a_pb2.Task | a2a_pb2.TaskStatusUpdateEvent | a2a_pb2.TaskArtifactUpdateEvent
Update = a2a_pb2.TaskStatusUpdateEvent | a2a_pb2.TaskArtifactUpdateEvent

_REPLACE: Final = event_pb2.DELTA_MODE_REPLACE


class _Channel:
    """What was told of one channel: enough to see whether the output says the same."""

    __slots__ = ("said",)

    def __init__(self) -> None:
        self.said = hashlib.sha256()

    def add(self, payload: payload_pb2.Payload) -> None:
        """Another piece of it."""
        self.said.update(_bytes_of(payload))

    def is_all_of(self, output: payload_pb2.Payload) -> bool:
        """Whether nothing is to be said beyond what was."""
        return self.said.digest() == hashlib.sha256(_bytes_of(output)).digest()


class Story:
    """One task, told to one reader.

    Attributes:
        state: As A2A calls it, after what was told last.
    """

    def __init__(self, task: a2a_pb2.Task) -> None:
        self._task = task
        self.state: int = task.status.state
        self._channels: dict[str, _Channel] = {}

    @property
    def over(self) -> bool:
        """Nothing follows."""
        return self.state in TERMINAL

    @property
    def interrupted(self) -> bool:
        """Somebody has to say something before it goes on."""
        return self.state in INTERRUPTED

    def tell(self, event: event_pb2.TaskEvent) -> list[Update]:
        """What a reader is told of an event; nothing, for what A2A has no word for."""
        kind = event.WhichOneof("kind")
        if kind == "delta":
            return [self._delta(event, event.delta)]
        if kind == "complete":
            return self._complete(event)
        if kind == "attempt_reset":
            return self._reset(event)
        if kind == "gap":
            gone: list[Update] = [] if event.gap.snapshot else [self._status(event, WORKING, {"gap": True})]
            return gone + [self._delta(event, delta, {"gap": True}) for delta in event.gap.snapshot]
        if kind == "waiting":
            state = a2a_state(task_pb2.TASK_STATE_WAITING, event.waiting.waiting_for)
            question = said_by_agent(self._task, event.sequence, parts_of(event.waiting.prompt))
            named = {"question": event.waiting.question} if event.waiting.question else {}
            return [self._status(event, state, named, question)]
        if kind == "progress":
            return self._progress(event)
        if kind == "retrying":
            return [self._status(event, WORKING, {"retrying": event.retrying.reason})]
        if kind in ("started", "input_given", "handoff", "degraded"):
            return [self._status(event, WORKING, {} if kind == "started" else {kind: True})]
        return []

    def _delta(
        self, event: event_pb2.TaskEvent, delta: event_pb2.Delta, more: dict[str, Any] | None = None
    ) -> a2a_pb2.TaskArtifactUpdateEvent:
        channel = self._channels.get(delta.channel)
        append = channel is not None and delta.mode != _REPLACE
        if channel is None or not append:
            channel = self._channels[delta.channel] = _Channel()
        channel.add(delta.payload)
        return self._artifact(event, delta.channel, [_piece(delta.payload)], append=append, more=more)

    def _reset(self, event: event_pb2.TaskEvent) -> list[Update]:
        """What an attempt before said is void: nothing, until the next one speaks."""
        told: list[Update] = [
            self._artifact(event, name, [a2a_pb2.Part(text="")], append=False) for name in self._channels
        ]
        self._channels.clear()
        return [*told, self._status(event, WORKING, {"attempt_reset": True})]

    def _progress(self, event: event_pb2.TaskEvent) -> list[Update]:
        progress = event.progress
        known = progress.HasField("fraction") and math.isfinite(progress.fraction)  # JSON has no word for others
        more = {"fraction": progress.fraction} if known else {}
        note = said_by_agent(self._task, event.sequence, [a2a_pb2.Part(text=progress.note)]) if progress.note else None
        return [self._status(event, WORKING, more, note)] if more or note else []

    def _complete(self, event: event_pb2.TaskEvent) -> list[Update]:
        result = event.complete
        told: list[Update] = []
        if result.output.WhichOneof("content"):
            main = self._channels.pop("", None)
            if main is not None and main.is_all_of(result.output):
                told.append(self._last(event, ""))
            else:
                parts = parts_of(result.output)
                told.append(self._artifact(event, "", parts, append=False, last=True))
        if result.state == task_pb2.TASK_STATE_SUCCEEDED:
            told += [self._last(event, name) for name in self._channels]
        why = None
        if result.error.message:
            why = said_by_agent(self._task, event.sequence, [a2a_pb2.Part(text=result.error.message)])
        return [*told, self._status(event, a2a_state(result.state), facts_of(result), why)]

    def _last(self, event: event_pb2.TaskEvent, channel: str) -> a2a_pb2.TaskArtifactUpdateEvent:
        """All of a channel was said."""
        return self._artifact(event, channel, [a2a_pb2.Part(text="")], append=True, last=True)

    def _artifact(
        self,
        event: event_pb2.TaskEvent,
        channel: str,
        parts: Sequence[a2a_pb2.Part],
        *,
        append: bool,
        last: bool = False,
        more: dict[str, Any] | None = None,
    ) -> a2a_pb2.TaskArtifactUpdateEvent:
        return a2a_pb2.TaskArtifactUpdateEvent(
            task_id=self._task.id,
            context_id=self._task.context_id,
            artifact=a2a_pb2.Artifact(
                artifact_id=f"{ANSWER}.{channel}" if channel else ANSWER, name=channel, parts=parts
            ),
            append=append,
            last_chunk=last,
            metadata=struct_of(cursor(event.sequence, event.attempt) | (more or {})),
        )

    def _status(
        self,
        event: event_pb2.TaskEvent,
        state: int,
        more: dict[str, Any] | None = None,
        message: a2a_pb2.Message | None = None,
    ) -> a2a_pb2.TaskStatusUpdateEvent:
        self.state = state
        return a2a_pb2.TaskStatusUpdateEvent(
            task_id=self._task.id,
            context_id=self._task.context_id,
            status=a2a_pb2.TaskStatus(state=state, message=message, timestamp=_when(event)),  # type: ignore[arg-type]
            metadata=struct_of(cursor(event.sequence, event.attempt) | (more or {})),
        )


def fold(task: a2a_pb2.Task, updates: Iterable[Update]) -> None:
    """Brings a task to where updates lead, as a reader of them would."""
    artifacts: dict[str, a2a_pb2.Artifact] = {}
    for update in updates:
        task.metadata.update({name: value for name, value in update.metadata.items() if name in cursor(0, 0)})
        if isinstance(update, a2a_pb2.TaskStatusUpdateEvent):
            task.status.CopyFrom(update.status)
            continue
        one = update.artifact
        if not update.append or one.artifact_id not in artifacts:
            artifacts[one.artifact_id] = a2a_pb2.Artifact(artifact_id=one.artifact_id, name=one.name)
        _join(artifacts[one.artifact_id], one.parts)
    del task.artifacts[:]
    task.artifacts.extend(one for one in artifacts.values() if one.parts)


def _join(artifact: a2a_pb2.Artifact, parts: Iterable[a2a_pb2.Part]) -> None:
    for part in parts:
        if part.WhichOneof("content") == "text" and not part.text:
            continue
        last = artifact.parts[-1] if artifact.parts else None
        if last is not None and last.text and part.text and last.media_type == part.media_type:
            last.text += part.text
        else:
            artifact.parts.append(part)


def _piece(payload: payload_pb2.Payload) -> a2a_pb2.Part:
    """A piece of a channel: part of JSON is no JSON, so text stays text."""
    if payload.WhichOneof("content") == "data":
        return a2a_pb2.Part(raw=payload.data, media_type=payload.media_type)
    return a2a_pb2.Part(text=payload.text, media_type=payload.media_type)


def _bytes_of(payload: payload_pb2.Payload) -> bytes:
    return payload.data if payload.WhichOneof("content") == "data" else payload.text.encode()


def _when(event: event_pb2.TaskEvent) -> Timestamp | None:
    return event.time if event.HasField("time") else None
