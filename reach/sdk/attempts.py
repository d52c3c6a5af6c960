"""The attempts that run in one agent.

Invariants: one attempt per task; a newer one ends the older. Nothing is sent for an attempt that was cancelled, but
that it is. All methods belong to the loop, unless they say otherwise; threads come there over the bridge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import islice
from typing import Any, Final

from agentreach.v1 import attach_pb2, attempt_pb2, task_pb2
from reach.errors import ErrorClass, Internal, InvalidRequest, ReachError, Reason, ResourceExhausted
from reach.sdk.bridge import Bridge
from reach.sdk.connection import Connection, log
from reach.sdk.figures import Figures
from reach.sdk.flow import Flow
from reach.sdk.handlers import DEFAULT_METHOD, FOLDED, Handler, Kind, run_coroutine, run_in_thread, run_pieces
from reach.sdk.notes import LINK, Effects, Notes, cancelled_error
from reach.sdk.outcomes import Key, Outcome, Outcomes
from reach.sdk.payloads import PAYLOAD_LIMIT, Answer, Delta, Fields, payload_fields
from reach.sdk.task import Task
from reach.sdk.threads import HandlerThreads
from reach.sdk.tracing import context_with
from reach.wire.status import bounded_text, error_to_proto


class Attempt:
    """One attempt that runs here."""

    __slots__ = (
        "accepted",
        "begun",
        "cancelled",
        "effects",
        "ended",
        "flow",
        "handler",
        "key",
        "map_key",
        "number",
        "runner",
        "silent",
        "task",
    )

    def __init__(self, map_key: Key, number: int, begun: float, handler: Handler | None) -> None:
        tenant, task_id = map_key
        self.map_key = map_key
        self.key: Fields = {"task_id": task_id, "attempt": number}
        if tenant:
            self.key["tenant"] = tenant
        self.number = number
        self.begun = begun
        self.handler = handler
        self.accepted = True
        """It has begun, or begins at once; False while it waits for a thread."""
        self.cancelled = False
        self.silent = False
        """Nobody wants to hear how it ended."""
        self.ended = False
        self.task: Task | None = None
        self.runner: asyncio.Task[None] | None = None
        self.flow: Flow | None = None
        self.effects: dict[str, asyncio.Future[None]] | None = None


class Attempts(Bridge):
    """The named owner of all handlers that run."""

    def __init__(
        self, connection: Connection, handlers: dict[str, Handler], figures: Figures, outcomes: Outcomes, name: str
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
        self.running: dict[Key, Attempt] = {}
        self._stopping: set[Attempt] = set()
        self._unheard: set[asyncio.Task[None]] = set()
        self._connection = connection
        self._outbox = connection.outbox
        self._handlers = handlers
        self._figures = figures
        self._fresh: list[Attempt] = []
        self._greeting = False
        """A hello is out. Deltas wait for its answer, which says where they go on."""

    # What the server says

    def offered(self, offer: attempt_pb2.Offer, now: float) -> None:
        """Takes up an attempt, unless it runs or is answered already. `frame_ended` must follow."""
        spec = offer.task
        key = (offer.tenant, spec.task_id)
        outcome = self.outcomes.find(key)
        if outcome is not None:
            if outcome.attempt >= offer.attempt:
                if outcome.attempt == offer.attempt:
                    self.outcomes.answer_again(outcome)
                return
            self.outcomes.forget(key)
        older = self.running.get(key)
        if older is not None:
            if older.number >= offer.attempt:
                return
            self.stop(older, silent=True)
        method = spec.method or DEFAULT_METHOD
        handler = self._handlers.get(method) or self._handlers.get(DEFAULT_METHOD)
        if handler is None and not spec.method and len(self._handlers) == 1:
            (handler,) = self._handlers.values()
        attempt = Attempt(key, offer.attempt, now, handler)
        self.running[key] = attempt
        self._figures.begun(handler)
        if self.draining:
            self._conclude(attempt, {"released": {"reason": "the agent drains"}}, None)
        elif handler is None:
            names = ", ".join(sorted(self._handlers)) or "none"
            self.fail(attempt, InvalidRequest(f"this agent has no handler for method {method!r}; it has: {names}"))
        else:
            attempt.task = Task(offer, attempt, self)
            self.idle.clear()
            self._begin(attempt, handler, spec.trace)

    def frame_ended(self) -> None:
        """All offers of a frame are taken up. Handlers make their first step before they are accepted: an outcome in
        the same frame says it all."""
        if self._fresh:
            self._loop.call_soon(self._accept_fresh)

    def cancel(self, key: Key, number: int, silent: bool) -> None:
        """The server wants an attempt stopped. `silent`: and does not want to hear that it is."""
        attempt = self.running.get(key)
        if attempt is not None and attempt.number == number:
            self.stop(attempt, silent)
        elif silent:
            outcome = self.outcomes.unacknowledged.get(key)
            if outcome is not None and outcome.attempt == number:
                self.outcomes.acknowledged(key, number)

    def granted(self, grant: attach_pb2.EffectGrant) -> None:
        """The answer to a request for an effect."""
        attempt = self.running.get((grant.key.tenant, grant.key.task_id))
        if attempt is not None and attempt.number == grant.key.attempt:
            self.effects.granted(attempt, grant)

    def credited(self, key: Key, number: int, size: int) -> None:
        """Room for deltas."""
        attempt = self.running.get(key)
        if attempt is not None and attempt.number == number:
            self.flow_of(attempt).grant(size)

    def restore(self, replay: set[tuple[Key, int]], new_stream: bool) -> None:
        """A hello was answered: says again what the server lacks."""
        self._greeting = False
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
            if new_stream:
                self.effects.ask_again(attempt)

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
        if self._connection.up and not self._greeting and not flow.mute:
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
            output, size = payload_fields(value)
        except InvalidRequest as error:
            self.fail(attempt, Internal(f"the handler's answer has no form: {error.message}", Reason.AGENT_CRASHED))
            return
        if size > self.payload_limit:
            text = f"the answer has {size} bytes; this server takes at most {self.payload_limit}"
            self.fail(attempt, ResourceExhausted(text, Reason.RESULT_TOO_LARGE))
            return
        outcome: Fields = {"output": output}
        try:
            if type(value) is Answer:
                outcome.update(_extras(value))
            self._conclude(attempt, outcome, failed=False)
        except (TypeError, ValueError) as error:
            self.fail(attempt, Internal(f"the handler's answer cannot be sent: {error}", Reason.AGENT_CRASHED))

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
            text = f"{type(error).__name__}: {_text_of(error)}"
            told = Internal(text, Reason.AGENT_CRASHED)
            log.error("the handler of task %s broke: %s", attempt.key["task_id"], bounded_text(text), exc_info=error)
        failed = _FAILED.get(told.error_class)
        self._conclude(attempt, {"error": error_to_proto(told)}, failed)

    def cancelled(self, attempt: Attempt) -> None:
        """The handler ended after it was cancelled, or cancelled itself."""
        if attempt.ended:
            return
        if not attempt.cancelled:
            self.fail(attempt, Internal("CancelledError: the handler cancelled itself", Reason.AGENT_CRASHED))
            return
        self._leave(attempt, None)
        if not attempt.silent and self._connection.up:
            fields: Fields = {"link": LINK, "key": attempt.key, "error": error_to_proto(cancelled_error())}
            items: Fields = {"results": [fields]}
            self._outbox.put(attach_pb2.AttachRequest(**items).SerializeToString())

    def run_on_loop(self, attempt: Attempt, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Goes on with a coroutine that a plain function returned."""
        attempt.runner = self._loop.create_task(run_coroutine(self, attempt, coroutine))
        if attempt.cancelled:
            attempt.runner.cancel()

    def running_fields(self) -> list[Fields]:
        """All that a hello must name: what runs, and what has ended with an outcome that follows."""
        self._greeting = True
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
            self._conclude(attempt, {"released": {"reason": reason}}, None)
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
        if attempt.flow is not None:
            attempt.flow.wake()
        if attempt.runner is not None:
            attempt.runner.cancel()

    def _begin(self, attempt: Attempt, handler: Handler, trace: task_pb2.TraceContext) -> None:
        context = context_with(trace.traceparent, trace.tracestate) if trace.traceparent else None
        if handler.kind is Kind.CALL:
            attempt.accepted = self.threads.has_room
            self.threads.run(lambda: self._work(attempt, handler), context)
        else:
            try:
                awaitable = handler.function(attempt.task)
            except Exception as error:  # noqa: BLE001 - reported and logged by `fail`
                self.fail(attempt, error)
                return
            if handler.kind is Kind.ASYNC_GENERATOR:
                awaitable = run_pieces(self, attempt, awaitable)
            attempt.runner = self._loop.create_task(run_coroutine(self, attempt, awaitable), context=context)
        if attempt.accepted:
            self._fresh.append(attempt)

    def _work(self, attempt: Attempt, handler: Handler) -> None:
        if attempt.cancelled:
            self.post(self.cancelled, attempt)
            return
        if not attempt.accepted:
            self.post(self._accept, attempt)
        run_in_thread(self, attempt, handler.function)

    def _accept_fresh(self) -> None:
        fresh, self._fresh = self._fresh, []
        for attempt in fresh:
            if not attempt.ended:
                self._accept(attempt)

    def _accept(self, attempt: Attempt) -> None:
        attempt.accepted = True
        if self._connection.up and not attempt.ended and not attempt.cancelled:
            items: Fields = {"accepts": [{"link": LINK, "key": attempt.key}]}
            self._outbox.put(attach_pb2.AttachRequest(**items).SerializeToString())

    def _finish_folded(self, attempt: Attempt) -> None:
        flow = attempt.flow
        if flow is None or not flow.last:
            self._conclude(attempt, {"output": {}}, failed=False)
        elif flow.whole or flow.mute:
            self._conclude(attempt, {"output": flow.output()}, failed=False)
        else:
            folded = {"folded": {"last_attempt_sequence": flow.last}}
            self._conclude(attempt, folded, failed=False, whole={"output": flow.output()})

    def _conclude(self, attempt: Attempt, outcome: Fields, failed: bool | None, whole: Fields | None = None) -> None:
        base: Fields = {"link": LINK, "key": attempt.key}
        made = Outcome(attempt.map_key, {**base, **outcome}, None if whole is None else {**base, **whole})
        self._leave(attempt, failed)
        self.outcomes.add(made)

    def _leave(self, attempt: Attempt, failed: bool | None) -> None:
        """The attempt is over: it counts no longer, and holds nothing but its names."""
        now = self._loop.time()
        attempt.ended = True
        if self.running.get(attempt.map_key) is attempt:
            del self.running[attempt.map_key]
        self._stopping.discard(attempt)
        self.notes.forget(attempt)
        self._figures.ended(attempt.handler, now - attempt.begun, now, failed)
        if not self.running and not self._stopping:
            self.idle.set()


_FAILED: Final = {
    ErrorClass.INTERNAL: True,
    ErrorClass.AGENT_ERROR: False,
    ErrorClass.INVALID_REQUEST: False,
}
"""Whether an error says that we are broken (True), that we work (False), or neither."""

MOST_USAGE: Final = 64
"""Figures of one answer."""


def _extras(answer: Answer) -> Fields:
    fields: Fields = {}
    if answer.confidence is not None:
        fields["confidence"] = answer.confidence
    if answer.conflict_hint:
        fields["conflict_hint"] = bounded_text(answer.conflict_hint)
    if answer.usage:
        fields["usage"] = dict(islice(answer.usage.items(), MOST_USAGE))
    if answer.executed_intent:
        fields["executed_intent"] = bounded_text(answer.executed_intent, 256)
    return fields


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error whose text raises is an error all the same
        return "(its text cannot be had)"
