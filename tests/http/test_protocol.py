"""Connections whose clients take their time, over real sockets: none is held for ever (GOV-5)."""

import asyncio

import pytest

from reach.http import protocol, unread
from reach.http.app import create_app
from tests.http.test_app import Node, serving
from tests.rpc.peers import TIMEOUT

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize("sent", [b"", b"G", REQUEST, REQUEST + b"\r\nGET /healthz HT", REQUEST + b"\r\n" + REQUEST])
async def test_GOV_5_a_head_that_does_not_end_ends_its_connection(sent, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    async with serving(create_app(Node().ready)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(sent)
        async with asyncio.timeout(5):  # uvicorn itself lets a connection be idle for 15 s
            data = await _until_it_ends(reader)
        assert data.count(b'{"state":"alive"}') == sent.count(b"\r\n\r\n")
        writer.close()
        assert (await client.get("/healthz")).status_code == 200


async def test_a_connection_that_is_used_stays(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    async with serving(create_app(Node().ready)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        for _ in range(4):
            writer.write(REQUEST + b"\r\n")
            async with asyncio.timeout(TIMEOUT):
                await reader.readuntil(b'{"state":"alive"}')
            await asyncio.sleep(0.15)
        writer.close()


async def test_answers_on_one_connection_wait_for_nothing():
    """Whatever the load is, none of many is answered within 40 ms where the network's two delays meet."""
    took = []
    async with serving(create_app(Node().ready)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        for _ in range(20):
            began = asyncio.get_running_loop().time()
            writer.write(REQUEST + b"\r\n")
            async with asyncio.timeout(TIMEOUT):
                await reader.readuntil(b'{"state":"alive"}')
            took.append(asyncio.get_running_loop().time() - began)
        writer.close()
    assert sorted(took)[5] < 0.035, took


async def test_GOV_5_a_client_that_reads_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(unread, "UNREAD_SECONDS", 0.5)
    size = 32 << 20
    async with serving(create_app(Node().ready, lambda: b"x" * size)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await asyncio.sleep(1.2)
        async with asyncio.timeout(TIMEOUT):
            assert len(await _until_it_ends(reader)) < size
        writer.close()
        got = 0
        async with client.stream("GET", "/metrics") as answer:  # who reads slowly gets it all
            async for piece in answer.aiter_raw(4 << 20):
                got += len(piece)
                await asyncio.sleep(0.1)
        assert got == size


async def _until_it_ends(reader):
    """All that comes before the server lets go."""
    data = bytearray()
    try:
        while piece := await reader.read(1 << 20):
            data += piece
    except ConnectionError:
        pass
    return bytes(data)
