"""A tiny HTTP server that answers with exactly the bytes it is told to, for tests of the OpenAI adapter."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

PAUSE = 0.01  # seconds between pieces, so that they arrive one by one


@dataclass(slots=True)
class Request:
    """What a client sent."""

    line: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(slots=True)
class Endpoint:
    """One server; `pieces` are written to each connection in turn, then it is closed (or hung, if `hang`)."""

    pieces: list[bytes]
    hang: bool = False
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    closed_by_client: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def endpoint(*pieces: bytes, hang: bool = False) -> Iterator[Endpoint]:
    """Serve until the block ends."""
    server = Endpoint(list(pieces), hang)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        server.port = listener.getsockname()[1]
        thread = threading.Thread(target=_serve, args=(listener, server, done))
        thread.start()
        try:
            yield server
        finally:
            done.set()
            thread.join()


def _serve(listener: socket.socket, server: Endpoint, done: threading.Event) -> None:
    while not done.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, suppress(OSError):
            connection.settimeout(5)
            server.requests.append(_read(connection))
            for piece in server.pieces:
                connection.sendall(piece)
                time.sleep(PAUSE)
            connection.settimeout(0.05)
            while server.hang and not done.is_set():
                with suppress(TimeoutError):
                    if connection.recv(1) == b"":
                        server.closed_by_client.set()
                        break


def _read(connection: socket.socket) -> Request:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    line, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (entry.partition(":") for entry in rest)}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65_536)
    return Request(line, headers, json.loads(body or b"{}"))


def reply(status: str, body: bytes = b"", *headers: str, media_type: str = "application/json") -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {media_type}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def stream_head(*headers: str) -> bytes:
    """The beginning of an answer that streams until the connection is closed."""
    return "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: text/event-stream", *headers, "", ""]).encode()


def delta(text: str | None = None, finish: str | None = None) -> bytes:
    """One event of a completion."""
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    """A piece in chunked transfer coding; empty: the end."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


DONE = b"data: [DONE]\n\n"
