"""Bodies of requests: whole, within a size and a time, or a refusal that HTTP has a word for (GOV-5)."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Receive

from reach.errors import InvalidRequest, ReachError, Reason, Timeout

BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive."""


class Refused(Exception):
    """A request that HTTP itself has a word for."""

    def __init__(self, status: int, error: ReachError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


async def read_whole(headers: Headers, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises Refused if it has more than `limit` bytes, is too slow, or compressed."""
    if headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, InvalidRequest("bodies are taken uncompressed only", Reason.MALFORMED_MESSAGE))
    told = headers.get("content-length", "0")
    if told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, InvalidRequest("the body ended early", Reason.MALFORMED_MESSAGE))
                body += message.get("body", b"")
                if len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        slow = Timeout(f"the body did not arrive within {BODY_SECONDS:.0f} s", Reason.WAIT_EXPIRED)
        raise Refused(408, slow) from None


def _too_large(limit: int) -> Refused:
    message = f"the body is over {limit} bytes"
    return Refused(413, InvalidRequest(message, Reason.PAYLOAD_TOO_LARGE, limit=str(limit)))
