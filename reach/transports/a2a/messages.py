"""A task of ours as a message to an A2A agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from a2a.types.a2a_pb2 import ROLE_USER, Message, Part, SendMessageConfiguration, SendMessageRequest

from agentreach.v1 import attempt_pb2, task_pb2
from reach.transports.a2a.contexts import Contexts, Key, RemoteContext, news_for
from reach.transports.a2a.handle import Handle
from reach.wire.a2a.parts import part_of, parts_of_task
from reach.wire.a2a.words import DISPATCH, TASK

_EFFECTS: Final = {
    task_pb2.EFFECTS_NONE: "none",
    task_pb2.EFFECTS_IDEMPOTENT: "idempotent",
    task_pb2.EFFECTS_IRREVERSIBLE: "irreversible",
}


def _options(offer: attempt_pb2.Offer) -> dict[str, Any]:
    """How it is to be dispatched, for agents that are fleets themselves."""
    task = offer.task
    said: dict[str, Any] = {}
    if task.method:
        said["method"] = task.method
    if task.HasField("priority"):
        said["priority"] = task.priority
    if task.effects in _EFFECTS:
        said["effects"] = _EFFECTS[task.effects]
    if said and offer.HasField("start_to_close"):
        said["deadline_ms"] = offer.start_to_close.ToMilliseconds()
    return said


def key_of(offer: attempt_pb2.Offer) -> Key | None:
    """The session of a task; None: it has none."""
    session = offer.task.session
    if not session.session_id:
        return None
    return offer.tenant, f"{session.app_id}:{session.user_id}:{session.session_id}"


class Saying:
    """What an attempt says first, and what its context will know by that."""

    __slots__ = ("key", "request", "told")

    def __init__(self, request: SendMessageRequest, key: Key | None, told: list[str]) -> None:
        self.request = request
        self.key = key
        self.told = told


def first_message(offer: attempt_pb2.Offer, contexts: Contexts, *, waits: bool) -> Saying:
    """The message that begins a remote task, in the context of its session. `waits`: the answer is a stream."""
    task = offer.task
    message = Message(message_id=f"{task.task_id}.{offer.attempt}", role=ROLE_USER)
    key, told = key_of(offer), list[str]()
    context: RemoteContext | None = None
    if key is not None:
        context = contexts.find(key)
        news, told = news_for(context, offer.session_context)
        message.parts.extend(news)
        if context is not None:
            message.context_id = context.context_id
    message.parts.extend(parts_of_task(task.payload, task.attachments))
    message.parts.extend(_answers(offer, 0))
    return Saying(_request(offer, message, waits=waits), key, told)


def next_message(offer: attempt_pb2.Offer, handle: Handle, *, waits: bool) -> SendMessageRequest:
    """The answers to its questions that the remote task has not been told."""
    message = Message(
        message_id=f"{offer.task.task_id}.{offer.attempt}.{len(offer.inputs)}",
        role=ROLE_USER,
        task_id=handle.task,
        context_id=handle.context,
    )
    message.parts.extend(_answers(offer, handle.inputs))
    return _request(offer, message, waits=waits)


def _answers(offer: attempt_pb2.Offer, first: int) -> Iterable[Part]:
    return (part_of(given.payload) for given in offer.inputs[first:])


def _request(offer: attempt_pb2.Offer, message: Message, *, waits: bool) -> SendMessageRequest:
    task = offer.task
    said: dict[str, Any] = {
        "task_id": task.task_id,
        "attempt": offer.attempt,
        "fencing_token": str(offer.fencing_token),  # numbers of JSON are too small for it
    }
    if task.method:
        said["method"] = task.method
    if offer.HasField("start_to_close"):
        said["start_to_close_ms"] = offer.start_to_close.ToMilliseconds()
    if task.labels:
        said["labels"] = dict(task.labels)
    if options := _options(offer):
        message.metadata.update({DISPATCH: options})
    request = SendMessageRequest(message=message)
    request.metadata.update({TASK: said})
    request.configuration.CopyFrom(SendMessageConfiguration(return_immediately=not waits))
    request.configuration.accepted_output_modes.extend(task.selector.accepted_media_types)
    return request
