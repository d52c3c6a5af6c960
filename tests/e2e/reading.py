"""What a reader makes of the events of a task, and what must hold of every sequence of them (P4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Text:
    """The main channel as a reader shows it, by the rules of the contract: append, replace, reset, gap."""

    def __init__(self) -> None:
        self.value = ""
        self.result = ""
        self.whole = True
        """Nothing is missing that no snapshot made good."""
        self.kinds: list[str] = []
        self.last = 0
        self.attempts: set[int] = set()
        self.ended = False

    def add(self, event: Any) -> None:
        """One event. Sequences only grow, and nothing follows the final event."""
        assert event.sequence > self.last, (event.sequence, self.last)
        assert not self.ended
        self.last = event.sequence
        kind = event.WhichOneof("kind")
        self.kinds.append(kind)
        if event.attempt:
            self.attempts.add(event.attempt)
        if kind == "delta" and not event.delta.channel:
            text = event.delta.payload.text
            self.value = text if event.delta.mode == 2 else self.value + text
        elif kind == "attempt_reset":
            assert event.attempt_reset.keep_up_to_sequence == 0
            self.value, self.whole = "", True
        elif kind == "gap":
            main = [one.payload.text for one in event.gap.snapshot if not one.channel]
            self.value, self.whole = "".join(main), bool(main)
        elif kind == "complete":
            self.ended = True
            self.result = event.complete.output.text
            if not (self.whole and self.value):
                self.value = self.result

    def read(self, frames: Iterable[Any]) -> Text:
        """All events of a call."""
        for frame in frames:
            for event in frame.events:
                self.add(event)
        return self
