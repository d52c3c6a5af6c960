"""Answers that come before their request's body is whole end the connection, and say so: a client that has sent it all
would else take the connection for good, and lose its next request."""

from __future__ import annotations

from typing import Any, Final

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE: Final = (b"connection", b"close")


class EarlyAnswers:
    """Around an application. See the module."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        is_whole = False

        async def hear() -> Message:
            nonlocal is_whole
            message = await receive()
            is_whole = is_whole or not message.get("more_body", False)
            return message

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_whole:
                message = {**message, "headers": [*message["headers"], CLOSE]}
            await send(message)

        await self._app(scope, hear, say)


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


class OpenToTheEnd:
    """The transport of a connection as one request has it: it does not close while a body comes, for then the client
    would be reset and never read its answer. `Protocol` closes it in time."""

    def __init__(self, transport: Any, conn: h11.Connection) -> None:
        self._transport = transport
        self._conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Closes, unless a body comes."""
        if self._conn.their_state is not h11.SEND_BODY:
            self._transport.close()
