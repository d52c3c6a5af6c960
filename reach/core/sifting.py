"""The static filters of RTE-1 over whole profiles: who could ever take a task, and what is missing if nobody could.

Level 2 asks the same of single instances by bitmaps (`core.routing`); this is the plain form, for pools and for words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reach.core.documents import schema_key
from reach.core.model import Fault, PoolKey, Profile, Requirement
from reach.core.resolving import Selector
from reach.core.vocabulary import Vocabulary
from reach.errors import ErrorClass, Reason

ANYBODY = "*"
"""Among the tenants that an agent lets call it: all."""
SHOWN = 5
"""Names that a message tells of at most."""


def _own(pool: PoolKey, profile: Profile, requirement: Requirement, field: str) -> tuple[str, ...]:
    """Languages or media types for the capability that is asked for: its own, else those of the agent."""
    if requirement.capability:
        own = [
            value
            for document in profile.documents
            if document.name == requirement.capability
            for value in getattr(document, field)
        ]
        if own:
            return tuple(own)
    values: tuple[str, ...] = getattr(profile, field)
    return values


def _stages(
    tenant: str, pool: PoolKey, profile: Profile, requirement: Requirement, vocabulary: Vocabulary
) -> Iterator[tuple[str, bool]]:
    """(drop reason, passes), in the order of RTE-1."""
    r = requirement
    yield "tenant", tenant == pool.tenant or not {tenant, ANYBODY}.isdisjoint(profile.allowed_tenants)
    yield "agent", not r.agent_id or r.agent_id == profile.agent_id
    if r.capability:
        versions = [version for name, version in profile.capabilities if name == r.capability]
        yield "capability", bool(versions) and not vocabulary.excludes(r.capability, pool.agent_type)
        yield "capability_version", not r.capability_version or r.capability_version in versions
    yield "method", not r.method or not profile.methods or r.method in profile.methods
    yield "tag", set(r.required_tags) <= set(profile.tags)
    if r.documents:
        asked = {key for key, _ in r.documents}
        mine = {key for one in profile.documents for key in (one.digest, schema_key(one.name, one.schema_id))}
        yield "document", not asked.isdisjoint(mine)
    for reason, field, wanted in (
        ("input", "input_media_types", (r.input_media_type,) if r.input_media_type else ()),
        ("output", "output_media_types", r.accepted_media_types),
        ("language", "languages", r.accepted_languages),
    ):
        if wanted:
            having = _own(pool, profile, r, field)
            yield reason, not having or not set(wanted).isdisjoint(having)


def passes(tenant: str, pool: PoolKey, profile: Profile, requirement: Requirement, vocabulary: Vocabulary) -> bool:
    """Whether an instance with this profile could ever take a task with this requirement.

    The same as `_stages`, which a test compares, but written for the many that fail early.
    """
    r = requirement
    for tag in r.required_tags:
        if tag not in profile.tags:
            return False
    if r.agent_id and r.agent_id != profile.agent_id:
        return False
    if r.method and profile.methods and r.method not in profile.methods:
        return False
    if tenant != pool.tenant and tenant not in profile.allowed_tenants and ANYBODY not in profile.allowed_tenants:
        return False
    if not r.capability:
        if not (r.documents or r.accepted_languages or r.accepted_media_types or r.input_media_type):
            return True
    elif not any(
        name == r.capability and (not r.capability_version or version == r.capability_version)
        for name, version in profile.capabilities
    ):
        return False
    return all(passing for _, passing in _stages(tenant, pool, profile, requirement, vocabulary))


def missing(
    tenant: str,
    selector: Selector,
    requirement: Requirement,
    visible: Iterable[tuple[PoolKey, Profile]],
    vocabulary: Vocabulary,
    absent: str = "",
) -> Fault:
    """What is missing, where nobody could take a task: the first filter that nobody passes who passed those before.

    Args:
        tenant: Who asks.
        selector: What was asked.
        requirement: The same in canonical words.
        visible: Those that the tenant may call; if there are very many, some of them.
        vocabulary: The skills.
        absent: What is known to be nobody's: `type`, `agent`, `instance`, `capability`, `tag` or `method`.
    """
    left = list(visible)
    if absent:
        return _nobody(absent, selector, requirement, left)
    if selector.agent_type:
        left = [row for row in left if row[0].agent_type == selector.agent_type]
    staged = [(row, dict(_stages(tenant, *row, requirement, vocabulary))) for row in left]
    order = list(dict.fromkeys(reason for _, stages in staged for reason in stages))
    for reason in order:
        passing = [(row, stages) for row, stages in staged if stages.get(reason, True)]
        if not passing:
            return _nobody(reason, selector, requirement, [row for row, _ in staged])
        staged = passing
    return _nobody("", selector, requirement, left)


def _nobody(stage: str, selector: Selector, requirement: Requirement, before: list[tuple[PoolKey, Profile]]) -> Fault:
    """The words for the filter that nobody passes; `before`: those that passed the filters before it."""
    r = requirement
    asked = f"capability {r.capability!r}" if r.capability else ""
    if selector.capability and selector.capability != r.capability:
        asked = f"capability {r.capability!r} (asked for as {selector.capability!r})"
    if selector.intent:
        asked = f"{asked} for intent {selector.intent!r}" if asked else f"what intent {selector.intent!r} needs"
    who = f"no agent with {asked}" if asked else "no agent"
    reason, metadata = Reason.NO_MATCHING_AGENT, {"missing": stage or "agent"}
    if stage == "tag":
        carried = {tag for _, profile in before for tag in profile.tags}  # by those who could do it otherwise
        lacking = [tag for tag in r.required_tags if tag not in carried]
        reason = Reason.NO_TAGGED_AGENT
        metadata["tags"] = ", ".join((lacking or r.required_tags)[:SHOWN])
        what = "carries tag" if lacking else "carries all of the tags"
        message = f"{who} {what} {_several(lacking or r.required_tags)}"
    elif stage == "capability":
        reason = Reason.NO_CAPABLE_AGENT
        metadata = {"missing": "capability", "capability": r.capability}
        message = f"no agent has {asked}"
    elif stage == "capability_version":
        reason = Reason.NO_CAPABLE_AGENT
        having = {version for _, profile in before for name, version in profile.capabilities if name == r.capability}
        metadata |= {"capability": r.capability, "version": r.capability_version}
        message = f"{who} has version {r.capability_version!r} of it: there is {_several(sorted(having))}"
    else:
        message = _plain(stage, who, selector, requirement)
    return Fault(ErrorClass.INVALID_REQUEST, reason, message, metadata)


def _plain(stage: str, who: str, selector: Selector, r: Requirement) -> str:
    words = {
        "type": f"no agent of type {selector.agent_type!r} is registered",
        "agent": f"no agent {r.agent_id!r} is registered",
        "instance": f"no instance {selector.instance_id!r} is registered",
        "method": f"{who} has method {r.method!r}",
        "input": f"{who} takes {r.input_media_type!r}",
        "output": f"{who} answers with {_several(r.accepted_media_types)}",
        "language": f"{who} speaks {_several(r.accepted_languages)}",
        "document": f"{who} fits the text and all else that is asked",
    }
    return words.get(stage, f"{who} that fits is registered" if who == "no agent" else f"{who} is registered")


def _several(names: Iterable[str]) -> str:
    given = list(names)
    shown = ", ".join(repr(name) for name in given[:SHOWN])
    return f"{shown} and {len(given) - SHOWN} more" if len(given) > SHOWN else shown


def names_of(pool: PoolKey, instance_id: str, profile: Profile) -> set[tuple[str, str]]:
    """(kind, name) of all by which a selector may find an instance."""
    names = {("any", ""), ("agent", profile.agent_id), ("instance", instance_id), ("type", pool.agent_type)}
    names |= {("capability", name) for name, _ in profile.capabilities}
    names |= {("tag", tag) for tag in profile.tags}
    names |= {("method", method) for method in profile.methods}
    names |= {("document", document.digest) for document in profile.documents}
    return names
