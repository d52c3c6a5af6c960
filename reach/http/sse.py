"""A stream of responses as server-sent events, which browsers and curl read as they come.

Each event of a task is one of its own: `id` is its sequence, which the reader sends back as `Last-Event-ID` to go on
behind it; `event` is its kind. Of a watch each response is one. An error after the start is an event `problem`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.types import Send

from reach.errors import ReachError
from reach.http.messages import encode
from reach.http.problems import HEADERS, TRACE_KEY, document, problem, trace_of_call
from reach.http.routes import Row

START_SECONDS: Final = 1.0
"""How long a refusal has time to become the status of the answer; then the stream begins, though nothing is said."""
BEAT_SECONDS: Final = 15.0
"""How often a silent stream says that it is there."""
RETRY_MS: Final = 1_000
"""When a reader whose connection broke is to come back."""

_OPEN: Final = {**HEADERS, "content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}


class EventStream:
    """One answer that is a stream of events."""

    def __init__(self, row: Row) -> None:
        self._resume = row.resume
        self._begun = False
        self._ended = False
        self._last_sent = 0.0

    async def write(self, responses: AsyncGenerator[Any, None], send: Send) -> None:
        """Writes all that comes. What is refused before anything was said is a plain answer."""
        try:
            async with aclosing(responses):
                async for response in responses:
                    for event in self._events(response):
                        await self._send(send, event)
        except ReachError as error:
            await self.end(send, error)
            return
        if not self._begun:
            # A task that ended, read to its end before: 204 tells browsers not to come again.
            await self._plain(send, 204, {**HEADERS}, b"")
        await self.end(send)

    async def beat(self, send: Send) -> None:
        """Keeps a silent stream open, until it is cancelled."""
        await asyncio.sleep(START_SECONDS)
        loop = asyncio.get_running_loop()
        if not self._begun:
            await self._send(send, b"")
        while True:
            await asyncio.sleep(max(0.0, self._last_sent + BEAT_SECONDS - loop.time()))
            if loop.time() - self._last_sent >= BEAT_SECONDS:
                await self._send(send, b":\n\n")

    async def end(self, send: Send, error: ReachError | None = None) -> None:
        """Ends the answer, with what went wrong if anything did."""
        if self._ended:
            return
        if error is not None and not self._begun:
            refusal = problem(error, trace_id=trace_of_call())
            await self._plain(send, refusal.status_code, dict(refusal.headers), bytes(refusal.body))
            return
        if error is not None:
            await self._send(send, _event("problem", document(error, trace_id=trace_of_call())))
        self._ended = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _plain(self, send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
        self._begun = self._ended = True
        await send({"type": "http.response.start", "status": status, "headers": _raw(headers)})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        if self._ended:
            return
        if not self._begun:
            self._begun = True
            headers = _raw({**_OPEN, TRACE_KEY: trace_of_call()})
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            data = b"retry: %d\n\n" % RETRY_MS + data
        self._last_sent = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    def _events(self, response: Any) -> Iterator[bytes]:
        """One response as events: those of a task one by one, where a reader can go on behind each."""
        if self._resume != "cursor" and "events" in response.DESCRIPTOR.fields_by_name and _numbered(response):
            for event in response.events:
                yield _text(event.WhichOneof("kind") or "event", encode(event), str(event.sequence))
            return
        yield _text("change", encode(response), response.cursor if self._resume == "cursor" else "")


def _numbered(response: Any) -> bool:
    """Whether its events are those of one task."""
    return len(response.DESCRIPTOR.fields) == 1


def _event(kind: str, fields: dict[str, object]) -> bytes:
    return _text(kind, msgspec.json.encode(fields))


def _text(kind: str, data: bytes, event_id: str = "") -> bytes:
    """One event. Its data is JSON, which has no line breaks."""
    named = f"id: {event_id}\n" if event_id else ""
    return f"{named}event: {kind}\ndata: ".encode() + data + b"\n\n"


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items() if value]
