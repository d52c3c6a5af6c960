"""JSON Schemas of capabilities (REG-4): checked when an agent registers, asked before a task is dispatched.

A schema is a program that agents write and callers feed, and it runs on the event loop. So it is bounded before it is
taken: size, nesting, references (only within the schema; nothing is ever fetched), patterns (only such as take linear
time), and how often one place of a payload can be looked at, since alternatives that refer to each other double with
each level. What is left is multiplied with the size of each payload, and too much of that is refused too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec

from reach.core.model import Content
from reach.errors import InvalidRequest, Reason

if TYPE_CHECKING:
    import jsonschema_rs

SCHEMA_BYTES = 64 << 10
SCHEMA_DEPTH = 32
SCHEMA_NODES = 5_000
"""Objects and lists in a schema."""
PAYLOAD_BYTES = 1 << 20
"""Largest payload that is compared with a schema; larger content belongs into attachments."""
PAYLOAD_DEPTH = 64
LEAST_DEPTH = 4
"""A schema that could not look at payloads nested as deep as this is refused."""
MAX_VISITS = 20_000
"""How often a schema may look at one place of a payload."""
MAX_WORK = 2_000_000
"""Visits of all places of one payload together: a fifth of a second, at worst."""
BYTES_PER_STEP = 8
"""Bytes of text that count as one place more: patterns read them one by one."""
REGEX_BYTES = 1 << 20
COMPILED = 1_000
"""Schemas that are kept compiled."""

_HERE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
"""Keywords whose schemas look at the same place."""
_BELOW = ("items", "prefixItems", "additionalItems", "contains", "additionalProperties", "patternProperties",
          "propertyNames", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
"""Keywords whose schemas look at places one level down, more than one of them perhaps at the same place."""
_BY_NAME = ("properties",)
"""Keywords of which only one schema looks at the same place one level down."""
_NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies")
"""Keywords that hold schemas by name."""
_UNKNOWN = ("$dynamicRef", "$recursiveRef")


class Compiled(NamedTuple):
    """A schema, ready to be asked."""

    validator: jsonschema_rs.Validator
    visits: tuple[int, ...]
    """By nesting of a payload: how often one place is looked at, at most."""


def schema_id(text: str) -> str:
    """The digest of a schema; empty if there is none."""
    return blake2b(text.encode(), digest_size=8).hexdigest() if text else ""


def check_schema(field: str, text: str) -> str:
    """Checks a schema and returns its id; nothing to check in an empty one.

    Raises:
        InvalidRequest: INVALID_FIELD, with what is wrong and where.
    """
    if text:
        try:
            compiled(text)
        except ValueError as error:
            raise InvalidRequest(f"{field}: {error}", Reason.INVALID_FIELD, field=field) from error
    return schema_id(text)


@lru_cache(COMPILED)
def compiled(text: str) -> Compiled:
    """A schema, bounded and compiled. Raises ValueError with words for people."""
    import jsonschema_rs

    if len(text.encode()) > SCHEMA_BYTES:
        raise ValueError(f"has more than {SCHEMA_BYTES} bytes")
    schema = _decoded(text, "is not JSON")
    if not isinstance(schema, dict | bool):
        raise ValueError("is no JSON Schema: it must be an object, true or false")
    visits = _visits(schema) if isinstance(schema, dict) else (1,)
    options = jsonschema_rs.RegexOptions(size_limit=REGEX_BYTES, dfa_size_limit=REGEX_BYTES)
    try:
        validator = jsonschema_rs.validator_for(schema, pattern_options=options, offline=True, mask="the value")
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise ValueError(f"is no JSON Schema: {_schema_error(schema, options, error)}") from error
    return Compiled(validator, visits)


def _schema_error(schema: dict[str, Any] | bool, options: Any, error: Exception) -> str:
    """What is wrong with a schema, with its own words: those are not secret, as payloads are."""
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for(schema, pattern_options=options, offline=True)
    except jsonschema_rs.ValidationError as plain:
        where = pointer(plain.instance_path)
        text = " ".join(plain.message.split())[:300]
        hint = " (patterns without look-around and back-references, and not too large)" if '"regex"' in text else ""
        return f"{where}: {text}{hint}"
    except (jsonschema_rs.ReferencingError, ValueError):
        pass
    return " ".join(str(error).split())[:300]


def pointer(path: list[str | int]) -> str:
    """A place as a JSON Pointer (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _decoded(content: Content, why: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise ValueError(f"{why}: it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        text = " ".join(str(error).split())
        raise ValueError(f"{why}: {text[:1].lower()}{text[1:200]}") from error


# -- how much work a schema is ----------------------------------------------------------------------------------------


def _visits(root: dict[str, Any]) -> tuple[int, ...]:
    """How often one place of a payload may be looked at, where it is nested up to 0 … PAYLOAD_DEPTH deep, until
    MAX_VISITS.

    For a place at nesting d, begun with schema s: visits(s, d) = (1 if d is 0) + Σ visits(h, d) over the schemas h for
    the same place + Σ visits(b, d - 1) over those for any place below + the largest visits(p, d - 1) of those of which
    only one is for a place below. An upper bound: each schema may take its own worst path.
    """
    anchors = dict(_anchors(root))
    here: dict[int, list[Any]] = {}
    below: dict[int, list[Any]] = {}
    named: dict[int, list[Any]] = {}
    nodes = list(_schemas(root))
    for schema in nodes:
        here[id(schema)] = [*_parts(schema, _HERE), *_referred(root, schema, anchors)]
        below[id(schema)] = list(_parts(schema, _BELOW))
        named[id(schema)] = list(_parts(schema, _BY_NAME))
    order = _in_order(nodes, here)
    before = {id(schema): 0 for schema in nodes}
    found: list[int] = []
    for depth in range(PAYLOAD_DEPTH + 1):
        now: dict[int, int] = {}
        for schema in order:
            key = id(schema)
            looks = sum(now[id(one)] for one in here[key]) + sum(before[id(one)] for one in below[key])
            looks += max((before[id(one)] for one in named[key]), default=0)
            now[key] = min(MAX_VISITS + 1, looks + (not depth))
        found.append(max(now[id(root)], found[-1] if found else 0))
        if found[-1] > MAX_VISITS:
            break
        before = now
    if len(found) <= LEAST_DEPTH:
        raise ValueError("has too many alternatives that refer to each other")
    if found[-1] > MAX_VISITS:
        found.pop()
    return tuple(found)


def _in_order(nodes: list[dict[str, Any]], here: dict[int, list[Any]]) -> list[dict[str, Any]]:
    """Schemas so that each comes after those that look at the same place for it; refuses circles among them."""
    order: list[dict[str, Any]] = []
    state: dict[int, int] = {}
    for first in nodes:
        stack: list[tuple[dict[str, Any], Iterator[Any]]] = []
        if id(first) not in state:
            state[id(first)] = 1
            stack.append((first, iter(here[id(first)])))
        while stack:
            schema, rest = stack[-1]
            part = next(rest, None)
            if part is None:
                state[id(schema)] = 2
                order.append(schema)
                stack.pop()
            elif state.get(id(part)) == 1:
                raise ValueError("refers to itself without going deeper, which never ends")
            elif id(part) not in state:
                state[id(part)] = 1
                stack.append((part, iter(here[id(part)])))
    return order


def _schemas(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object in a schema that may be one, with the bounds."""
    waiting: list[tuple[Any, int]] = [(root, 0)]
    id_keyword = "id" if "draft-04" in str(root.get("$schema")) else "$id"
    count = 0
    while waiting:
        node, depth = waiting.pop()
        if not isinstance(node, dict | list):
            continue
        count += 1
        if count > SCHEMA_NODES:
            raise ValueError(f"has more than {SCHEMA_NODES} parts")
        if depth > SCHEMA_DEPTH:
            raise ValueError(f"is nested more than {SCHEMA_DEPTH} levels deep")
        if isinstance(node, list):
            waiting.extend((part, depth + 1) for part in node)
            continue
        if depth and isinstance(node.get(id_keyword), str):
            raise ValueError(f"has a schema with an {id_keyword} of its own inside, which is not supported: use $defs")
        for keyword in _UNKNOWN:
            if keyword in node:
                raise ValueError(f"uses {keyword}, which is not supported: use $ref")
        yield node
        waiting.extend((part, depth + 1) for part in node.values())


def _parts(schema: dict[str, Any], keywords: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The schemas under some keywords: one, a list of them, or some by name."""
    for keyword in keywords:
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from (part for part in value if isinstance(part, dict))
        elif isinstance(value, dict):
            if keyword in _NAMED:
                yield from (part for part in value.values() if isinstance(part, dict))
            else:
                yield value


def _anchors(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for schema in _schemas(root):
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                yield schema[keyword], schema


def _referred(root: dict[str, Any], schema: dict[str, Any], anchors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return
    if not reference.startswith("#"):
        raise ValueError(f"refers to {reference[:100]!r}: only places within the schema can be referred to")
    target: Any = root
    if reference.startswith("#/"):
        for part in reference[2:].split("/"):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            elif isinstance(target, dict) and name in target:
                target = target[name]
            else:
                raise ValueError(f"refers to {reference[:100]!r}, which is not there")
    elif reference != "#":
        target = anchors.get(reference[1:])
    if isinstance(target, dict):
        yield target
    elif not isinstance(target, bool):
        raise ValueError(f"refers to {reference[:100]!r}, which is no schema")


# -- asking -----------------------------------------------------------------------------------------------------------


def mismatches(
    media_type: str, content: Content | None, schemas: tuple[tuple[str, str], ...]
) -> dict[str, tuple[str, str]]:
    """Why a payload does not fit: schema_id -> (JSON Pointer, words), for each schema that it does not fit.

    JSON is what has a JSON media type, or none and reads as JSON; any other text is a string to the schema.
    """
    found: dict[str, tuple[str, str]] = {}
    given: Any = None
    problem = ""
    size = len(content) if content is not None else 0
    if size > PAYLOAD_BYTES:
        problem = f"the payload has {size} bytes; with a schema at most {PAYLOAD_BYTES} are allowed"
    else:
        try:
            given = _parameters(media_type, content)
        except ValueError as error:
            problem = str(error)
    for key, text in schemas:
        if not text:
            continue
        if problem:
            found[key] = ("", problem)
        elif (mismatch := _mismatch(compiled(text), given, size)) is not None:
            found[key] = mismatch
    return found


def _parameters(media_type: str, content: Content | None) -> Any:
    kind = media_type.partition(";")[0].strip().lower()
    if content is None:
        raise ValueError("there is no payload")
    if kind == "application/json" or kind.endswith("+json"):
        return _decoded(content, "the payload is not JSON")
    if not kind:
        try:
            return _decoded(content, "")
        except ValueError:
            if isinstance(content, bytes):
                raise ValueError("the payload is not JSON") from None
    if isinstance(content, bytes):
        if not kind.startswith("text/"):
            raise ValueError(f"the payload is {media_type!r}, not JSON")
        return content.decode(errors="replace")
    return content


def _mismatch(schema: Compiled, given: Any, size: int) -> tuple[str, str] | None:
    import jsonschema_rs

    places, depth = _extent(given)
    if depth >= len(schema.visits):
        return "", f"the payload is nested {depth} deep; for this schema at most {len(schema.visits) - 1} are allowed"
    if schema.visits[depth] * (places + size // BYTES_PER_STEP) > MAX_WORK:
        return "", "the payload is too large for a schema with so many alternatives"
    try:
        schema.validator.validate(given)
    except jsonschema_rs.ValidationError as error:
        return pointer(error.instance_path), " ".join(error.message.split())[:300]
    return None


def _extent(given: Any) -> tuple[int, int]:
    """(places, nesting) of a payload."""
    places, depth, level = 0, -1, [given]
    while level:
        depth += 1
        places += len(level)
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
        level = below
    return places, depth
