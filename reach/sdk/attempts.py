"""The attempts that run in one agent.

Invariants: one attempt per task; a newer one ends the older. Nothing is sent for an attempt that was cancelled, but
that it is. All methods belong to the loop, unless they say otherwise; threads come there over the bridge.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from agentreach.v1 import attach_pb2, attempt_pb2, task_pb2
from reach.errors import Internal, InvalidRequest, ReachError, Reason, ResourceExhausted
from reach.sdk.attempt import Attempt
from reach.sdk.bridge import Bridge
from reach.sdk.connection import Sender, log
from reach.sdk.encoding import output_outcome, result_item
from reach.sdk.figures import Figures
from reach.sdk.flow import Flow
from reach.sdk.handlers import DEFAULT_METHOD, FOLDED, Handler, run_coroutine, run_in_thread
from reach.sdk.handoffs import Handoffs
from reach.sdk.notes import Effects, Notes, cancelled_error
from reach.sdk.outcomes import FAILED, Key, Outcome, Outcomes, extras, outcome_content, text_of
from reach.sdk.payloads import PAYLOAD_LIMIT, Answer, Delta, Fields
from reach.sdk.questions import Questions
from reach.sdk.starts import Start, run_starts
from reach.sdk.task import Task
from reach.sdk.threads import HandlerThreads
from reach.sdk.tracing import trace_context
from reach.wire.status import bounded_text, error_to_proto

if TYPE_CHECKING:
    from reach.sdk.once import Once


class Attempts(Bridge):
    """The named owner of all handlers that run."""

    def __init__(
        self, connection: Sender, handlers: dict[str, Handler], figures: Figures, outcomes: Outcomes, name: str
    ) -> None:
        super().__init__()
        self.payload_limit = PAYLOAD_LIMIT
        self.draining = False
        self.idle = asyncio.Event()
        """Nothing runs."""
        self.idle.set()
        self.threads = HandlerThreads(figures.max_concurrency, name)
        self.outcomes = outcomes
        self.notes = Notes(connection)
        self.effects = Effects(connection, self)
        self.questions = Questions(connection, self)
        self.running: dict[Key, Attempt] = {}
        self._stopping: set[Attempt] = set()
        self._unheard: set[asyncio.Task[None]] = set()
        self.handoffs: Handoffs | None = None
        """Has to know of sessions, where the agent keeps something of them."""
        self.once: Once | None = None  # knows what was done already, where instances share a store of that
        self._connection = connection
        self._outbox = connection.outbox
        self._handlers = handlers
        self.figures = figures
        self._fresh: list[Attempt] = []
        self._starts: deque[Start] = deque()

    # What the server says

    def offered(self, offers: Iterable[attempt_pb2.Offer]) -> None:
        """Takes up the attempts of a frame, but those that run or are answered already."""
        now = time.monotonic()
        running, known = self.running, self.outcomes.by_key
        handlers: dict[str, Handler | None] = {}
        for offer in offers:
            spec = offer.task
            key = (offer.tenant, spec.task_id)
            number = offer.attempt
            if (key in running or key in known) and not self._is_newer(key, number):
                continue
            method = spec.method
            if method not in handlers:
                handlers[method] = self._handlers.get(method or DEFAULT_METHOD) or self._stand_in(method)
            handler = handlers[method]
            running[key] = attempt = Attempt(key, number, now, handler)
            self.figures.begun(handler)
            if self.draining:
                self.conclude(attempt, outcome_content({"released": {"reason": "the agent drains"}}), None)
            elif handler is None:
                names = ", ".join(sorted(self._handlers)) or "none"
                text = f"this agent has no handler for method {method or DEFAULT_METHOD!r}; it has: {names}"
                self.fail(attempt, InvalidRequest(text))
            else:
                trace = spec.trace if spec.HasField("trace") else None
                start = (attempt, handler, Task(offer, attempt, self), trace)
                if self.handoffs is not None and offer.HasField("session_context"):
                    self.handoffs.admit(offer, partial(self.begin_late, start))
                else:
                    self._begin(start)
        if running:
            self.idle.clear()
        self._begin_all()

    def _is_newer(self, key: Key, number: int) -> bool:
        """Whether an attempt is to begin of a task that was here before, and if so, ends what was. If not, its outcome
        is told again, if there is one."""
        outcome = self.outcomes.latest(key)
        if outcome is not None:
            if outcome.attempt >= number:
                if outcome.attempt == number:
                    self.outcomes.answer_again(outcome)
                return False
            self.outcomes.forget(key)
        older = self.running.get(key)
        if older is not None:
            if older.number >= number:
                return False
            self.stop(older, silent=True)
        return True

    def _stand_in(self, method: str) -> Handler | None:
        """The handler for a method that has none of its own."""
        if not method and len(self._handlers) == 1:
            return next(iter(self._handlers.values()))
        return self._handlers.get(DEFAULT_METHOD)

    def cancel(self, key: Key, number: int, silent: bool) -> None:
        """The server wants an attempt stopped. `silent`: and does not want to hear that it is."""
        attempt = self.running.get(key)
        if attempt is not None and attempt.number == number:
            self.stop(attempt, silent)
        elif silent:
            outcome = self.outcomes.unacknowledged.get(key)
            if outcome is not None and outcome.attempt == number:
                self.outcomes.given_up(key, number)

    def granted(self, grant: attach_pb2.EffectGrant) -> None:
        """The answer to a request for an effect."""
        attempt = self.running.get((grant.key.tenant, grant.key.task_id))
        if attempt is not None and attempt.number == grant.key.attempt:
            self.effects.granted(attempt, grant)

    def answered(self, key: Key, number: int, given: task_pb2.TaskInput) -> None:
        """The answer to what an attempt asked."""
        attempt = self.running.get(key)
        if attempt is not None and attempt.number == number:
            self.questions.given(attempt, given)

    def credited(self, key: Key, number: int, size: int) -> None:
        """Room for deltas."""
        attempt = self.running.get(key)
        if attempt is not None and attempt.number == number:
            self.flow_of(attempt).grant(size)

    def restore(self, replay: set[tuple[Key, int]], new_stream: bool) -> None:
        """A hello was answered: says again what the server lacks."""
        for key, attempt in self.running.items():
            flow = attempt.flow
            if flow is not None:
                asked = (key, attempt.number) in replay
                items = flow.replay(0 if asked else flow.named)
                for item in items or ():
                    self._outbox.put(item)
                flow.mute = flow.mute or items is None
                flow.whole = items is None or (not asked and (flow.whole or new_stream))
                if new_stream:
                    flow.begin_again()
            self.effects.ask_again(attempt)
            self.questions.say_again(attempt)
        self._outbox.wake()  # for what has waited

    # What handlers say

    def flow_of(self, attempt: Attempt) -> Flow:
        """The deltas of an attempt. Also for its thread."""
        flow = attempt.flow
        if flow is None:
            flow = attempt.flow = Flow()
        return flow

    def delta(self, attempt: Attempt, piece: Delta) -> None:
        """Sends a piece of the answer, for which the producer has taken room."""
        if attempt.cancelled or attempt.ended or not piece.data:
            return
        flow = self.flow_of(attempt)
        try:
            item = flow.add(attempt.key, piece, self.payload_limit)
        except Exception as error:  # noqa: BLE001 - reported by `fail`
            self.fail(attempt, error)
            self._halt(attempt)
            return
        if self._connection.welcomed and not flow.mute:
            self._outbox.put(item)

    def finish(self, attempt: Attempt, value: Any) -> None:
        """The handler returned."""
        if attempt.cancelled or attempt.ended:
            self.cancelled(attempt)
            return
        if value is FOLDED:
            self._finish_folded(attempt)
            return
        try:
            content, size = output_outcome(value)
            if type(value) is Answer:
                content += outcome_content(extras(value))
        except InvalidRequest as error:
            self.fail(attempt, Internal(f"the handler's answer has no form: {error.message}", Reason.AGENT_CRASHED))
        except (TypeError, ValueError) as error:
            self.fail(attempt, Internal(f"the handler's answer cannot be sent: {error}", Reason.AGENT_CRASHED))
        else:
            if size <= self.payload_limit:
                self.conclude(attempt, content, False)
                return
            text = f"the answer has {size} bytes; this server takes at most {self.payload_limit}"
            self.fail(attempt, ResourceExhausted(text, Reason.RESULT_TOO_LARGE))

    def finish_early(self, attempt: Attempt, value: Any) -> None:
        """Somebody says what the attempt came to before its handler returned, which may go on but is not heard."""
        self.finish(attempt, value)
        if attempt.runner is not None and not attempt.runner.done():
            self._unheard.add(attempt.runner)
            attempt.runner.add_done_callback(self._unheard.discard)

    def fail(self, attempt: Attempt, error: BaseException) -> None:
        """The handler raised."""
        if attempt.cancelled or attempt.ended:
            self.cancelled(attempt)
            return
        if isinstance(error, ReachError):
            told = error
        else:
            text = f"{type(error).__name__}: {text_of(error)}"
            told = Internal(text, Reason.AGENT_CRASHED)
            log.error("the handler of task %s broke: %s", attempt.map_key[1], bounded_text(text), exc_info=error)
        failed = FAILED.get(told.error_class)
        self.conclude(attempt, outcome_content({"error": error_to_proto(told)}), failed, is_error=True)

    def cancelled(self, attempt: Attempt) -> None:
        """The handler ended after it was cancelled, or cancelled itself."""
        if attempt.ended:
            return
        if not attempt.cancelled:
            self.fail(attempt, Internal("CancelledError: the handler cancelled itself", Reason.AGENT_CRASHED))
            return
        self._leave(attempt, None, time.monotonic())
        if not attempt.silent and self._connection.up:
            content = outcome_content({"error": error_to_proto(cancelled_error())})
            self._outbox.put(result_item(attempt.map_key, attempt.number, content))

    def run_on_loop(self, attempt: Attempt, task: Task, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Goes on with a coroutine that a plain function returned."""
        attempt.runner = self._loop.create_task(run_coroutine(self, attempt, task, coroutine))
        if attempt.cancelled:
            attempt.runner.cancel()

    def running_fields(self) -> list[Fields]:
        """All that a hello must name: what runs, and what has ended with an outcome that follows."""
        fields: list[Fields] = []
        for attempt in self.running.values():
            fields.append({"key": attempt.key})
            if attempt.flow is not None:
                attempt.flow.named = fields[-1]["last_attempt_sequence"] = attempt.flow.last
        for outcome in self.outcomes.unacknowledged.values():
            tenant, task_id = outcome.key
            fields.append({"key": {"task_id": task_id, "attempt": outcome.attempt, "tenant": tenant}})
        return fields

    def release(self, reason: str) -> None:
        """Gives back all that runs."""
        for attempt in list(self.running.values()):
            self.give_back(attempt, reason)

    def give_back(self, attempt: Attempt, reason: str) -> None:
        """Gives one attempt back."""
        self.questions.refuse(attempt)
        self.conclude(attempt, outcome_content({"released": {"reason": reason}}), None)
        self._halt(attempt)

    def stop(self, attempt: Attempt, silent: bool) -> None:
        """Cancels a handler. It counts until it has really ended."""
        if self.running.get(attempt.map_key) is attempt:
            del self.running[attempt.map_key]
            self._stopping.add(attempt)
        attempt.silent = silent
        self._halt(attempt)

    def _halt(self, attempt: Attempt) -> None:
        attempt.cancelled = True
        self.effects.refuse(attempt)
        self.questions.refuse(attempt)
        if attempt.flow is not None:
            attempt.flow.wake()
        if attempt.runner is not None:
            attempt.runner.cancel()

    def begin_late(self, start: Start) -> None:
        """Begins an attempt for which something had to be asked first."""
        attempt = start[0]
        if attempt.cancelled or attempt.ended:
            self.cancelled(attempt)
            return
        self._begin(start)
        self._begin_all()

    def _begin(self, start: Start) -> None:
        if self.once is not None and not self.once.admits(start):
            return
        attempt, handler, _, trace = start
        if handler.threaded:
            attempt.accepted = self.threads.has_room
            self.threads.run(lambda: self._work(start), trace_context(trace))
            if attempt.accepted:
                self._fresh.append(attempt)
        else:
            self._starts.append(start)

    def _begin_all(self) -> None:
        """All of a frame begin. They make their first step before they are accepted: an outcome then says it all."""
        if self._starts:
            starts, self._starts = self._starts, deque()
            self.start(starts)
        if self._fresh:
            self._loop.call_soon(self._accept_fresh)

    def start(self, starts: deque[Start]) -> None:
        """Begins handlers in a task, which the loop holds until it waits, and then the attempt that it waits for."""
        self._loop.create_task(run_starts(self, starts))

    def _work(self, start: Start) -> None:
        attempt, handler, task, _ = start
        if attempt.cancelled:
            self.post(self.cancelled, attempt)
            return
        if not attempt.accepted:
            self.post(self.accept, attempt)
        run_in_thread(self, attempt, task, handler.function)

    def _accept_fresh(self) -> None:
        fresh, self._fresh = self._fresh, []
        for attempt in fresh:
            if not attempt.ended:
                self.accept(attempt)

    def accept(self, attempt: Attempt) -> None:
        """Tells the server that an attempt runs."""
        attempt.accepted = True
        if self._connection.up and not attempt.ended and not attempt.cancelled:
            self.notes.accept(attempt)

    def _finish_folded(self, attempt: Attempt) -> None:
        flow = attempt.flow
        if flow is None or not flow.last:
            self.conclude(attempt, outcome_content({"output": {}}), failed=False)
        elif flow.whole or flow.mute:
            self.conclude(attempt, outcome_content({"output": flow.output()}), failed=False)
        else:
            folded = outcome_content({"folded": {"last_attempt_sequence": flow.last}})
            self.conclude(attempt, folded, failed=False, whole={"output": flow.output()})

    def conclude(self, attempt: Attempt, content: bytes, failed: bool | None = None, is_error: bool = False,
                 whole: Fields | None = None) -> None:  # fmt: skip
        """An attempt came to this."""
        if self.once is not None and self.once.concludes(attempt, content, failed, is_error, whole):
            return
        now = time.monotonic()
        self._leave(attempt, failed, now)
        self.outcomes.add(Outcome(attempt.map_key, attempt.number, content, is_error, whole), now)

    def _leave(self, attempt: Attempt, failed: bool | None, now: float) -> None:
        """The attempt is over: it counts no longer, and holds nothing but its names."""
        attempt.ended = True
        key = attempt.map_key
        if self.running.get(key) is attempt:
            del self.running[key]
        elif attempt in self._stopping:
            self._stopping.remove(attempt)
        if self.notes.waiting:
            self.notes.forget(attempt)
        self.figures.ended(attempt.handler, now - attempt.begun, now, failed)
        if not self.running and not self._stopping:
            self.idle.set()
