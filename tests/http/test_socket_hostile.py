"""WebSockets of clients that mean no good: fragments, floods, frames that are too large or none, clients that do not
read (GOV-5; "Bad inputs" of the cases). The server closes with a word, or lets go, and others are served meanwhile."""

import asyncio
import json
import os
import struct
from typing import cast

import pytest

from reach.http import unread, websocket
from reach.http.api import Api, ApiSettings
from reach.http.app import create_app
from reach.http.routes import ROWS
from reach.http.socket_protocol import NOISE, POLICY
from reach.rpc.inner_calls import InnerCalls
from tests.http.bodies import PATHS, RAW, bodies_for
from tests.http.socket_client import PATH, Closed, SocketClient
from tests.http.test_app import Node as Health
from tests.http.test_app import serving
from tests.rpc.nodes import until
from tests.rpc.peers import TIMEOUT, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

TEXT, CONTINUED, PING, PONG = 1, 0, 9, 10
TOO_LARGE, PROTOCOL_ERROR, NOT_UTF8 = 1009, 1002, 1007


def frame(opcode, data=b"", *, last=True, masked=True, told=None):
    """One frame, as bytes; `told` is the length that it says, if that is a lie."""
    length = len(data) if told is None else told
    head = bytes([(0x80 if last else 0) | opcode])
    mask_bit = 0x80 if masked else 0
    if length < 126:
        head += bytes([mask_bit | length])
    elif length < 1 << 16:
        head += bytes([mask_bit | 126]) + struct.pack(">H", length)
    else:
        head += bytes([mask_bit | 127]) + struct.pack(">Q", length)
    return head + (bytes(4) if masked else b"") + data  # a mask of zeros changes nothing


async def closed(ws):
    """How the server closes; (0, …) if it just lets go."""
    try:
        while True:
            await ws.hear()
    except Closed as end:
        return end


async def is_served(node):
    """Whether others are answered."""
    async with SocketClient(node.admin_port) as other, asyncio.timeout(TIMEOUT):
        await other.say(ping="x")
        return await other.hear() == {"pong": "x"}


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b'{"ping": "x"}', masked=False), PROTOCOL_ERROR),
        (frame(TEXT, b"\xff\xfe"), NOT_UTF8),
        (frame(3, b"x"), PROTOCOL_ERROR),
        (frame(CONTINUED, b"x"), PROTOCOL_ERROR),
        (frame(PING, b"x" * 126), PROTOCOL_ERROR),
        (frame(PING, b"x", last=False), PROTOCOL_ERROR),
        (frame(TEXT, b"x", last=False) + frame(TEXT, b"y"), PROTOCOL_ERROR),
        (frame(TEXT | 0x40, b"x"), PROTOCOL_ERROR),  # compressed, which nobody agreed to
        (frame(TEXT, b"x", told=(1 << 63) + 5), PROTOCOL_ERROR),
        (frame(8, b"\x03"), PROTOCOL_ERROR),
        (frame(PING) * (NOISE + 1), POLICY),
        (frame(PONG) * (NOISE + 1), POLICY),
        (frame(TEXT, b"", last=False) + frame(CONTINUED, b" ", last=False) * (NOISE + 1), POLICY),
    ],
)
async def test_GOV_5_what_is_no_websocket_is_closed_with_a_word(node, sent, code):
    async with SocketClient(node.admin_port) as ws:
        ws.writer.write(sent)
        assert (await closed(ws)).code == code
    assert await is_served(node)


async def test_GOV_5_a_message_has_a_limit_told_or_not_whole_or_in_parts(node):
    limit = 2 * node.config.server.payload_limit + (1 << 20)
    part = b" " * 65_536
    whole = frame(TEXT, b"", told=limit + 1) + b" " * (limit + 1)
    parts = frame(TEXT, part, last=False) + frame(CONTINUED, part, last=False) * (limit // len(part) + 1)
    for sent in (whole, parts):
        async with SocketClient(node.admin_port) as ws:
            ws.writer.write(sent)
            assert (await closed(ws)).code in (TOO_LARGE, 0)  # 0: our own sending was cut before its close was read
    assert await is_served(node)


async def test_a_large_message_in_parts_is_one(node):
    text = json.dumps({"id": 1, "method": "DispatchService/GetTask", "request": {"taskId": "none"}}).encode()
    padded = text + b" " * 300_000
    pieces = [padded[at : at + 1_000] for at in range(0, len(padded), 1_000)]
    async with SocketClient(node.admin_port) as ws:
        ws.writer.write(frame(TEXT, pieces[0], last=False))
        for piece in pieces[1:-1]:
            ws.writer.write(frame(CONTINUED, piece, last=False))
        ws.writer.write(frame(PING, b"p") + frame(CONTINUED, pieces[-1]))
        assert (await ws.hear())["problem"]["reason"] == "TASK_NOT_FOUND"
        assert ws.pongs == 1


async def test_many_whole_frames_at_once_are_no_noise(node, monkeypatch):
    """However the bites fall that they are eaten in."""
    monkeypatch.setattr(websocket, "FRAMES", 10**9)
    async with SocketClient(node.admin_port) as ws:
        text = b'{"ping": "%s"}' % (b"x" * 250)
        ws.writer.write(frame(TEXT, text) * 5_000)
        for _ in range(5_000):
            assert await ws.hear() == {"pong": "x" * 250}


async def test_GOV_5_a_flood_is_eaten_in_small_bites_and_others_are_served(node):
    """A hundred thousand of the smallest frames; an answer of another socket waits for a bite, not for the meal."""
    flood = frame(TEXT, b"{}") * 100_000
    async with SocketClient(node.admin_port) as bad, SocketClient(node.admin_port) as good:
        bad.writer.write(flood)
        await asyncio.sleep(0.05)
        for number in range(20):
            async with asyncio.timeout(TIMEOUT):
                await good.say(ping=str(number))
                assert await good.hear() == {"pong": str(number)}


async def talk(ws):
    """Says much, and hears nothing."""
    async with asyncio.timeout(TIMEOUT):
        for _ in range(200_000):
            await ws.say(ping="x" * 256)


async def test_GOV_5_a_client_that_reads_nothing_is_let_go(node, monkeypatch):
    monkeypatch.setattr(unread, "UNREAD_SECONDS", 0.3)
    monkeypatch.setattr(websocket, "FRAMES", 10**9)
    entrance = node._grpc.entrance
    api = Api(InnerCalls(entrance, {}), ApiSettings(1 << 20))
    async with serving(create_app(Health().ready, api=api)) as client, SocketClient(client.base_url.port) as ws:
        cast("asyncio.Transport", ws.writer.transport).pause_reading()
        with pytest.raises(ConnectionError):
            await talk(ws)
        await until(lambda: not api._sockets)


async def test_A16_what_is_packed_is_not_taken_on_a_socket(node):
    """No extension is agreed to, so no frame can be small and grow."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
    asked = f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    offered = "sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n"
    writer.write(f"{asked}{offered}sec-websocket-version: 13\r\nsec-websocket-key: {'A' * 22}==\r\n\r\n".encode())
    async with asyncio.timeout(TIMEOUT):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 101")
    assert b"sec-websocket-extensions" not in head
    writer.transport.abort()


async def test_GOV_5_sockets_count_as_connections(tmp_path):
    async with running(tmp_path, http__max_connections=16) as node:
        held = [SocketClient(node.admin_port) for _ in range(15)]
        for one in held:
            await one.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
        asked = f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        writer.write(f"{asked}sec-websocket-version: 13\r\nsec-websocket-key: {'A' * 22}==\r\n\r\n".encode())
        async with asyncio.timeout(TIMEOUT):
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        writer.close()
        for one in held:
            one.writer.transport.abort()


async def test_a_handshake_that_is_wrong_is_refused(node):
    key = f"sec-websocket-key: {'A' * 22}=="
    for head in (f"sec-websocket-version: 12\r\n{key}", "sec-websocket-version: 13", key):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
        asked = f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        writer.write(f"{asked}{head}\r\n\r\n".encode())
        async with asyncio.timeout(TIMEOUT):
            assert (await reader.readline()).split()[1].startswith(b"4")
        writer.close()


async def test_GOV_5_random_bytes_after_the_handshake_harm_nobody(node):
    for _ in range(100):
        async with SocketClient(node.admin_port) as ws:
            ws.writer.write(os.urandom(200))
            await asyncio.sleep(0)
    assert await is_served(node)


async def answered(ws, number, body):
    """Whether the socket goes on behind a frame; whatever it says of that is no fault of the server."""
    ws.writer.write(frame(TEXT, body))
    await ws.say(id=number, stop=True)
    await ws.say(ping="done")
    try:
        while "pong" not in (told := await ws.hear()):
            assert told.get("problem", {}).get("reason") != "INTERNAL_FAULT", (body, told)
    except Closed as end:
        return end.code
    return 0


async def test_GOV_5_G1_hostile_frames_are_no_fault_of_the_server(node):
    """The bodies that the paths get, as frames and as requests in them: the socket goes on, but for what is no text.
    REACH_HOSTILE says how many."""
    count = int(os.environ.get("REACH_HOSTILE", "250"))
    frames = [(0, body) for body in RAW if len(body) < 1 << 20]
    for seed, rpc in enumerate(sorted({rpc for _, rpc in PATHS} & {row.rpc for row in ROWS})):
        head = b'{"id": %d, "method": "' + rpc.encode() + b'", "request": '
        bodies = bodies_for(rpc, count // len(PATHS) + 1, seed)
        frames += [(number, head % number + body + b"}") for number, body in enumerate(bodies, len(frames))]
    ws = SocketClient(node.admin_port)
    await ws.open()
    for number, body in frames:
        code = await answered(ws, number, body)
        assert code in (0, NOT_UTF8), (body, code)
        if code:
            ws.writer.transport.abort()
            ws = SocketClient(node.admin_port)
            await ws.open()
    ws.writer.transport.abort()
    assert await is_served(node)
