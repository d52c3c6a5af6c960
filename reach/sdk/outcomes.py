"""Outcomes of attempts: sent, kept until the server has them for certain, and then held for repeated offers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from agentreach.v1 import attempt_pb2
from reach.errors import ErrorClass, Internal, ReachError, Reason
from reach.sdk.connection import Sender, log
from reach.sdk.encoding import result_item
from reach.sdk.payloads import Answer, Fields
from reach.wire.status import bounded_text, error_to_proto

RESEND_S: Final = 5.0
"""Outcomes without acknowledgement are sent again after this long."""
HELD: Final = 1_000
HELD_BYTES: Final = 16 << 20
"""Acknowledged outcomes that are held to answer repeated offers from memory."""
HELD_S: Final = 120.0
"""How long they answer. The server keeps a result for at least that long, and gives its id to a new task only then:
that one must not get the answer of the former."""
WARM_S: Final = 1.0
"""Outcomes bring our status along at most this often: traffic is a sign of life (HLT-2)."""

MOST_USAGE: Final = 64
"""Figures of one answer."""
MOST_NAMES: Final = 64
"""Names of one answer that were said, and as many that were inferred."""

Key = tuple[str, str]
"""(tenant, task_id)"""

_GONE: Final = frozenset({Reason.STALE_ATTEMPT, Reason.UNKNOWN_ATTEMPT, Reason.STALE_GENERATION, Reason.TASK_NOT_FOUND})


FAILED: Final = {
    ErrorClass.INTERNAL: True,
    ErrorClass.AGENT_ERROR: False,
    ErrorClass.INVALID_REQUEST: False,
}
"""Whether an error says that we are broken (True), that we work (False), or neither."""


class Outcome:
    """What became of an attempt."""

    __slots__ = ("attempt", "content", "is_error", "key", "sent_at", "whole")

    def __init__(
        self, key: Key, attempt: int, content: bytes, is_error: bool = False, whole: Fields | None = None
    ) -> None:
        self.key = key
        self.attempt = attempt
        self.content = content
        """All fields of its AttemptResult but the names."""
        self.is_error = is_error
        self.whole = whole
        """Fields of the same outcome with its whole output, if `content` leaves that to the deltas (Folded)."""
        self.sent_at = 0.0

    def item(self) -> bytes:
        """As it is sent."""
        return result_item(self.key, self.attempt, self.content)


def outcome_content(fields: Fields) -> bytes:
    """Fields of an AttemptResult, for an `Outcome`. Raises TypeError or ValueError if one cannot be sent."""
    return attempt_pb2.AttemptResult(**fields).SerializeToString()


def text_of(error: BaseException) -> str:
    """The text of what a handler raised."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error whose text raises is an error all the same
        return "(its text cannot be had)"


def extras(answer: Answer) -> Fields:
    """What an answer says beside its data, as fields of an AttemptResult."""
    fields: Fields = {}
    if answer.confidence is not None:
        fields["confidence"] = answer.confidence
    if answer.conflict_hint:
        fields["conflict_hint"] = bounded_text(answer.conflict_hint)
    if answer.usage:
        fields["usage"] = dict(islice(answer.usage.items(), MOST_USAGE))
    if answer.executed_intent:
        fields["executed_intent"] = bounded_text(answer.executed_intent, 256)
    for name, facts in (("entities", answer.entities), ("inferred", answer.inferred)):
        if facts:
            kept = islice(facts.items(), MOST_NAMES)
            fields[name] = {bounded_text(str(key), 256): bounded_text(str(value)) for key, value in kept}
    return fields


class Outcomes:
    """All outcomes of one agent. Bounded: those without acknowledgement by what the server offers, the rest by
    `HELD` and `HELD_BYTES`."""

    def __init__(self, connection: Sender, status: Callable[[], Fields]) -> None:
        self._connection = connection
        self._outbox = connection.outbox
        self._status = status
        self._loop = asyncio.get_running_loop()
        self.by_key: dict[Key, Outcome] = {}
        """The outcome of a task's latest attempt here."""
        self.unacknowledged: dict[Key, Outcome] = {}
        self._held: deque[Outcome] = deque()
        self._held_bytes = 0
        self._warm_at = 0.0
        self._changed: asyncio.Future[None] | None = None
        self.settled = asyncio.Event()
        """Nothing waits for an acknowledgement."""
        self.settled.set()

    def forget(self, key: Key) -> None:
        """A newer attempt of the task begins: its former outcome is of no use to anybody."""
        self.by_key.pop(key, None)
        if self.unacknowledged.pop(key, None) is not None and not self.unacknowledged:
            self.settled.set()

    def latest(self, key: Key) -> Outcome | None:
        """The outcome of a task's latest attempt here, as long as an offer that comes is of the same task. What the
        server has for certain and was a failure, or was long ago, is not asked for again: its id was given anew."""
        outcome = self.by_key.get(key)
        if outcome is None or key in self.unacknowledged:
            return outcome
        if outcome.is_error or time.monotonic() - outcome.sent_at > HELD_S:
            del self.by_key[key]
            return None
        return outcome

    def add(self, outcome: Outcome, now: float) -> None:
        """Sends an outcome and keeps it."""
        key = outcome.key
        self.by_key[key] = outcome
        if not self.unacknowledged:
            self.settled.clear()
        self.unacknowledged[key] = outcome
        if self._connection.welcomed:
            outcome.sent_at = now
            content = outcome.content
            if now >= self._warm_at:
                self._warm_at = now + WARM_S
                content += outcome_content({"status": self._status()})
            self._outbox.put(result_item(key, outcome.attempt, content))

    def answer_again(self, outcome: Outcome) -> None:
        """Sends a kept outcome, because the attempt was offered again."""
        if self._connection.welcomed:
            outcome.sent_at = time.monotonic()
            self._outbox.put(outcome.item())

    def acknowledged(self, keys: Iterable[attempt_pb2.AttemptKey]) -> None:
        """The server has committed them. They are held a while for repeated offers."""
        unacknowledged = self.unacknowledged
        for name in keys:
            key = (name.tenant, name.task_id)
            outcome = unacknowledged.get(key)
            if outcome is not None and outcome.attempt == name.attempt:
                del unacknowledged[key]
                outcome.whole = None
                self._held.append(outcome)
                self._held_bytes += len(outcome.content)
        self._let_go()

    def given_up(self, key: Key, attempt: int) -> None:
        """The server wants nothing of it any more: as good as acknowledged."""
        self.acknowledged((attempt_pb2.AttemptKey(tenant=key[0], task_id=key[1], attempt=attempt),))

    def _let_go(self) -> None:
        """Some were acknowledged: tells those who wait for it, and forgets the oldest of all that is held."""
        if not self.unacknowledged:
            self.settled.set()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        held, by_key = self._held, self.by_key
        while len(held) > HELD or self._held_bytes > HELD_BYTES:
            old = held.popleft()
            self._held_bytes -= len(old.content)
            if by_key.get(old.key) is old:
                del by_key[old.key]

    async def committed(self, key: Key, attempt: int) -> None:
        """Returns when an outcome is acknowledged, or refused for good."""
        while (outcome := self.unacknowledged.get(key)) is not None and outcome.attempt == attempt:
            if self._changed is None or self._changed.done():
                self._changed = self._loop.create_future()
            await asyncio.shield(self._changed)

    def send_all(self, new_stream: bool) -> None:
        """Sends all that wait for an acknowledgement, because of a new stream or because the server asks."""
        now = time.monotonic()
        for outcome in self.unacknowledged.values():
            if new_stream:
                self.make_whole(outcome)
            outcome.sent_at = now
            self._outbox.put(outcome.item())

    def send_late(self) -> None:
        """Sends those again that have waited too long, unless the last ones have not even left yet."""
        outbox = self._outbox
        if not self._connection.welcomed or outbox:
            return
        now = time.monotonic()
        for outcome in self.unacknowledged.values():
            if outcome.sent_at <= now - RESEND_S:
                outcome.sent_at = now
                outbox.put(outcome.item())

    def refused(self, key: Key, attempt: int, error: ReachError) -> None:
        """The server does not take an outcome."""
        outcome = self.unacknowledged.get(key)
        if outcome is None or outcome.attempt != attempt or error.retryable:
            return
        if error.reason is Reason.UNEXPECTED_FRAME:
            if outcome.whole is not None:
                self.make_whole(outcome)  # the deltas that it stands on are not there
                self.answer_again(outcome)
            # else the link was not open there (yet): the next hello names it, and its welcome has it said again
        elif error.reason in _GONE or outcome.is_error:
            self.given_up(key, attempt)
        else:  # what cannot be delivered becomes a failure, so that nobody waits for ever
            log.warning("the outcome of task %s was refused: %s", key[1], error.message)
            failure = Internal(f"the outcome was refused: {error.message}", Reason.AGENT_CRASHED)
            if error.reason in (Reason.RESULT_TOO_LARGE, Reason.PAYLOAD_TOO_LARGE):
                failure = Internal(f"the answer was refused: {error.message}", error.reason)
            outcome.content = outcome_content({"error": error_to_proto(failure)})
            outcome.is_error = True
            self.answer_again(outcome)

    def make_whole(self, outcome: Outcome) -> None:
        """The server may lack the deltas that an outcome stands on: it carries the output itself from now on."""
        if outcome.whole is not None:
            outcome.content = outcome_content(outcome.whole)
            outcome.whole = None
