"""What a handler sees of a task."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentreach.v1 import attempt_pb2, task_pb2
from reach.sdk.context import EMPTY, Context, context_of
from reach.sdk.inheritance import Budget, budget_of
from reach.sdk.payloads import (
    Progress,
    parse_json,
    payload_bytes,
    payload_media_type,
    payload_text,
)
from reach.sdk.questions import Asking, Input, not_here

if TYPE_CHECKING:
    from reach.sdk.attempt import Attempt
    from reach.sdk.attempts import Attempts


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The key of a conversation: the application, the user in it, and the conversation of the user."""

    app_id: str
    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """A named piece of content beside the payload."""

    name: str
    data: bytes
    media_type: str

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")


class Task:
    """One attempt of one task, as its handler sees it. Works from coroutines and from threads alike.

    `task_id` is the same for every attempt: give it to what you call as its idempotency key. `fencing_token` grows with
    each attempt: give it to stores that compare.
    """

    __slots__ = ("_asking", "_attempt", "_attempts", "_offer")

    def __init__(self, offer: attempt_pb2.Offer, attempt: Attempt, attempts: Attempts) -> None:
        self._offer = offer
        self._attempt = attempt
        self._attempts = attempts

    def __repr__(self) -> str:
        return f"Task({self.task_id!r}, attempt={self.attempt}, method={self.method!r})"

    @property
    def task_id(self) -> str:
        """Unique per tenant, the same for all attempts."""
        return self._offer.task.task_id

    @property
    def method(self) -> str:
        """The handler that was asked for; empty: `default`."""
        return self._offer.task.method

    @property
    def payload(self) -> bytes:
        """The content as bytes; text as UTF-8."""
        return payload_bytes(self._offer.task.payload)

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are replaced."""
        return payload_text(self._offer.task.payload)

    @property
    def data(self) -> Any:
        """The content read as JSON. Raises InvalidRequest, with the position, if it is not JSON: let that go through,
        and the caller is told so."""
        return parse_json(self._offer.task.payload)

    @property
    def media_type(self) -> str:
        """The media type of the content, also where the caller left it out."""
        return payload_media_type(self._offer.task.payload)

    @property
    def attachments(self) -> Mapping[str, Attachment]:
        """What came beside the payload, by name."""
        return {
            item.name: Attachment(item.name, payload_bytes(item.payload), payload_media_type(item.payload))
            for item in self._offer.task.attachments
        }

    @property
    def attempt(self) -> int:
        """1, 2, 3 …"""
        return self._offer.attempt

    @property
    def fencing_token(self) -> int:
        """Grows with each attempt of the task."""
        return self._offer.fencing_token

    @property
    def tenant(self) -> str:
        """The tenant of the task, where it is not the agent's own; else empty."""
        return self._offer.tenant

    @property
    def session(self) -> SessionKey | None:
        """The conversation it belongs to."""
        if not self._offer.task.HasField("session"):
            return None
        key = self._offer.task.session
        return SessionKey(key.app_id, key.user_id, key.session_id)

    @property
    def context(self) -> Context:
        """What the conversation said so far; empty for a task without a session."""
        return context_of(self._offer.session_context) if self._offer.HasField("session_context") else EMPTY

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the task."""
        return dict(self._offer.task.labels)

    @property
    def source(self) -> str:
        """The agent or part of an application that asks."""
        return self._offer.task.source

    @property
    def trace(self) -> str:
        """The `traceparent` of the caller; empty if there is none."""
        return self._offer.task.trace.traceparent

    @property
    def root_task_id(self) -> str:
        """The first task of the tree: this one, if no other one asked for it."""
        spec = self._offer.task
        return spec.root_task_id or spec.parent_task_id or spec.task_id

    @property
    def deadline(self) -> float | None:
        """Seconds left for this attempt and for the task, or None if it has no limit. Negative when they are over."""
        offer = self._offer
        limits = [
            limit.seconds + limit.nanos / 1e9
            for name, limit in (
                ("start_to_close", offer.start_to_close),
                ("schedule_to_close", offer.schedule_to_close),
            )
            if offer.HasField(name)  # type: ignore[arg-type]
        ]
        return self._attempt.begun + min(limits) - time.monotonic() if limits else None

    @property
    def budget(self) -> Budget | None:
        """What this task and all that it asks for may spend; None if that is not bounded. See `spend`."""
        if not self._offer.task.HasField("budget"):
            return None
        return budget_of(self._offer.task.budget)

    def spend(self, *, tokens: int = 0, money_micros: int = 0) -> Budget | None:
        """Notes what was spent, so that tasks asked for from here get no more than what is left; returns that."""
        budget = self.budget
        if budget is None:
            return None
        left = budget.less(tokens, money_micros)
        self._offer.task.budget.MergeFrom(task_pb2.Budget(**left.fields()))
        return left

    @property
    def cancelled(self) -> bool:
        """Nobody wants the answer any more. A coroutine is cancelled by itself; a thread should look now and then."""
        return self._attempt.cancelled

    @property
    def checkpoint(self) -> bytes:
        """What the attempt before left behind; empty if nothing."""
        return self._offer.checkpoint

    @property
    def effect_granted(self) -> bool:
        """An earlier attempt was allowed to begin its effect: do not do it again."""
        return self._offer.effect_granted

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Says how far the work is (0 to 1) and what it does. Does not wait; only the latest is sent."""
        self._attempts.call(self._attempts.notes.progress, self._attempt, Progress(fraction, note))

    def save_checkpoint(self, data: bytes) -> None:
        """What the next attempt should get as `checkpoint`, if this one fails: at most 256 KiB. Does not wait."""
        self._attempts.notes.check_checkpoint(data)
        self._attempts.call(self._attempts.notes.save_checkpoint, self._attempt, bytes(data))

    def begin_effect(self, name: str) -> Awaitable[None]:
        """Asks for permission to do what must not happen twice, such as charging a card; act only after it.

        `await` it in a coroutine; in a thread the call itself waits. Raises the refusal: another attempt may be at it.
        """
        if self._attempts.on_loop():
            return self._attempts.effects.begin(self._attempt, name)
        self._attempts.effects.begin_in_thread(self._attempt, name)
        return _Done()

    def ask(
        self, prompt: Any, *, auth: bool = False, name: str = "", timeout: float | None = None
    ) -> Coroutine[Any, Any, Input]:
        """Asks the caller and waits for the answer; meanwhile the task takes no slot and its time stands still.

        Args:
            prompt: The question: text, bytes, or anything JSON can say; at most 64 KiB.
            auth: Credentials are asked for.
            name: Names the question within the task. An answer that an earlier attempt got to it comes at once. Empty:
                known by its text, and how often that was asked. Name it, if you go on from a checkpoint.
            timeout: Seconds until the task fails for want of an answer; None: as the server says (1 h).

        Raises InvalidRequest (CANCELLED) if the attempt is over. Asked of a coroutine; threads use `ask_blocking`.

            >>> answer = await task.ask("Pay 120 EUR?")
            >>> if answer.text == "yes": ...
        """
        if not self._attempts.on_loop():
            raise not_here("task.ask_blocking(...), which waits in its thread")
        return self._asks().ask(prompt, auth, name, timeout)

    def ask_blocking(self, prompt: Any, *, auth: bool = False, name: str = "", timeout: float | None = None) -> Input:
        """`ask` for handlers that run in a thread."""
        if self._attempts.on_loop():
            raise not_here("await task.ask(...)")
        return self._attempts.questions.ask_in_thread(self._asks(), prompt, auth, name, timeout)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The answers that attempts before this one got, oldest first."""
        return tuple(map(Input, self._offer.inputs))

    def _asks(self) -> Asking:
        asking: Asking | None = getattr(self, "_asking", None)  # most never ask, and cost nothing
        if asking is None:
            asking = self._asking = Asking(self._attempt, self._attempts.questions, self._offer.inputs)
        return asking


class _Done:
    """Something to await that has happened already."""

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]
