"""The two files that say what requests mean: the skill vocabulary (REG-5) and the routes (RTE-6).

A file is taken whole or not at all. Every problem is told with its line.

    skills:                                   routes:
      summarization:                            - intent_prefix: customer_service
        aliases: [summarize, text_sum]            require_capability: support
        exclude: [summary_statistics]           - intent_prefix: customer_service.refund
        exclude_types: [legacy-summarizer]        require_capability: refunds
        description: Makes texts shorter.         session_required: true
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct

from reach.config.loading import ConfigError
from reach.config.nodes import NODE_LIMIT, entries, lower, read_root, shown, size
from reach.core.intents import INTENT, Route, Routes, prefixes
from reach.core.policies import POLICIES
from reach.core.retry import POLICIES as RETRIES
from reach.core.retry import RetryPolicy
from reach.core.vocabulary import Skill, Vocabulary, plain

MAX_SKILLS: Final = 5_000
MAX_ROUTES: Final = 5_000
MAX_SESSION_TTL: Final = 2_592_000.0
MAX_TIMEOUT_MS: Final = 2_592_000_000
NO_ROUTE: Final = "has no route"

S = TypeVar("S", bound=Struct)
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Names = Annotated[tuple[Name, ...], Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)]


class _Skill(Struct, forbid_unknown_fields=True):
    aliases: Names = ()
    exclude: Names = ()
    exclude_types: Names = ()
    description: Text = ""


class _Route(Struct, forbid_unknown_fields=True):
    intent_prefix: Name
    require_capability: Name | None = None
    tags: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    policy: Name | None = None
    session_required: bool = False
    session_ttl: Annotated[float, Meta(ge=1, le=MAX_SESSION_TTL)] | None = None
    timeout_ms: Milliseconds | None = None
    retry: Name | Annotated[tuple[Milliseconds, ...], Meta(max_length=16)] | None = None
    fallback_intent: Name | None = None
    fallback_capability: Name | None = None
    parallel: Annotated[tuple[Name, ...], Meta(max_length=8)] = ()


class _Placed(NamedTuple):
    """A converted entry, and where its parts stand."""

    value: Any
    line: int
    lines: dict[str, int]

    def at(self, key: str) -> int:
        """The line of a key of the entry."""
        return self.lines.get(key, self.line)


def kind_of(path: Path) -> str:
    """`routes` or `skills`, by what a file begins with; empty if it is neither, or cannot be read."""
    read = read_root(path, [])
    keys = [key for key, _, _ in entries(path, read[1], "", [])] if read is not None else []
    return next((key for key in keys if key in ("routes", "skills")), "")


def load_vocabulary(path: Path, content: bytes | None = None) -> Vocabulary:
    """The vocabulary of a file.

    Args:
        path: The file.
        content: What is in it, where that is known.

    Raises:
        ConfigError: With every problem, each with its line.
    """
    problems: list[str] = []
    placed: list[tuple[str, _Placed]] = []
    for loader, body in _section(path, "skills", problems, content):
        for number, (name, line, node) in enumerate(entries(path, body, "skills.", problems)):
            if number >= MAX_SKILLS:
                problems.append(f"{path}:{line}: there are more than {MAX_SKILLS} skills")
                break
            where = f"skills.{name}"
            if not name or len(name.encode()) > 256 or not name.isprintable():
                problems.append(f"{path}:{line}: {shown(name)} is no name of a skill")
            elif (entry := _converted(path, loader, node, line, where, _Skill, problems)) is not None:
                placed.append((name, entry))
    problems.extend(_clashes(path, placed))
    if problems:
        raise ConfigError(problems)
    return Vocabulary(
        Skill(name, one.value.aliases, one.value.exclude, one.value.exclude_types, one.value.description)
        for name, one in placed
    )


def load_routes(path: Path, policies: Collection[str] = POLICIES, content: bytes | None = None) -> Routes:
    """The routes of a file.

    Args:
        path: The file.
        policies: The routing policies that there are.
        content: What is in the file, where that is known.

    Raises:
        ConfigError: With every problem, each with its line.
    """
    problems: list[str] = []
    placed: list[_Placed] = []
    for loader, body in _section(path, "routes", problems, content):
        if not isinstance(body, yaml.SequenceNode):
            problems.append(f"{path}:{body.start_mark.line + 1}: routes must be a list")
            break
        for number, node in enumerate(body.value):
            line = node.start_mark.line + 1
            if number >= MAX_ROUTES:
                problems.append(f"{path}:{line}: there are more than {MAX_ROUTES} routes")
                break
            if (entry := _converted(path, loader, node, line, f"routes[{number}]", _Route, problems)) is not None:
                placed.append(entry)
    whole = not problems
    for line, text in sorted(_broken(placed, policies)):
        if whole or not text.endswith(NO_ROUTE):  # a route that is not there may be one that could not be read
            problems.append(f"{path}:{line}: {text}")
    if problems:
        raise ConfigError(problems)
    return Routes(_route(one) for one in placed)


def check_capabilities(path: Path, routes: Routes, vocabulary: Vocabulary) -> list[str]:
    """What routes name and the vocabulary does not have, each with its line."""
    return [
        f"{path}:{route.line}: route {route.intent_prefix!r}: skill {name!r} is not in the vocabulary"
        for route in routes
        for name in (route.require_capability, route.fallback_capability)
        if name and not vocabulary.knows(name)
    ]


# -- reading ----------------------------------------------------------------------------------------------------------


def _section(
    path: Path, name: str, problems: list[str], content: bytes | None
) -> Iterator[tuple[yaml.SafeLoader, yaml.Node]]:
    """The one section that a file has; a file without it is an empty one."""
    read = read_root(path, problems, content)
    if read is None:
        return
    loader, root = read
    for key, line, body in entries(path, root, "", problems):
        if key != name:
            problems.append(f"{path}:{line}: {shown(key)[1:-1]} is unknown; the file has one key, {name}")
        elif not (isinstance(body, yaml.ScalarNode) and body.tag == "tag:yaml.org,2002:null"):
            yield loader, body


def _converted(
    path: Path, loader: yaml.SafeLoader, node: yaml.Node, line: int, where: str, kind: type[S], problems: list[str]
) -> _Placed | None:
    """One entry: each key on its own, so that each problem has its line."""
    known = {info.name: info for info in msgspec.structs.fields(kind)}
    before, values, lines = len(problems), {}, {}
    for key, key_line, value_node in entries(path, node, f"{where}.", problems):
        lines[key] = key_line
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
            problems.append(f"{path}:{key_line}: {where}.{shown(key)[1:-1]} is unknown; {hint}")
        elif size(value_node) > NODE_LIMIT:
            problems.append(f"{path}:{key_line}: {where}.{key} is too large")
        else:
            try:
                value = loader.construct_object(value_node, deep=True)
                values[key] = msgspec.convert(value, known[key].type)
            except (msgspec.ValidationError, yaml.YAMLError, ValueError, RecursionError) as error:
                problems.append(f"{path}:{key_line}: {where}.{key}: {lower(error)}")
    for name, info in known.items():
        if info.required and name not in lines:
            problems.append(f"{path}:{line}: {where} has no {name}")
    return None if len(problems) > before else _Placed(kind(**values), line, lines)


# -- what must hold together ------------------------------------------------------------------------------------------


def _clashes(path: Path, placed: list[tuple[str, _Placed]]) -> Iterator[str]:
    """Names that would mean two skills, and exclusions that contradict an alias."""
    owners: dict[str, tuple[str, int]] = {}
    for name, one in placed:
        form = plain(name)
        if form in owners:
            other, line = owners[form]
            yield f"{path}:{one.line}: skill {name!r} reads like {other!r} in line {line}"
        owners.setdefault(form, (name, one.line))
    for name, one in placed:
        for alias in one.value.aliases:
            owner, line = owners.setdefault(plain(alias), (name, one.at("aliases")))
            if owner != name:
                yield f"{path}:{one.at('aliases')}: alias {alias!r} of {name!r} means {owner!r} already (line {line})"
        own = {plain(alias) for alias in (*one.value.aliases, name)}
        for other in one.value.exclude:
            if plain(other) in own:
                yield f"{path}:{one.at('exclude')}: {other!r} is excluded from {name!r}, and is a name of it"


def _broken(placed: list[_Placed], policies: Collection[str]) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of routes that cannot be followed."""
    first: dict[str, _Placed] = {}
    for one in placed:
        prefix = one.value.intent_prefix
        if not INTENT.fullmatch(prefix):
            yield one.at("intent_prefix"), f"intent_prefix {prefix!r} must be words joined by dots"
        if prefix in first:
            yield (
                one.at("intent_prefix"),
                f"intent_prefix {prefix!r} is there twice, first in line {first[prefix].line}",
            )
        first.setdefault(prefix, one)
    for one in placed:
        yield from _broken_names(one, policies, first)
    yield from _circles(first)


def _broken_names(one: _Placed, policies: Collection[str], first: dict[str, _Placed]) -> Iterator[tuple[int, str]]:
    route: _Route = one.value
    name = route.intent_prefix
    if not (route.require_capability or route.tags or route.parallel):
        yield one.line, f"route {name!r} names nobody: give require_capability, tags or parallel"
    if route.policy and route.policy not in policies:
        yield one.at("policy"), f"there is no policy {route.policy!r}; there is {', '.join(sorted(policies))}"
    if isinstance(route.retry, str) and route.retry not in RETRIES:
        yield one.at("retry"), f"there is no retry policy {route.retry!r}; there is {', '.join(RETRIES)}"
    if route.session_ttl is not None and not route.session_required:
        yield one.at("session_ttl"), "session_ttl needs session_required"
    if route.fallback_intent and route.fallback_capability:
        yield one.at("fallback_capability"), "fallback_intent and fallback_capability exclude each other"
    if route.parallel and route.require_capability:
        yield one.at("parallel"), "parallel and require_capability exclude each other"
    named = [("fallback_intent", route.fallback_intent)] if route.fallback_intent else []
    for key, intent in (*named, *(("parallel", one) for one in route.parallel)):
        found = _found(intent, first)
        if found is None:
            yield one.at(key), f"{key} {intent!r} {NO_ROUTE}"
        elif key == "parallel" and found.parallel:
            yield one.at(key), f"parallel {intent!r} is parallel itself"


def _found(intent: str, first: dict[str, _Placed]) -> _Route | None:
    return next((first[prefix].value for prefix in prefixes(intent) if prefix in first), None)


def _circles(first: dict[str, _Placed]) -> Iterator[tuple[int, str]]:
    """Fallbacks that lead back to where they began."""
    for prefix, one in first.items():
        seen = [prefix]
        route: _Route | None = one.value
        while route is not None and route.fallback_intent:
            route = _found(route.fallback_intent, first)
            if route is not None and route.intent_prefix in seen:
                if route.intent_prefix == prefix:
                    yield one.at("fallback_intent"), f"fallbacks of {prefix!r} go round: {' -> '.join([*seen, prefix])}"
                break
            if route is not None:
                seen.append(route.intent_prefix)


def _route(one: _Placed) -> Route:
    route: _Route = one.value
    retry: RetryPolicy | None = None
    if isinstance(route.retry, str):
        retry = RETRIES[route.retry]
    elif route.retry is not None:
        retry = RetryPolicy(f"route {route.intent_prefix}", route.retry)
    return Route(
        route.intent_prefix,
        route.require_capability or "",
        route.tags,
        route.policy or "",
        route.session_required,
        None if route.session_ttl is None else int(route.session_ttl * 1_000),
        route.timeout_ms,
        retry,
        route.fallback_intent or "",
        route.fallback_capability or "",
        route.parallel,
        one.line,
    )
