"""Texts that a model has sorted (RTE-5): what it may choose from, what its answer means, and what follows.

Asked only for texts that neither words nor vectors match. Its answer is the name of a capability that the caller may
use, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from reach.core.documents import BY_CLASSIFIER, Document
from reach.core.matching import KEPT, STEP, spelled
from reach.core.vocabulary import Vocabulary

MAX_CHOICES = 200
"""Capabilities that a model is shown."""
SHOWN = 300
"""Characters of what is said of one."""
MAX_ANSWER = 400
"""Characters of an answer that are looked at."""


def choices(documents: Iterable[Document], text: str, vocabulary: Vocabulary) -> dict[str, str]:
    """What a text may be: canonical name -> what is said of it, without those whose skill excludes a word of it."""
    found: dict[str, str] = {}
    spelling = spelled(text)
    for document in documents:
        name = document.name
        if name in found or _excludes(vocabulary, name, spelling):
            continue
        skill = vocabulary.skills.get(name)
        parts = (skill.description if skill is not None else "", document.description, *document.examples[:2])
        found[name] = " ".join(" ".join(filter(None, parts)).split())[:SHOWN]
        if len(found) == MAX_CHOICES:
            break
    return found


def _excludes(vocabulary: Vocabulary, name: str, spelling: str) -> bool:
    skill = vocabulary.skills.get(name)
    return skill is not None and any(spelled(one) in spelling for one in skill.exclude)


def chosen(answer: str, names: Iterable[str]) -> str:
    """The name that an answer is, but for case, quotes and a full stop; empty if it is none of them: whatever else a
    model says is no match."""
    said = answer[:MAX_ANSWER].strip().strip("`'\"*. \n").casefold()
    return next((name for name in names if name.casefold() == said), "")


def documents_of(documents: Iterable[Document], name: str, threshold: float) -> tuple[tuple[str, int], ...]:
    """What a requirement keeps of a text that was found to be this capability: all are as good as is just needed."""
    percent = min(100, -int(-threshold * 100 // STEP) * STEP)
    digests = sorted({document.digest for document in documents if document.name == name})[: KEPT - 1]
    return (*((digest, percent) for digest in digests), BY_CLASSIFIER) if digests else ()
