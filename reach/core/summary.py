"""The summary of turns that have become too old to be given as they were: extractive, so it invents nothing (SES-3).

Of each side of a turn the sentence is kept whose words occur most often in the whole conversation; a line per side.
What is too long altogether loses its least telling lines, of two alike the older one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from reach.core.context import SUMMARY_BYTES, Exchange, Said

LINE_BYTES = 200
"""Longest line."""
LOOKED_AT = 1 << 10
"""Characters of one side that are looked at: what matters is said early, and time is short."""

_END = re.compile("(?<=[.!?\u2026])\\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_WORD = re.compile(r"[^\W\d_]{3,}|\d{2,}")


def words_of(text: str) -> list[str]:
    """Words that may say something; those of one or two letters seldom do."""
    return _WORD.findall(text.casefold())


def _text(said: Said) -> str:
    return said.content[:LOOKED_AT] if isinstance(said.content, str) else ""


def _sentences(text: str) -> list[str]:
    return [part.strip() for part in _END.split(text)]


def _best(text: str, weights: Counter[str]) -> str:
    """The most telling sentence of a text. What is said again and again, such as a greeting, tells little."""
    best, most = "", -1.0
    for sentence in _sentences(text):
        words = set(words_of(sentence))
        value = sum(weights[word] for word in words) / (4 + len(words)) / max(1, weights[f"\0{sentence}"])
        if sentence and value > most:
            best, most = sentence, value
    return " ".join(best.split())


def _first(text: str) -> str:
    """The first sentence of a text."""
    return " ".join(_END.split(text[: 2 * LINE_BYTES].strip(), 1)[0].split())


def _cut(line: str, most: int = LINE_BYTES) -> str:
    data = line.encode()
    return line if len(data) <= most else data[: most - 3].decode(errors="ignore") + "…"


def lines_of(turns: Iterable[Exchange], weights: Counter[str] | None = None) -> list[str]:
    """Turns in short: a line for what was asked, and one for what was answered. By weights the most telling sentence,
    without them the first one."""
    found: list[str] = []
    for turn in turns:
        for who, said in ((turn.asked_by or "user", turn.request), (turn.agent_id or "agent", turn.response)):
            line = _best(_text(said), weights) if weights is not None else _first(_text(said))
            if line:
                found.append(_cut(f"{who}: {line}"))
        if turn.error and not _text(turn.response):
            found.append(_cut(f"{turn.agent_id or 'agent'}: failed, {turn.error}"))
    return found


def extract(summary: str, turns: Sequence[Exchange], most: int = SUMMARY_BYTES) -> str:
    """A summary of what was summarised before and of some turns, at most `most` bytes."""
    texts = [_text(said) for turn in turns for said in (turn.request, turn.response)]
    weights = Counter(word for text in (summary, *texts) for word in words_of(text))
    weights.update(f"\0{sentence}" for text in texts for sentence in _sentences(text))  # how often each was said
    lines = [*summary.splitlines(), *lines_of(turns, weights)]
    lines = list(dict.fromkeys(line for line in lines if line))
    size = sum(len(line.encode()) + 1 for line in lines)
    values = {line: sum(weights[word] for word in set(words_of(line))) / (4 + len(line)) for line in lines}
    for line in sorted(lines, key=values.__getitem__):  # stable: of two alike the older one goes first
        if size <= most:
            break
        lines.remove(line)
        size -= len(line.encode()) + 1
    return "\n".join(lines)
