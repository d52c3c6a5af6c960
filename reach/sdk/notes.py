"""What a handler says while it works: progress, checkpoints, and requests for effects."""

from __future__ import annotations

import asyncio
import concurrent.futures
from contextvars import Context
from typing import TYPE_CHECKING, Final

from agentreach.v1 import attach_pb2
from reach.errors import InvalidRequest, Reason
from reach.sdk.bridge import Bridge
from reach.sdk.connection import Sender
from reach.sdk.encoding import LINK, accept_item
from reach.sdk.payloads import NOTE_LIMIT, Fields, Progress, checked_size
from reach.wire.status import bounded_text, error_from_proto

if TYPE_CHECKING:
    from reach.sdk.attempt import Attempt

CLOCK_GRAIN_S: Final = 0.001
"""Clocks of loops are as fine as this, or finer."""
CHECKPOINT_LIMIT: Final = 256 << 10
ACCEPT_S: Final = 0.01
"""How long an agent may keep to itself that a handler has begun which does not end at once."""
BUSY_ACCEPT_S: Final = 0.05
"""The same where other frames leave anyway: the last one no longer ago than this."""
ACCEPT_SHARE: Final = 6
"""And no longer than this part of what the handler usually takes: its time is counted from when the server hears of it.
"""


def cancelled_error() -> InvalidRequest:
    """The error of whoever works for nobody."""
    return InvalidRequest("the attempt was cancelled", Reason.CANCELLED)


class Notes:
    """Progress and checkpoints that wait for the next frame. A later one replaces an earlier one that has not left."""

    def __init__(self, connection: Sender) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.waiting: dict[Attempt, tuple[Progress | None, bytes | None]] = {}
        self._accepted: list[Attempt] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        """When the first of those has to be told (loop time)."""
        self._gathered_at = 0.0
        """When the last frame was made."""

    def progress(self, attempt: Attempt, progress: Progress) -> None:
        """Sends how far it is."""
        if not attempt.ended and not attempt.cancelled:
            _, checkpoint = self.waiting.get(attempt, (None, None))
            self.waiting[attempt] = (progress, checkpoint)
            self._connection.outbox.wake()

    def save_checkpoint(self, attempt: Attempt, data: bytes) -> None:
        """Sends what the next attempt should get."""
        if not attempt.ended and not attempt.cancelled:
            progress, _ = self.waiting.get(attempt, (None, None))
            self.waiting[attempt] = (progress, data)
            self._connection.outbox.wake()

    @staticmethod
    def check_checkpoint(data: bytes) -> None:
        """Raises InvalidRequest if a checkpoint is too large, TypeError if it is none. For any thread."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"a checkpoint is bytes, not {type(data).__name__}: encode() makes them of text")
        checked_size(len(data), CHECKPOINT_LIMIT, "the checkpoint")

    def forget(self, attempt: Attempt) -> None:
        """The attempt is over."""
        self.waiting.pop(attempt, None)

    def accept(self, attempt: Attempt) -> None:
        """It runs. That is said with the next frame, or after `ACCEPT_S`, or a little later where a frame is about to
        leave: nobody waits for it, and each frame wakes all whom it passes."""
        if not self._accepted:
            now, wait_s = self._loop.time(), ACCEPT_S
            if attempt.handler is not None and now - self._gathered_at < BUSY_ACCEPT_S:
                wait_s = max(wait_s, min(BUSY_ACCEPT_S, attempt.handler.latency / ACCEPT_SHARE))
            self._due_at = now + wait_s
            if self._timer is None:
                self._wait(wait_s)
        self._accepted.append(attempt)

    def _wait(self, wait_s: float) -> None:
        self._timer = self._loop.call_later(wait_s, self._accept_now, context=Context())  # ours would hold the task

    def _accept_now(self) -> None:
        self._timer = None
        if not self._accepted:
            return
        left_s = self._due_at - self._loop.time()
        if left_s > CLOCK_GRAIN_S:  # those that it was set for have left with others
            self._wait(left_s)
        else:
            self._connection.outbox.wake()

    def _gather_accepted(self) -> None:
        """Those that are over by now need not be told of: their outcome says it all. Nor if there is no stream: the
        hello of the next one names what runs."""
        if self._connection.up and not self._connection.welcomed:
            return
        accepted, self._accepted = self._accepted, []
        if self._connection.up:
            for one in accepted:
                if not (one.ended or one.cancelled):
                    self._connection.outbox.put(accept_item(one.map_key, one.number))

    def gather(self) -> None:
        """A frame is about to be made."""
        self._gathered_at = self._loop.time()
        if self._accepted:
            self._gather_accepted()
        if not self.waiting or not self._connection.welcomed:
            return
        for attempt, (progress, checkpoint) in self.waiting.items():
            fields: Fields = {"link": LINK, "key": attempt.key}
            if progress is not None:
                fields["progress"] = {"note": bounded_text(progress.note, NOTE_LIMIT)}
                if progress.fraction is not None:
                    fields["progress"]["fraction"] = progress.fraction
            if checkpoint is not None:
                fields["checkpoint"] = checkpoint
            items: Fields = {"progress": [fields]}
            self._connection.outbox.put(attach_pb2.AttachRequest(**items).SerializeToString())
        self.waiting.clear()


class Effects:
    """Requests for permission to begin an effect. They are asked again on a new stream, until there is an answer."""

    def __init__(self, connection: Sender, bridge: Bridge) -> None:
        self._connection = connection
        self._bridge = bridge
        self._loop = asyncio.get_running_loop()

    async def begin(self, attempt: Attempt, name: str) -> None:
        """Returns when the effect may begin. Raises the refusal."""
        await self._request(attempt, name)

    def begin_in_thread(self, attempt: Attempt, name: str) -> None:
        """`begin` for the attempt's thread."""
        answer: concurrent.futures.Future[None] = concurrent.futures.Future()

        def done(future: asyncio.Future[None]) -> None:
            error = cancelled_error() if future.cancelled() else future.exception()
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        def ask() -> None:
            try:
                self._request(attempt, name).add_done_callback(done)
            except Exception as error:  # noqa: BLE001 - told to the thread, which waits for it
                answer.set_exception(error)

        self._bridge.post(ask)
        answer.result()

    def granted(self, attempt: Attempt, grant: attach_pb2.EffectGrant) -> None:
        """The server's answer."""
        future = (attempt.effects or {}).pop(grant.effect, None)
        if future is None or future.done():
            return
        if grant.HasField("refusal"):
            future.set_exception(error_from_proto(grant.refusal))
        else:
            future.set_result(None)

    def ask_again(self, attempt: Attempt) -> None:
        """A new stream."""
        for name in attempt.effects or ():
            self._ask(attempt, name)

    @staticmethod
    def refuse(attempt: Attempt) -> None:
        """The attempt is cancelled."""
        for future in (attempt.effects or {}).values():
            if not future.done():
                future.set_exception(cancelled_error())

    def _request(self, attempt: Attempt, name: str) -> asyncio.Future[None]:
        if attempt.effects is None:
            attempt.effects = {}
        future = attempt.effects.get(name)
        if future is None or future.cancelled():
            future = attempt.effects[name] = self._loop.create_future()
            if attempt.cancelled or attempt.ended:
                future.set_exception(cancelled_error())
            else:
                self._ask(attempt, name)
        return future

    def _ask(self, attempt: Attempt, name: str) -> None:
        if self._connection.welcomed:
            items: Fields = {"effects": [{"link": LINK, "key": attempt.key, "effect": name}]}
            self._connection.outbox.put(attach_pb2.AttachRequest(**items).SerializeToString())
