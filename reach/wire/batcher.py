"""Batching: everything that one turn of the loop has to say on a stream goes in one frame (many times the rate).

A batcher hands out the frame that is being filled. Frames are bounded by bytes: 512 KiB, or one larger item alone;
so no frame ever meets the receiver's limit, and a large item delays the small ones by one frame only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

FRAME_BYTES = 512 << 10
ITEM_OVERHEAD = 64
"""What an item counts beside its content, in bytes."""
QUEUE_BYTES = 64 << 20
"""A peer that leaves more than this unread is cut off."""

FIRST_ITEMS = 32
"""When so many items have gathered and no frame waits yet, they are a frame: the peer can begin with them while we go
on. What gathers behind it is one large frame again, for each frame wakes the peer."""
LATER_SECONDS = 0.01
"""How long an item may wait for company that nobody waits for."""

F = TypeVar("F")


class Batcher(Generic[F]):
    """Frames for one stream, filled by many and taken by one.

    Args:
        new_frame: Makes an empty frame.
        limit: Bytes of a frame.
    """

    __slots__ = (
        "_due",
        "_frame",
        "_full",
        "_items",
        "_limit",
        "_new_frame",
        "_queued",
        "_size",
        "_timer",
        "_wake",
        "closed",
        "overrun",
    )

    def __init__(self, new_frame: Callable[[], F], limit: int = FRAME_BYTES) -> None:
        self._new_frame = new_frame
        self._limit = limit
        self._full: deque[tuple[F, int]] = deque()
        self._frame = new_frame()
        self._size = 0
        self._items = 0
        self._queued = 0
        self._wake = asyncio.Event()
        self._due = False
        """Somebody waits for what is in the frame."""
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.overrun = False
        """The peer left more than QUEUE_BYTES unread. Nothing more is taken, and the stream has to end; but what is
        queued is still said, so that a peer that asks for too much at once gets a part of it each time it comes."""

    def room(self, size: int = 0) -> F:
        """The frame to add one item of `size` bytes to. What is added to a closed batcher is dropped."""
        frame = self._place(size)
        if not self._due:
            self._due = True
            self._wake.set()
        return frame

    def later(self, size: int = 0) -> F:
        """As `room`, for items that nobody waits for: they go with the next frame, or alone after LATER_SECONDS.

        Each frame wakes the peer, which costs more than most of what is in it.
        """
        frame = self._place(size)
        if not self._due and self._timer is None:
            self._wait_for_company(frame)
        return frame

    def _wait_for_company(self, frame: F) -> None:
        self._timer = asyncio.get_running_loop().call_later(LATER_SECONDS, self._late, frame)

    def _late(self, frame: F) -> None:
        self._timer = None
        if self._due or not self._size:
            return
        if self._frame is frame:
            self._due = True
            self._wake.set()
        else:  # that one has left with others; what is here now came later
            self._wait_for_company(self._frame)

    def _place(self, size: int) -> F:
        if self.closed:
            return self._new_frame()
        size += ITEM_OVERHEAD
        if (self._size + size > self._limit and self._size) or (self._items >= FIRST_ITEMS and not self._full):
            self._full.append((self._frame, self._size))
            self._frame = self._new_frame()
            self._size = self._items = 0
            self._wake.set()
        self._size += size
        self._items += 1
        self._queued += size
        if self._queued > QUEUE_BYTES:
            self.overrun = self.closed = True
            self._wake.set()
        return self._frame

    async def take(self) -> F | None:
        """The next frame, once there is something to say; None when the batcher is closed and empty."""
        while not self._full and not (self._size and (self._due or self.closed)):
            if self.closed:
                return None
            self._due = False
            self._wake.clear()
            await self._wake.wait()
        if self._full:
            frame, size = self._full.popleft()
        else:
            frame, size = self._frame, self._size
            self._frame = self._new_frame()
            self._size = self._items = 0
            self._due = False
        self._queued -= size
        return frame

    def close(self) -> None:
        """Nothing more is said; what was said is still taken."""
        self.closed = True
        self._wake.set()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be taken."""
        return self._queued
