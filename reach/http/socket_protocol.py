"""WebSocket as uvicorn speaks it with wsproto, with bounds on what a client may do to it (GOV-5): it eats little at a
time, answers no flood of pings, and lets go of who reads nothing. Imported with the first socket.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import events
from wsproto.connection import ConnectionState

from reach.http.unread import Unread

SLICE_BYTES: Final = 4_096
"""Read in one turn of the loop: at most 700 of the smallest frames, about 5 ms."""
SMALL_BYTES: Final = 512
"""A fragment of a message with less than that counts as noise."""
STOP_SECONDS: Final = 1.8
"""How long a connection may stay open when the server stops; a little less than all that uvicorn waits."""
NOISE: Final = 200
"""Pings, pongs and small fragments that a client may send in a second."""
POLICY: Final = 1008
"""The code of the close (RFC 6455) for who does what he may not."""


class SocketProtocol(WSProtocol):
    """One connection. See the module."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._held = bytearray()
        self._eating: asyncio.Handle | None = None
        self._second = 0.0
        self._noise = 0
        self._fragment = 0
        """How much of a fragment is here."""
        self._unread: Unread | None = None
        self._whence = ""

    def connection_made(self, transport: Any) -> None:
        """The client asked for a socket."""
        super().connection_made(transport)
        self._whence = self.config.crowds.enter(self.client[0] if self.client else "")  # type: ignore[attr-defined]
        self._unread = Unread(transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self.config.crowds.leave(self._whence)  # type: ignore[attr-defined]
        if self._unread is not None:
            self._unread.end()
        if self._eating is not None:
            self._eating.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is told."""
        super().pause_writing()
        if self._unread is not None:
            self._unread.begin()

    def resume_writing(self) -> None:
        """It has read."""
        if self._unread is not None:
            self._unread.end()
        super().resume_writing()

    def shutdown(self) -> None:
        """The server stops. Who does not read is not waited for."""
        super().shutdown()
        self.loop.call_later(STOP_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Holds it, and reads no more before it is eaten."""
        self._held += data
        if self._eating is None:
            self._eat()

    def _eat(self) -> None:
        """Takes a slice, if nothing that came before waits for the application."""
        self._eating = None
        if self.transport.is_closing():
            return
        if self._held and (self.queue.empty() or self.close_sent):
            piece = bytes(self._held[:SLICE_BYTES])
            del self._held[:SLICE_BYTES]
            super().data_received(piece)
        if self.transport.is_closing():
            return
        is_hungry = self.queue.empty() or self.close_sent
        if self._held:
            self.transport.pause_reading()
            if is_hungry:
                self._eating = self.loop.call_soon(self._eat)
        elif is_hungry:
            self.transport.resume_reading()

    async def send(self, message: Any) -> None:
        """Writes a message. See ASGI."""
        if self.close_sent and not self.response_started:
            raise ClientDisconnected  # what nobody listens to any more is no mistake of the application
        await super().send(message)

    async def receive(self) -> Any:
        """The next message. See ASGI."""
        message = await self.queue.get()
        if self.queue.empty() and not self.transport.is_closing():
            if self._held:
                if self._eating is None:
                    self._eating = self.loop.call_soon(self._eat)
            elif self.read_paused:
                self.transport.resume_reading()
            self.read_paused = False
        return message

    def handle_message(self, event: events.TextMessage | events.BytesMessage) -> None:
        """A message, or a part of one: of a fragment that ends, or because the rest has not come yet."""
        self._fragment += len(event.data)
        is_small = event.frame_finished and not event.message_finished and self._fragment < SMALL_BYTES
        if event.frame_finished:
            self._fragment = 0
        if not is_small or self._is_quiet():
            super().handle_message(event)

    def handle_close(self, event: events.CloseConnection) -> None:
        """The client leaves, or sent what is no frame: then it hears why."""
        if self.conn.state is ConnectionState.OPEN and not self.transport.is_closing():
            self.transport.write(self.conn.send(event))
        super().handle_close(event)

    def handle_ping(self, event: events.Ping) -> None:
        """Answers, if it is not one of too many, and the client takes the answers."""
        if self._is_quiet() and self.writable.is_set():
            super().handle_ping(event)

    def handle_pong(self, event: events.Pong) -> None:
        """An answer to our ping, or noise."""
        if self._is_quiet():
            super().handle_pong(event)

    def _is_quiet(self) -> bool:
        """Counts noise; ends the connection when there is too much of it."""
        now = self.loop.time()
        if now - self._second >= 1:
            self._second, self._noise = now, 0
        self._noise += 1
        if self._noise <= NOISE or self.close_sent:
            return not self.close_sent
        self.close_sent = True
        reason = f"over {NOISE} pings, pongs or small fragments in a second"
        self.queue.put_nowait({"type": "websocket.disconnect", "code": POLICY, "reason": reason})
        self._held.clear()
        if not self.transport.is_closing():
            self.transport.write(self.conn.send(events.CloseConnection(code=POLICY, reason=reason)))
            self.transport.close()
        return False
