"""Server-sent events, from bytes to events, as https://html.spec.whatwg.org/multipage/server-sent-events.html says.

parser = SseParser()
parser.feed(b"data: caf\\xc3")           # []: bytes may be cut anywhere, also inside a character
parser.feed(b"\\xa9\\n\\n")                # [Event(name="message", data="café")]
"""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_EVENT = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Event:
    """One event; several `data` lines are joined by newlines."""

    name: str
    data: str


class EventTooLargeError(ValueError):
    """A line or an event has more than `LARGEST_EVENT` bytes."""


class SseParser:
    """Feed it bytes as they come; it gives back the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events completed by these bytes. Raises `EventTooLargeError`."""
        # A lone CR ends a line too, but one at the end of a chunk may be the first half of CR LF: it waits.
        lines = (self._rest + chunk).replace(b"\r\n", b"\n")
        held = b"\r" if lines.endswith(b"\r") else b""
        *complete, self._rest = lines[: len(lines) - len(held)].replace(b"\r", b"\n").split(b"\n")
        self._rest += held
        if len(self._rest) > LARGEST_EVENT:
            raise EventTooLargeError(f"a line of an event has more than {LARGEST_EVENT} bytes")
        return [event for line in complete if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> Event | None:
        text = line.decode("utf-8", "replace")  # as the standard says; lines are whole, so characters are too
        if self._first:
            self._first, text = False, text.removeprefix("\ufeff")
        if not text:
            event = Event(self._name or "message", "\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._size += len(line)
            if self._size > LARGEST_EVENT:
                raise EventTooLargeError(f"an event has more than {LARGEST_EVENT} bytes")
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None  # comments (": …"), id and retry are of no use here
