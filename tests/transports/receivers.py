"""A receiver of webhooks that does what a test wants of it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple


class Got(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """Answers each request with the bytes that `answer` gives; None: never."""

    def __init__(self, answer: Callable[[Got], bytes | None]) -> None:
        self.answer = answer
        self.got: list[Got] = []
        self.connections = 0
        self.at_once = self.most_at_once = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                got = Got(head[0].split(" ")[1], headers, body)
                self.got.append(got)
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    answer = self.answer(got)
                    if answer is None:
                        await asyncio.sleep(3_600)
                    await asyncio.sleep(0)
                    writer.write(answer or b"")
                    await writer.drain()
                finally:
                    self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def answered(status: int, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\n{headers}content-length: 0\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def receiver(
    answer: Callable[[Got], bytes | None] = lambda _: OK, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver on a port of its own."""
    made = Receiver(answer)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(made.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
