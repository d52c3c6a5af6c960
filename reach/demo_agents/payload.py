"""What the demo agents share: reading a request, and the command line.

A request is plain text, or a JSON object that holds the text under one key with options beside it:

    read_fields(b"Some text.", "text/plain", "text")                       -> {"text": "Some text."}
    read_fields(b'{"text": "…", "sentences": 3}', "application/json", "text", {"sentences": int})
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

DEFAULT_CONCURRENCY = 4


class BadRequestError(ValueError):
    """The request is wrong, and this says how; the agents report it as the SDK's `InvalidRequest`."""


def read_fields(
    payload: bytes, media_type: str, text_key: str, options: Mapping[str, type] | None = None, *, instead: str = ""
) -> dict[str, Any]:
    """Read a request into a dict with `text_key` (str) and the options that were given.

    JSON is read as such when the media type says so, and also when the text is an object with `text_key` in it, since
    command lines often send everything as text. `options` maps each further key to its type (`float` takes whole
    numbers too); `instead` names one that may stand for the text. Raises `BadRequestError`.
    """
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the payload is not UTF-8: byte {error.start} is 0x{payload[error.start]:02x}") from None
    declared = _is_json(media_type)
    if not declared and not text.lstrip().startswith("{"):
        return {text_key: text}
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        if declared:
            raise BadRequestError(f"the payload is not JSON: {error}") from None
        return {text_key: text}
    if not declared and not (isinstance(fields.get(text_key), str) or (instead and instead in fields)):
        return {text_key: text}
    if isinstance(fields, str):
        fields = {text_key: fields}
    return _checked(fields, text_key, dict(options or {}), instead)


def _checked(fields: object, text_key: str, options: Mapping[str, type], instead: str) -> dict[str, Any]:
    types = {text_key: str, **options}
    if not isinstance(fields, dict):
        raise BadRequestError(f"expected a JSON object with the keys {', '.join(types)}, or a string")
    given = {key: value for key, value in fields.items() if value is not None}
    unknown = sorted(set(given) - set(types))
    if unknown:
        raise BadRequestError(f"unknown key {unknown[0][:60]!r}; known are {', '.join(types)}")
    if instead and instead in given:
        if text_key in given:
            raise BadRequestError(f"give {text_key!r} or {instead!r}, not both")
    elif text_key not in given:
        raise BadRequestError(f"{text_key!r} is missing")
    for key, value in given.items():
        wanted = types[key]
        # bool is a subclass of int, but true is no number here.
        fits = isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool)
        if not fits:
            raise BadRequestError(f"{key!r} must be of type {wanted.__name__}, not {type(value).__name__}")
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise BadRequestError(f"{key!r} holds half of a surrogate pair, which is no character")
    return given


def _is_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def argument_parser(doc: str | None, agent_id: str) -> argparse.ArgumentParser:
    """The options that every demo agent has: where the server is, and under which names to appear there."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--addr", help="server, host:port (default: $AGENT_REACH_ADDR, else 127.0.0.1:8900)")
    parser.add_argument("--agent-id", default=agent_id, help="logical agent (default: %(default)s)")
    parser.add_argument("--instance-id", help="this process (default: made from agent, host and six random letters)")
    parser.add_argument(
        "--max-concurrency", type=int, default=DEFAULT_CONCURRENCY, help="tasks at a time (default: %(default)s)"
    )
    return parser
