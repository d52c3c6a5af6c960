"""What servers and agents say of attempts, for every transport: offers going out, events coming in."""

from __future__ import annotations

from typing import Any

from agentreach.v1 import attempt_pb2
from reach.core import events as ev
from reach.core.dialogue import waited_ms
from reach.core.model import Instance, Task
from reach.wire.agents import HANDLE_BYTES, read_delta, read_key, read_progress
from reach.wire.answers import fill_payload
from reach.wire.encoding import limits_of
from reach.wire.requests import check_id
from reach.wire.webhooks import shown_to_agents


def offer_rest(task: Task, tenant: str, traceparent: str, context: bytes = b"") -> bytes:
    """What is in the Offer of a task's current attempt beside its number and the task itself, as bytes, for an agent of
    `tenant`. `context`: the field that says what is known of its session. Hot: called for each attempt."""
    left = task.schedule_to_close_ms
    if left is not None and task.offered_ms != task.accepted_ms:
        left = max(0, left + task.accepted_ms + waited_ms(task) - task.offered_ms)
    rest = limits_of(task.start_to_close_ms, left, task.silence_ms)
    if traceparent or task.attempt > 1 or task.tenant != tenant:
        rest += _seldom(task, tenant, traceparent)
    return rest + context if context else rest


def _seldom(task: Task, tenant: str, traceparent: str) -> bytes:
    """The trace comes to the task: messages merge."""
    offer = attempt_pb2.Offer()
    if task.tenant != tenant:
        offer.tenant = task.tenant
    if task.checkpoint is not None:
        offer.checkpoint = task.checkpoint
    if task.effect_granted and task.effect_granted != task.attempt:
        offer.effect_granted = True
    if task.dialogue is not None and task.attempt > 1:
        _fill_inputs(offer, task)
    if traceparent:
        offer.task.trace.traceparent = traceparent
    return offer.SerializeToString()


def offer_of(task: Task, tenant: str, traceparent: str, context: bytes = b"") -> attempt_pb2.Offer:
    """The current attempt of a task as a message."""
    offer = attempt_pb2.Offer(attempt=task.attempt, fencing_token=task.attempt)
    offer.task.MergeFromString(shown_to_agents(task) if task.announce else task.spec)
    offer.MergeFromString(offer_rest(task, tenant, traceparent, context))
    if task.attempt == 1:  # else that goes along already
        if task.checkpoint is not None:  # it is called again
            offer.checkpoint = task.checkpoint
        if task.dialogue is not None:
            _fill_inputs(offer, task)
    return offer


def _fill_inputs(offer: attempt_pb2.Offer, task: Task) -> None:
    for given in task.dialogue.inputs:
        fill_payload(
            offer.inputs.add(input_id=given.input_id, question=given.question).payload, given.media_type, given.content
        )


def taken_up(instance: Instance, tenant: str, message: attempt_pb2.AttemptAccept) -> ev.TakenUp:
    """The agent works on it. Raises InvalidRequest."""
    check_id("accept.handle", message.handle, most=HANDLE_BYTES)
    return ev.TakenUp(instance, *read_key("accept.key", message.key, tenant), handle=message.handle)


def delta_came(instance: Instance, tenant: str, message: attempt_pb2.AttemptDelta, reply: Any) -> ev.DeltaCame:
    """A piece of the answer. Raises InvalidRequest."""
    key = read_key("delta.key", message.key, tenant)
    event = ev.DeltaCame(instance, *key, message.attempt_sequence, read_delta(message))
    event.reply = reply
    return event


def progressed(instance: Instance, tenant: str, message: attempt_pb2.AttemptProgress, reply: Any) -> ev.Progressed:
    """A sign of life of the attempt. Raises InvalidRequest."""
    key = read_key("progress.key", message.key, tenant)
    event = ev.Progressed(instance, *key, *read_progress(message))
    event.reply = reply
    return event
