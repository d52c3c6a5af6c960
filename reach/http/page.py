"""The description of the JSON door as a page to look through: plain HTML, with nothing from anywhere else."""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from reach.http.openapi import Scopes, openapi
from reach.http.problems import HEADERS

CONTENT_SECURITY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
code{font:13px/1.4 ui-monospace,monospace}h2{margin-top:2.5rem;border-bottom:1px solid #ccc}
summary{cursor:pointer;padding:.2rem 0}table{border-collapse:collapse;margin:.5rem 0 1rem}
td,th{text-align:left;padding:.15rem 1rem .15rem 0;vertical-align:top}
b{display:inline-block;min-width:4.5rem}small{color:#555}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}a{color:#8ab4f8}small{color:#aaa}}
"""


def described(scopes: Scopes) -> list[BaseRoute]:
    """`/openapi.json` and `/docs`, open to everybody: they tell what there is, not what anybody has. Both are made when
    they are first asked for."""

    @lru_cache(maxsize=1)
    def document() -> bytes:
        return msgspec.json.encode(openapi(scopes))

    @lru_cache(maxsize=1)
    def html() -> str:
        return page(openapi(scopes))

    secured = {**HEADERS, "content-security-policy": CONTENT_SECURITY}

    async def as_json(_request: Request) -> Response:
        return Response(document(), headers=HEADERS, media_type="application/json")

    async def as_page(_request: Request) -> Response:
        return Response(html(), headers=secured, media_type="text/html")

    return [Route("/openapi.json", as_json), Route("/docs", as_page)]


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    groups: dict[str, list[str]] = {}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(verb.upper(), path, operation))
    info = document["info"]
    title = escape(info["title"])
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    about = f'{escape(info["description"])} As a document: <a href="openapi.json">openapi.json</a>.'
    parts = [f'<!doctype html><html lang="en"><head><title>{title} over HTTP</title>{head}</head><body>']
    parts.append(f"<h1>{title} {escape(info['version'])} over HTTP</h1><p>{about}</p>")
    for name, operations in groups.items():
        parts.append(f"<h2>{escape(name)}</h2>{''.join(operations)}")
    parts.append("<h2>Messages</h2>")
    for name, schema in document["components"]["schemas"].items():
        parts.append(_schema(name, schema))
    return "".join(parts) + "</body></html>"


def _operation(verb: str, path: str, operation: dict[str, Any]) -> str:
    rows = [
        _row(one["name"], one["in"], f"{_type(one['schema'])} {_text(one.get('description', ''))}")
        for one in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        rows.append(_row("body", "JSON", _content(operation["requestBody"])))
    rows += [
        _row(status, "answer", f"{escape(answer['description'])} {_content(answer)}")
        for status, answer in sorted(operation["responses"].items())
    ]
    about = _text(operation.get("description", ""))
    return (
        f"<details><summary><b>{verb}</b> <code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<small>{about}</small><table>{''.join(rows)}</table></details>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    said = schema.get("description", "")
    if "enum" in schema:
        about, *values = said.split("\n* ")
        lines = values or [f"`{value}`" for value in schema["enum"]]
        inside = f"<p>{_text(about)}</p><ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"
    else:
        fields = schema.get("properties", {}).items()
        rows = (_row(field, "", f"{_type(kind)}<br>{_text(kind.get('description', ''))}") for field, kind in fields)
        inside = f"<p>{_text(said)}</p><table>{''.join(rows)}</table>"
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{inside}</details>'


def _text(said: str) -> str:
    """Words in which some are code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(said)).replace("\n\n", "<br>")


def _row(name: str, where: str, what: str) -> str:
    return f"<tr><td><code>{escape(name)}</code></td><td>{escape(where)}</td><td>{what}</td></tr>"


def _content(of: dict[str, Any]) -> str:
    return " ".join(_type(content["schema"]) for content in of.get("content", {}).values())


def _type(schema: dict[str, Any]) -> str:
    """A type in words, with a link where it is a message."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return escape(f"{words} ({schema['format']})" if "format" in schema else words)
