"""The open Execute calls of an agent that is dialled; for its attempts, what a `Connection` is on Attach."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from agentreach.v1 import attach_pb2, attempt_pb2, endpoint_pb2
from reach.core.pieces import size_in_bytes
from reach.sdk.attempts import Attempts
from reach.sdk.outcomes import HELD, HELD_BYTES, Key, Outcomes
from reach.wire.answers import content_of

WAITING: Final = 4_096
"""Responses of one call that wait to be written. Deltas need credit before they come here, so that only a handler that
floods its progress meets this; the oldest progress then goes."""


class Call:
    """One Execute call."""

    __slots__ = ("_over", "_waiting", "_wakes", "key", "number", "replayed")

    def __init__(self, key: Key, number: int) -> None:
        self.key = key
        self.number = number
        self.replayed = 0
        """Number of the last delta that is said again: room for it was given when the call began."""
        self._waiting: deque[endpoint_pb2.ExecuteResponse] = deque()
        self._wakes: asyncio.Future[None] | None = None
        self._over = False

    def put(self, response: endpoint_pb2.ExecuteResponse) -> None:
        """Adds a response; the one with the result is the last."""
        if self._over:
            return
        if len(self._waiting) >= WAITING and response.progress:
            return
        self._waiting.append(response)
        self._over = response.HasField("result")
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._wakes is not None and not self._wakes.done():
            self._wakes.set_result(None)

    async def next(self) -> endpoint_pb2.ExecuteResponse | None:
        """The next response, once there is one; None at the end."""
        while not self._waiting:
            if self._over:
                return None
            self._wakes = asyncio.get_running_loop().create_future()
            await self._wakes
        return self._waiting.popleft()


class Calls:
    """All open calls. Stands where attempts have a connection: what they put into its outbox goes to the call of its
    attempt, or is left to be said again when the server joins it."""

    def __init__(
        self,
        begin_effect: Callable[[attach_pb2.EffectRequest], None],
        goodbye: Callable[[float], Awaitable[None]],
    ) -> None:
        self.up = self.welcomed = False
        self._begin_effect = begin_effect
        self._goodbye = goodbye
        self._open: dict[Key, Call] = {}
        self._sent: dict[Key, tuple[int, int]] = {}
        """Outcomes that were written: (attempt, bytes); oldest first."""
        self._sent_bytes = 0
        self._gathering = False

    def attach(self, attempts: Attempts, outcomes: Outcomes) -> None:
        """Whose calls these are."""
        self._attempts = attempts
        self._outcomes = outcomes

    @property
    def outbox(self) -> Calls:
        """Where attempts put what they say."""
        return self

    def __bool__(self) -> bool:
        """Nothing waits here: each call has what is its own."""
        return False

    # -- in place of a connection -------------------------------------------------------------------------------------

    def put(self, item: bytes) -> None:
        """What an attempt says."""
        frame = attach_pb2.AttachRequest.FromString(item)
        for accept in frame.accepts:
            self._say(accept.key, endpoint_pb2.ExecuteResponse(accept=accept))
        for delta in frame.deltas:
            self._say(delta.key, endpoint_pb2.ExecuteResponse(deltas=[delta]))
        for progress in frame.progress:
            self._say(progress.key, endpoint_pb2.ExecuteResponse(progress=[progress]))
        for result in frame.results:
            self._say(result.key, endpoint_pb2.ExecuteResponse(result=result))
        for effect in frame.effects:
            self._begin_effect(effect)

    def _say(self, key: attempt_pb2.AttemptKey, response: endpoint_pb2.ExecuteResponse) -> None:
        call = self._open.get((key.tenant, key.task_id))
        if call is not None and call.number == key.attempt:
            call.put(response)

    def wake(self) -> None:
        """Notes wait: they leave at the end of this turn of the loop."""
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_soon(self._gather)

    def _gather(self) -> None:
        self._gathering = False
        self._attempts.notes.gather()

    async def end(self, timeout_s: float) -> None:
        """The agent ends."""
        await self._goodbye(timeout_s)

    # -- what the server calls ----------------------------------------------------------------------------------------

    def open(self, offer: attempt_pb2.Offer) -> Call | None:
        """Begins an attempt, or joins it: if it runs, or has ended, what it said is said again. None if it is stale."""
        attempts, outcomes = self._attempts, self._outcomes
        key, number = (offer.tenant, offer.task.task_id), offer.attempt
        running, outcome = attempts.running.get(key), outcomes.latest(key)
        newest = max(running.number if running is not None else 0, outcome.attempt if outcome is not None else 0)
        if newest > number:
            return None
        former = self._open.get(key)
        if former is not None:
            former.end()
        call = self._open[key] = Call(key, number)
        if outcome is not None and outcome.attempt == number:
            outcomes.make_whole(outcome)
        if running is None or running.number != number:
            attempts.offered([offer])
            return call
        call.put(endpoint_pb2.ExecuteResponse(accept=attempt_pb2.AttemptAccept(key=self._key(call))))
        for given in offer.inputs:
            attempts.questions.given(running, given)
        if running.flow is not None:
            items = running.flow.replay(0)
            running.flow.whole = running.flow.mute = items is None
            for item in items or ():
                self.put(item)
            running.flow.begin_again()
            call.replayed = running.flow.last
        attempts.questions.say_again(running)
        return call

    @staticmethod
    def _key(call: Call) -> attempt_pb2.AttemptKey:
        tenant, task_id = call.key
        return attempt_pb2.AttemptKey(task_id=task_id, attempt=call.number, tenant=tenant)

    def written(self, call: Call, response: endpoint_pb2.ExecuteResponse) -> None:
        """gRPC has taken a response: there is room for more, and an outcome is on its way."""
        for delta in response.deltas:
            if delta.attempt_sequence > call.replayed:
                self._attempts.credited(call.key, call.number, size_in_bytes(content_of(delta.delta.payload)[1]))
        if response.HasField("result") and not response.result.HasField("waiting"):
            size = response.ByteSize()
            self._sent[call.key] = (call.number, size)
            self._sent_bytes += size
            while self._sent and (
                self._attempts.draining or len(self._sent) > HELD or self._sent_bytes > HELD_BYTES
            ):  # fmt: skip
                self._has(next(iter(self._sent)))

    def settle(self) -> None:
        """Nobody will ask any more: what was written counts as received."""
        for key in list(self._sent):
            self._has(key)

    def _has(self, key: Key) -> None:
        """The server has an outcome."""
        number, size = self._sent.pop(key)
        self._sent_bytes -= size
        self._outcomes.given_up(key, number)

    def close(self, call: Call) -> None:
        """A call is over. Its handler goes on."""
        if self._open.get(call.key) is call:
            del self._open[call.key]

    def cancel(self, name: attempt_pb2.AttemptKey) -> None:
        """The server wants an attempt stopped, or its outcome forgotten."""
        key = (name.tenant, name.task_id)
        running = self._attempts.running.get(key)
        if running is not None and running.number == name.attempt:
            self._attempts.cancel(key, name.attempt, silent=False)
        else:
            self._outcomes.given_up(key, name.attempt)

    def names(self, believed: set[tuple[Key, int]]) -> Iterator[tuple[Key, int]]:
        """What runs here, and what has ended with an outcome that the server does not have. An outcome that was written
        and that it no longer believes to be running, it has."""
        for key, (number, _) in list(self._sent.items()):
            if (key, number) not in believed:
                self._has(key)
        named = {(key, attempt.number) for key, attempt in self._attempts.running.items()}
        named.update((key, outcome.attempt) for key, outcome in self._outcomes.unacknowledged.items())
        for key, number in believed:
            outcome = self._outcomes.by_key.get(key)
            if outcome is not None and outcome.attempt == number:
                named.add((key, number))
        yield from named
