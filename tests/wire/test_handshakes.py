"""What is said when TLS fails (GOV-2): real servers with certificates that are wrong in one way each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from reach.errors import ReachError, Reason
from reach.wire.handshakes import advice
from reach.wire.status import error_from_rpc
from tests.rpc.certificates import Authority

HERE = "IP:127.0.0.1"


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def another(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("another"), "another authority")


@asynccontextmanager
async def serving(credentials: grpc.ServerCredentials | None) -> AsyncIterator[str]:
    server = grpc.aio.server()
    place = "127.0.0.1:0"
    port = server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def failure(address: str, credentials: grpc.ChannelCredentials | None) -> ReachError:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.aio.insecure_channel(address, options=options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=options)
    )
    async with channel:
        method: Any = channel.unary_unary("/x/y")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await method(b"", timeout=10)
    return error_from_rpc(failed.value)


@pytest.mark.parametrize("what", ["authority", "expired", "name", "plaintext there", "plaintext here"])
async def test_a_wrong_certificate_is_told_with_what_to_do(ours, another, what) -> None:
    roots = grpc.ssl_channel_credentials(ours.certificate)
    client: grpc.ChannelCredentials | None = roots
    pair: tuple[bytes, bytes] | None = ours.issue("node", HERE)
    if what == "authority":
        pair, wanted = another.issue("node", HERE), "not signed by an authority that is trusted here"
    elif what == "expired":
        pair, wanted = ours.issue("node", HERE, days=0), "has expired: renew it"
        await asyncio.sleep(1.1)  # it holds for a second
    elif what == "name":
        pair, wanted = ours.issue("node", "DNS:elsewhere.example"), "needs the host of this address as a subject"
    elif what == "plaintext there":
        pair, wanted = None, "TLS is spoken here and not there"
    else:
        client, wanted = None, "TLS is spoken there and not here"
    credentials = None if pair is None else grpc.ssl_server_credentials([pair])
    async with serving(credentials) as address:
        error = await failure(address, client)
    assert error.reason is Reason.OWNER_UNAVAILABLE
    assert wanted in error.message
    assert address in error.message, "and what gRPC says of it"


@pytest.mark.parametrize("shown", ["none", "of another authority"])
async def test_a_client_certificate_that_is_asked_for_is_told(ours, another, shown) -> None:
    key, certificate = another.issue("client", "URI:x:y") if shown != "none" else (None, None)
    server = grpc.ssl_server_credentials([ours.issue("node", HERE)], ours.certificate, True)
    async with serving(server) as address:
        error = await failure(address, grpc.ssl_channel_credentials(ours.certificate, key, certificate))
    assert "it asks for a client certificate" in error.message


async def test_the_port_of_http_is_told_from_that_of_grpc() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(3)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        error = await failure(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
    assert error.message.startswith("an HTTP server answers there: gRPC has a port of its own, 8900")


def test_what_is_no_matter_of_tls_gets_no_advice() -> None:
    refused = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused (111)"
    assert not advice(refused)
    assert not advice("Socket closed"), "a stream that broke was connected before"
