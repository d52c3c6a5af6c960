"""Content match (RTE-5): how well a text fits what agents say of their capabilities, by words.

The match of a text q with a document d is 0 … 1, the largest of three figures:

    coverage  Σ idf(t)·w(t, d) over the words t of q  /  Σ idf(t) over the words of q
    named     0.6 + 0.4 · coverage, if all words of the skill's name, or of one of its aliases, are in q
    example   Σ 2·idf(t) over the words of both q and an example e  /  (Σ idf of q's + Σ idf of e's), for the best e

with idf(t) = ln(1 + N / df(t)) as in BM25's family, N documents of which df(t) have the word, and ln 2, the least there
is, for words that no document has; w is 1 for words of name, aliases, tags and examples, 0.7 for those that only the
description has, else 0. There is no credit for length or repetition: requests are short and descriptions are lists.
A document is left out if q has a name that its skill excludes, word by word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import floor, log
from typing import NamedTuple

from reach.core.documents import Document
from reach.core.vocabulary import Skill

MAX_TEXT = 4_000
"""Characters of a text that are looked at."""
MAX_WORDS = 64
"""Different words of a text that are looked at."""
MAX_SCORED = 2_000
"""Documents that are scored for one text, those with the rarest words first."""
KEPT = 32
"""Documents that a request may go to, the best first. Equal documents are one, however many agents declare them."""
STEP = 5
"""Matches are kept in steps of 5 percent, so that texts that fit alike wait in one queue."""
THRESHOLD = 0.6
"""The least match of a candidate."""
DESCRIPTION = 0.7
NAMED = 0.6

_WORD = re.compile(r"[^\W_]+")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
"""Scripts without spaces between words: read as pairs of characters."""
_ENDINGS = tuple(
    "izations ization isation ations ation ating ators ator ates ated ate izing ising izes ized izer ises ised ings ing"
    " ions ion ize ise ies ers er es ed s e y".split()
)
_STEM = 4
"""What is left of a word when its ending is cut off has at least so many characters."""
_EMPTY = frozenset(
    "a about an and any are as at be been by can could do does for from give has have hello hey hi how i if in into is"
    " it its just let like may me my need of on or our please shall should so some thank thanks that the their them"
    " there these they this those to us want was we were what when where which who will with would you your".split()
)


def stem(word: str) -> str:
    """A word without a common English ending: `summarize` and `summarization` are one word."""
    if word.isascii() and len(word) > _STEM:
        for ending in _ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= _STEM:
                return word[: -len(ending)]
    return word


def words(text: str) -> tuple[str, ...]:
    """The different words of a text, in order, without those that say nothing; at most MAX_WORDS."""
    found: dict[str, None] = {}
    for piece in _WORD.findall(text[:MAX_TEXT].casefold()):
        if len(found) >= MAX_WORDS:
            break
        wide = _WIDE.findall(piece)
        if wide:
            for run in wide:
                found.update(dict.fromkeys(run[at : at + 2] for at in range(max(1, len(run) - 1))))
        elif piece not in _EMPTY:
            found[stem(piece)] = None
    return tuple(found)[:MAX_WORDS]


def spelled(text: str) -> str:
    """A text as its words are written, with `_` around each, so that a name is found as a part of it."""
    return f"_{'_'.join(_WORD.findall(text[:MAX_TEXT].casefold()))}_"


class Entry(NamedTuple):
    """A document as words."""

    weights: dict[str, float]
    names: tuple[frozenset[str], ...]
    examples: tuple[frozenset[str], ...]
    excluded: tuple[str, ...]
    """Names that must not be in a text, as `spelled` spells them."""


def entry_of(document: Document, skill: Skill | None) -> Entry:
    """The words of a document and of its skill."""
    names = [document.declared, document.name, *(skill.aliases if skill is not None else ())]
    weights: dict[str, float] = {}
    described = [document.description, skill.description if skill is not None else ""]
    for text in described:
        weights.update(dict.fromkeys(words(text), DESCRIPTION))
    named = [frozenset(words(name.replace("_", " "))) for name in names]
    examples = [frozenset(words(example)) for example in document.examples]
    tags = [frozenset(words(tag.replace("_", " "))) for tag in document.tags]
    for group in (*named, *examples, *tags):
        weights.update(dict.fromkeys(group, 1.0))
    excluded = tuple(spelled(name) for name in (skill.exclude if skill is not None else ()))
    return Entry(weights, tuple(filter(None, named)), tuple(filter(None, examples)), excluded)


class Lexicon:
    """The documents of one tenant's agents by their words. Documents are counted: many instances declare one."""

    __slots__ = ("_counts", "_documents", "_entries")

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._counts: dict[str, int] = {}
        self._documents: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, digest: str, entry: Entry) -> None:
        """One more instance declares this document."""
        count = self._counts.get(digest, 0)
        self._counts[digest] = count + 1
        if not count:
            self._entries[digest] = entry
            for word in entry.weights:
                self._documents.setdefault(word, {})[digest] = None

    def remove(self, digest: str) -> None:
        """One instance less declares it."""
        count = self._counts.get(digest, 0) - 1
        if count > 0:
            self._counts[digest] = count
            return
        self._counts.pop(digest, None)
        entry = self._entries.pop(digest, None)
        for word in entry.weights if entry is not None else ():
            having = self._documents[word]
            having.pop(digest, None)
            if not having:
                del self._documents[word]

    def idf(self, word: str) -> float:
        """How much a word says: ln(1 + N / df)."""
        having = self._documents.get(word)
        return log(1 + len(self._entries) / len(having)) if having else log(2)

    def matches(self, text: str) -> dict[str, float]:
        """The match of each document that shares a word with the text, by digest."""
        query = words(text)
        if not query or not self._entries:
            return {}
        weight = {word: self.idf(word) for word in query}
        total = sum(weight.values())
        rarest = sorted((word for word in query if word in self._documents), key=lambda word: -weight[word])
        found: dict[str, None] = {}
        for word in rarest:
            if len(found) >= MAX_SCORED:
                break
            found.update(self._documents[word])
        asked, spelling = frozenset(query), spelled(text)
        scores: dict[str, float] = {}
        for digest in list(found)[:MAX_SCORED]:
            entry = self._entries[digest]
            if entry.excluded and any(name in spelling for name in entry.excluded):
                continue
            coverage = sum(weight[word] * entry.weights.get(word, 0.0) for word in query) / total
            best = coverage
            if any(group <= asked for group in entry.names):
                best = max(best, NAMED + (1 - NAMED) * coverage)
            for example in entry.examples:
                shared = asked & example
                if shared:
                    both = sum(weight[word] for word in shared)
                    best = max(best, 2 * both / (total + sum(map(self.idf, example))))
            scores[digest] = min(1.0, best)
        return scores


def rounded_down(threshold: float) -> float:
    """The least match that is kept of scores at or over a threshold."""
    return floor(threshold * 100 / STEP + 1e-9) * STEP / 100


def accepted(scores: dict[str, float], threshold: float) -> tuple[tuple[str, int], ...]:
    """(digest, match in percent) of the best documents at or over a threshold, as a `Requirement` keeps them."""
    good = sorted(((-score, digest) for digest, score in scores.items() if score >= threshold))[:KEPT]
    return tuple(sorted((digest, STEP * round(-score * 100 / STEP)) for score, digest in good))


def match_of(documents: tuple[tuple[str, int], ...], declared: Iterable[str]) -> float:
    """The signal `match` of an instance: the best match among the documents it declares; 0 if it has none of them, and
    1 where no text was asked."""
    if not documents:
        return 1.0
    mine = set(declared)
    return max((percent for key, percent in documents if key in mine), default=0) / 100
