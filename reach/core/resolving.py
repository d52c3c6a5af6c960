"""What a selector means: its intent looked up, its skill in canonical words, and what that asks of an instance."""

from __future__ import annotations

from reach.core.intents import MAX_PARTS, Route, Routes
from reach.core.model import Fault, PoolKey, Requirement
from reach.core.vocabulary import Vocabulary
from reach.errors import ErrorClass, Reason


class Selector:
    """What a caller names to choose who may take a task; empty parts match all.

    Two selectors are the same only if they are one object: whoever reads requests keeps the selectors that repeat
    (`wire.requests.TaskReader`), so that looking up what one comes to costs no comparison of its parts.
    """

    __slots__ = (
        "agent_id", "agent_type", "capability", "instance_id", "intent", "kept", "requirement", "text",
    )  # fmt: skip

    def __init__(
        self,
        agent_type: str = "",
        agent_id: str = "",
        instance_id: str = "",
        capability: str = "",
        *,
        intent: str = "",
        text: str = "",
        requirement: Requirement | None = None,
    ) -> None:
        self.agent_type = agent_type
        self.agent_id = agent_id
        self.instance_id = instance_id
        self.capability = capability
        self.intent = intent
        self.text = text
        self.kept = True
        """Whether it is expected to come again, so that its outcome is worth keeping."""
        self.requirement = requirement if requirement is not None else Requirement(agent_id, instance_id, capability)
        """What it asks of an instance in the caller's own words."""


class Resolved:
    """What a selector comes to for one tenant."""

    __slots__ = ("lack", "match", "pools", "refusal", "requirement", "route", "schemas", "unknown_skill")

    def __init__(self, requirement: Requirement, route: Route | None = None) -> None:
        self.requirement = requirement
        """In canonical words."""
        self.route = route
        self.match: dict[str, float] | None = None
        """How well each agent matches the text, by agent id."""
        self.pools: tuple[PoolKey, ...] = ()
        """With an instance that could take it; empty if there is none now."""
        self.schemas: tuple[tuple[str, str], ...] = ()
        """(schema_id, text) of the parameter schemas that the capability has; an empty id: one without a schema."""
        self.refusal: Fault | None = None
        """Why it is refused, whoever is there."""
        self.lack: Fault | None = None
        """What is missing, if nobody can take it now."""
        self.unknown_skill = ""
        """The skill, if the vocabulary does not have it."""

    def unmatched(self, selector: Selector) -> bool:
        """Whether it has a text that fits nobody, and nothing else is wrong."""
        refused = self.refusal is not None and self.refusal.reason is not Reason.NO_TEXT_MATCH
        return bool(selector.text) and not refused and not self.requirement.documents

    def lacks(self, fault: Fault, *, strict: bool) -> None:
        """Nobody can take it now. A fallback would be used here, if there were any."""
        self.lack = fault
        if self.route is not None and self.route.has_fallback:
            where = self.route.fallback_intent or self.route.fallback_capability
            message = f"{fault.message}, and falling back to {where!r} is not built yet"
            self.refusal = Fault(ErrorClass.INTERNAL, Reason.NOT_IMPLEMENTED, message, fault.metadata)
        elif strict:
            self.refusal = fault


def understood(selector: Selector, routes: Routes, vocabulary: Vocabulary, *, strict: bool) -> Resolved:
    """The rule and the requirement of a selector, or a refusal."""
    requirement = selector.requirement
    route: Route | None = None
    asked = selector.capability
    if selector.intent:
        route = routes.find(selector.intent) if selector.intent.count(".") < MAX_PARTS else None
        if route is None:
            return _refused(requirement, _no_route(selector.intent, routes))
        if route.parallel:
            message = f"intent {selector.intent!r} is for several agents at once ({', '.join(route.parallel)})"
            fault = Fault(ErrorClass.INTERNAL, Reason.NOT_IMPLEMENTED, f"{message}, which is not built yet")
            return _refused(requirement, fault)
        if (
            asked
            and route.require_capability
            and vocabulary.canonical(asked) != vocabulary.canonical(route.require_capability)
        ):
            message = (
                f"task.selector: intent {selector.intent!r} means capability {route.require_capability!r}, but the "
                f"task asks for {asked!r}"
            )
            metadata = {"field": "task.selector.capability"}
            return _refused(requirement, Fault(ErrorClass.INVALID_REQUEST, Reason.INVALID_FIELD, message, metadata))
        asked = asked or route.require_capability
    if requirement.capability_version and not asked:
        message = "task.selector.capability_version: needs a capability"
        metadata = {"field": "task.selector.capability_version"}
        return _refused(requirement, Fault(ErrorClass.INVALID_REQUEST, Reason.INVALID_FIELD, message, metadata))
    capability = vocabulary.canonical(asked)
    tags = requirement.required_tags
    if route is not None:
        tags = tuple(dict.fromkeys((*tags, *route.tags)))
    if capability != requirement.capability or tags != requirement.required_tags:
        requirement = requirement._replace(capability=capability, required_tags=tags)
    resolved = Resolved(requirement, route)
    if asked and not vocabulary.knows(asked):
        resolved.unknown_skill = asked
        if strict:
            resolved.refusal = unknown_skill(asked, vocabulary)
    return resolved


def _refused(requirement: Requirement, fault: Fault) -> Resolved:
    resolved = Resolved(requirement)
    resolved.refusal = fault
    return resolved


def _no_route(intent: str, routes: Routes) -> Fault:
    first = intent.partition(".")[0]
    known = [route.intent_prefix for route in routes if route.intent_prefix.partition(".")[0] == first][:5]
    if not len(routes):
        why = "no routes are configured"
    elif known:
        why = f"there is {', '.join(known)}"
    else:
        why = "and none begins alike"
    message = f"no route has intent {intent!r} or a prefix of it: {why}"
    return Fault(ErrorClass.INVALID_REQUEST, Reason.NO_ROUTE, message, {"intent": intent})


def unknown_skill(name: str, vocabulary: Vocabulary) -> Fault:
    """The refusal of a skill that the vocabulary does not have."""
    near = vocabulary.near(name)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    message = f"skill {name!r} is not in the vocabulary{hint}"
    return Fault(ErrorClass.INVALID_REQUEST, Reason.UNKNOWN_SKILL, message, {"skill": name})


def not_understood(text: str, threshold: float) -> Fault:
    """No document fits a text."""
    shown = text if len(text) <= 60 else f"{text[:59]}…"
    message = f"no capability of an agent you may call fits the text {shown!r} (a match of {threshold:g} is needed)"
    return Fault(ErrorClass.INVALID_REQUEST, Reason.NO_TEXT_MATCH, message)
