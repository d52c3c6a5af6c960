"""Between the contract's conversations and the core's contexts (SES-3)."""

from __future__ import annotations

from collections.abc import Mapping

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import attach_pb2, attempt_pb2, payload_pb2, session_pb2, task_pb2
from reach.core import events as ev
from reach.core.context import NAMES, SIDE_BYTES, SUMMARY_BYTES, Context, Exchange, Facts, Said, cut_to
from reach.core.model import Instance, Task
from reach.core.summary import lines_of
from reach.wire.answers import content_of, duration, fill_payload
from reach.wire.encoding import LENGTH_AND_CONTENT, VARINT, tag
from reach.wire.requests import ID_BYTES, VALUE_BYTES, check_id, session_name
from reach.wire.status import bounded_text

SNAPSHOT_BYTES = 256 << 10
HANDOFF = "handoff"
"""Feature of agents that say what they know of a session which is about to move."""

_CONTEXT = tag(attempt_pb2.Offer, "session_context") + LENGTH_AND_CONTENT
_HANDOFF = tag(attempt_pb2.SessionContext, "handoff") + LENGTH_AND_CONTENT
_NUMBER = tag(attempt_pb2.SessionContext, "handoff_number", 0) + b"%b"


def exchange_of(task: Task) -> tuple[Exchange, Facts]:
    """The turn of a task that ended, and the names and values that it brings."""
    spec, outcome = task_pb2.TaskSpec.FromString(task.spec), task.outcome
    assert outcome is not None
    fault, extra = outcome.fault, outcome.extra or {}
    said = Said(outcome.media_type, outcome.content if outcome.content is not None and fault is None else "")
    error = bounded_text(f"{fault.reason.name}: {fault.message}", VALUE_BYTES) if fault is not None else ""
    request, asked_by = Said(*content_of(spec.payload)), (spec.source or "agent") if spec.parent_task_id else ""
    turn = Exchange(task.task_id, outcome.agent_id, int(outcome.state), request, said, error, asked_by)
    return turn, Facts({**spec.entities, **extra.get("entities", {})}, extra.get("inferred", {}))


def read_names(names: Mapping[str, str]) -> dict[str, str]:
    """Names and values as an agent gives them. An answer is never refused for them: what is too much is left out."""
    kept = {}
    for name in sorted(names)[:NAMES]:
        if name and len(name.encode()) <= ID_BYTES:
            kept[name] = bounded_text(names[name], VALUE_BYTES)
    return kept


def read_snapshot(instance: Instance, tenant: str, message: attach_pb2.HandoffSnapshot) -> ev.SnapshotCame:
    """What an agent knows of a session. One that is too large is none: its session waits for the answer."""
    name = (check_id("handoff.tenant", message.tenant) or tenant, session_name(message.session))
    snapshot = message.snapshot if len(message.snapshot) <= SNAPSHOT_BYTES else b""
    return ev.SnapshotCame(instance, name, snapshot)


def context_message(context: Context) -> attempt_pb2.SessionContext:
    """A context as agents and operators see it. Turns that are in no summary yet stand in it in short."""
    return attempt_pb2.SessionContext.FromString(context_bytes(context))


def context_bytes(context: Context) -> bytes:
    """The same as bytes; each turn is made once."""
    before, parts = context.parts, {}
    for turn in context.turns:
        known = before.get(turn.task_id)
        if known is None or known[0] is not turn:  # it is new, or was shortened
            known = (turn, attempt_pb2.SessionContext(turns=[_turn(turn)]).SerializeToString())
        parts[turn.task_id] = known
    turns = [known[1] for known in parts.values()]
    rest = attempt_pb2.SessionContext(revision=context.revision, turn_count=context.count, cut=context.is_cut)
    if context.summary or context.older:
        lines = [context.summary] if context.summary else []
        for turn in context.older:
            known = before.get(turn.task_id)
            if known is None or type(known[1]) is bytes:  # it was one of the last ones before
                known = (turn, "\n".join(lines_of((turn,))))
            parts[turn.task_id] = known
            if known[1]:
                lines.append(known[1])
        rest.summary = "\n".join(lines)[: 2 * SUMMARY_BYTES]
    context.parts = parts
    rest.entities.update(context.said)
    rest.inferred.update(context.inferred)
    if context.outputs:
        _fill_outputs(rest, context)
    return b"".join((rest.SerializeToString(), *turns))


def _fill_outputs(message: attempt_pb2.SessionContext, context: Context) -> None:
    held = {turn.agent_id for turn in context.turns}
    for agent_id, (task_id, said) in context.outputs.items():
        if agent_id not in held:
            output = message.outputs.add(agent_id=agent_id, task_id=task_id, cut=said.cut)
            fill_payload(output.output, said.media_type, said.content)


def _turn(turn: Exchange) -> attempt_pb2.Turn:
    message = attempt_pb2.Turn(task_id=turn.task_id, agent_id=turn.agent_id, error=turn.error)
    message.asked_by = turn.asked_by
    message.state = turn.state  # type: ignore[assignment]
    message.cut = turn.request.cut or turn.response.cut
    _fill_said(message.request, turn.request)
    if turn.response.content or turn.response.media_type:
        _fill_said(message.response, turn.response)
    return message


def _fill_said(payload: payload_pb2.Payload, said: Said) -> None:
    fill_payload(payload, said.media_type, said.content)


def turn_bytes(turn: Exchange, facts: Facts) -> bytes:
    """A turn for another node, as long as a context holds it at most."""
    cut = turn._replace(request=cut_to(turn.request, SIDE_BYTES), response=cut_to(turn.response, SIDE_BYTES))
    message = peer_pb2.TurnContent(turn=_turn(cut), said=facts.said, inferred=facts.inferred)
    message.request_cut, message.response_cut = cut.request.cut, cut.response.cut
    return message.SerializeToString()


def turn_of(content: bytes) -> tuple[Exchange, Facts]:
    """What another node has made so."""
    message = peer_pb2.TurnContent.FromString(content)
    turn = message.turn
    request = Said(*content_of(turn.request), message.request_cut)
    response = Said(*content_of(turn.response), message.response_cut)
    exchange = Exchange(turn.task_id, turn.agent_id, turn.state, request, response, turn.error, turn.asked_by)
    return exchange, Facts(dict(message.said), dict(message.inferred))


def context_field(context: bytes, snapshot: bytes = b"", number: int = 0) -> bytes:
    """The field of an Offer that says what is known of the conversation.

    Args:
        context: A SessionContext.
        snapshot: What the instance before left behind, if the session has moved.
        number: Of the hand-off.
    """
    if number:
        context += _NUMBER % VARINT[number]
    if snapshot:
        context += _HANDOFF % (VARINT[len(snapshot)], snapshot)
    return _CONTEXT % (VARINT[len(context)], context)


def session_key(session: str) -> task_pb2.SessionKey:
    """The three parts of a session's name (see `requests.session_name`)."""
    parts = [part.replace("%3A", ":").replace("%25", "%") for part in session.split(":")]
    return task_pb2.SessionKey(app_id=parts[0], user_id=parts[1], session_id=parts[2])


def session_message(context: Context, now_ms: int, *, full: bool) -> session_pb2.Session:
    """A session as operators see it, without its pins."""
    message = session_pb2.Session(key=session_key(context.session), turn_count=context.count, size_bytes=context.size)
    message.expires_in.CopyFrom(duration(max(0, context.expires_ms - now_ms)))
    if full:
        message.context.CopyFrom(context_message(context))
    return message
