"""Reads server-sent events as browsers do."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx


class Told(NamedTuple):
    """One event."""

    kind: str
    data: dict[str, Any]
    event_id: str


async def events_of(answer: httpx.Response, comments: list[str] | None = None) -> AsyncIterator[Told]:
    """The events of an answer as they come; what is only a comment goes into `comments`."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        if line and name:
            fields[name] = value.removeprefix(" ")
        elif line:
            (comments if comments is not None else []).append(value)
        elif "data" in fields:
            yield Told(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
            fields = {}
