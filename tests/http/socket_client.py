"""A WebSocket as a client without a library has it: frames by wsproto, over a connection of its own."""

import asyncio
import json
import socket
import ssl
from typing import Any, Self

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Message,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
)

from tests.rpc.peers import TIMEOUT

PATH = "/v1/ws"


class Refused(Exception):
    """The server did not take the socket."""

    def __init__(self, status: int, told: dict[str, Any]) -> None:
        super().__init__(f"{status} {told}")
        self.status = status
        self.told = told


class Closed(Exception):
    """The server closed the socket, or is gone (code 0)."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class SocketClient:
    """One socket. `async with SocketClient(port) as ws`, or `open` by hand."""

    def __init__(
        self,
        port: int,
        headers: dict[str, str] | None = None,
        protocols: tuple[str, ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._port = port
        self._tls = tls
        self._headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._protocols = list(protocols)
        self.conn = WSConnection(ConnectionType.CLIENT)
        self.subprotocol: str | None = None
        self.pongs = 0
        self._texts: list[str] = []
        self._part = ""
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def open(self, host: str = "localhost", path: str = PATH) -> None:
        """Connects and asks. Raises Refused."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        asked = Request(host, path, extra_headers=self._headers, subprotocols=self._protocols)
        self.writer.write(self.conn.send(asked))
        status, body = 0, bytearray()
        while True:
            for event in await self._events():
                if isinstance(event, AcceptConnection):
                    self.subprotocol = event.subprotocol
                    return
                if isinstance(event, RejectConnection):
                    status = event.status_code
                elif isinstance(event, RejectData):
                    body += event.data
                    if event.body_finished:
                        self.writer.transport.abort()
                        raise Refused(status, json.loads(body))

    async def _events(self) -> list[Any]:
        async with asyncio.timeout(TIMEOUT):
            try:
                data = await self.reader.read(65_536)
            except ConnectionError:
                data = b""
        if not data:
            self.writer.transport.abort()
            raise Closed(0, "the connection is gone")
        self.conn.receive_data(data)
        return list(self.conn.events())

    async def say(self, frame: Any = None, **fields: Any) -> None:
        """Sends one frame: fields as JSON, or a text as it is."""
        self.writer.write(self.conn.send(Message(frame if frame is not None else json.dumps(fields))))
        await self.writer.drain()

    async def ask(self, name: str | int, method: str, request: Any = None, **more: Any) -> None:
        """Makes a call."""
        await self.say(id=name, method=method, request=request or {}, **more)

    async def hear(self) -> Any:
        """The next frame. Raises Closed."""
        while not self._texts:
            for event in await self._events():
                if isinstance(event, Message):
                    self._part += str(event.data)
                    if event.message_finished:
                        self._texts.append(self._part)
                        self._part = ""
                elif isinstance(event, Ping):
                    self.writer.write(self.conn.send(event.response()))
                elif isinstance(event, Pong):
                    self.pongs += 1
                elif isinstance(event, CloseConnection):
                    raise Closed(event.code, event.reason or "")
        return json.loads(self._texts.pop(0))

    async def hear_all(self, name: str | int) -> list[Any]:
        """All frames of one call, to its end. No other call is open meanwhile."""
        frames = [await self.hear()]
        while not frames[-1].get("end"):
            frames.append(await self.hear())
        assert {frame["id"] for frame in frames} == {name}
        return frames

    async def call(self, method: str, request: Any = None) -> Any:
        """Makes a call with one response: its last frame. No other call is open meanwhile."""
        await self.ask("call", method, request)
        return (await self.hear_all("call"))[-1]

    def reset(self) -> None:
        """Ends the connection as a process that is killed does."""
        made = self.writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()
