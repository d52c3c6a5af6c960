"""What must be true of sessions: each task that ended is one turn of its own session, in the order of their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentreach.v1 import attempt_pb2
from reach.core.context import APPLIED, RAW_TURNS
from reach.core.homes import Home
from reach.core.model import TaskKey
from reach.core.rows import Writes

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker

Name = tuple[str, str]


class SessionTruth:
    """The sessions as callers and the journal made them. Belongs to a `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._of: dict[TaskKey, str] = {}
        """Tasks and their sessions."""
        self._ended: dict[Name, list[str]] = {}
        """Durable tasks, in the order of their outcomes."""
        self._unsure: set[TaskKey] = set()
        self._removed: set[TaskKey] = set()

    def unsure(self, writes: Writes) -> None:
        """The server does not know that this was written: who reads the journal hears of ends before sessions do."""
        self._unsure.update(self._checker.keys_of(writes.outcomes))

    def of(self, key: TaskKey) -> str:
        """The session of a task; empty if it has none."""
        return self._of.get(key, "")

    def seen(self, key: TaskKey) -> None:
        """Who reads the journal is about to hear of an end: perhaps before the server knows that it is written."""
        if self._checker.truth(key).told is None:
            self._unsure.add(key)

    def belongs(self, key: TaskKey, session: str) -> None:
        """A task is of a session."""
        if session:
            self._of[key] = session

    def ended(self, key: TaskKey) -> None:
        """The outcome of a task is durable."""
        session = self._of.get(key)
        if session is not None:
            ended = self._ended.setdefault((key[0], session), [])
            if key[1] not in ended:  # one that was removed and is brought again is the same turn
                ended.append(key[1])

    def _durable(self, tenant: str, ids: list[str]) -> list[str]:
        return [one for one in ids if not self._checker.truth((tenant, one)).volatile]

    def offered(self, key: TaskKey, field: bytes) -> None:
        """The server offers a task, with what is known of its session."""
        session = self._of.get(key, "")
        context = attempt_pb2.Offer.FromString(field).session_context
        if context.handoff and context.handoff.decode().rpartition("|")[0] != f"{key[0]}|{session}":
            message = f"it is of session {session!r}, and the snapshot {context.handoff!r} goes along"
            self._checker.violate("SESSIONS_NEVER_MEET", key, message)
        if context.handoff and not context.handoff_number:
            self._checker.violate("SNAPSHOT_HAS_A_NUMBER", key, f"the snapshot {context.handoff!r} goes along")
        ids = [turn.task_id for turn in context.turns]
        for one in ids:
            if self._of.get((key[0], one)) != session:
                message = f"it is of session {session!r} and brings {one}, which is of {self._of.get((key[0], one))!r}"
                self._checker.violate("SESSIONS_NEVER_MEET", key, message)
        if len(set(ids)) < len(ids):
            self._checker.violate("TURNS_COUNT_ONCE", key, f"the turns {ids} go along")
        durable, known = self._durable(key[0], ids), self._ended.get((key[0], session), [])
        firm = self._firm(key[0], durable)
        unknown = [one for one in durable if one not in known]
        if unknown:
            self._checker.violate("TURNS_ARE_DURABLE", key, f"turns {unknown} go along that are not written down")
        elif firm or len(ids) < RAW_TURNS:  # else others have taken all the room, and nobody knows since when
            self._in_order(key, firm, self._firm(key[0], known))

    def _in_order(self, key: TaskKey, ids: list[str], ended: list[str]) -> None:
        after = ended.index(ids[-1]) + 1 if ids else 0
        if ids and ended[after - len(ids) : after] != ids:
            self._checker.violate("TURNS_ARE_IN_ORDER", key, f"turns {ids} go along, they ended as {ended}")
        now = self._checker.now()  # who dials tells of an end in the moment before the call begins
        truths = [(one, self._checker.truth((key[0], one))) for one in ended[after:]]
        told = [one for one, truth in truths if truth.told is not None and truth.told_at != now]
        told = [one for one in told if (key[0], one) not in self._unsure]
        if told:
            self._checker.violate("TURNS_ARE_THERE", key, f"{told} ended and was told; its turn does not go along")

    def removed(self, key: TaskKey) -> None:
        """A task is removed: if its turn is in memory only by then, a crash loses it (`runtime.sessions`)."""
        self._removed.add(key)

    def _firm(self, tenant: str, ids: list[str]) -> list[str]:
        """Those that were never removed: of one that was, and perhaps came again, nobody knows which end counts."""
        return [one for one in ids if (tenant, one) not in self._removed]

    def finish(self, homes: list[Home]) -> None:
        """Nothing happens any more: all turns are there, once."""
        contexts = {context.name: home.wake(context) for home in homes for context in home}
        for name in self._ended:
            context = contexts.get(name)
            if context is not None and context.count > APPLIED:
                continue  # not all of them are remembered by name
            applied = [*context.applied] if context is not None else []
            turns = self._firm(name[0], self._durable(name[0], applied))
            ended = self._firm(name[0], self._ended[name])
            if turns != ended or (context is not None and context.count != len(applied)):
                count = context.count if context is not None else 0
                message = f"the tasks of {name} ended as {ended}; it has {count} turns, which are {applied}"
                self._checker.violate("TURNS_COUNT_ONCE", (name[0], self._ended[name][0]), message)
