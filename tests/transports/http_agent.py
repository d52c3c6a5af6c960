"""Agents over HTTP, made of nothing but asyncio's streams, so that they can answer anything at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.rpc.peers import Stubs, pb, unique


class Heard(NamedTuple):
    """One request."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes
    read: asyncio.StreamReader
    write: asyncio.StreamWriter

    async def hung_up(self) -> None:
        """Waits until the caller closes the connection."""
        while await self.read.read(1_024):
            pass

    @property
    def said(self) -> Any:
        """The body, as JSON."""
        return json.loads(self.body)


Act = Callable[["HttpAgent", Heard], Awaitable[bytes | None]]
"""What is done for a task; bytes are written as they are, and the connection is closed."""


def answer(body: Any, status: str = "200 OK", kind: str = "application/json", **headers: str) -> bytes:
    """A whole answer."""
    raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    more = {"content-length": str(len(raw)), "connection": "close", **({"content-type": kind} if kind else {})}
    more.update((name.replace("_", "-"), value) for name, value in headers.items())
    head = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + raw


def chunks(*pieces: bytes, kind: str, end: bool = True) -> bytes:
    """An answer in chunks."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces) + (b"0\r\n\r\n" if end else b"")


class HttpAgent:
    """Does what `acts` says for the method of a task; all else is answered with `{"result": "done"}`."""

    def __init__(self, **acts: Act) -> None:
        self.acts = acts
        self.agent_type = self.agent_id = unique("http")
        self.instance_id = unique("instance")
        self.boot_id = unique("boot")
        self.health: bytes | None = answer({"status": "ok"})
        """None: no answer."""
        self.tells_health: Callable[[], bytes] | None = None
        """Instead of `health`."""
        self.checks = 0
        """How often its health was asked."""
        self.health_headers: dict[str, str] = {}
        self.port = 0
        self.asked: list[Heard] = []
        """Tasks."""
        self.others: list[Heard] = []
        """DELETE and GET of attempts."""
        self.jobs: dict[str, bytes] = {}
        """What is answered to GET of a path."""
        self.slow_places = False
        """GET of a path hangs."""
        self.connections: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        self.connections.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            verb, path, _ = first.split(" ")
            said = await self._answer(Heard(verb, path, headers, body, reader, writer))
            if said is not None:
                writer.write(said)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def _answer(self, heard: Heard) -> bytes | None:
        if heard.verb == "GET" and heard.path == "/healthz":
            self.health_headers = heard.headers
            self.checks += 1
            if self.tells_health is not None:
                return self.tells_health()
            if self.health is None:
                await heard.hung_up()
            return self.health
        if heard.verb != "POST":
            self.others.append(heard)
            if self.slow_places:
                await heard.hung_up()
            return self.jobs.get(heard.path, answer("", "404 Not Found"))
        self.asked.append(heard)
        act = self.acts.get(heard.said["method"])
        return answer({"result": "done"}) if act is None else await act(self, heard)

    def registration(self, **fields: Any) -> Any:
        """What it registers with."""
        return pb.RegisterRequest(
            registration={
                "agent_id": self.agent_id,
                "agent_type": self.agent_type,
                "instance_id": self.instance_id,
                "boot_id": self.boot_id,
                "max_concurrency": 4,
                "endpoints": [{"url": f"http://127.0.0.1:{self.port}/ask"}],
                **fields,
            }
        )

    async def register(self, stubs: Stubs, **fields: Any) -> Any:
        """Registers; the answer."""
        return await stubs.registry.Register(self.registration(**fields), timeout=20)


@asynccontextmanager
async def serving(agent: HttpAgent, port: int = 0) -> AsyncIterator[asyncio.Server]:
    """Serves an agent."""
    server = await asyncio.start_server(agent.serve, "127.0.0.1", port)
    agent.port = server.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.close()
        for writer in list(agent.connections):
            writer.transport.abort()
