"""Bodies of answers, bounded: whole, as lines, as server-sent events."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib import import_module
from typing import Any

from reach.wire.agent_answers import RAW_BYTES


class BodyTooLarge(Exception):
    """There is more than may be.

    Attributes:
        came: The first of it.
    """

    def __init__(self, problem: str, came: bytes | bytearray) -> None:
        super().__init__(problem)
        self.came = bytes(came[: 2 * RAW_BYTES])


async def whole(response: Any, limit: int, *, cut: bool = False) -> bytes:
    """A whole body; `cut`: the first of it, if there is more. Raises BodyTooLarge."""
    body = bytearray()
    async for piece in response.aiter_stream():
        body += piece
        if len(body) > limit:
            if cut:
                return bytes(body[:limit])
            raise BodyTooLarge(f"has over {limit} bytes", body)
    return bytes(body)


async def beginning(response: Any, limit: int, seconds: float) -> bytes:
    """What comes of a body in that time, and no more than `limit`; that it breaks is its end too."""
    body = bytearray()
    with suppress(TimeoutError, *import_module("reach.transports.guarded").FAILURES):
        async with asyncio.timeout(seconds):
            async for piece in response.aiter_stream():
                body += piece
                if len(body) >= limit:
                    break
    return bytes(body[:limit])


class Lines:
    """Cuts what comes into lines. What a piece costs does not grow with what came before: some send byte by byte."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    @property
    def rest(self) -> bytes:
        """What has no end yet."""
        return bytes(self._rest)

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that are whole now. Raises BodyTooLarge for one over the limit."""
        self._rest += piece
        lines: list[bytes] = []
        if b"\n" in piece:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        too_long = next((line for line in lines if len(line) > self._limit), None)
        if too_long is not None or len(self._rest) > self._limit:
            raise BodyTooLarge(f"has a line of over {self._limit} bytes", too_long or self._rest)
        return [line.removesuffix(b"\r") for line in lines]


class Events:
    """Cuts what comes into server-sent events: (name, data). What is not UTF-8 is replaced, as the standard says. Lines
    end in LF or CRLF; no server uses the lone CR of the standard."""

    def __init__(self, limit: int) -> None:
        self._lines = Lines(limit)
        self._limit = limit
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    @property
    def rest(self) -> bytes:
        """What has no end yet."""
        return self._lines.rest

    def feed(self, piece: bytes) -> list[tuple[str, str]]:
        """The events that are whole now. Raises BodyTooLarge for one over the limit."""
        found = []
        for line in self._lines.feed(piece):
            if not line:
                if self._data or self._name:
                    found.append((self._name, "\n".join(self._data)))
                self._name, self._data, self._size = "", [], 0
                continue
            field, _, value = line.decode("utf-8", "replace").partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                self._name = value
            elif field == "data":
                self._size += len(value) + 1
                if self._size > self._limit:
                    first = "\n".join([*self._data, value])[: 2 * RAW_BYTES]
                    raise BodyTooLarge(f"has an event of over {self._limit} bytes", first.encode())
                self._data.append(value)
        return found
