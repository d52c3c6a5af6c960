"""What is said in the calls of agents that are dialled: offers, as the checker hears them, and what agents answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentreach.v1 import attempt_pb2, endpoint_pb2, event_pb2
from reach.core.model import EffectKind, TaskKey
from reach.core.pieces import Mode
from reach.errors import error_of
from reach.testing.sim.checker import Checker
from reach.testing.sim.story import Story, TaskName
from reach.wire.status import error_to_proto

if TYPE_CHECKING:
    from reach.testing.sim.dialled import DialledAgent

TENANT = "acme"
"""Of all agents."""
MODES = {Mode.APPEND: event_pb2.DELTA_MODE_APPEND, Mode.REPLACE: event_pb2.DELTA_MODE_REPLACE}


def offered(checker: Checker, story: Story, agent: DialledAgent, offer: attempt_pb2.Offer, arrives: bool) -> None:
    """An Execute leaves the server: the first of an attempt, or one that joins it."""
    key = (offer.tenant or TENANT, offer.task.task_id)
    known = checker.truth(key)
    joins = offer.attempt in known.offered
    what = "joins" if joins else "offers"
    story.tell("server", "{} {} #{} to {} by a call", what, TaskName(key[1]), offer.attempt, agent.name)
    checkpoint = known.checkpoint if joins else offer.checkpoint or None
    checker.attempts.offered(key, offer.attempt, agent.name, checkpoint)
    if offer.task.HasField("session") and not joins:
        checker.sessions.offered(key, offer.SerializeToString())
    for given in () if joins else offer.inputs:  # who joins may get an answer a moment before it is written down
        checker.questions.given(key, offer.attempt, given.question, given.payload.text)
    if not agent.joins and int(offer.task.effects) == EffectKind.IRREVERSIBLE and not joins:
        checker.attempts.granted(key, offer.attempt, agent.name)
        if not arrives:
            checker.attempts.handed_back(key, offer.attempt)


def response_of(kind: str, key: TaskKey, attempt: int, rest: list[Any]) -> endpoint_pb2.ExecuteResponse:
    """What an agent says of an attempt, as a message."""
    name = attempt_pb2.AttemptKey(task_id=key[1], attempt=attempt, tenant=key[0])
    response = endpoint_pb2.ExecuteResponse()
    if kind == "accept":
        response.accept.key.CopyFrom(name)
    elif kind == "delta":
        number, delta = rest
        piece = response.deltas.add(key=name, attempt_sequence=number)
        piece.delta.channel = delta.channel
        piece.delta.mode = MODES[delta.mode]
        piece.delta.payload.media_type, piece.delta.payload.text = delta.media_type, delta.content
    elif kind == "progress":
        fraction, note, checkpoint = rest
        sign = response.progress.add(key=name, checkpoint=checkpoint)
        if fraction is not None:
            sign.progress.fraction = fraction
        sign.progress.note = note
    else:
        _fill_result(response.result, name, *rest)
    return response


def _fill_result(result: attempt_pb2.AttemptResult, name: attempt_pb2.AttemptKey, how: str, what: Any) -> None:
    result.key.CopyFrom(name)
    if how == "output":
        result.output.media_type, result.output.text = "text/plain", what
    elif how == "folded":
        result.folded.last_attempt_sequence = what
    elif how == "released":
        result.released.reason = what
    elif how == "waiting":
        result.waiting.question = what
        result.waiting.prompt.media_type, result.waiting.prompt.text = "text/plain", "May I?"
    else:
        result.error.CopyFrom(error_to_proto(error_of(what.error_class, what.reason, what.message)))
