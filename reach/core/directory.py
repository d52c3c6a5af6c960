"""Level 1, the static part: which pools could take a task, and if none, what is missing (RTE-1, RTE-6, RTE-15).

All instances of the registry by what selectors name, the skill vocabulary, the rules for intents, and the words of
capability documents. What a selector comes to is kept until one of these changes, so that a request that was seen
before costs one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from reach.core.classified import documents_of
from reach.core.documents import Document
from reach.core.intents import Routes
from reach.core.matching import THRESHOLD, Entry, Lexicon, accepted, entry_of, match_of
from reach.core.model import Fault, PoolKey, Profile, Requirement
from reach.core.resolving import Resolved, Selector, not_understood, understood
from reach.core.sifting import ANYBODY, missing, names_of, passes
from reach.core.vocabulary import Vocabulary

UNRESOLVED = "~"
"""Agent type of the pool in which a tenant's tasks wait until an agent registers that they could go to."""
KEPT = 10_000
"""Selectors whose outcome is kept."""
LOOKED_AT = 1_000
"""Profiles that are looked at to find out what is missing."""
SCHEMAS = 8
"""Different parameter schemas of one capability that a task is compared with."""


class _Pool:
    """The static facts of one pool."""

    __slots__ = ("instances", "profiles", "schemas")

    def __init__(self) -> None:
        self.instances: dict[str, Profile] = {}
        self.profiles: dict[Profile, int] = {}
        """Each distinct one, and how many instances have it."""
        self.schemas: dict[str, dict[tuple[str, str], tuple[str, int]]] = {}
        """Capability -> (version, schema_id) -> the schema, and how often it is declared."""


class Directory:
    """See the module."""

    __slots__ = (
        "_cache", "_entries", "_lexicons", "_names", "_pools", "_profiles", "changed", "classified_of",
        "documents_revision", "generic_type", "revision", "routes", "similar_of", "strict", "threshold", "vocabulary",
    )  # fmt: skip

    def __init__(self) -> None:
        self._pools: dict[PoolKey, _Pool] = {}
        self._profiles: dict[Profile, tuple[Profile, int]] = {}
        self._names: dict[tuple[str, str, str], dict[PoolKey, int]] = {}
        self._lexicons: dict[str, Lexicon] = {}
        self._entries: dict[tuple[str, str], Entry] = {}
        self._cache: dict[tuple[str, Selector], Resolved] = {}
        self.vocabulary = Vocabulary()
        self.routes = Routes()
        self.changed: set[tuple[PoolKey, str]] | None = None
        """Instances that came, went or changed while a successor is being made."""
        self.generic_type = ""
        """The type of agents that take texts which fit no document; empty: they are refused."""
        self.strict = False
        """Refuse what nobody here can do, instead of letting it wait."""
        self.threshold = THRESHOLD
        """The least match of a text with a capability document."""
        self.similar_of: Callable[[str], Mapping[str, float] | None] | None = None
        """Another matcher than words: documents that are near a text, by digest; None if it does not know yet."""
        self.classified_of: Callable[[str, str], str] | None = None
        """The capability that a tenant's text asks for, where nothing else fits it; empty if none is known."""
        self.documents_revision = 0
        """Grows with each change of the documents."""
        self.revision = 0
        """Grows with each change."""

    def configure(self, *, strict: bool, threshold: float = THRESHOLD, generic_type: str = "") -> None:
        """Takes settings; what they mean is at the fields."""
        self.strict, self.threshold, self.generic_type = strict, threshold, generic_type
        self.forget()

    # -- what there is ------------------------------------------------------------------------------------------------

    def add(self, pool: PoolKey, instance_id: str, profile: Profile) -> Profile:
        """An instance registered, or registered anew. Returns its profile in canonical words; equal ones are one."""
        profile = self.vocabulary.applied(profile)
        facts = self._pools.get(pool)
        before = facts.instances.get(instance_id) if facts is not None else None
        if self.changed is not None:
            self.changed.add((pool, instance_id))
        if before == profile:
            return before
        if facts is None:
            facts = self._pools[pool] = _Pool()
        if before is not None:
            self._count(pool, facts, instance_id, before, -1)
        profile = self._intern(profile)
        facts.instances[instance_id] = profile
        self._count(pool, facts, instance_id, profile, 1)
        self.forget()
        return profile

    def remove(self, pool: PoolKey, instance_id: str) -> None:
        """An instance is gone."""
        facts = self._pools.get(pool)
        profile = facts.instances.pop(instance_id, None) if facts is not None else None
        if facts is None or profile is None:
            return
        if self.changed is not None:
            self.changed.add((pool, instance_id))
        self._count(pool, facts, instance_id, profile, -1)
        if not facts.instances:
            del self._pools[pool]
        self.forget()

    def instances(self) -> list[tuple[PoolKey, str, Profile]]:
        """Everything that is registered: (pool, instance_id, profile)."""
        return [(pool, one, profile) for pool, facts in self._pools.items() for one, profile in facts.instances.items()]

    def profile_of(self, pool: PoolKey, instance_id: str) -> Profile | None:
        """The profile of an instance, if it is registered."""
        facts = self._pools.get(pool)
        return facts.instances.get(instance_id) if facts is not None else None

    def successor(self, vocabulary: Vocabulary, routes: Routes) -> Directory:
        """An empty directory with other rules. What changes here from now on is in `changed`, until it takes over."""
        other = Directory()
        other.vocabulary, other.routes = vocabulary, routes
        self.changed = set()
        return other

    def succeed(self, other: Directory) -> None:
        """Takes over what another directory holds, and its rules; settings stay."""
        for pool, instance_id in self.changed or ():
            profile = self.profile_of(pool, instance_id)
            if profile is None:
                other.remove(pool, instance_id)
            else:
                other.add(pool, instance_id, profile)
        self.changed = None
        for name in ("_pools", "_profiles", "_names", "_lexicons", "_entries", "vocabulary", "routes"):
            setattr(self, name, getattr(other, name))
        self.documents_revision += 1
        self.forget()

    def _intern(self, profile: Profile) -> Profile:
        kept, count = self._profiles.get(profile, (profile, 0))
        self._profiles[profile] = (kept, count + 1)
        return kept

    def forget(self) -> None:
        """Forgets what selectors came to: something they depend on has changed."""
        self.revision += 1
        self._cache.clear()

    def _count(self, pool: PoolKey, facts: _Pool, instance_id: str, profile: Profile, change: int) -> None:
        _add(facts.profiles, profile, change)
        for tenant in {pool.tenant, *profile.allowed_tenants}:
            for kind, name in names_of(pool, instance_id, profile):
                counts = self._names.setdefault((tenant, kind, name), {})
                _add(counts, pool, change)
                if not counts:
                    del self._names[tenant, kind, name]
            self._count_words(tenant, profile, change)
        for document in profile.documents:
            schemas = facts.schemas.setdefault(document.name, {})
            key = document.version, document.schema_id
            text, count = schemas.get(key, (document.schema, 0))
            schemas[key] = (text, count + change)
            if count + change <= 0:
                del schemas[key]
        if profile.documents and self._profiles[profile][1] == 1:
            self.documents_revision += 1
        if change < 0:
            kept, count = self._profiles[profile]
            if count > 1:
                self._profiles[profile] = (kept, count - 1)
            else:
                del self._profiles[profile]

    def _count_words(self, tenant: str, profile: Profile, change: int) -> None:
        lexicon = self._lexicons.setdefault(tenant, Lexicon())
        for document in profile.documents:
            if change < 0:
                lexicon.remove(document.digest)
                continue
            entry = self._entries.get((document.digest, document.name))
            if entry is None:
                if len(self._entries) >= KEPT:
                    self._entries.clear()
                entry = entry_of(document, self.vocabulary.skills.get(document.name))
                self._entries[document.digest, document.name] = entry
            lexicon.add(document.digest, entry)
        if not len(lexicon):
            del self._lexicons[tenant]

    # -- what is asked ------------------------------------------------------------------------------------------------

    def resolve(self, tenant: str, selector: Selector) -> Resolved:
        """What a selector comes to for a tenant: rule, requirement, pools; or what is missing."""
        key = (tenant, selector)
        found = self._cache.get(key)
        if found is None:
            similar: Mapping[str, float] | None = {}
            if selector.text and self.similar_of is not None:
                similar = self.similar_of(selector.text)
            found = self._resolve(tenant, selector, similar or {})
            if selector.kept and similar is not None and not (self.classified_of and found.unmatched(selector)):
                if len(self._cache) >= KEPT:
                    self._cache.clear()
                self._cache[key] = found
        return found

    def pools_of(self, tenant: str, selector: Selector) -> tuple[PoolKey, ...]:
        """Every pool with an instance that the tenant may call and that could take what the selector asks for."""
        return self.resolve(tenant, selector).pools

    def _resolve(self, tenant: str, selector: Selector, similar: Mapping[str, float]) -> Resolved:
        resolved = understood(selector, self.routes, self.vocabulary, strict=self.strict)
        if resolved.refusal is not None:
            return resolved
        requirement = resolved.requirement
        if selector.text:
            requirement = self._with_text(tenant, selector, requirement, similar)
            if not requirement.documents and self.classified_of and (name := self.classified_of(tenant, selector.text)):
                documents = documents_of(self.visible(tenant), name, self.threshold)
                requirement = requirement._replace(documents=documents)
            resolved.requirement = requirement
        named = self._named(tenant, selector, requirement)
        if selector.text and not requirement.documents:
            named = self._pools_by(tenant, "type", self.generic_type) if self.generic_type else set()
            if not named:
                resolved.refusal = not_understood(selector.text, self.threshold)
                return resolved
        kept = [pool for pool in named if any(self.passing(tenant, pool, selector, requirement))]
        resolved.pools = tuple(sorted(kept))
        if requirement.documents:
            resolved.match = self._match(tenant, kept, selector, requirement)
        if requirement.capability:
            resolved.schemas = self._schemas(kept, requirement)
        if not kept:
            resolved.lacks(self._missing(tenant, selector, requirement), strict=self.strict)
        return resolved

    def _with_text(
        self, tenant: str, selector: Selector, requirement: Requirement, similar: Mapping[str, float]
    ) -> Requirement:
        scores: dict[str, float] = {}
        for owner in (tenant, ANYBODY):
            lexicon = self._lexicons.get(owner)
            for digest, score in (lexicon.matches(selector.text) if lexicon is not None else {}).items():
                scores[digest] = max(score, scores.get(digest, 0.0))
        for digest, score in similar.items():
            if self._pools_by(tenant, "document", digest):  # not what others have, and this tenant may not call
                scores[digest] = max(score, scores.get(digest, 0.0))
        return requirement._replace(documents=accepted(scores, self.threshold))

    def _match(
        self, tenant: str, pools: list[PoolKey], selector: Selector, requirement: Requirement
    ) -> dict[str, float]:
        """How well each agent matches the text, by its best document."""
        found: dict[str, float] = {}
        for pool in pools:
            for profile in self.passing(tenant, pool, selector, requirement):
                match = match_of(requirement.documents, (document.digest for document in profile.documents))
                found[profile.agent_id] = max(match, found.get(profile.agent_id, 0.0))
        return found

    def _named(self, tenant: str, selector: Selector, requirement: Requirement) -> set[PoolKey]:
        """Pools that have what the selector names, though perhaps not in one instance."""
        parts = [
            ("type", selector.agent_type),
            ("agent", selector.agent_id),
            ("instance", selector.instance_id),
            ("capability", requirement.capability),
            *(("tag", tag) for tag in requirement.required_tags),
        ]
        found: set[PoolKey] | None = None
        for kind, name in parts:
            if name:
                pools = self._pools_by(tenant, kind, name)
                found = pools if found is None else found & pools
        if requirement.documents:
            having = {pool for key, _ in requirement.documents for pool in self._pools_by(tenant, "document", key)}
            found = having if found is None else found & having
        return self._pools_by(tenant, "method", requirement.method) if found is None else found

    def _pools_by(self, tenant: str, kind: str, name: str) -> set[PoolKey]:
        own = self._names.get((tenant, kind, name), {}).keys()
        shared = self._names.get((ANYBODY, kind, name))
        return {*own, *shared} if shared else set(own)

    def passing(self, tenant: str, pool: PoolKey, selector: Selector, requirement: Requirement) -> Iterator[Profile]:
        """Profiles in a pool that could take what the selector asks for."""
        facts = self._pools.get(pool) or _Pool()
        profiles = (facts.instances[selector.instance_id],) if selector.instance_id else facts.profiles
        for profile in profiles:
            if passes(tenant, pool, profile, requirement, self.vocabulary):
                yield profile

    def _schemas(self, pools: list[PoolKey], requirement: Requirement) -> tuple[tuple[str, str], ...]:
        """(schema_id, text) of each schema that the capability has in these pools; none if it has no schema at all."""
        found: dict[str, str] = {}
        wanted = requirement.capability_version
        for pool in pools:
            schemas = self._pools[pool].schemas.get(requirement.capability, {})
            for (version, schema_id), (text, _) in schemas.items():
                if len(found) < SCHEMAS and (not wanted or version == wanted):
                    found[schema_id] = text
        return tuple(sorted(found.items())) if any(found) else ()

    def _missing(self, tenant: str, selector: Selector, requirement: Requirement) -> Fault:
        """What is missing. What nobody has at all is found by its name; else a look at those that have the rest."""
        parts = (
            ("type", selector.agent_type),
            ("agent", requirement.agent_id),
            ("instance", selector.instance_id),
            ("capability", requirement.capability),
            *(("tag", tag) for tag in requirement.required_tags),
            ("method", requirement.method if self._names_nobody(selector, requirement) else ""),
        )
        pools = self._pools_by(tenant, "any", "")
        absent = ""
        for kind, name in ((kind, name) for kind, name in parts if name):
            having = self._pools_by(tenant, kind, name)
            if not having:
                absent = kind
                break
            pools = pools & having if kind not in ("tag", "method") and pools & having else pools
        looked_at = LOOKED_AT if absent in ("", "tag") else 0
        visible = islice(self._rows(pools, selector.instance_id), looked_at)
        return missing(tenant, selector, requirement, visible, self.vocabulary, absent)

    @staticmethod
    def _names_nobody(selector: Selector, requirement: Requirement) -> bool:
        return not (selector.agent_type or selector.instance_id or requirement.agent_id or requirement.capability)

    def _rows(self, pools: set[PoolKey], instance_id: str) -> Iterator[tuple[PoolKey, Profile]]:
        """The profiles of some pools; of one instance, if it is named."""
        for pool in sorted(pools):
            facts = self._pools[pool]
            named = (facts.instances[instance_id],) if instance_id in facts.instances else facts.profiles
            for profile in named:
                yield pool, profile

    def with_schemas(self, tenant: str, resolved: Resolved, selector: Selector,
                     requirement: Requirement) -> tuple[PoolKey, ...]:  # fmt: skip
        """The pools of an outcome that have an instance whose schema is among those that the task fits."""
        return tuple(pool for pool in resolved.pools if any(self.passing(tenant, pool, selector, requirement)))

    def in_region(self, pool: PoolKey, region: str) -> bool:
        """Whether a pool has an instance in a region."""
        return any(profile.region == region for profile in self._pools[pool].profiles) if pool in self._pools else False

    def unmatched(self, tenant: str, selector: Selector) -> bool:
        """Whether a selector has a text that fits nobody."""
        return self.resolve(tenant, selector).unmatched(selector)

    def visible(self, tenant: str) -> Iterator[Document]:
        """The documents of all agents that a tenant may call, each once."""
        seen: set[str] = set()
        for profile in self._profiles:
            for document in profile.documents:
                if document.digest not in seen and self._pools_by(tenant, "document", document.digest):
                    seen.add(document.digest)
                    yield document

    def documents(self) -> dict[str, str]:
        """What other matchers than words look at: digest -> text, of every capability document."""
        found: dict[str, str] = {}
        for profile in self._profiles:
            for document in profile.documents:
                parts = (document.name.replace("_", " "), document.description, *document.examples[:4])
                found[document.digest] = ". ".join(part for part in parts if part)
        return found

    def pools_for(self, tenant: str) -> list[PoolKey]:
        """Every pool with an instance that the tenant owns or may call."""
        return sorted(self._pools_by(tenant, "any", ""))

    def where(self, tenant: str, instance_id: str) -> PoolKey | None:
        """The pool of an instance that the tenant owns."""
        for pool in self._names.get((tenant, "instance", instance_id), {}):
            if pool.tenant == tenant:
                return pool
        return None


def _add(counts: dict[Any, int], key: Any, change: int) -> None:
    """Counts up or down; what comes to nothing is forgotten."""
    left = counts.get(key, 0) + change
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
