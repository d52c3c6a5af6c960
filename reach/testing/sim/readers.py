"""What one reader of a task must see: no gap and no double but those it is told of, and in the end the whole text."""

from __future__ import annotations

from typing import Any

from reach.core.dialogue import Question
from reach.core.model import TaskKey, TaskState
from reach.core.pieces import Kind, Mode
from reach.testing.sim.checker import Checker
from reach.testing.sim.truth import Ending, ending_of

Event = tuple[int, int, int, int, Any]
"""(sequence, attempt, wall_ms, kind, data)"""


class ReaderCheck:
    """One subscription, at the server's door: numbers are dense from where it began."""

    __slots__ = ("_after", "_checker", "_key", "_name", "_over")

    def __init__(self, checker: Checker, key: TaskKey, name: str, after: int) -> None:
        self._checker = checker
        self._key = key
        self._name = name
        self._after = after
        self._over = False

    def told(self, event: Event) -> None:
        """The reader is told an event."""
        number, attempt, _, kind, data = event
        if self._over:
            self._violate(f"event {number} comes after the last one")
        if kind == Kind.GAP:
            if (data.first, data.last) != (self._after + 1, number):
                self._violate(f"a gap from {data.first} to {data.last} ({number}) comes after {self._after}")
        elif number != self._after + 1:
            self._violate(f"event {number} ({Kind(kind).name}) comes after {self._after}")
        if number <= self._after:
            self._violate(f"event {number} comes after {self._after}: numbers only grow")
        self._after = number
        self._over = kind == Kind.COMPLETE
        if kind == Kind.COMPLETE:
            self._checker.callers.numbered(self._key, number, kind, ending_of(data))
        elif kind != Kind.GAP:
            self._checker.callers.numbered(self._key, number, kind, (attempt, _digest(data)))

    def _violate(self, message: str) -> None:
        self._checker.violate("NO_GAP_NO_DOUBLE", self._key, f"reader {self._name}: {message}")


def _digest(data: Any) -> Any:
    if isinstance(data, Question):
        return tuple(data._replace(asked_ms=0, until_ms=0))  # these are by the clock of one process, and told to nobody
    return tuple(data) if isinstance(data, tuple) else data


class Text:
    """What a caller makes of all events of a task, over all its streams."""

    __slots__ = ("_attempt", "_checker", "_key", "_name", "last", "over", "pieces", "text", "whole")

    def __init__(self, checker: Checker, key: TaskKey, name: str, pieces: Any) -> None:
        self._checker = checker
        self._key = key
        self._name = name
        self.pieces = pieces
        """Asked what an attempt has said so far: every text that it has streamed, by attempt."""
        self.last = 0
        self.text = ""
        self.whole = True
        """The text is all that there is; False after a gap for which nobody had the text."""
        self.over = False
        self._attempt = 0

    def __repr__(self) -> str:
        return f"Text(last {self.last}, {self.text!r}, whole {self.whole})"

    def hear(self, event: Event) -> bool:
        """An event arrives. False if it is not the next one: it was for another reader that shares the stream."""
        number, attempt, _, kind, data = event
        first = data.first if kind == Kind.GAP else number
        if not first <= self.last + 1 <= number:
            return False
        self.last = number
        if kind == Kind.DELTA:
            self._delta(attempt, data)
        elif kind == Kind.ATTEMPT_RESET:
            self.text, self.whole = "", True
        elif kind == Kind.GAP:
            self._gap(attempt, data)
        elif kind == Kind.RESUMED:
            self.whole = False
        elif kind == Kind.COMPLETE:
            self.over = True
            self._complete(data)
        return True

    def _delta(self, attempt: int, data: Any) -> None:
        _, mode, _, content = data
        if mode == Mode.REPLACE:
            self.text, self.whole = content, True
        elif self.text and self.whole and attempt != self._attempt:
            self._violate(f"the text of attempt {attempt} goes on where that of attempt {self._attempt} stood")
        else:
            self.text += content
        self._attempt = attempt
        self._check_said(attempt)

    def _gap(self, attempt: int, data: Any) -> None:
        if data.snapshot:
            self.text, self.whole, self._attempt = data.snapshot[0].content, True, attempt
            self._check_said(attempt)
        else:
            self.whole = False

    def _check_said(self, attempt: int) -> None:
        if self.whole and not any(said.startswith(self.text) for said in self.pieces(self._key, attempt)):
            self._violate(f"{self.text!r} is not how the text of attempt {attempt} begins")

    def _complete(self, ending: Ending) -> None:
        state, content, _, attempt, _ = ending
        if state == TaskState.SUCCEEDED and self.whole and self.text and self.text != content:
            self._violate(f"its text is {self.text!r}, the outcome of attempt {attempt} is {content!r}")

    def _violate(self, message: str) -> None:
        if self._checker.truth(self._key).reborn:
            return  # what is volatile begins anew after a crash, with the same numbers: nothing is promised across that
        self._checker.violate("TEXT_IS_THE_WINNERS", self._key, f"reader {self._name}: {message}")
