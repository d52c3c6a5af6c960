"""The static filters of RTE-1: what an instance must have to ever take a task, as bitmaps per value of an attribute.

A bitmap per value (O'Neil, Quass, "Improved query performance with variant indexes", SIGMOD 1997) makes a filter one
AND whatever the size of the pool, and the result for one requirement is kept until the registry changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from reach.core.documents import BY_CLASSIFIER, schema_key
from reach.core.model import Instance, Profile, Requirement

MAX_KEPT = 10_000
"""Requirements whose result is kept."""

_OF_CAPABILITIES = {"input": "input_media_types", "output": "output_media_types", "language": "languages"}
"""What a capability may say for itself, instead of what the agent says: drop reason -> field of its document."""

Stage = tuple[str, int]
"""(drop reason, mask of those that pass)"""


class Static:
    """Who could ever take a task with one requirement, and how many each filter dropped: never changed. Beside it what
    follows from who has room now, as long as that holds: most decisions change nobody's lane."""

    __slots__ = ("dropped", "free", "lanes", "mask", "matched_by", "not_free", "requirement")

    def __init__(self, requirement: Requirement, mask: int, dropped: tuple[tuple[str, int], ...]) -> None:
        self.requirement = requirement
        self.mask = mask
        self.dropped = dropped
        """(reason, how many), in the order of the filters; each instance counts at the first one that drops it."""
        self.matched_by = "classifier" if BY_CLASSIFIER in requirement.documents else ""
        """What matched its text, if that was neither words nor vectors."""
        self.lanes = -1
        """State of the pool's lanes for which the following holds."""
        self.free = 0
        """Those with a free slot."""
        self.not_free: tuple[tuple[str, int], ...] = ()
        """How many have none, by reason."""


class Filters:
    """The static attributes of the instances of one pool."""

    __slots__ = ("_attributes", "_kept", "all", "revision")

    def __init__(self) -> None:
        self.all = 0
        """The bits in use."""
        self.revision = 0
        """Grows with each change."""
        self._attributes: dict[tuple[str, str], int] = {}
        self._kept: dict[Requirement, Static] = {}

    def add(self, instance: Instance) -> None:
        """An instance is there."""
        bit = 1 << instance.bit
        self.all |= bit
        for attribute in attributes_of(instance):
            self._attributes[attribute] = self._attributes.get(attribute, 0) | bit
        self._changed()

    def remove(self, instance: Instance) -> None:
        """An instance is gone."""
        bit = 1 << instance.bit
        self.all &= ~bit
        for attribute in attributes_of(instance):
            left = self._attributes[attribute] & ~bit
            if left:
                self._attributes[attribute] = left
            else:
                del self._attributes[attribute]
        self._changed()

    def _changed(self) -> None:
        self.revision += 1
        self._kept.clear()

    def having(self, kind: str, value: str) -> int:
        """Mask of the instances with a value of an attribute."""
        return self._attributes.get((kind, value), 0)

    def named(self, instance_ids: tuple[str, ...]) -> int:
        """Mask of some instances by id."""
        mask = 0
        for instance_id in instance_ids:
            mask |= self._attributes.get(("instance", instance_id), 0)
        return mask

    def static(self, requirement: Requirement) -> Static:
        """Who could ever take a task with this requirement."""
        found = self._kept.get(requirement)
        if found is None:
            mask, dropped = self.all, []
            for reason, passing in self.stages(requirement):
                gone = (mask & ~passing).bit_count()
                if gone:
                    dropped.append((reason, gone))
                mask &= passing
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            found = self._kept[requirement] = Static(requirement, mask, tuple(dropped))
        return found

    def stages(self, requirement: Requirement) -> Iterator[Stage]:
        """The filters that a requirement needs, in the order of RTE-1, each with its drop reason."""
        r = requirement
        for reason, values, default in (
            ("tenant", (r.tenant,), "*"),
            ("instance", (r.instance_id,), ""),
            ("agent", (r.agent_id,), ""),
            ("capability", (r.capability,), ""),
            ("capability_version", (f"{r.capability}\0{r.capability_version}",) if r.capability_version else (), ""),
            ("method", (r.method,), "*"),
            *(("tag", (tag,), "") for tag in r.required_tags),
            ("document", tuple(key for key, _ in r.documents), ""),
            ("input", (r.input_media_type,), "*"),
            ("output", r.accepted_media_types, "*"),
            ("language", r.accepted_languages, "*"),
        ):
            if any(values):
                passing = self._having(reason, (*values, default) if default else values)
                if r.capability and reason in _OF_CAPABILITIES:
                    own = self._attributes.get((f"own {reason}", r.capability), 0)
                    passing = (passing & ~own) | self._having(f"{reason} of {r.capability}", values)
                yield reason, passing
            if reason == "method" and r.excluded_instances:
                yield "excluded", self.all & ~self.named(r.excluded_instances)

    def _having(self, attribute: str, values: tuple[str, ...]) -> int:
        """The instances that have one of some values."""
        passing = 0
        for value in values:
            passing |= self._attributes.get((attribute, value), 0)
        return passing


def attributes_of(instance: Instance) -> Iterator[tuple[str, str]]:
    """What an instance can be found by. `*` stands for any value."""
    profile = instance.profile
    yield "instance", instance.instance_id
    yield "agent", profile.agent_id
    for name, version in dict.fromkeys(profile.capabilities):
        yield "capability_version", f"{name}\0{version}"
    for name in dict.fromkeys(name for name, _ in profile.capabilities):
        yield "capability", name
    for kind, values in (
        ("method", profile.methods),
        ("input", profile.input_media_types),
        ("output", profile.output_media_types),
        ("language", profile.languages),
    ):
        for value in dict.fromkeys(values) or ("*",):
            yield kind, value
    for tag in dict.fromkeys(profile.tags):
        yield "tag", tag
    yield from dict.fromkeys(_attributes_of_documents(profile))
    for tenant in dict.fromkeys(profile.allowed_tenants):
        yield "tenant", tenant
    yield "region", profile.region
    yield "version", version_of(instance)


def version_of(instance: Instance) -> str:
    """The version of an agent, as filters name it."""
    return f"{instance.profile.agent_id}\0{instance.profile.version}"


def _attributes_of_documents(profile: Profile) -> Iterator[tuple[str, str]]:
    for document in profile.documents:
        yield "document", document.digest
        yield "document", schema_key(document.name, document.schema_id)
        for reason, field in _OF_CAPABILITIES.items():
            for value in getattr(document, field):
                yield f"own {reason}", document.name
                yield f"{reason} of {document.name}", value
