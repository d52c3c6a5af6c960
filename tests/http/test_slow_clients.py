"""Clients that take their time, send without end, lie about lengths, or are just there: each connection has its time,
and calls over gRPC beside them are answered as without them (GOV-5; "Bad inputs" of the cases, A16)."""

import asyncio
import contextlib
import gzip
import os
import re
import ssl
import statistics
import time
from contextlib import AsyncExitStack
from typing import cast

import pytest

from reach.http import app, bodies, protocol, socket_protocol, websocket
from reach.telemetry.metrics import resident_bytes
from tests.e2e.processes import tell
from tests.http.conftest import client_of
from tests.http.socket_client import SocketClient
from tests.http.test_app import Node as Health
from tests.http.test_app import serving
from tests.rpc.certificates import Authority
from tests.rpc.peers import MIB, TIMEOUT, Stubs, pb, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

IDLE = int(os.environ.get("IDLE", "1000"))
"""Connections that do nothing: one of five is an open WebSocket, the others say nothing at all."""
SLOW = 100
"""Connections that send a byte now and then, half of them of a head and half of a body."""
CALLS = 60
GET = b"GET %s HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\n"


class Raw:
    """One connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: int, sent: bytes = b"", **arguments) -> "Raw":
        made = cls(*await asyncio.open_connection("127.0.0.1", port, **arguments))
        made.writer.write(sent)
        return made

    async def trickle(self, data: bytes, every: float) -> bool:
        """Sends byte by byte; False once the server listens no more."""
        for byte in data:
            if self.writer.transport.is_closing() or self.reader.at_eof():
                return False
            self.writer.write(bytes([byte]))
            await asyncio.sleep(every)
        return True

    async def rest(self) -> bytes:
        """All that comes before the server lets go."""
        data = bytearray()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(TIMEOUT):
                while piece := await self.reader.read(65_536):
                    data += piece
        return bytes(data)

    async def status(self) -> bytes:
        """Of an answer."""
        async with asyncio.timeout(TIMEOUT):
            line = await self.reader.readline()
        return line.split()[1] if line else b""

    def close(self) -> None:
        self.writer.transport.abort()


async def median(stubs: Stubs) -> float:
    """Of some calls over gRPC, in seconds; each must be answered."""
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        async with asyncio.timeout(TIMEOUT):
            await stubs.ops.GetServerInfo(pb.GetServerInfoRequest())
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def test_GOV_5_slow_and_idle_connections_slow_no_call_over_grpc(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 1.2)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 1.2)
    async with running(tmp_path, http__max_connections=2 * IDLE + SLOW) as node, Stubs(node.port) as stubs:
        await median(stubs)  # once for nothing
        without, beside = [await median(stubs)], []
        async with AsyncExitStack() as stack:
            sockets = [await stack.enter_async_context(SocketClient(node.admin_port)) for _ in range(IDLE // 5)]
            silent = [await Raw.to(node.admin_port) for _ in range(IDLE - len(sockets))]
            slow = [
                await Raw.to(node.admin_port, b"" if number % 2 else POST + b"content-length: 1000\r\n\r\n")
                for number in range(SLOW)
            ]
            trickling = [asyncio.ensure_future(one.trickle(POST * 100, 0.15)) for one in slow]
            beside.append(await median(stubs))
            for one in silent:
                assert await one.rest() == b""  # its time is over
            for number, one in enumerate(slow):
                assert (await one.rest())[:12] == (b"" if number % 2 else b"HTTP/1.1 408")
            assert not any(await asyncio.gather(*trickling))
            beside.append(await median(stubs))  # beside the sockets, which stay
            for ws in sockets:
                await ws.say(ping="x")
                assert await ws.hear() == {"pong": "x"}
            for one in (*silent, *slow):
                one.close()
        without.append(await median(stubs))
    figures = [f"{1e3 * one:.2f} ms" for one in (*without, *beside)]
    tell(f"a call over gRPC without: {figures[:2]}, beside {IDLE} idle and {SLOW} slow connections: {figures[2:]}")
    assert min(beside) < 3 * max(without) + 0.005, figures


async def test_GOV_5_a_body_without_end_is_answered_and_its_connection_ends(node, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.3)
    before = resident_bytes()
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    one = await Raw.to(node.admin_port, POST + b"transfer-encoding: chunked\r\n\r\n")

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                one.writer.write(piece)
                await one.writer.drain()

    sending = asyncio.ensure_future(send())
    assert await one.status() == b"413"
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(TIMEOUT):
        await sending  # until the server lets go
    assert asyncio.get_running_loop().time() - began < 5
    assert resident_bytes() - before < 64 * MIB
    one.close()


@pytest.mark.parametrize(
    "head", [b"content-length: 99999999999\r\n\r\n", b"content-length: 10\r\ncontent-encoding: gzip\r\n\r\n"]
)
async def test_GOV_5_who_was_answered_before_his_body_is_not_listened_to_for_long(node, monkeypatch, head):
    """A byte now and then would hold the connection for ever."""
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.3)
    one = await Raw.to(node.admin_port, POST + head)
    assert await one.status() in (b"413", b"415")
    async with asyncio.timeout(5):
        assert not await one.trickle(b" " * 100, 0.05)
    one.close()


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (POST + b"content-length: 100\r\n\r\n{}", []),
        (POST + b"content-length: 2\r\n\r\n{}{}{}\r\n\r\n", [b"400", b"400"]),  # what is left is no request
        (POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}", [b"400"]),
        (POST + b"content-length: -1\r\n\r\n{}", [b"400"]),
        (POST + b"content-length: 1_0\r\n\r\n{}", [b"400"]),
        (POST + b"content-length: " + b"9" * 5_000 + b"\r\n\r\n{}", [b"400"]),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", [b"400"]),
        (POST + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffffffff\r\n", [b"400"]),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", [b"501"]),
        # Two lengths: the rest is not taken for a request, whatever somebody between may have made of it.
        (POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + POST + b"\r\n", [b"400"]),
        (GET % b"/healthz" + b"transfer-encoding: chunked\r\n\r\nzz\r\n", [b"400"]),
        (GET % b"/v1/watch/tasks" + b"transfer-encoding: chunked\r\n\r\nzz\r\n", [b"400"]),
    ],
)
async def test_GOV_5_lengths_that_lie_harm_nobody(node, http, sent, statuses):
    one = await Raw.to(node.admin_port, sent)
    if not statuses:
        one.writer.write_eof()  # it goes
    said = await one.rest()
    one.close()
    assert re.findall(rb"HTTP/1\.1 (\d+) ", said) == statuses, said
    assert (await http.get("/healthz")).status_code == 200


async def test_GOV_5_a_body_that_is_none_ends_an_answer_that_has_begun(node, http):
    one = await Raw.to(node.admin_port, GET % b"/v1/watch/tasks" + b"transfer-encoding: chunked\r\n\r\n")
    assert await one.status() == b"200"
    async with asyncio.timeout(TIMEOUT):
        await one.reader.readuntil(b"event: change")
    one.writer.write(b"zz\r\n")
    await one.rest()
    one.close()
    assert (await http.get("/healthz")).status_code == 200


async def test_DLV_13_who_takes_no_answers_does_not_hold_up_the_end(tmp_path, caplog, monkeypatch):
    """Neither is the server late, nor does it complain."""
    monkeypatch.setattr(websocket, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(socket_protocol, "STOP_SECONDS", 0.3)
    async with running(tmp_path) as node, client_of(node.admin_port) as http:
        spec = {"taskId": "large", "selector": {"agentId": "nobody"}, "payload": {"text": "x" * (2 * MIB)}}
        assert (await http.post("/v1/tasks", json={"task": spec})).status_code == 200
        ws = SocketClient(node.admin_port)
        await ws.open()
        cast("asyncio.Transport", ws.writer.transport).pause_reading()
        for number in range(20):
            await ws.ask(number, "DispatchService/GetTask", {"taskId": "large"})
        await asyncio.sleep(0.5)
        async with asyncio.timeout(TIMEOUT):
            await node.stop()
        ws.writer.transport.abort()
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def test_A16_what_is_packed_is_not_unpacked(node, http):
    before = resident_bytes()
    bomb = gzip.compress(bytes(200_000_000), 1)
    for headers in ({"content-encoding": "gzip"}, {"content-encoding": "deflate, gzip"}, {"content-encoding": "br"}):
        answer = await http.post("/v1/tasks", content=bomb, headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (415, "MALFORMED_MESSAGE")
    answer = await http.post("/v1/tasks", content=bomb[:100])  # not said to be packed: it is no JSON
    assert answer.status_code == 400
    assert resident_bytes() - before < 16 * MIB + 3 * len(bomb)


async def test_GOV_5_a_handshake_that_does_not_end_ends_its_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "HANDSHAKE_SECONDS", 0.3)
    key, certificate = Authority(tmp_path / "ca").issue("server", "DNS:localhost")
    (tmp_path / "server.pem").write_bytes(certificate)
    (tmp_path / "server.key").write_bytes(key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    async with serving(app.create_app(Health().ready), tls=tls) as client:
        one = await Raw.to(client.base_url.port, b"\x16\x03\x01")
        async with asyncio.timeout(5):
            assert await one.rest() == b""
        one.close()
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        other = await Raw.to(client.base_url.port, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", ssl=trusting)
        assert await other.status() == b"200"
        other.close()


async def test_GOV_5_an_answer_before_the_body_says_that_its_connection_ends(node):
    """Else a client that has sent its body all the same takes the connection for its next request, and loses that."""
    for length, sent in ((8_000_000, 3_000_000), (100, 0)):
        one = await Raw.to(
            node.admin_port, POST + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % length + b"x" * sent
        )
        transport = cast("asyncio.Transport", one.writer.transport)
        transport.pause_reading()  # it sends first, and reads then
        await asyncio.sleep(0.1)
        one.writer.write(b"x" * sent)
        await asyncio.sleep(0.1)
        transport.resume_reading()
        answer = await asyncio.wait_for(one.reader.read(), TIMEOUT)  # and is not reset
        assert answer.startswith(b"HTTP/1.1 415")
        assert b"\r\nconnection: close\r\n" in answer
        assert b"MALFORMED_MESSAGE" in answer, "it is whole"
        one.close()
    whole = await Raw.to(node.admin_port, POST + b"content-length: 2\r\n\r\n{}")
    async with asyncio.timeout(TIMEOUT):
        told = await whole.reader.readuntil(b"\r\n\r\n")
    assert b"connection: close" not in told
    whole.close()
