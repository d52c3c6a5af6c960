"""HTTP/1.1 as uvicorn speaks it, with patience that ends: a client that sends no whole head, or reads nothing of what
it asked for, does not hold its connection for ever (GOV-5); and with problems for what is no HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterable
from typing import Any, Final, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from reach.errors import InvalidRequest, Reason
from reach.http.certificates import KEY, names_of
from reach.http.crowds import Crowds
from reach.http.early import OpenToTheEnd
from reach.http.problems import MEDIA_TYPE, document
from reach.http.unread import Unread

HEAD_SECONDS: Final = 5.0
"""How long the head of a request may take to arrive, from the opening of the connection or its first byte."""
HANDSHAKE_SECONDS: Final = 5.0
"""How long a client may take to agree on TLS."""
LINGER_SECONDS: Final = 2.0
"""How long what is left of a body is thrown away after its answer, so that the client can read that."""
STOP_SECONDS: Final = 1.8
"""How long a connection may stay open when the server stops; a little less than all that uvicorn waits."""


class Protocol(H11Protocol):
    """One connection. See the module."""

    _head: asyncio.TimerHandle | None = None
    _lingering: asyncio.TimerHandle | None = None
    _unread: Unread | None = None
    _whence = ""
    _crowded = False

    def connection_made(self, transport: Any) -> None:
        """The client has connected: it is to say what it wants."""
        super().connection_made(transport)
        crowds = self._crowds
        self._whence = crowds.enter(self.client[0] if self.client else "")
        if crowds.is_hopeless(self._whence):
            transport.abort()
            return
        if crowds.is_full(self._whence):
            self._crowded, self.app = True, crowds.refuse
        # asyncio does this only for sockets that name their protocol, and one bound before does not. Without it
        # each answer but the first waits for 40 ms: its head is on the way, and its body until that is acknowledged.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if names := names_of(transport.get_extra_info("peercert")):
            self.app_state = {**self.app_state, KEY: names}
        self._unread = Unread(transport, self.loop)
        self._head = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._leave()
        self._end_head()
        self._end_unread()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Something came, or an answer is complete."""
        super().handle_events()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not isinstance(cycle.transport, OpenToTheEnd):
            cycle.transport = cast("asyncio.Transport", OpenToTheEnd(cycle.transport, self.conn))
        if cycle is not None and cycle.keep_alive and _is_ambiguous(cycle.scope["headers"]):
            cycle.keep_alive = False
        if self.conn.their_state is not h11.IDLE:
            self._end_head()  # it is whole
        elif self._head is None and self.conn.trailing_data[0]:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        """An answer is written. Who got it before his body was whole may go on sending, and is not listened to."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._lingering = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Something came."""
        if self._lingering is None:
            super().data_received(data)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is told."""
        super().pause_writing()
        if self._unread is not None:
            self._unread.begin()

    def resume_writing(self) -> None:
        """It has read."""
        self._end_unread()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or too much of it, gets a problem like any other mistake, unless its answer has begun."""
        cause = sys.exc_info()[1]
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # who handles the request hears that nobody listens
            cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        status = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
        message = "the headers are too large" if status == 431 else "this is not a request of HTTP/1.1"
        body = msgspec.json.encode(document(InvalidRequest(message, Reason.MALFORMED_MESSAGE), status))
        headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """The server stops. Who does not take his answer is not waited for."""
        super().shutdown()
        self.loop.call_later(STOP_SECONDS, self.transport.abort)

    def _should_upgrade(self) -> bool:
        """Only to WebSocket, and if there is room; other offers, such as curl's of HTTP/2, are not taken up."""
        limit = self.limit_concurrency
        if self._crowded or (limit is not None and len(self.connections) >= limit):
            return False  # and the request is answered as any other one too many
        return self._get_upgrade() == b"websocket"

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From now on another protocol has the connection."""
        self._end_head()
        self._end_unread()
        self._leave()  # it counts there
        super().handle_websocket_upgrade(event)

    @property
    def _crowds(self) -> Crowds:
        found: Crowds = self.config.crowds  # type: ignore[attr-defined]  # `app.py` makes it with one
        return found

    def _leave(self) -> None:
        self._crowds.leave(self._whence)
        self._whence = ""

    def _end_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.end()


def _is_ambiguous(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a head tells two lengths of its body: somebody between may have believed the other one, and take the rest
    for another request (RFC 9112, 6.1: answer, and close)."""
    names = {name for name, _ in headers}
    return b"transfer-encoding" in names and b"content-length" in names


def socket_protocol(**arguments: Any) -> Any:
    """The protocol of a WebSocket. What it is made of is loaded with the first one: it costs a start 10 ms."""
    from reach.http.socket_protocol import SocketProtocol

    return SocketProtocol(**arguments)
