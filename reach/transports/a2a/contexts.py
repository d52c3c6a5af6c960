"""Which remote context a session has at one instance, and what that context knows.

Context ids are made by the agent, so each instance has its own. A session that comes to an instance for the first time,
by fail-over or after a restart of ours, begins a context there, and what was said before goes along as parts; so does
what agents of other types have said since. An instance that was lost has lost what it remembered, as far as we know.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from a2a.types.a2a_pb2 import Part

from agentreach.v1 import attempt_pb2
from reach.wire.a2a.parts import part_of
from reach.wire.a2a.words import HISTORY

SESSIONS: Final = 10_000
"""Sessions of one instance whose context is remembered; the one that was idle longest begins anew."""
TURNS: Final = 64
"""Turns of a context that are remembered as known to it; an offer has the last 5."""

Key = tuple[str, str]
"""(tenant, session); the tenant is empty where it is the agent's own."""


class RemoteContext:
    """A context at an agent."""

    __slots__ = ("context_id", "known")

    def __init__(self) -> None:
        self.context_id = ""
        """Empty: the agent has not said it yet."""
        self.known: OrderedDict[str, None] = OrderedDict()
        """Tasks whose turns it has heard, oldest first."""

    def knows(self, task_id: str) -> None:
        """A turn is in it."""
        self.known[task_id] = None
        while len(self.known) > TURNS:
            self.known.popitem(last=False)


class Contexts:
    """All of one instance."""

    def __init__(self) -> None:
        self._contexts: OrderedDict[Key, RemoteContext] = OrderedDict()

    def find(self, key: Key) -> RemoteContext | None:
        """That of a session, if it has one."""
        found = self._contexts.get(key)
        if found is not None:
            self._contexts.move_to_end(key)
        return found

    def began(self, key: Key, context_id: str, told: list[str], task_id: str) -> None:
        """The agent has named the context of a session: it knows what it was told, and the task itself."""
        context = self.find(key)
        if context is None or context.context_id != context_id:
            context = self._contexts[key] = RemoteContext()
            context.context_id = context_id
        for one in (*told, task_id):
            context.knows(one)
        while len(self._contexts) > SESSIONS:
            self._contexts.popitem(last=False)

    def forget(self) -> None:
        """The process is gone, and what it remembered."""
        self._contexts.clear()

    def __len__(self) -> int:
        return len(self._contexts)


def news_for(context: RemoteContext | None, said: attempt_pb2.SessionContext) -> tuple[list[Part], list[str]]:
    """What a context has not heard yet of a conversation, as parts, and which turns those are."""
    parts: list[Part] = []
    if context is None and said.summary:
        part = Part(text=f"What came before, in short: {said.summary}", media_type="text/plain")
        parts.append(_marked(part, "summary"))
    known = context.known if context is not None else {}
    turns = [turn for turn in said.turns if turn.task_id not in known]
    for turn in turns:
        parts.extend(_turn(turn))
    if context is None:
        told = {turn.task_id for turn in said.turns}
        for output in said.outputs:
            if output.task_id not in told and output.HasField("output"):
                part = part_of(output.output)
                parts.append(_marked(_spoken(part, f"Agent {output.agent_id} said"), "agent", output.task_id))
    return parts, [turn.task_id for turn in turns]


def _turn(turn: attempt_pb2.Turn) -> list[Part]:
    parts = []
    if turn.HasField("request"):
        who = f"{turn.asked_by} asked" if turn.asked_by else "The user said"
        parts.append(_marked(_spoken(part_of(turn.request), who), "user", turn.task_id))
    if turn.HasField("response"):
        parts.append(_marked(_spoken(part_of(turn.response), f"Agent {turn.agent_id} said"), "agent", turn.task_id))
    return parts


def _spoken(part: Part, who: str) -> Part:
    """A text says whose it is: agents read parts one after the other, and few look at metadata."""
    if part.WhichOneof("content") == "text":
        part.text = f"{who} before: {part.text}"
    return part


def _marked(part: Part, role: str, task_id: str = "") -> Part:
    part.metadata.update({HISTORY: {"role": role, **({"task_id": task_id} if task_id else {})}})
    return part
