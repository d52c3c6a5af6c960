"""One GET of a document that we were told of: by the addresses that were judged, bounded in time and size, never
redirected (GOV-6). For what is read now and then: cards of agents, keys of issuers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from reach.transports.posting import LookUp, Refusal, look_up
from reach.wire.urls import Target

FETCH_SECONDS: Final = 10.0
FETCH_BYTES: Final = 1 << 20


class Fetched(NamedTuple):
    """What a server answered."""

    body: bytes = b""
    """The document; empty if there is none."""
    error: str = ""
    """Why there is none."""
    headers: Mapping[str, str] = {}
    """Of the answer, in lower case; the last of each name."""
    status: int = 0
    """Of HTTP; 0: there was no answer. 304 is no error: the caller asked whether there is something new."""


async def fetch(
    target: Target,
    refusal: Refusal,
    *,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    seconds: float = FETCH_SECONDS,
    limit: int = FETCH_BYTES,
    find: LookUp = look_up,
) -> Fetched:
    """GETs a document. Raises nothing but what cancels it.

    Args:
        target: Where it is.
        refusal: Judges all addresses of its host (`AgentRules.refusal`).
        headers: Sent beside what each request has.
        tls: Whom to trust; None: the authorities of the system.
        seconds: From the look-up to the end of the document.
        limit: Its largest size, in bytes.
        find: Looks names up; tests give another one.
    """
    # The client and the authorities of the system take a third of a second, which most servers never need.
    guarded = await asyncio.to_thread(import_module, "reach.transports.guarded")
    if tls is None:
        make = ssl.create_default_context if target.tls else partial(ssl.SSLContext, ssl.PROTOCOL_TLS_CLIENT)
        tls = await asyncio.to_thread(make)
    pool = guarded.guarded_pool(refusal, find, tls)
    try:
        async with asyncio.timeout(seconds):
            sent = {**guarded.headers_of(target), **(headers or {})}
            async with pool.stream("GET", guarded.url_of(target), headers=[*sent.items()]) as answer:
                return await _read(answer, limit)
    except TimeoutError:
        return Fetched(error=f"no whole answer within {seconds:g} s")
    except guarded.FAILURES as failure:
        return Fetched(error=guarded.said_of(failure))
    finally:
        await pool.aclose()


async def _read(answer: Any, limit: int) -> Fetched:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    status: int = answer.status
    if status == 304:
        return Fetched(headers=headers, status=status)
    if 300 <= status < 400:
        return Fetched(error=f"it answered {status}: redirects are not followed", headers=headers, status=status)
    if status != 200:
        return Fetched(error=f"it answered {status}", headers=headers, status=status)
    body = bytearray()
    async for piece in answer.aiter_stream():
        body += piece
        if len(body) > limit:
            return Fetched(error=f"it is over {limit} bytes", headers=headers, status=status)
    return Fetched(bytes(body), headers=headers, status=status)
