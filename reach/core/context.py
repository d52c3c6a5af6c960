"""What is known of a conversation (SES-3): the last turns as they were, older ones in short, names and values.

A context belongs to the session, not to a pool: agents of all types see the same one. Everything in it is bounded; what
becomes too much is shortened, the oldest first, and says so (`cut`). Which sessions there are is in `core/homes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from reach.core.model import Content, TaskState

RAW_TURNS = 5
"""Turns that are given as they were (SES-3)."""
SUMMARISE_EVERY = 10
"""So many turns that are older than those are made part of the summary at a time."""
MOST_OLDER = 3 * SUMMARISE_EVERY
"""Turns that may wait for a summary; then an extract takes their place."""
SIDE_BYTES = 16 << 10
"""What the request, or the answer, of a turn may take; a longer text is cut, longer bytes are left out."""
BRIEF_BYTES = 256
"""What is left of each side of a turn that had to be shortened because the whole was too much."""
CONTEXT_BYTES = 64 << 10
"""What the turns of a session may take in all, by default."""
SUMMARY_BYTES = 4 << 10
NAMES = 64
"""Names that were said, and as many that were inferred; the longest untouched one goes first."""
OUTPUTS = 8
"""Agents of which the latest answer is kept after its turn has left."""
OUTPUT_BYTES = 2 << 10
APPLIED = 64
"""Task ids that are remembered besides those of the turns that are held: a turn that is told again changes nothing."""
TURN_OVERHEAD = 512
"""What a turn costs beside its two sides, in bytes: measured, in memory."""


class Said(NamedTuple):
    """One side of a turn."""

    media_type: str
    content: Content
    cut: bool = False
    """There was more."""


NOTHING = Said("", "")


class Exchange(NamedTuple):
    """One turn of a conversation: what the user said, and what became of it."""

    task_id: str
    agent_id: str
    state: int
    """How the task ended (a `TaskState`)."""
    request: Said
    response: Said
    error: str = ""
    """Why there is no answer, where there is none."""
    asked_by: str = ""
    """The agent that asked, where it was not the user."""

    @property
    def size(self) -> int:
        """What it counts against the bound, in bytes."""
        return TURN_OVERHEAD + _size(self.request.content) + _size(self.response.content) + len(self.error)

    @property
    def is_brief(self) -> bool:
        """Whether there is nothing left to shorten."""
        return _size(self.request.content) <= BRIEF_BYTES and _size(self.response.content) <= BRIEF_BYTES


class Facts(NamedTuple):
    """Names and values that a turn brings besides."""

    said: Mapping[str, str]
    """What the user said."""
    inferred: Mapping[str, str]
    """What was made of it."""


def _size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) or content.isascii() else len(content.encode())


def cut_to(said: Said, most: int) -> Said:
    """The beginning of what was said, at most `most` bytes. Bytes are whole or not there: half of them mean nothing."""
    content = said.content
    if _size(content) <= most:
        return said
    if isinstance(content, bytes):
        return Said(said.media_type, b"", True)
    text = content.encode()[:most].decode(errors="ignore")
    return Said("text/plain", text, True)


def _brief(one: Exchange) -> Exchange:
    return one._replace(request=cut_to(one.request, BRIEF_BYTES), response=cut_to(one.response, BRIEF_BYTES))


def _keep(names: dict[str, str], new: Mapping[str, str]) -> None:
    """Takes over names; those that were touched longest ago make room."""
    for name, value in new.items():
        names.pop(name, None)
        names[name] = value
    while len(names) > NAMES:
        del names[next(iter(names))]


class Context:
    """What is known of one session."""

    __slots__ = ("applied", "count", "deleted_rows", "expires_ms", "inferred", "is_there", "older",
                 "outputs", "packed", "parts", "revision", "said", "session", "size", "summarising", "summary",
                 "tenant", "ttl_ms", "turn_bytes", "turns", "used_ms")  # fmt: skip

    def __init__(self, tenant: str, session: str) -> None:
        self.tenant = tenant
        self.session = session
        self.revision = 0
        """Grows with each change."""
        self.turns: list[Exchange] = []
        """The last ones, oldest first; at most `RAW_TURNS`."""
        self.older: list[Exchange] = []
        """Those before, which are in no summary yet."""
        self.count = 0
        """All turns that there ever were."""
        self.summary = ""
        self.said: dict[str, str] = {}
        self.inferred: dict[str, str] = {}
        self.outputs: dict[str, tuple[str, Said]] = {}
        """agent_id -> (task_id, the beginning of its latest answer), of agents whose turns are not held any more."""
        self.applied: dict[str, None] = {}
        self.turn_bytes = 0
        """Of the turns that it holds."""
        self.size = 0
        """Of all that it holds, in bytes."""
        self.ttl_ms = 0
        self.expires_ms = 0
        self.used_ms = 0
        """When it was used last; after a restart about then, by what is left of its time."""
        self.packed: Any = None
        """Its state as it was stored; None once somebody has looked at it (`wake`)."""
        self.is_there = True
        """False: it was deleted, and nothing has been said since."""
        self.deleted_rows: tuple[int, ...] = ()
        """The last task that each node had accepted when it was deleted last (`accepted_before`): those before are not
        part of what came after. Numbers and no time, for clocks leap."""
        self.summarising = 0
        """So many of `older` are being made part of the summary."""
        self.parts: dict[str, Any] = {}
        """Turns in the form for agents, by task id, for whoever makes that; those that have left are left out."""

    @property
    def name(self) -> tuple[str, str]:
        """(tenant, session)"""
        return self.tenant, self.session

    def has(self, task_id: str) -> bool:
        """Whether the turn of a task is part of it already."""
        return task_id in self.applied

    def add(self, turn: Exchange, facts: Facts, most: int = CONTEXT_BYTES) -> bool:
        """Adds a turn, once per task. False (and nothing changes) if it is there already."""
        if turn.task_id in self.applied:
            return False
        self.applied[turn.task_id] = None
        while len(self.applied) > APPLIED:
            del self.applied[next(iter(self.applied))]
        self.count += 1
        request, response = cut_to(turn.request, SIDE_BYTES), cut_to(turn.response, SIDE_BYTES)
        if request is not turn.request or response is not turn.response:
            turn = turn._replace(request=request, response=response)
        self.turns.append(turn)
        self.turn_bytes += turn.size
        self.outputs.pop(turn.agent_id, None)
        if len(self.turns) > RAW_TURNS:
            self.older.append(self.turns.pop(0))
        if facts.said:
            _keep(self.said, facts.said)
        if facts.inferred:
            _keep(self.inferred, facts.inferred)
        if self.turn_bytes > most:
            self._fit(most)
        self._changed()
        return True

    def _fit(self, most: int) -> None:
        """Shortens turns until all of them are within bounds, the oldest first."""
        for held in (self.older, self.turns):
            for index, one in enumerate(held):
                if self.turn_bytes <= most:
                    return
                if not one.is_brief:
                    held[index] = brief = _brief(one)
                    self.turn_bytes += brief.size - one.size

    def _changed(self) -> None:
        self.revision += 1
        size = self.turn_bytes * 3 // 2 + len(self.summary)  # the last turns are held as they are sent, too
        for names in (self.said, self.inferred):
            if names:
                size += sum(len(name) + len(value) for name, value in names.items())
        if self.outputs:
            size += sum(TURN_OVERHEAD + _size(said.content) for _, said in self.outputs.values())
        self.size = size

    def due(self) -> list[Exchange]:
        """The turns that are to be made part of the summary now; empty if there are too few, or some are at it."""
        if self.summarising or len(self.older) < SUMMARISE_EVERY:
            return []
        self.summarising = len(self.older)
        return self.older[:]

    def summarised(self, count: int, text: str) -> None:
        """The `count` oldest turns are part of the summary now. Of each agent that has none left the answer stays."""
        gone, self.older = self.older[:count], self.older[count:]
        self.turn_bytes -= sum(one.size for one in gone)
        self.summarising = 0
        self.summary = text.encode()[:SUMMARY_BYTES].decode(errors="ignore")
        held = {one.agent_id for one in (*self.older, *self.turns)}
        for one in gone:
            if one.agent_id and one.agent_id not in held and one.state == TaskState.SUCCEEDED:
                self.outputs.pop(one.agent_id, None)
                self.outputs[one.agent_id] = (one.task_id, cut_to(one.response, OUTPUT_BYTES))
        while len(self.outputs) > OUTPUTS:
            del self.outputs[next(iter(self.outputs))]
        self._changed()

    @property
    def is_cut(self) -> bool:
        """Whether something was shortened for lack of room."""
        return any(one.request.cut or one.response.cut for one in (*self.older, *self.turns))

    # -- keeping ------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[Any, ...]:
        """All of it as plain values, for whoever keeps it."""
        return (
            self.revision, self.count, self.ttl_ms, self.summary, [*self.turns], [*self.older],
            dict(self.said), dict(self.inferred), dict(self.outputs), [*self.applied], self.deleted_rows,
            self.is_there,
        )  # fmt: skip

    def wake(self) -> None:
        """Reads the state that it was stored with, also where tuples have become lists on the way."""
        packed, self.packed = self.packed, None
        state = packed.unpack() if hasattr(packed, "unpack") else packed
        revision, count, self.ttl_ms, summary, turns, older, said, inferred, outputs, applied, *rest = state
        deleted, self.is_there = rest
        self.deleted_rows = (deleted,) if isinstance(deleted, int) else tuple(deleted)
        self.summary, self.count = summary, count
        self.turns, self.older = [_exchange(values) for values in turns], [_exchange(values) for values in older]
        self.said, self.inferred = dict(said), dict(inferred)
        self.outputs = {agent_id: (task_id, Said(*said)) for agent_id, (task_id, said) in outputs.items()}
        self.applied = dict.fromkeys(applied)
        self.turn_bytes = sum(turn.size for turn in (*self.turns, *self.older))
        self._changed()
        self.revision = revision


def _exchange(values: Any) -> Exchange:
    task_id, agent_id, state, request, response, error, asked_by = values
    return Exchange(task_id, agent_id, state, Said(*request), Said(*response), error, asked_by)
