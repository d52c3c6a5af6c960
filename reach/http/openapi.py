"""The description of the JSON door as an OpenAPI 3.1 document, made of the table of paths, and of descriptors and
comments of the contract, so that it cannot say anything else than they do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from reach.errors import InvalidRequest
from reach.http.comments import comment_of
from reach.http.known import KNOWN, Known
from reach.http.problems import MEDIA_TYPE, document
from reach.http.routes import PREFIX, ROWS, Row, descriptor_of
from reach.version import VERSION

Schema = dict[str, Any]
Scopes = Callable[[str], frozenset[str]]
"""What opens a method, by its full name."""

SSE: Final = "text/event-stream"
_INTEGERS: Final[dict[int, tuple[str, int, int]]] = {
    FieldDescriptor.CPPTYPE_INT32: ("int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("uint32", 0, (1 << 32) - 1),
}
_WIDE: Final[dict[int, str]] = {FieldDescriptor.CPPTYPE_INT64: "int64", FieldDescriptor.CPPTYPE_UINT64: "uint64"}
_KNOWN: Final[dict[str, Schema]] = {
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$", "examples": ["1.5s"]},
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
}
_PROBLEM: Final = "Problem"
_FAILED: Final[Schema] = {
    "description": "It failed",
    "content": {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{_PROBLEM}"}}},
}


def openapi(scopes: Scopes) -> Schema:
    """The whole document."""
    schemas: dict[str, Schema] = {_PROBLEM: _problem()}
    several = Counter(row.rpc for row in ROWS)
    paths: dict[str, Schema] = {}
    for row in ROWS:
        operation = _operation(row, scopes, schemas)
        if several[row.rpc] > 1:
            operation["operationId"] += "_" + row.steps[0]
        paths.setdefault(PREFIX + row.shown, {})[row.verb.lower()] = operation
    for known in KNOWN:
        paths.setdefault(known.path, {})[known.verb.lower()] = _known(known, scopes)
    for path, says in (("/healthz", "Whether the process lives"), ("/readyz", "Whether it takes work")):
        answers: Schema = {"200": _answer("Yes", {"type": "object"})}
        if path == "/readyz":
            answers["503"] = _answer("No", {"type": "object"})
        paths[path] = {"get": {"summary": says, "operationId": path[1:], "tags": ["server"], "responses": answers}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agent-Reach",
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Tasks for AI agents: routing, delivery, streaming. Messages are those of the contract "
            "agentreach.v1 in protobuf's JSON. A WebSocket on /v1/ws makes many of these calls at a time.",
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }


def _operation(row: Row, scopes: Scopes, schemas: dict[str, Schema]) -> Schema:
    method = descriptor_of(row.rpc)
    wanted = sorted(scopes(row.method))
    responses: Schema = {"default": _FAILED}
    if row.streams:
        responses["200"] = {"description": "Events, as they come", "content": {SSE: {"schema": {"type": "string"}}}}
        responses["204"] = {"description": "There is nothing more to come"}
        _message(method.output_type, schemas)
    else:
        responses["200"] = _answer("Done", _message(method.output_type, schemas))
    operation: Schema = {
        "summary": row.says,
        "description": f"{comment_of(method.full_name)}\n\n`{row.rpc}`; scopes: {', '.join(wanted)}.",
        "operationId": method.name,
        "tags": [row.steps[0]],
        "parameters": list(_parameters(row, method.input_type, schemas)),
        "security": [{"key": wanted}, {}],
        "responses": responses,
    }
    if row.has_body:
        body = _message(method.input_type, schemas)
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation


def _known(known: Known, scopes: Scopes) -> Schema:
    """A path of known.py: flat, and described by what it is translated to."""
    (first, *others) = known.rpcs
    wanted = sorted(scopes(f"/agentreach.v1.{first}"))
    became = " or ".join(f"`{rpc}`" for rpc in (first, *others))
    names = [step[1:-1] for step in known.path.split("/") if step.startswith("{")]
    operation: Schema = {
        "summary": known.says,
        "description": f"Becomes {became}; scopes: {', '.join(wanted)}.",
        "operationId": "known" + re.sub(r"\W+", "_", known.path).rstrip("_"),
        "tags": ["known"],
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "security": [{"key": wanted}, {}],
        "responses": {"200": _answer("Done", {"type": "object"}), "default": _FAILED},
    }
    if known.verb == "POST":
        operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return operation


def _parameters(row: Row, request: Descriptor, schemas: dict[str, Schema]) -> Iterator[Schema]:
    for name in row.filled:
        word = name.rpartition(".")[2]
        yield {"name": word, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    if not row.has_body:
        for name, field in parameters_of(row, request):
            one = _one(field, schemas)
            schema: Schema = {"type": "array", "items": one} if field.is_repeated else one
            yield {"name": name, "in": "query", "schema": schema, **_said(field.full_name)}
    if row.key:
        what = f"Becomes `{row.key}` where the body has none"
        yield {"name": "Idempotency-Key", "in": "header", "description": what, "schema": {"type": "string"}}
    if row.resume:
        what = "The `id` of the last event that was read"
        yield {"name": "Last-Event-ID", "in": "header", "description": what, "schema": {"type": "string"}}


def parameters_of(row: Row, request: Descriptor) -> Iterator[tuple[str, FieldDescriptor]]:
    """The fields of a request that are query parameters, by name. Maps are too, with a dot and the key behind the name,
    which OpenAPI cannot say."""
    for path, field in _leaves(request, ()):
        name = ".".join(path)
        if name not in row.filled:
            yield name.removeprefix(f"{row.flat}.") if row.flat else name, field


def _leaves(descriptor: Descriptor, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], FieldDescriptor]]:
    for field in descriptor.fields:
        path = (*above, field.name)
        inner = field.message_type
        if inner is None or inner.full_name in _KNOWN:
            yield path, field
        elif not field.is_repeated and not inner.GetOptions().map_entry:
            yield from _leaves(inner, path)


def _to(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(says: str, schema: Schema) -> Schema:
    return {"description": says, "content": {"application/json": {"schema": schema}}}


def _message(descriptor: Descriptor, schemas: dict[str, Schema]) -> Schema:
    """A reference to a message, whose schema is there when this returns."""
    if descriptor.full_name in _KNOWN:
        return _KNOWN[descriptor.full_name]
    name = _name(descriptor)
    if name not in schemas:
        made: Schema = {"type": "object", **_said(descriptor.full_name)}
        schemas[name] = made  # before its fields, which may lead back here
        made["properties"] = {
            field.json_name: {**_field(field, schemas), **_said(field.full_name)} for field in descriptor.fields
        }
        if name == "Payload":
            made["properties"]["json"] = {"writeOnly": True, "description": "Any JSON, in place of `text` and `data`."}
    return _to(name)


def _field(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _one(inner.fields_by_name["value"], schemas)}
    one = _one(field, schemas)
    return {"type": "array", "items": one} if field.is_repeated else one


def _one(field: FieldDescriptor, schemas: dict[str, Schema]) -> Schema:
    if field.message_type is not None:
        return _message(field.message_type, schemas)
    if field.enum_type is not None:
        return _enum(field.enum_type, schemas)
    if field.cpp_type in _INTEGERS:
        form, least, most = _INTEGERS[field.cpp_type]
        return {"type": "integer", "format": form, "minimum": least, "maximum": most}
    if field.cpp_type in _WIDE:
        return {"type": ["string", "integer"], "format": _WIDE[field.cpp_type]}  # answers have it as a string
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"type": "boolean"}
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return {"type": "number"}
    return {"type": "string", **({"contentEncoding": "base64"} if field.type == FieldDescriptor.TYPE_BYTES else {})}


def _enum(descriptor: EnumDescriptor, schemas: dict[str, Schema]) -> Schema:
    name = _name(descriptor)
    values = [value.name for value in descriptor.values]
    of_values = ((value, comment_of(f"{descriptor.full_name}.{value}")) for value in values)
    lines = [comment_of(descriptor.full_name), "", *(f"* `{value}`: {said}" for value, said in of_values if said)]
    schemas.setdefault(name, {"type": "string", "enum": values, "description": "\n".join(lines).strip()})
    return _to(name)


def _said(name: str) -> Schema:
    """What the contract says of something, as a part of its schema."""
    said = comment_of(name)
    return {"description": said} if said else {}


def _name(descriptor: Descriptor | EnumDescriptor) -> str:
    """The name without the package."""
    return str(descriptor.full_name).removeprefix("agentreach.v1.")


def _problem() -> Schema:
    """As `problems.document` makes it."""
    kinds = {str: "string", int: "integer", bool: "boolean", dict: "object"}
    shown = document(InvalidRequest("an example"))
    properties: Schema = {name: {"type": kinds[type(value)]} for name, value in shown.items()}
    properties |= {"retryAfterMs": {"type": "integer"}, "traceId": {"type": "string"}}
    return {"type": "object", "properties": properties, "required": sorted(shown)}
