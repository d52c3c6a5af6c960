"""One POST to a receiver (DLV-12, GOV-6): to the judged addresses, bounded, never redirected."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reach.transports.posting import Answer, Poster
from reach.wire.urls import Target
from reach.wire.urls import read_url as read
from reach.wire.webhooks import WebhookRules
from tests.rpc.certificates import Authority
from tests.transports.receivers import Got, Receiver, answered, receiver

HERE = WebhookRules(hosts=frozenset({"127.0.0.1", "hooks.test", "localhost"}))


def read_url(url: str) -> Target:
    return read(url, "task.webhook.url")


async def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def poster(rules: WebhookRules = HERE, timeout_s: float = 5.0, tls: ssl.SSLContext | None = None) -> Poster:
    return Poster(rules.refusal, timeout_s, tls, here)


async def post(target: Receiver, *, host: str = "127.0.0.1", timeout_s: float = 5.0) -> Answer:
    one = poster(timeout_s=timeout_s)
    try:
        return await one.post(read_url(f"http://{host}:{target.port}/a?b=c"), {"x-y": "z"}, b"body")
    finally:
        await one.close()


async def test_DLV_12_what_is_sent_arrives_as_it_is() -> None:
    async with receiver() as target:
        assert await post(target, host="hooks.test") == Answer(200)
    (got,) = target.got
    assert (got.path, got.body, got.headers["x-y"]) == ("/a?b=c", b"body", "z")
    assert got.headers["host"] == f"hooks.test:{target.port}"
    assert got.headers["user-agent"].startswith("agentreach/")


@pytest.mark.parametrize("status", [200, 204, 302, 307, 404, 410, 429, 500])
async def test_statuses_are_told_and_redirects_are_not_followed(status: int) -> None:
    async with receiver() as elsewhere:
        location = f"location: {elsewhere.url}\r\n"
        async with receiver(lambda _: answered(status, location if 300 <= status < 400 else "")) as target:
            assert await post(target) == Answer(status)
        assert elsewhere.connections == 0


async def test_a_receiver_may_say_when_it_wants_the_next_try() -> None:
    for value, seconds in (("17", 17), ("Tue, 01 Jan 2030 00:00:00 GMT", 0), ("-1", 0), ("9" * 400, 0)):
        async with receiver(lambda _, value=value: answered(503, f"Retry-After: {value}\r\n")) as target:  # type: ignore[misc]
            assert await post(target) == Answer(503, retry_after_s=seconds)


NEVER: list[tuple[str, Callable[[Got], bytes | None]]] = [
    ("no answer", lambda _: None),
    ("half an answer", lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"),
    ("headers without end", lambda _: b"HTTP/1.1 200 OK\r\nx: y\r\n"),
]


@pytest.mark.parametrize(("name", "answer"), NEVER)
async def test_F10_a_receiver_that_hangs_costs_its_time_and_no_more(name: str, answer: Callable[[Got], bytes]) -> None:
    async with receiver(answer) as target:
        began = time.monotonic()
        found = await post(target, timeout_s=0.3)
    assert (found.status, found.error) == (0, "no answer within 0.3 s")
    assert time.monotonic() - began < 2


ODD = [
    b"", b"hello\r\n\r\n", b"HTTP/1.1 999999 X\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"\x00" * 100,
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50_000, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
]  # fmt: skip


@pytest.mark.parametrize("raw", ODD, ids=range(len(ODD)))
async def test_odd_answers_are_failures_and_nothing_else(raw: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    one = poster(timeout_s=2.0)
    found = await one.post(read_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"), {}, b"")
    await one.close()
    server.close()
    assert found.status == 0
    assert found.error


async def test_no_more_than_64_KiB_of_an_answer_are_read() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
                sent += 65_536
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    one = poster()
    found = await one.post(read_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"), {}, b"")
    await one.close()
    server.close()
    assert found == Answer(200)
    assert sent < 16 << 20  # what the buffers of both sides take


async def test_connections_are_kept_for_the_next() -> None:
    async with receiver() as target:
        one = poster()
        for _ in range(5):
            assert (await one.post(read_url(target.url), {}, b"x")).status == 200
        await one.close()
    assert target.connections == 1


# GOV-6


@pytest.mark.parametrize(
    "found", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], ["0.0.0.0"], ["::1"], []]
)
async def test_GOV_6_nothing_connects_to_addresses_that_are_not_public(found: list[str]) -> None:
    async def find(host: str, port: int) -> list[str]:
        return found

    async with receiver() as target:
        one = Poster(WebhookRules().refusal, 2.0, None, find)
        answer = await one.post(read_url(f"http://evil.test:{target.port}/"), {}, b"")
        await one.close()
    assert answer.status == 0
    assert target.connections == 0


HOSTS = ["2130706433", "0x7f000001", "017700000001", "0x7f.1", "127.1", "0", "localhost", "127.0.0.1", "[::1]",
         "[::ffff:127.0.0.1]", "[::]", "0.0.0.0"]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
async def test_GOV_6_no_way_to_write_this_machine_gets_through(host: str) -> None:
    """Names are looked up as the system does it, and what is found is judged."""
    async with receiver() as target:
        one = Poster(WebhookRules().refusal, 2.0)
        answer = await one.post(read_url(f"http://{host}:{target.port}/"), {}, b"")
        await one.close()
    assert answer.status == 0
    assert target.connections == 0


async def test_GOV_6_a_name_that_answers_differently_the_second_time_is_of_no_use() -> None:
    """Who looks the name up judges it and connects to what he judged."""
    answers = [["127.0.0.1"], ["10.255.255.1"]]
    asked = 0

    async def find(host: str, port: int) -> list[str]:
        nonlocal asked
        asked += 1
        return answers[min(asked, 2) - 1]

    async with receiver() as target:
        one = Poster(HERE.refusal, 2.0, None, find)
        assert (await one.post(read_url(f"http://hooks.test:{target.port}/"), {}, b"")).status == 200
        await one.close()
    assert asked == 1


async def test_GOV_6_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as proxy, receiver() as target:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await post(target)).status == 200
        assert proxy.connections == 0


async def test_the_other_addresses_of_a_host_are_tried_too() -> None:
    async def find(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async with receiver() as target:
        one = Poster(HERE.refusal, 5.0, None, find)
        assert (await one.post(read_url(f"http://hooks.test:{target.port}/"), {}, b"")).status == 200
        await one.close()


async def test_tls_is_checked_against_the_name_and_not_the_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    key, certificate = authority.issue("hooks", "DNS:hooks.test")
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "cert").write_bytes(certificate)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    async with receiver(tls=server) as target:
        for host, tls, good in (
            ("hooks.test", trusted, True),
            ("localhost", trusted, False),  # another name
            ("hooks.test", None, False),  # an authority that nobody knows
        ):
            one = poster(timeout_s=3.0, tls=tls)
            answer = await one.post(read_url(f"https://{host}:{target.port}/"), {}, b"x")
            await one.close()
            assert (answer.status == 200) is good, answer
    assert len(target.got) == 1
