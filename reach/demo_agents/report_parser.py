"""From a question in plain words to a `Query`, by a small grammar. Every word must be understood.

The reader goes from left to right; at each place the first of `_RULES` that fits reads one or more words. Words that
carry no meaning here ("show me the …") are in `_FILLERS`. A word that nothing reads ends in `UnclearQuestionError`: a
wrong answer to a half-understood question would be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from reach.demo_agents.ranking import singular
from reach.demo_agents.report_grammar import (
    COMPARABLE,
    COMPARISONS,
    DIMENSIONS,
    MEASURE,
    MEASURES,
    Dimension,
    Measure,
    Query,
    join_words,
)
from reach.demo_agents.report_time import Condition, UnclearQuestionError, Words, read_time, tokenize

LONGEST_QUESTION = 500  # characters
DEFAULT_TOP = 5
MOST_DIMENSIONS = 2
LARGEST_NUMBER = Decimal(10) ** 12

_FILLERS = frozenset(
    "a all amount an and any are at be been can could count did do does ever for from gave get give gives got had has "
    "have how i in is it list made make many me much my number of on our overall please placed plus report see sell "
    "selling sells show shown sold sum tell that the there these this those total us was we were what which with would "
    "you ,".split()
)
_NUMBERS = {
    word: n for n, word in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), 1)
}
_GROUPING = ("grouped by", "split by", "broken down by", "for each", "in each", "for every", "by", "per", "each")
_NEGATIONS = ("not", "except for", "except", "excluding", "without", "other than", "but not", "outside", "never")
_HIGHEST = "highest most largest biggest best greatest strongest top".split()
_LOWEST = "lowest least smallest fewest worst weakest bottom".split()
# Fixed expressions of order and measure at once: phrase -> (measure, descending).
_IDIOMS = {
    "best selling": ("quantity", True),
    "bestselling": ("quantity", True),
    "worst selling": ("quantity", False),
    "sold best": ("quantity", True),
    "sells best": ("quantity", True),
    "sold most": ("quantity", True),
    "sold the most": ("quantity", True),
    "most sold": ("quantity", True),
    "returned most often": ("returns", True),
    "returned most": ("returns", True),
    "returned the most": ("returns", True),
    "most returned": ("returns", True),
    "least returned": ("returns", False),
    "most expensive": ("average unit price", True),
    "cheapest": ("average unit price", False),
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the database holds: the values that questions may name, and the days it covers (ISO, both included)."""

    regions: tuple[str, ...]
    products: tuple[str, ...]
    first_day: str
    last_day: str


@dataclass(slots=True)
class _Draft:
    """A query while it is being read."""

    words: Words
    vocabulary: Vocabulary
    measures: list[Measure] = field(default_factory=list)
    dimensions: list[Dimension] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    chosen: dict[tuple[str, bool], list[str]] = field(default_factory=dict)  # (column, negated) -> values
    order_by: Measure | None = None
    ranked: bool = False
    judged: bool = False  # by best or worst
    descending: bool = True
    limit: int | None = None
    plural: bool = False
    asked_which: bool = False
    counting: bool = False


def parse(question: str, vocabulary: Vocabulary) -> Query:
    """Understand a question, or raise `UnclearQuestionError`."""
    if len(question) > LONGEST_QUESTION:
        raise UnclearQuestionError(f"the question has {len(question)} characters; at most {LONGEST_QUESTION} are read")
    draft = _Draft(Words(tokenize(question)), vocabulary)
    if not draft.words.tokens:
        raise UnclearQuestionError("there is no question")
    while draft.words.peek():
        if not any(rule(draft) for rule in _RULES):
            raise UnclearQuestionError(f"I do not understand '{draft.words.peek()[:40]}' here")
    return _finish(draft)


def _finish(draft: _Draft) -> Query:
    """The query, if its parts make sense together."""
    if not draft.measures and draft.counting and ("product", False) in draft.chosen:
        draft.measures.append(MEASURE["quantity"])  # "how many notebooks …"
    if not draft.measures:
        raise UnclearQuestionError("it does not say what to compute, such as revenue, quantity or orders")
    if len(draft.dimensions) > MOST_DIMENSIONS:
        raise UnclearQuestionError(f"I can group by {MOST_DIMENSIONS} things at most")
    if draft.asked_which and not draft.ranked:
        raise UnclearQuestionError("'which …' needs a highest, a lowest, a most or a least")
    if draft.ranked:
        _check_ranking(draft)
    conditions = [*draft.conditions, *(_choice(*chosen) for chosen in draft.chosen.items())]
    return Query(
        tuple(draft.measures), tuple(draft.dimensions), tuple(conditions), draft.limit, draft.descending, draft.order_by
    )


def _check_ranking(draft: _Draft) -> None:
    if len(draft.dimensions) != 1:
        raise UnclearQuestionError("for a highest or lowest I need exactly one of: " + _names(DIMENSIONS))
    if draft.judged and (draft.order_by or draft.measures[0]).name in ("returns", "return rate"):
        raise UnclearQuestionError(
            "whether many returns are best or worst is for you to say: ask for highest or lowest"
        )
    if draft.limit is None:
        draft.limit = DEFAULT_TOP if draft.plural else 1


def _choice(column: tuple[str, bool], names: list[str]) -> Condition:
    """`region IN (…)` for the names chosen in a column, or NOT IN."""
    name, negated = column
    marks = ", ".join("?" * len(names))
    said = f"{'without' if negated else 'for'} {join_words(names)}"
    return Condition(f"{name} {'NOT IN' if negated else 'IN'} ({marks})", tuple(names), said)


def _time(draft: _Draft) -> bool:
    condition = read_time(draft.words)
    if condition is not None:
        draft.conditions.append(condition)
    return condition is not None


def _comparison(draft: _Draft) -> bool:
    """`price over 50`, `more than 10 units`."""
    words, at = draft.words, draft.words.at
    name = words.take(*COMPARABLE)
    words.take("is", "was", "were", "are", "of")
    comparison = words.take(*COMPARISONS)
    if not comparison:
        words.at = at
        return False
    number = _number(words.peek())
    if number is None:
        words.at = at
        return False
    words.at += 1
    if not name:
        if not words.take("units", "items", "pieces"):
            raise UnclearQuestionError(f"'{comparison} {number}' of what? Say 'value over 200', or 'over 10 units'")
        name = "quantity"
    words.take("euro", "euros", "eur", "€")
    column, is_money = COMPARABLE[name]
    if is_money:
        number *= 100
    elif number % 1:
        raise UnclearQuestionError(f"a quantity is a whole number, not {number}")
    said = " ".join(words.tokens[at : words.at])
    draft.conditions.append(Condition(f"{column} {COMPARISONS[comparison]} ?", (int(number),), said))
    return True


def _value(draft: _Draft) -> bool:
    """`North`, `Desk Lamp and Webcam`, `except the South`, `not returned`, `without returns`."""
    words, at = draft.words, draft.words.at
    negated = bool(words.take(*_NEGATIONS))
    while negated and words.take("in", "from", "for", "the", "any", "been", "were", "region", "regions", "all"):
        pass
    if words.take("returned orders", "returned", "sent back", *(("returns",) if negated else ())):
        label = "without returned orders" if negated else "returned orders only"
        draft.conditions.append(Condition("returned = ?", (int(not negated),), label))
        return True
    if not _names_one(draft, negated):
        words.at = at
        if negated:
            raise UnclearQuestionError(f"I do not understand what '{words.peek()}' excludes")
        return False
    while words.peek():
        at = words.at
        while words.take("and", "or", ",", "the", "in", "from"):
            pass
        if not _names_one(draft, negated):
            words.at = at
            break
    return True


def _names_one(draft: _Draft, negated: bool) -> bool:
    """Read the name of one region or product, perhaps with the word "region" or "product" beside it."""
    words = draft.words
    for column, values in (("region", draft.vocabulary.regions), ("product", draft.vocabulary.products)):
        nouns = (column, f"{column}s")
        at = words.at
        words.take(*nouns)
        for value in sorted(values, key=len, reverse=True):
            parts = tokenize(value)
            ahead = [words.peek(i) for i in range(len(parts))]
            if list(map(singular, ahead)) != list(map(singular, parts)):
                continue
            words.at += len(parts)
            words.take(*nouns)
            names = draft.chosen.setdefault((column, negated), [])
            if value not in names:
                names.append(value)
            return True
        words.at = at
    return False


def _idiom(draft: _Draft) -> bool:
    phrase = draft.words.take(*_IDIOMS)
    if phrase:
        name, descending = _IDIOMS[phrase]
        _rank(draft, descending)
        _add_measure(draft, MEASURE[name])
    return bool(phrase)


def _superlative(draft: _Draft) -> bool:
    """`top 3`, `the three best`, `highest`."""
    words, at = draft.words, draft.words.at
    count = _count(words)
    word = words.take(*_HIGHEST, *_LOWEST)
    if not word:
        words.at = at
        return False
    count = count or _count(words)
    if count is not None:
        if not 1 <= count <= 100:
            raise UnclearQuestionError(f"'{word} {count}': I list 1 to 100")
        draft.limit = count
    _rank(draft, word in _HIGHEST)
    draft.judged = draft.judged or word in ("best", "worst")
    return True


def _grouping(draft: _Draft) -> bool:
    """`by region and month`, `per product`; and `by revenue` in "top 3 products by revenue", "products by revenue"."""
    words, at = draft.words, draft.words.at
    if not words.take(*_GROUPING):
        adverb = next((d for d in DIMENSIONS if words.take(*d.adverbs)), None)
        return _add_dimension(draft, adverb)
    words.take("the", "number of", "total")
    measure = _read_measure(words) if draft.ranked or draft.dimensions else None
    if measure is not None:
        draft.order_by = measure
        _add_measure(draft, measure)
        return True
    if not _add_dimension(draft, _read_dimension(draft)):
        words.at = at
        raise UnclearQuestionError(f"'{words.peek()} {words.peek(1)[:40]}': I can group by " + _names(DIMENSIONS))
    while words.peek() in ("and", ","):
        at = words.at
        words.take("and", ",")
        words.take("by", "per")
        if not _add_dimension(draft, _read_dimension(draft)):
            words.at = at
            break
    return True


def _measure(draft: _Draft) -> bool:
    words = draft.words
    joined = words.peek(-1) in ("and", ",", "plus", "with") if words.at else False
    measure = _read_measure(words)
    if measure is None:
        return False
    # "revenue of returned orders": the orders are what revenue is computed over, not a second measure.
    if not (measure.name == "orders" and draft.measures and not joined):
        _add_measure(draft, measure)
    return True


def _bare_dimension(draft: _Draft) -> bool:
    """`top 3 products`, `which region`, `regions by …`: a dimension without `by`."""
    words, at = draft.words, draft.words.at
    if words.take("which", "what"):
        dimension = _read_dimension(draft)
        draft.asked_which = draft.asked_which or dimension is not None
        _add_dimension(draft, dimension)
        return True
    dimension = None if draft.dimensions else _read_dimension(draft)
    if dimension is None or not (draft.ranked or words.peek() == "by"):
        words.at = at
        return False
    return _add_dimension(draft, dimension)


def _filler(draft: _Draft) -> bool:
    words = draft.words
    draft.counting = draft.counting or (words.peek() == "how" and words.peek(1) == "many")
    if words.peek() not in _FILLERS:
        return False
    words.at += 1
    return True


_RULES: tuple[Callable[[_Draft], bool], ...] = (
    _time,
    _comparison,
    _idiom,
    _superlative,
    _value,
    _grouping,
    _measure,
    _bare_dimension,
    _filler,
)


def _read_measure(words: Words) -> Measure | None:
    phrases = {phrase: measure for measure in MEASURES for phrase in measure.phrases}
    found = words.take(*sorted(phrases, key=len, reverse=True))
    return phrases.get(found)


def _read_dimension(draft: _Draft) -> Dimension | None:
    words = draft.words
    for dimension in DIMENSIONS:
        word = words.take(*sorted(dimension.phrases, key=len, reverse=True))
        if word:
            draft.plural = draft.plural or word.endswith("s")
            return dimension
    return None


def _add_measure(draft: _Draft, measure: Measure) -> None:
    if measure not in draft.measures:
        draft.measures.append(measure)


def _add_dimension(draft: _Draft, dimension: Dimension | None) -> bool:
    if dimension is not None and dimension not in draft.dimensions:
        draft.dimensions.append(dimension)
    return dimension is not None


def _rank(draft: _Draft, descending: bool) -> None:
    if draft.ranked and draft.descending != descending:
        raise UnclearQuestionError("it asks for a highest and a lowest at once")
    draft.ranked, draft.descending = True, descending


def _count(words: Words) -> int | None:
    """A small whole number in digits or words, if one comes next."""
    token = words.peek()
    number = int(token) if re.fullmatch(r"[0-9]{1,3}", token) else _NUMBERS.get(token)
    if number is not None:
        words.at += 1
    return number


def _number(token: str) -> Decimal | None:
    if not re.fullmatch(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]{1,2})?", token):
        return None
    number = Decimal(token.replace(",", ""))
    if number > LARGEST_NUMBER:
        raise UnclearQuestionError(f"{token[:40]} is too large a number")
    return number


def _names(dimensions: tuple[Dimension, ...]) -> str:
    return ", ".join(dimension.name for dimension in dimensions)
