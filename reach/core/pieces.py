"""What the events of a task tell: their kinds, the pieces of an answer, and what these come to."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from reach.core.model import Content

FOLD_LIMIT = 4 << 20
"""Largest text of all channels of an attempt, in bytes; each channel with a name counts a little more."""
FOLD_PIECES = 1_024
"""Pieces of a channel that are held apart before they are put together."""
EVENT_OVERHEAD = 64
"""What an event costs beside its content, in bytes."""


class Kind(IntEnum):
    """Kinds of events; numbers as the fields of `TaskEvent.kind` in the contract."""

    ACCEPTED = 5
    STARTED = 6
    DELTA = 7
    PROGRESS = 8
    ATTEMPT_RESET = 9
    COMPLETE = 10
    RESUMED = 11
    GAP = 12
    HANDOFF = 13
    DEGRADED = 14
    RETRYING = 15
    WAITING = 16
    INPUT_GIVEN = 17


class Mode(IntEnum):
    """How a delta changes its channel; numbers as in the contract."""

    APPEND = 1
    REPLACE = 2


class Delta(NamedTuple):
    """A piece of an answer."""

    channel: str
    mode: Mode
    media_type: str
    content: Content


class Gap(NamedTuple):
    """Events that are no longer held, and what they came to."""

    first: int
    last: int
    snapshot: list[Delta]


def size_in_bytes(content: Content) -> int:
    """What a content takes on the wire."""
    return len(content) if isinstance(content, bytes) or content.isascii() else len(content.encode())


class Fold:
    """What the deltas of an attempt come to, channel by channel."""

    __slots__ = ("channels", "size")

    def __init__(self) -> None:
        self.channels: dict[str, tuple[str, list[Content]]] = {}
        self.size = 0

    def add(self, delta: Delta) -> bool:
        """Applies a delta; False (and nothing changes) if the whole would be over the limit."""
        channel = self.channels.get(delta.channel)
        media_type, pieces = channel if channel is not None else (delta.media_type, [])
        change = size_in_bytes(delta.content)
        if channel is None and delta.channel:
            change += EVENT_OVERHEAD + len(delta.channel)
        if delta.mode is Mode.REPLACE:
            change -= sum(map(size_in_bytes, pieces))
        if self.size + change > FOLD_LIMIT:
            return False
        self.size += change
        if delta.mode is Mode.REPLACE:
            pieces, media_type = [], delta.media_type
        elif len(pieces) >= FOLD_PIECES:
            self.content(delta.channel)
        pieces.append(delta.content)
        self.channels[delta.channel] = (media_type, pieces)
        return True

    def content(self, channel: str = "") -> tuple[str, Content]:
        """(media type, text or bytes) of a channel. Text and bytes that were mixed come out as bytes (UTF-8)."""
        media_type, pieces = self.channels.get(channel, ("", []))
        if len(pieces) > 1:
            if all(isinstance(piece, str) for piece in pieces):
                pieces[:] = ["".join(pieces)]  # type: ignore[arg-type]
            else:
                pieces[:] = [b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)]
        return media_type, pieces[0] if pieces else ""

    def snapshot(self) -> list[Delta]:
        """All channels, each as one REPLACE delta."""
        return [Delta(channel, Mode.REPLACE, *self.content(channel)) for channel in self.channels]
