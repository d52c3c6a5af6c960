"""The deltas of one attempt: their numbers, the credit they need, what is kept for a replay, and what they come to."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from itertools import islice
from typing import Final

from agentreach.v1 import attach_pb2
from reach.core.pieces import Delta as CoreDelta
from reach.core.pieces import Fold, Mode
from reach.errors import Reason, ResourceExhausted
from reach.sdk.payloads import Delta, Fields, payload_fields

CREDIT: Final = 256 << 10
"""Bytes an attempt can send before the server gives it room."""
KEEP: Final = 1 << 20
"""Bytes of deltas that are held for a replay."""

_MODES: Final = {"append": Mode.APPEND, "replace": Mode.REPLACE}


class Flow:
    """Deltas of one attempt.

    `spent` is written by the producer alone (a coroutine or a thread), everything else by the loop; so a thread and the
    loop need no lock.
    """

    __slots__ = ("_event", "_fold", "_items", "_size", "_waiter", "granted", "last", "mute", "named", "spent", "whole")

    def __init__(self) -> None:
        self.granted = CREDIT
        self.spent = 0
        self.last = 0
        """Number of the last delta."""
        self.whole = False
        """The outcome must carry the whole output: the server may lack some deltas."""
        self.mute = False
        """The server lacks deltas that we no longer hold: only the outcome is of use to it."""
        self.named = 0
        """Number of the last delta that the last hello named: the server has all up to it, unless it asks for them."""
        self._items: deque[bytes] | None = deque()
        self._size = 0
        self._fold = Fold()
        self._waiter: asyncio.Future[None] | None = None
        self._event: threading.Event | None = None

    def add(self, key: Fields, piece: Delta, limit: int) -> bytes:
        """Numbers and keeps a piece; the item to send. Raises ResourceExhausted if the answer grows too large."""
        payload, size = payload_fields(piece.data, piece.media_type)
        mode = _MODES[piece.mode]
        content: str | bytes = payload.get("text") or payload.get("data", "")
        delta = CoreDelta(piece.channel, mode, payload.get("media_type", ""), content)
        if size > limit or not self._fold.add(delta):
            raise ResourceExhausted(
                f"the answer is larger than the {limit} bytes that this server takes", Reason.RESULT_TOO_LARGE
            )
        self.last += 1
        fields: Fields = {
            "link": 1,
            "key": key,
            "attempt_sequence": self.last,
            "delta": {"channel": piece.channel, "mode": int(mode), "payload": payload},
        }
        items: Fields = {"deltas": [fields]}
        item = attach_pb2.AttachRequest(**items).SerializeToString()
        self._keep(item)
        return item

    def replay(self, after: int) -> list[bytes] | None:
        """All deltas after a number, or None if some are no longer held."""
        if self._items is None:
            return [] if after == self.last else None
        return list(islice(self._items, after, None))

    def output(self) -> Fields:
        """What the main channel came to, as a payload."""
        media_type, content = self._fold.content()
        fields: Fields = {"text" if isinstance(content, str) else "data": content}
        if media_type:
            fields["media_type"] = media_type
        return fields

    def grant(self, size: int) -> None:
        """More room."""
        self.granted += size
        self.wake()

    def begin_again(self) -> None:
        """A new stream: the credit of the old one is void."""
        self.granted = self.spent + CREDIT
        self.wake()

    def wake(self) -> None:
        """Lets whoever waits for room look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._event is not None:
            self._event.set()

    async def room(self) -> None:
        """Returns when there is room for a delta. A single one may go over what is left."""
        while self.spent >= self.granted:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def room_in_thread(self) -> None:
        """`room` for a thread; also returns after `wake`, so that a cancelled handler can end."""
        if self.spent < self.granted:
            return
        if self._event is None:
            self._event = threading.Event()
        self._event.clear()
        if self.spent >= self.granted:
            self._event.wait()

    def _keep(self, item: bytes) -> None:
        if self._items is None:
            return
        self._items.append(item)
        self._size += len(item)
        if self._size > KEEP:
            self._items = None
