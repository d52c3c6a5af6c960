"""Which sentences say most about a document: extractive summarising, in plain functions.

Four signals, each from 0 to 1, are added with the weights in `WEIGHTS`:

* rank      TextRank: R. Mihalcea, P. Tarau, "TextRank: Bringing Order into Texts", EMNLP 2004. Sentences that share
            words vote for each other: overlap / (log |a| + log |b|), then PageRank with damping 0.85.
* centroid  cosine between the sentence and the mean of the document: D. Radev, H. Jing, D. Budzikowska,
            "Centroid-based summarization of multiple documents", NAACL-ANLP 2000.
* position  first sentences of a document and of a section: H. P. Edmundson, "New Methods in Automatic Extracting",
            Journal of the ACM 16(2), 1969 ("location method").
* title     the share of the heading's words that the sentence repeats (the same paper, "title method").

The sum is lowered for fragments (no full stop) and for sentences that lean on the one before ("However, it …"; the same
paper's "stigma words").

Sentences are then chosen one by one by maximal marginal relevance, which trades score against likeness to what is
already chosen: J. Carbonell, J. Goldstein, "The Use of MMR", SIGIR 1998. Sentences of under five words are left out
when others can be had, as in J. Kupiec, J. Pedersen, F. Chen, "A Trainable Document Summarizer", SIGIR 1995.

Long documents are ranked in parts of at most `PART_SIZE` sentences, so that time grows with the length, not its square.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reach.demo_agents.text import Document, Sentence, is_cjk

WEIGHTS = {"rank": 0.4, "centroid": 0.3, "position": 0.2, "title": 0.1}
DAMPING = 0.85
PART_SIZE = 60
MMR_LAMBDA = 0.7
SAME = 0.8  # cosine from which two sentences count as saying the same
SHORTEST, LONGEST = 5, 45  # words
FRAGMENT, LEANING = 0.7, 0.8  # factors

_FULL_STOPS = (".", "!", "?", "…", "。", "！", "？")  # noqa: RUF001
_WORD = re.compile(r"[^\W_]+(?:['’.\-_][^\W_]+)*")  # noqa: RUF001
STOPWORDS = frozenset(
    "a about above after again against all also am an and any are aren't as at be because been before being below "
    "between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down during each else "
    "ever every few for from further get gets got had hadn't has hasn't have haven't having he her here hers herself "
    "him himself his how however i if in into is isn't it its it's itself just let like may me might more most much "
    "must my myself no nor not now of off on once one only or other our ours ourselves out over own per same shall she "
    "should shouldn't since so some such than that that's the their theirs them themselves then there these they this "
    "those through thus to too under until up upon us very was wasn't we were weren't what when where whether which "
    "while who whom whose why will with within without won't would wouldn't yet you your yours yourself "
    "yourselves".split()
)
# First words that lean on the sentence before.
_LEANING = frozenset(
    "also alternately alternatively and but conversely consequently finally first furthermore he hence here however "
    "it likewise meanwhile moreover nevertheless nor otherwise previously second she similarly so such that then "
    "therefore these they third this those thus".split()
)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of sentences that are ranked against each other, and the heading at its beginning."""

    title: str
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A sentence with its score (0 to 1) and its weighted terms, of length 1 as a vector."""

    sentence: Sentence
    score: float
    vector: dict[str, float]


def terms(text: str) -> list[str]:
    """The words that carry meaning: lower case, without stop words, plural folded; pairs of characters for CJK."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        if any(map(is_cjk, word)):
            found.extend(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        elif word not in STOPWORDS and len(word) > 1:
            found.append(singular(word))
    return found


def singular(word: str) -> str:
    """Fold an English plural: the S-stemmer of D. Harman, "How Effective is Suffixing?", JASIS 42(1), 1991."""
    if word.endswith("ies") and not word.endswith(("eies", "aies")) and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and len(word) > 3:
        return word[:-1]
    return word


def length(sentence: str) -> int:
    """Length in words; in scripts without spaces two characters count as one word."""
    cjk = sum(map(is_cjk, sentence))
    return cjk // 2 if cjk > len(sentence) // 2 else len(sentence.split())


def default_count(sentences: int) -> int:
    """How many sentences to choose if nobody says: the square root of what there is, from 3 to 12."""
    return min(sentences, max(3, min(12, round(math.sqrt(sentences)))))


def parts_of(document: Document) -> list[Part]:
    """Short sections are put together and long ones cut, so that no part has more than `PART_SIZE` sentences."""
    parts: list[Part] = []
    title, run = "", list[Sentence]()
    for section in document.sections:
        if run and len(run) + len(section.sentences) > PART_SIZE:
            parts.append(Part(title, tuple(run)))
            run = []
        title = title if run else section.title
        run.extend(section.sentences)
        while len(run) > PART_SIZE:
            parts.append(Part(title, tuple(run[:PART_SIZE])))
            run, title = run[PART_SIZE:], section.title
    if run:
        parts.append(Part(title, tuple(run)))
    return parts


class Ranker:
    """Scores a document part by part, so that a long one can show its progress.

    ranker = Ranker(document)
    scored = [s for part in ranker.parts for s in ranker.score(part)]
    """

    def __init__(self, document: Document) -> None:
        sentences = document.sentences
        self.parts = parts_of(document)
        self._terms = [terms(sentence.text) for sentence in sentences]
        seen_in = Counter(term for words in self._terms for term in set(words))
        total = len(sentences)
        # Inverse sentence frequency, never below a small floor: a word in every sentence still says a little.
        self._weight = {term: 0.1 + math.log(total / count) for term, count in seen_in.items()}
        centroid: Counter[str] = Counter()
        for words in self._terms:
            centroid.update(words)
        self._centroid = _unit({term: count * self._weight[term] for term, count in centroid.items()})
        document_title = set(terms(document.title))
        self._titles = [set(terms(section.title)) | document_title for section in document.sections]

    def score(self, part: Part) -> list[Scored]:
        """Score the sentences of one part; scores of different parts can be compared."""
        words = [self._terms[sentence.index] for sentence in part.sentences]
        vectors = [_unit({t: n * self._weight[t] for t, n in Counter(ws).items()}) for ws in words]
        ranks = _scaled(text_rank([set(ws) for ws in words]))
        likeness = [cosine(vector, self._centroid) for vector in vectors]
        scored: list[Scored] = []
        for i, sentence in enumerate(part.sentences):
            title = self._titles[sentence.section]
            signals = {
                "rank": ranks[i],
                "centroid": likeness[i],
                "position": (1 / math.sqrt(1 + sentence.index) + 1 / math.sqrt(1 + sentence.position)) / 2,
                "title": len(title & set(words[i])) / len(title) if title else 0.0,
            }
            score = sum(WEIGHTS[name] * value for name, value in signals.items())
            scored.append(Scored(sentence, score * readability(sentence), vectors[i]))
        return scored


def readability(sentence: Sentence) -> float:
    """The factor, at most 1, for how well a sentence reads on its own."""
    factor = 1.0 if sentence.text.rstrip("\"'”’»)]").endswith(_FULL_STOPS) else FRAGMENT  # noqa: RUF001
    first = _WORD.search(sentence.text.lower())
    return factor * LEANING if first and first.group() in _LEANING and sentence.position > 0 else factor


def text_rank(sentences: Sequence[set[str]], *, rounds: int = 50, precision: float = 1e-4) -> list[float]:
    """TextRank of sentences given as sets of terms; the sum over a connected graph is about their number."""
    size = len(sentences)
    links: list[dict[int, float]] = [{} for _ in sentences]
    for i, a in enumerate(sentences):
        for j in range(i):
            shared = len(a & sentences[j])
            if shared:
                # 1 + |s|: the paper's log |s| is 0 for a sentence of one word.
                link = shared / (math.log(1 + len(a)) + math.log(1 + len(sentences[j])))
                links[i][j] = links[j][i] = link
    out = [sum(row.values()) for row in links]
    ranks = [1.0] * size
    for _ in range(rounds):
        new = [
            1 - DAMPING + DAMPING * sum(weight / out[j] * ranks[j] for j, weight in links[i].items())
            for i in range(size)
        ]
        moved = max((abs(a - b) for a, b in zip(new, ranks, strict=True)), default=0.0)
        ranks = new
        if moved < precision:
            break
    return ranks


def select(scored: Sequence[Scored], count: int) -> list[Sentence]:
    """Choose up to `count` sentences by maximal marginal relevance, in document order.

    Too short and too long ones, and those that end in a colon (they announce something that would be missing), are
    taken only if there is nothing else. Sentences that repeat a chosen one (cosine >= `SAME`) are never taken, so that
    fewer than `count` may come back.
    """
    eligible = [s for s in scored if _stands_alone(s.sentence.text)] or list(scored)
    chosen: list[Scored] = []
    nearest = [0.0] * len(eligible)
    left = set(range(len(eligible)))
    while left and len(chosen) < count:
        best = max(left, key=lambda i: (MMR_LAMBDA * eligible[i].score - (1 - MMR_LAMBDA) * nearest[i], -i))
        chosen.append(eligible[best])
        left.discard(best)
        for i in list(left):
            nearest[i] = max(nearest[i], cosine(eligible[i].vector, eligible[best].vector))
            if nearest[i] >= SAME:
                left.discard(i)
    return [s.sentence for s in sorted(chosen, key=lambda s: s.sentence.index)]


def summarize(document: Document, count: int | None = None) -> Iterator[str]:
    """The chosen sentences of a document, in its order; `count` as `default_count` says if it is None."""
    ranker = Ranker(document)
    scored = [s for part in ranker.parts for s in ranker.score(part)]
    for sentence in select(scored, default_count(len(scored)) if count is None else count):
        yield sentence.text


def cosine(a: dict[str, float], b: dict[str, float]) -> float:
    """Cosine of two vectors of length 1 (or empty)."""
    if len(a) > len(b):
        a, b = b, a
    return sum(weight * b[term] for term, weight in a.items() if term in b)


def _stands_alone(sentence: str) -> bool:
    return SHORTEST <= length(sentence) <= LONGEST and not sentence.endswith((":", "："))  # noqa: RUF001


def _unit(vector: dict[str, float]) -> dict[str, float]:
    norm = math.sqrt(sum(weight * weight for weight in vector.values()))
    return {term: weight / norm for term, weight in vector.items()} if norm else {}


def _scaled(values: Sequence[float]) -> list[float]:
    largest = max(values, default=0.0)
    return [value / largest for value in values] if largest else [0.0 for _ in values]
