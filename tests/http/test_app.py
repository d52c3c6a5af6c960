"""The HTTP routes, over real connections."""

import asyncio
import signal
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from reach.errors import InvalidRequest, Unavailable
from reach.http.app import HttpServer, create_app
from reach.telemetry.exposition import CONTENT_TYPE, prometheus_text
from reach.telemetry.metrics import Metrics
from tests.rpc.certificates import Authority


class Node:
    """What the server asks: set by each test."""

    def __init__(self) -> None:
        self.is_ready = True
        self.checks: dict[str, object] = {"serving": "ok", "store": "ok"}
        self.failure: Exception | None = None
        self.metrics = Metrics()

    def ready(self):
        if self.failure is not None:
            raise self.failure
        return self.is_ready, self.checks


@asynccontextmanager
async def serving(app, **arguments):
    server = HttpServer(app, "127.0.0.1", 0, **arguments)
    port = server.bind()
    task = asyncio.ensure_future(server.serve())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop()
        await task


@pytest.fixture
def node():
    return Node()


async def test_the_process_is_alive_even_when_it_is_not_ready(node):
    node.is_ready = False
    async with serving(create_app(node.ready)) as client:
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"state": "alive"})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


async def test_readiness_says_what_is_missing(node):
    async with serving(create_app(node.ready)) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["state"]) == (200, "ready")
        node.is_ready, node.checks = False, {"serving": "ok", "store": "no space"}
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"state": "not ready", "checks": {"serving": "ok", "store": "no space"}}


async def test_a_check_that_fails_is_not_ready_and_tells_nothing(node, caplog):
    node.failure = RuntimeError("C4N4RY")
    async with serving(create_app(node.ready)) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]) == (503, {"readiness": "check failed"})
        assert "C4N4RY" not in answer.text
        assert "C4N4RY" not in str([vars(record) for record in caplog.records])


async def test_metrics_are_served_as_prometheus_reads_them(node):
    node.metrics.delivered("succeeded")
    async with serving(create_app(node.ready, lambda: prometheus_text(node.metrics))) as client:
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == CONTENT_TYPE
        assert 'agentreach_router_delivery_total{outcome="succeeded"} 1.0' in answer.text.splitlines()


async def test_metrics_are_closed_to_whom_the_server_says(node):
    asked = []

    def may_read(authorization, _certificate):
        asked.append(authorization)
        return authorization == "Bearer right"

    async with serving(create_app(node.ready, lambda: b"secret 1\n", may_read)) as client:
        for header in ({}, {"authorization": "Bearer wrong"}):
            answer = await client.get("/metrics", headers=header)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["reason"] == "UNAUTHENTICATED"
            assert "secret" not in answer.text
        assert (await client.get("/metrics", headers={"authorization": "Bearer right"})).text == "secret 1\n"
        assert (await client.get("/healthz")).status_code == 200
    assert asked == ["", "Bearer wrong", "Bearer right"]


async def test_metrics_may_be_off(node):
    async with serving(create_app(node.ready)) as client:
        assert (await client.get("/metrics")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/healthz/x", 404),
        ("POST", "/healthz", 405),
        ("DELETE", "/metrics", 405),
        ("HEAD", "/healthz", 200),
        ("GET", "/livez", 200),
        ("GET", "/%ff%00", 404),
        ("GET", "/" + "x" * 8000, 404),
        ("GET", "/../../etc/passwd", 404),
    ],
)
async def test_what_is_not_there_is_said_in_json(node, method, path, status):
    async with serving(create_app(node.ready, lambda: b"")) as client:
        answer = await client.request(method, path)
        assert answer.status_code == status
        if status != 200:
            assert (answer.json()["reason"], answer.json()["status"]) == ("NOT_IMPLEMENTED", status)


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\xff" * 70_000]
)
async def test_bytes_that_are_no_http_are_refused_and_the_server_goes_on(node, garbage, caplog):
    async with serving(create_app(node.ready)) as client:
        port = client.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        with suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer[:10] == b"HTTP/1.1 4"
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        assert (await client.get("/healthz")).status_code == 200
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_port_that_is_taken_is_refused_with_a_clear_line(node):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port} is taken by another process.*server\.admin_port"):
            HttpServer(create_app(node.ready), "127.0.0.1", port).bind()


async def test_two_servers_cannot_share_a_port(node):
    first = HttpServer(create_app(node.ready), "127.0.0.1", 0)
    port = first.bind()
    task = asyncio.ensure_future(first.serve())
    with pytest.raises(Unavailable):
        HttpServer(create_app(node.ready), "127.0.0.1", port).bind()
    await first.stop()
    await task


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
async def test_an_address_that_is_not_ours_is_refused(node, host):
    with pytest.raises(InvalidRequest, match="cannot listen for HTTP on"):
        HttpServer(create_app(node.ready), host, 0).bind()


async def test_signals_stay_with_the_process(node):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving(create_app(node.ready)) as client:
        await client.get("/healthz")
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_the_port_is_free_after_the_stop_though_a_client_stays_connected(node):
    server = HttpServer(create_app(node.ready), "127.0.0.1", 0)
    port = server.bind()
    task = asyncio.ensure_future(server.serve())
    async with httpx.AsyncClient() as client:
        await client.get(f"http://127.0.0.1:{port}/healthz")
        async with asyncio.timeout(5):
            await server.stop()
            await task
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{port}/healthz")
    again = HttpServer(create_app(node.ready), "127.0.0.1", port)
    assert again.bind() == port
    await again.stop()


async def test_cancelling_its_task_stops_it_too(node):
    server = HttpServer(create_app(node.ready), "127.0.0.1", 0)
    port = server.bind()
    task = asyncio.ensure_future(server.serve())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await client.get("/healthz")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_tls(node, tmp_path):
    authority = Authority(tmp_path / "ca")
    key, certificate = authority.issue("server", "IP:127.0.0.1")
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "cert.pem").write_bytes(certificate)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with serving(create_app(node.ready), tls=tls) as plain:
        trusting = ssl.create_default_context(cadata=authority.certificate.decode())
        async with httpx.AsyncClient(verify=trusting) as client:
            answer = await client.get(f"https://127.0.0.1:{plain.base_url.port}/healthz")
            assert answer.json() == {"state": "alive"}
        with pytest.raises(httpx.HTTPError):
            await plain.get("/healthz")
