"""What a handler sees of the conversation that its task belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agentreach.v1 import attempt_pb2, payload_pb2
from reach.core.model import TaskState
from reach.sdk.payloads import payload_bytes


@dataclass(frozen=True, slots=True)
class Said:
    """One side of a turn."""

    media_type: str = ""
    data: bytes = b""
    cut: bool = False
    """There was more."""

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Turn:
    """A task of the conversation that ended: what the user said, and what became of it."""

    task_id: str
    agent_id: str
    """Who answered; agents of all types share the conversation."""
    request: Said
    response: Said
    """Empty if the task did not succeed."""
    succeeded: bool
    error: str = ""
    asked_by: str = ""
    """Who asked, where it was not the user: another agent."""


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of a conversation: the same for agents of all types.

    Attributes:
        revision: Grows with each change; 0: nothing has been said yet.
        turns: The last ones, oldest first; at most 5.
        summary: What came before, in short.
        entities: Names and values that the user said.
        inferred: Names and values that agents made of it: not certain.
        outputs: The latest answers, by agent_id, of agents whose turns are not among `turns` any more.
        turn_count: All turns that there ever were.
        cut: Something was too much and was shortened, the oldest first.
    """

    revision: int = 0
    turns: tuple[Turn, ...] = ()
    summary: str = ""
    entities: Mapping[str, str] = field(default_factory=dict)
    inferred: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Said] = field(default_factory=dict)
    turn_count: int = 0
    cut: bool = False

    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat models want it: the summary as a `system` message, then each turn as a `user` and,
        if it was answered, an `assistant` message; of what agents asked each other only the answers. Add what the task
        itself says."""
        found = []
        known = [self.summary] if self.summary else []
        known += [f"{name}: {value}" for name, value in self.entities.items()]
        known += [f"{name}: {value} (inferred)" for name, value in self.inferred.items()]
        if known:
            found.append({"role": "system", "content": "What is known of the conversation:\n" + "\n".join(known)})
        for turn in self.turns:
            if not turn.asked_by:
                found.append({"role": "user", "content": turn.request.text})
            if turn.succeeded:
                found.append({"role": "assistant", "content": turn.response.text})
        return found


EMPTY: Final = Context()


def context_of(message: attempt_pb2.SessionContext) -> Context:
    """From the message of the contract."""
    return Context(
        message.revision,
        tuple(_turn(turn) for turn in message.turns),
        message.summary,
        dict(message.entities),
        dict(message.inferred),
        {one.agent_id: _said(one.output, one.cut) for one in message.outputs},
        message.turn_count,
        message.cut,
    )


def _turn(turn: attempt_pb2.Turn) -> Turn:
    succeeded = turn.state in (0, int(TaskState.SUCCEEDED))
    request, response = _said(turn.request, turn.cut), _said(turn.response, turn.cut)
    return Turn(turn.task_id, turn.agent_id, request, response, succeeded, turn.error, turn.asked_by)


def _said(payload: payload_pb2.Payload, cut: bool) -> Said:
    return Said(payload.media_type, payload_bytes(payload), cut)
