"""The skill vocabulary (REG-5): which names mean the same skill, and which do not though they look alike.

Data, made from a file by `reach.config.rules`. Names are compared in a plain form, so that `Text-Sum`,
`text sum` and `text_sum` are one name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reach.core.documents import Document
from reach.core.model import Profile

_SEPARATORS = re.compile(r"[\s_-]+")


def plain(name: str) -> str:
    """The form in which names are compared: folded, words joined by `_`."""
    return _SEPARATORS.sub("_", name.strip().casefold())


class Skill(NamedTuple):
    """One entry of the vocabulary."""

    name: str
    """The canonical name."""
    aliases: tuple[str, ...] = ()
    """Names that mean the same."""
    exclude: tuple[str, ...] = ()
    """Names that do not, though somebody could think so: never an alias, and a text that uses one is not matched."""
    exclude_types: tuple[str, ...] = ()
    """Agent types that do not serve this skill, though they declare it (RTE-11)."""
    description: str = ""
    """For people and for content match."""


class Vocabulary:
    """All skills. Without any, each name means itself and none is unknown."""

    __slots__ = ("_canonical", "skills")

    def __init__(self, skills: Iterable[Skill] = ()) -> None:
        self.skills: Mapping[str, Skill] = {skill.name: skill for skill in skills}
        self._canonical: dict[str, str] = {}
        for skill in self.skills.values():
            for name in (*skill.aliases, skill.name):
                self._canonical[plain(name)] = skill.name

    def canonical(self, name: str) -> str:
        """The canonical name; a name that nobody knows means itself."""
        if not self._canonical or not name:
            return name
        return self._canonical.get(plain(name), name)

    def knows(self, name: str) -> bool:
        """Whether a name is that of a skill or an alias; without a vocabulary nothing is unknown."""
        return not self._canonical or plain(name) in self._canonical

    def excludes(self, name: str, agent_type: str) -> bool:
        """Whether a type of agents must not serve a skill, by its canonical name."""
        skill = self.skills.get(name)
        return skill is not None and agent_type in skill.exclude_types

    def near(self, name: str, most: int = 3) -> tuple[str, ...]:
        """Known names that share the longest beginning with an unknown one, for the message that refuses it."""
        form = plain(name)
        shared = ((_shared(form, known), known) for known in self._canonical)
        best = sorted((-length, known) for length, known in shared if length >= 3)
        return tuple(dict.fromkeys(self._canonical[known] for _, known in best[:most]))

    def applied(self, profile: Profile) -> Profile:
        """A profile with canonical names; the names as declared stay in its documents."""
        documents = tuple(self._applied(document) for document in profile.documents)
        if documents == profile.documents:
            return profile
        named = tuple((document.name, document.version) for document in documents)
        return profile._replace(documents=documents, capabilities=named)

    def _applied(self, document: Document) -> Document:
        name = self.canonical(document.declared)
        return document if name == document.name else document._replace(name=name)


def _shared(one: str, other: str) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
