"""Batching: everything that one turn of the loop has to say on a stream goes in one frame (many times the rate).

What is said comes as *items*: frames that hold one thing, as bytes (see `wire.encoding`). A frame is made by joining
them. Frames are bounded by bytes: 512 KiB, or one larger item alone; so no frame ever meets the receiver's limit, and
a large item delays the small ones by one frame only.
"""

from __future__ import annotations

import asyncio
from collections import deque

FRAME_BYTES = 512 << 10
ITEM_OVERHEAD = 64
"""What an item counts against `QUEUE_BYTES` beside its bytes."""
QUEUE_BYTES = 64 << 20
"""A peer that leaves more than this unread is cut off."""

FIRST_ITEMS = 32
"""When so many items that somebody waits for have gathered and no frame waits yet, they are a frame: the peer can begin
with them while we go on. What gathers behind it is one large frame again, for each frame wakes the peer."""
LATER_SECONDS = 0.01
"""How long an item may wait for company that nobody waits for."""


class Batcher:
    """Frames for one stream, filled by many and taken by one.

    Args:
        limit: Bytes of a frame.
    """

    __slots__ = (
        "_awaited", "_due", "_full", "_items", "_limit", "_queued", "_size", "_timer", "_wake", "closed", "overrun",
    )  # fmt: skip

    def __init__(self, limit: int = FRAME_BYTES) -> None:
        self._limit = limit
        self._full: deque[list[bytes]] = deque()
        self._items: list[bytes] = []
        self._size = 0
        self._awaited = 0
        """How many of the items somebody waits for."""
        self._queued = 0
        self._wake = asyncio.Event()
        self._due = False
        """Somebody waits for what is in the frame."""
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.overrun = False
        """The peer left more than QUEUE_BYTES unread. Nothing more is taken, and the stream has to end; but what is
        queued is still said, so that a peer that asks for too much at once gets a part of it each time it comes."""

    def put(self, item: bytes) -> None:
        """Says something. What is said to a closed batcher is dropped."""
        if self._awaited >= FIRST_ITEMS and not self._full:
            self._begin_frame()
        self._place(item)
        self._awaited += 1
        if not self._due:
            self._due = True
            self._wake.set()

    def later(self, item: bytes) -> None:
        """As `put`, for items that nobody waits for: they go with the next frame, or alone after LATER_SECONDS.

        Each frame wakes the peer, which costs more than most of what is in it.
        """
        self._place(item)
        if not self._due and self._timer is None:
            self._wait_for_company()

    def _wait_for_company(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LATER_SECONDS, self._late, self._items)

    def _late(self, items: list[bytes]) -> None:
        self._timer = None
        if self._due or not self._items:
            return
        if self._items is items:
            self._due = True
            self._wake.set()
        else:  # those have left with others; what is here now came later
            self._wait_for_company()

    def _place(self, item: bytes) -> None:
        if self.closed:
            return
        size = len(item)
        if self._size + size > self._limit and self._items:
            self._begin_frame()
        self._items.append(item)
        self._size += size
        self._queued += size + ITEM_OVERHEAD
        if self._queued > QUEUE_BYTES:
            self.overrun = self.closed = True
            self._wake.set()

    def _begin_frame(self) -> None:
        self._full.append(self._items)
        self._items = []
        self._size = self._awaited = 0
        self._wake.set()

    async def take(self) -> bytes | None:
        """The next frame, once there is something to say; None when the batcher is closed and empty."""
        while not self._full and not (self._items and (self._due or self.closed)):
            if self.closed:
                return None
            self._due = False
            self._wake.clear()
            await self._wake.wait()
        return self.take_now()

    def take_now(self) -> bytes:
        """What there is to say, up to a frame; nothing if there is nothing."""
        if self._full:
            items = self._full.popleft()
        else:
            items, self._items = self._items, []
            self._size = self._awaited = 0
            self._due = False
        frame = b"".join(items)
        self._queued -= len(frame) + ITEM_OVERHEAD * len(items)
        return frame

    def close(self) -> None:
        """Nothing more is said; what was said is still taken."""
        self.closed = True
        self._wake.set()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be taken."""
        return self._queued
