"""HTTP/1.1 as uvicorn speaks it, with patience that ends: a client that sends no whole head, or reads nothing of what
it asked for, does not hold its connection for ever (GOV-5); and with problems for what is no HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, Final, Literal

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from reach.errors import InvalidRequest, Reason
from reach.http.problems import MEDIA_TYPE, document

HEAD_SECONDS: Final = 20.0
"""How long the head of a request may take to arrive, from the opening of the connection or its first byte."""
UNREAD_SECONDS: Final = 60.0
"""How long a client may take nothing of what waits for it."""


class Protocol(H11Protocol):
    """One connection. See the module."""

    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The client has connected: it is to say what it wants."""
        super().connection_made(transport)
        # asyncio does this only for sockets that name their protocol, and one bound before does not. Without it
        # each answer but the first waits for 40 ms: its head is on the way, and its body until that is acknowledged.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._end_timer("_head")
        self._end_timer("_unread")
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Something came, or an answer is complete."""
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._end_timer("_head")  # it is whole
        elif self._head is None and self.conn.trailing_data[0]:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is told."""
        super().pause_writing()
        if self._unread is None:
            self._look_later()

    def resume_writing(self) -> None:
        """It has read."""
        self._end_timer("_unread")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or too much of it, gets a problem like any other mistake."""
        cause = sys.exc_info()[1]
        status = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
        message = "the headers are too large" if status == 431 else "this is not a request of HTTP/1.1"
        body = msgspec.json.encode(document(InvalidRequest(message, Reason.MALFORMED_MESSAGE), status))
        headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _look_later(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self._look, waiting)

    def _look(self, before: int) -> None:
        """A slow client takes a little; one that is stuck takes nothing."""
        if self.transport.get_write_buffer_size() < before:
            self._look_later()
        else:
            self.transport.abort()

    def _end_timer(self, name: Literal["_head", "_unread"]) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
        setattr(self, name, None)
