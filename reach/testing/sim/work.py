"""What an agent does with one attempt: a few steps with pauses, decided when it begins."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from reach.core.model import EffectKind, Fault
from reach.core.pieces import Delta, Mode
from reach.errors import ErrorClass, Reason

Step = tuple[float, str, Any]
"""(seconds before it, what, with what)"""

FAILURES = (
    (ErrorClass.INVALID_REQUEST, Reason.INVALID_FIELD),
    (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY),
    (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE),
    (ErrorClass.TIMEOUT, Reason.START_TO_CLOSE),
    (ErrorClass.INTERNAL, Reason.AGENT_CRASHED),
    (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED),
    (ErrorClass.AGENT_ERROR, Reason.AGENT_REJECTED),
)
CREDIT = 2_000
"""Bytes an attempt may send before the server gives it room. The SDK's 256 KiB would never be used up here."""
KEEP = 1_500
"""Bytes of pieces that are held for a replay (1 MiB in the SDK)."""


class Manners(NamedTuple):
    """How the agents of a history behave."""

    bad: float
    streams: float
    effects: float
    unary: float
    stubborn: float
    """Share of stops that nobody hears: not every agent is made with our SDK."""
    asks: float = 0.0
    """Share of attempts that ask their caller something, once or twice."""


def steps_of(random: Random, manners: Manners, effects: EffectKind | None) -> list[Step]:
    """What an attempt comes to. The last step is its end; without one it hangs."""
    steps: list[Step] = []
    short = random.random() < 0.6

    def pause() -> float:
        return 0.2 * random.random() if short else 2.0 * random.random()

    if random.random() < 0.15:
        steps.append((pause(), "progress", (0.5, "half", None)))
    if random.random() < 0.1:
        steps.append((pause(), "progress", (None, "", random.randbytes(4))))
    streams = random.random() < manners.streams
    if streams:
        steps += [(pause(), "piece", None) for _ in range(random.randrange(1, 8))]
    if manners.asks and random.random() < manners.asks:
        steps += [(pause(), "ask", f"q{number}") for number in range(random.choice((1, 1, 2)))]
    if effects is EffectKind.IRREVERSIBLE:
        steps.append((pause(), "effect", None))
    if random.random() < manners.bad:
        return steps + _bad_end(random)
    steps.append((pause(), "answer", "folded" if streams else "output"))
    return steps


def _bad_end(random: Random) -> list[Step]:
    chance = random.random()
    if chance < 0.1:
        return []  # it hangs
    if chance < 0.2:
        return [(20.0 + 20.0 * random.random(), "answer", "output")]
    if chance < 0.3:
        return [(random.random(), "released", "not now")]
    error_class, reason = random.choice(FAILURES)
    return [(random.random(), "fail", Fault(error_class, reason, "it went wrong"))]


class Flow:
    """The pieces of one attempt: their numbers, the credit they need, what is kept for a replay (`sdk.flow.Flow`)."""

    __slots__ = ("granted", "last", "mute", "named", "pieces", "spent", "text", "whole")

    def __init__(self) -> None:
        self.granted = CREDIT
        self.spent = 0
        self.last = 0
        self.whole = False
        self.mute = False
        self.named = 0
        self.text = ""
        self.pieces: list[Delta] | None = []

    def add(self, text: str) -> Delta:
        """Numbers and keeps a piece."""
        delta = Delta("", Mode.APPEND, "text/plain", text)
        self.last += 1
        self.text += text
        self.spent += len(text)
        if self.pieces is not None:
            self.pieces.append(delta)
            if len(self.text) > KEEP:
                self.pieces = None
        return delta

    def replay(self, after: int) -> list[tuple[int, Delta]] | None:
        """All pieces after a number, or None if some are no longer held."""
        if self.pieces is None:
            return [] if after == self.last else None
        return list(enumerate(self.pieces, 1))[after:]


class Run:
    """One attempt that runs in an agent."""

    __slots__ = (
        "asked", "attempt", "cancelled", "ended", "flow", "key", "map_name", "paused", "question", "questions_asked",
        "silent", "steps",
    )  # fmt: skip

    def __init__(self, key: tuple[str, str], attempt: int, steps: list[Step]) -> None:
        self.key = key
        self.attempt = attempt
        self.steps = steps
        self.flow: Flow | None = None
        self.asked = False
        """It waits for permission to begin its effect."""
        self.questions_asked = 0
        """How often it has asked for permission."""
        self.question = ""
        """It waits for an answer to this."""
        self.paused = False
        """It waits for credit."""
        self.cancelled = False
        self.silent = False
        self.ended = False


class Outcome:
    """What became of an attempt, until the server has it for certain and for a while after (`sdk.outcomes`)."""

    __slots__ = ("attempt", "content", "folded", "is_error", "key", "sent_at", "whole")

    def __init__(self, key: tuple[str, str], attempt: int, content: tuple[str, Any], whole: str | None = None) -> None:
        self.key = key
        self.attempt = attempt
        self.content = content
        """(how, what), see `agent_door.event_of`."""
        self.whole = whole
        """The whole text, if the content leaves that to the pieces."""
        self.folded = whole is not None
        """The content did, at first: that may still be refused when it comes whole."""
        self.is_error = content[0] == "fault"
        self.sent_at = -1e9

    def make_whole(self) -> None:
        """The server may lack pieces: the text comes whole."""
        if self.whole is not None:
            self.content, self.whole = ("output", self.whole), None
