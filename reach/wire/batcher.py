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

F = TypeVar("F")

class Batcher(Generic[F]):
    """Frames for one stream, filled by many and taken by one.

    Args:
        new_frame: Makes an empty frame.
        limit: Bytes of a frame.
    """

    __slots__ = ("_frame", "_full", "_limit", "_new_frame", "_queued", "_size", "_wake", "closed", "overrun")

    def __init__(self, new_frame: Callable[[], F], limit: int = FRAME_BYTES) -> None:
        self._new_frame = new_frame
        self._limit = limit
        self._full: deque[tuple[F, int]] = deque()
        self._frame = new_frame()
        self._size = 0
        self._queued = 0
        self._wake = asyncio.Event()
        self.closed = False
        self.overrun = False
        """The peer left more than QUEUE_BYTES unread. Nothing more is taken, and the stream has to end; but what is
        queued is still said, so that a peer that asks for too much at once gets a part of it each time it comes."""

    def room(self, size: int = 0) -> F:
        """The frame to add one item of `size` bytes to. What is added to a closed batcher is dropped."""
        if self.closed:
            return self._new_frame()
        size += ITEM_OVERHEAD
        if self._size and self._size + size > self._limit:
            self._full.append((self._frame, self._size))
            self._frame = self._new_frame()
            self._size = 0
        self._size += size
        self._queued += size
        if self._queued > QUEUE_BYTES:
            self.overrun = self.closed = True
        self._wake.set()
        return self._frame

    async def take(self) -> F | None:
        """The next frame, once there is something in it; None when the batcher is closed and empty."""
        while not self._full and not self._size:
            if self.closed:
                return None
            self._wake.clear()
            await self._wake.wait()
            await asyncio.sleep(0)  # let this turn of the loop say all it has to say
        if self._full:
            frame, size = self._full.popleft()
        else:
            frame, size = self._frame, self._size
            self._frame = self._new_frame()
            self._size = 0
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
