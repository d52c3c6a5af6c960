"""The messages that each task needs, written as bytes: a quarter of the time that building and serialising them takes.

A message is the concatenation of its fields, so parts may be made apart, kept, and joined; and the concatenation of
messages is their merger, so a frame is made by joining *items*: frames that hold one thing. The numbers of the fields
come from the contract; everything that is seldom goes the usual way.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from agentreach.v1 import attach_pb2, attempt_pb2, dispatch_pb2, event_pb2, payload_pb2, task_pb2
from reach.core.model import Content, Outcome, Task
from reach.wire.answers import duration, fill_complete, timestamp

KEPT: Final = 10_000
"""Parts of each kind that are kept. When there are more, all are made anew."""


class _Varints(dict[int, bytes]):
    """Numbers as protobuf writes them: lengths, and integers that are not negative. The small ones are kept."""

    def __missing__(self, number: int) -> bytes:
        if 16_384 <= number < 2_097_152:  # references of callers, the third time of each task
            return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
        made = bytearray()
        while number > 127:
            made.append(number & 127 | 128)
            number >>= 7
        made.append(number)
        return bytes(made)


VARINT: Final = _Varints()
VARINT.update((number, VARINT[number]) for number in range(2_048))


def plain_tag(message: type[Message], field: str, wire_type: int = 2) -> bytes:
    """What stands before a field: 2 is for all that has a length, 0 for integers."""
    return VARINT[message.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type]


def tag(message: type[Message], field: str, wire_type: int = 2) -> bytes:
    """What stands before a field, for a template."""
    return plain_tag(message, field, wire_type).replace(b"%", b"%%")


LENGTH_AND_CONTENT: Final = b"%b%b"
INTEGER: Final = b"%b"
DATA: Final = tag(payload_pb2.Payload, "data") + LENGTH_AND_CONTENT
TEXT: Final = tag(payload_pb2.Payload, "text") + LENGTH_AND_CONTENT
_MEDIA_TYPE: Final = tag(payload_pb2.Payload, "media_type") + LENGTH_AND_CONTENT

_TASK_ID: Final = plain_tag(attempt_pb2.AttemptKey, "task_id")
_ATTEMPT: Final = plain_tag(attempt_pb2.AttemptKey, "attempt", 0)
_TENANT: Final = tag(attempt_pb2.AttemptKey, "tenant") + LENGTH_AND_CONTENT
_ACKNOWLEDGEMENTS: Final = tag(attach_pb2.AttachResponse, "acknowledgements") + LENGTH_AND_CONTENT
_OFFER: Final = (
    tag(attempt_pb2.Offer, "link", 0)
    + INTEGER
    + tag(attempt_pb2.Offer, "attempt", 0)
    + INTEGER
    + tag(attempt_pb2.Offer, "fencing_token", 0)
    + INTEGER
    + tag(attempt_pb2.Offer, "task")
    + LENGTH_AND_CONTENT
    + b"%b"  # all else
)
_OFFERS: Final = tag(attach_pb2.AttachResponse, "offers") + LENGTH_AND_CONTENT
_SEQUENCE: Final = tag(attach_pb2.AttachResponse, "sequence", 0) + INTEGER

_OUTPUT: Final = tag(task_pb2.Result, "output") + LENGTH_AND_CONTENT
_RESULT: Final = (
    tag(task_pb2.Result, "task_id")
    + LENGTH_AND_CONTENT
    + tag(task_pb2.Result, "sequence", 0)
    + INTEGER
    + tag(task_pb2.Result, "queued")
    + LENGTH_AND_CONTENT
    + tag(task_pb2.Result, "ran")
    + LENGTH_AND_CONTENT
    + b"%b%b"  # who did it; the output
)
_COMPLETE: Final = (
    tag(event_pb2.TaskEvent, "task_id")
    + LENGTH_AND_CONTENT
    + tag(event_pb2.TaskEvent, "sequence", 0)
    + INTEGER
    + tag(event_pb2.TaskEvent, "attempt", 0)
    + INTEGER
    + tag(event_pb2.TaskEvent, "time")
    + LENGTH_AND_CONTENT
    + tag(event_pb2.TaskEvent, "complete")
    + LENGTH_AND_CONTENT
)
_EVENTS: Final = tag(dispatch_pb2.DispatchStreamResponse, "events") + LENGTH_AND_CONTENT


def attempt_key(tenant: str, task_id: str, attempt: int) -> bytes:
    """The name of an attempt. `tenant`: only if it is not the agent's own."""
    data = task_id.encode()
    key = b"".join((_TASK_ID, VARINT[len(data)], data, _ATTEMPT, VARINT[attempt]))
    if tenant:
        data = tenant.encode()
        key += _TENANT % (VARINT[len(data)], data)
    return key


def acknowledgement_item(tenant: str, task_id: str, attempt: int) -> bytes:
    """The outcome of an attempt is committed. `tenant`: only if it is not the agent's own."""
    key = attempt_key(tenant, task_id, attempt)
    return _ACKNOWLEDGEMENTS % (VARINT[len(key)], key)


def offer_item(link: int, attempt: int, spec: bytes, rest: bytes) -> bytes:
    """An attempt.

    Args:
        link: Where.
        attempt: Its number, which is its fencing token too.
        spec: The TaskSpec as it came.
        rest: All other fields of the Offer.
    """
    number = VARINT[attempt]
    offer = _OFFER % (VARINT[link], number, number, VARINT[len(spec)], spec, rest)
    return _OFFERS % (VARINT[len(offer)], offer)


_limits: dict[tuple[int | None, int | None, int | None], bytes] = {}


def limits_of(start_to_close_ms: int | None, left_ms: int | None, silence_ms: int | None) -> bytes:
    """The time limits of an Offer, in ms; None: not set. `left_ms` is what is left of schedule-to-close."""
    key = (start_to_close_ms, left_ms, silence_ms)
    made = _limits.get(key)
    if made is None:
        offer = attempt_pb2.Offer()
        for field, value in zip((offer.start_to_close, offer.schedule_to_close, offer.silence), key, strict=True):
            if value is not None:
                field.CopyFrom(duration(value))
        if len(_limits) >= KEPT:
            _limits.clear()
        made = _limits[key] = offer.SerializeToString()
    return made


class _Durations(dict[int, bytes]):
    def __missing__(self, milliseconds: int) -> bytes:
        made = Duration(seconds=milliseconds // 1_000, nanos=milliseconds % 1_000 * 1_000_000).SerializeToString()
        if len(self) >= KEPT:
            self.clear()
        self[milliseconds] = made
        return made


class _Times(dict[int, bytes]):
    def __missing__(self, wall_ms: int) -> bytes:
        made = timestamp(wall_ms).SerializeToString()
        if len(self) >= KEPT:
            self.clear()
        self[wall_ms] = made
        return made


_durations: Final = _Durations()
_times: Final = _Times()
_doers: dict[tuple[int, str, str, int, int], bytes] = {}


def _doer(outcome: Outcome) -> bytes:
    """Fields of a Result that are the same for very many."""
    key = (outcome.state, outcome.agent_id, outcome.instance_id, outcome.attempts, outcome.transfers)
    made = _doers.get(key)
    if made is None:
        state, agent_id, instance_id, attempts, transfers = key
        result = task_pb2.Result(agent_id=agent_id, instance_id=instance_id, attempts=attempts, transfers=transfers)
        result.state = int(state)  # type: ignore[assignment]
        if len(_doers) >= KEPT:
            _doers.clear()
        made = _doers[key] = result.SerializeToString()
    return made


def _output(content: Content | None, media_type: str) -> bytes:
    if content is None:
        return b""
    if isinstance(content, bytes):
        payload = DATA % (VARINT[len(content)], content)
    else:
        data = content.encode()
        payload = TEXT % (VARINT[len(data)], data)
    if media_type:
        data = media_type.encode()
        payload += _MEDIA_TYPE % (VARINT[len(data)], data)
    return _OUTPUT % (VARINT[len(payload)], payload)


def complete_item(task: Task, outcome: Outcome) -> bytes:
    """The last event of a task: what most readers hear and nothing else."""
    if outcome.fault is not None or outcome.extra:
        message = event_pb2.TaskEvent()
        fill_complete(message, task, outcome)
        return event_item(message)
    data = task.task_id.encode()
    named, sequence = VARINT[len(data)], VARINT[outcome.sequence]
    queued, ran, time = _durations[outcome.queued_ms], _durations[outcome.ran_ms], _times[outcome.ended_wall_ms]
    result = _RESULT % (
        named,
        data,
        sequence,
        VARINT[len(queued)],
        queued,
        VARINT[len(ran)],
        ran,
        _doer(outcome),
        _output(outcome.content, outcome.media_type),
    )
    attempts = VARINT[outcome.attempts]
    event = _COMPLETE % (named, data, sequence, attempts, VARINT[len(time)], time, VARINT[len(result)], result)
    return _EVENTS % (VARINT[len(event)], event)


def event_item(event: event_pb2.TaskEvent) -> bytes:
    """Any event of a task."""
    data = event.SerializeToString()
    return _EVENTS % (VARINT[len(data)], data)


def sequence_field(number: int) -> bytes:
    """The number of a frame that goes down to an agent."""
    return _SEQUENCE % VARINT[number]
