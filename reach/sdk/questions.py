"""What handlers ask of the caller while they work: questions, and the answers that come for them.

While a handler waits for an answer its attempt takes no slot, here and at the server. A question is known by its name,
so it is said again after a broken connection, and an answer that an earlier attempt got is there at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from agentreach.v1 import attach_pb2, payload_pb2, task_pb2
from reach.errors import InvalidRequest, ReachError
from reach.sdk.answers import HasPayload
from reach.sdk.connection import Sender
from reach.sdk.encoding import LINK
from reach.sdk.figures import duration
from reach.sdk.notes import cancelled_error
from reach.sdk.payloads import Fields, checked_size, payload_fields

if TYPE_CHECKING:
    from reach.sdk.attempt import Attempt
    from reach.sdk.attempts import Attempts

PROMPT_LIMIT: Final = 64 << 10
"""Bytes of a question."""


class Input(HasPayload):
    """The answer to a question: read it as `text`, `data` (JSON), `value` or `payload`."""

    __slots__ = ("message",)

    def __init__(self, message: task_pb2.TaskInput) -> None:
        self.message = message

    def __repr__(self) -> str:
        return f"Input({self.input_id!r}, question={self.question!r})"

    def _payload(self) -> payload_pb2.Payload:
        return self.message.payload

    @property
    def input_id(self) -> str:
        """As the caller named it."""
        return self.message.input_id

    @property
    def question(self) -> str:
        """Name of the question that it answers."""
        return self.message.question


class Asking:
    """The questions of one attempt: one at a time is open, each name has one answer."""

    __slots__ = ("_attempt", "_counts", "_lock", "_questions", "answers")

    def __init__(self, attempt: Attempt, questions: Questions, inputs: Iterable[task_pb2.TaskInput]) -> None:
        self._attempt = attempt
        self._questions = questions
        self._counts: dict[str, int] = {}
        self._lock: asyncio.Lock | None = None
        self.answers = {given.question: Input(given) for given in inputs}
        """By name of the question."""

    async def ask(self, prompt: Any, auth: bool, name: str, timeout: float | None) -> Input:
        """See `Task.ask`."""
        fields, size = payload_fields(prompt)
        checked_size(size, PROMPT_LIMIT, "the question")
        kind = task_pb2.WAITING_FOR_AUTH if auth else task_pb2.WAITING_FOR_INPUT
        name = name or self._name_of(kind, fields)
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            found = self.answers.get(name)
            if found is None:
                waiting: Fields = {"waiting_for": kind, "prompt": fields, "question": name}
                if timeout is not None:
                    waiting["timeout"] = duration(max(timeout, 0.001))
                found = self.answers[name] = await self._questions.ask(self._attempt, name, waiting)
            return found

    def _name_of(self, kind: int, fields: Fields) -> str:
        """The same in every attempt that asks the same things as often."""
        digest = sha256(repr((int(kind), sorted(fields.items()))).encode()).hexdigest()[:16]
        self._counts[digest] = count = self._counts.get(digest, 0) + 1
        return f"{digest}-{count}"


class _Open:
    """A question that waits for its answer."""

    __slots__ = ("answer", "asked_at", "attempt", "item", "name")

    def __init__(self, attempt: Attempt, name: str, item: bytes, answer: asyncio.Future[Input]) -> None:
        self.attempt = attempt
        self.name = name
        self.item = item
        self.answer = answer
        self.asked_at = time.monotonic()


class Questions:
    """The open questions of one agent: at most one for each attempt. They are said again on a new stream."""

    def __init__(self, connection: Sender, attempts: Attempts) -> None:
        self._connection = connection
        self._attempts = attempts
        self._open: dict[Attempt, _Open] = {}

    async def ask(self, attempt: Attempt, name: str, waiting: Fields) -> Input:
        """Says a question and waits for its answer. Raises the refusal, or that the attempt was cancelled."""
        if attempt.cancelled or attempt.ended:
            raise cancelled_error()
        items: Fields = {"results": [{"link": LINK, "key": attempt.key, "waiting": waiting}]}
        item = attach_pb2.AttachRequest(**items).SerializeToString()
        asked = _Open(attempt, name, item, asyncio.get_running_loop().create_future())
        self._open[attempt] = asked
        self._attempts.figures.paused(attempt.handler)
        try:
            self.say_again(attempt)
            return await asked.answer
        finally:
            self._close(attempt)

    def ask_in_thread(self, asking: Asking, *args: Any) -> Input:
        """`Asking.ask` for the attempt's thread. Another thread may work meanwhile."""
        answer: concurrent.futures.Future[Input] = concurrent.futures.Future()
        loop = self._attempts.loop

        def done(task: asyncio.Task[Input]) -> None:
            error = cancelled_error() if task.cancelled() else task.exception()
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)

        def begin() -> None:
            loop.create_task(asking.ask(*args), name="reach-sdk-question").add_done_callback(done)

        threads = self._attempts.threads
        threads.lend()
        try:
            self._attempts.post(begin)
            return answer.result()
        finally:
            threads.take_back()

    def say_again(self, attempt: Attempt) -> None:
        """Says a question, also once more: on a new stream, or in a new call."""
        asked = self._open.get(attempt)
        if asked is not None and self._connection.welcomed:
            self._connection.outbox.put(asked.item)

    def given(self, attempt: Attempt, given: task_pb2.TaskInput) -> None:
        """An answer came; one to what is not asked is dropped."""
        asked = self._open.get(attempt)
        if asked is not None and not asked.answer.done() and given.question in ("", asked.name):
            self._close(attempt)
            asked.answer.set_result(Input(given))

    def refused(self, attempt: Attempt, error: ReachError) -> bool:
        """The server does not take a question. False if none is open."""
        asked = self._open.get(attempt)
        if asked is None or error.retryable:
            return False
        self._fail(asked, error)
        return True

    def refuse(self, attempt: Attempt) -> None:
        """The attempt is cancelled."""
        asked = self._open.get(attempt)
        if asked is not None:
            self._fail(asked, cancelled_error())

    def attempts(self) -> list[Attempt]:
        """Those that wait for an answer."""
        return list(self._open)

    def _fail(self, asked: _Open, error: ReachError) -> None:
        self._close(asked.attempt)
        if not asked.answer.done():
            asked.answer.set_exception(error)

    def _close(self, attempt: Attempt) -> None:
        """It asks nothing more, and takes a slot again."""
        asked = self._open.pop(attempt, None)
        if asked is not None:
            attempt.begun += time.monotonic() - asked.asked_at  # its time stood still
            self._attempts.figures.begun(attempt.handler)


def not_here(instead: str) -> InvalidRequest:
    """The error of a handler that asks in the way of the other kind."""
    return InvalidRequest(f"this kind of handler asks with {instead}")
