"""No URL that we are given leads where we must not go (GOV-6, P12, case G5): webhooks, documents, dialled agents."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpcore
import pytest
import pytest_asyncio

from agentreach.v1 import agent_pb2
from reach.core.endpoint import Endpoint
from reach.errors import InvalidRequest, Reason
from reach.transports.adopting import adopt
from reach.transports.credentials import Credentials
from reach.transports.dialler import Dialler, DialSettings
from reach.transports.fetching import fetch
from reach.transports.posting import Poster
from reach.wire.addresses import SCHEMES, AgentRules
from reach.wire.urls import Target, read_url
from reach.wire.webhooks import WebhookRules
from tests.transports.receivers import answered, receiver

THIS_MACHINE = [
    "127.0.0.1", "127.1", "127.0.1", "127.255.255.254", "0", "0.0.0.0", "0x0", "0.0.0.1", "2130706433", "0x7f000001",
    "0x7F.0.0.1", "0x7f.1", "017700000001", "0177.0.0.1", "00000177.0.0.1", "0x7f.0x0.0x0.0x1", "127.0.0x0.1",
    "localhost", "LOCALHOST", "LocalHost", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[::ffff:127.0.0.1]",
    "[::FFFF:7F00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::ffff:0.0.0.0]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:7f00:1::1]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
]  # fmt: skip
NEVER = [
    "169.254.169.254", "2852039166", "0xa9fea9fe", "0xA9.0xFE.0xA9.0xFE", "0251.0376.0251.0376", "169.254.43518",
    "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[fe80::1]", "[fe80::a9fe:a9fe]",
    "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "[fd00:ec2::254]", "[fd20:ce::254]",
    "224.0.0.1", "239.255.255.250", "255.255.255.255", "[ff02::1]", "[2002:a9fe:a9fe::]",
]  # fmt: skip
PRIVATE = [
    "10.0.0.1", "167772161", "0xa000001", "012.0.0.1", "192.168.0.1", "172.16.0.1", "100.64.0.1", "198.18.0.1",
    "192.0.2.1", "240.0.0.1", "[fc00::1]", "[fd12:3456::1]", "[fec0::1]", "[2001:db8::1]", "[::ffff:10.0.0.1]",
]  # fmt: skip
ODD = [
    "http://user@127.0.0.1:{port}/", "http://example.com@127.0.0.1:{port}/", "http://127.0.0.1:{port}@example.com/",
    "http://a:b@localhost:{port}/", "http://example.com#@127.0.0.1:{port}/", "http://127.0.0.1:{port}#x",
    "http://127.0.0.1:{port}\\@example.com/", "http://example.com\\@127.0.0.1:{port}/", "http:/127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/", "//127.0.0.1:{port}/", "http:///127.0.0.1:{port}/", "http://127.0.0.1:{port}:80/",
    "http://127.0.0.1.:{port}/", "http://localhost.:{port}/", "http://.127.0.0.1:{port}/", "http://%6c%6fcalhost:{port}/",
    "http://127%2e0%2e0%2e1:{port}/", "http://127。0。0。1:{port}/", "http://①②⑦.⓪.⓪.①:{port}/", "http://ⓛocalhost:{port}/",
    "http://localhoﬆ:{port}/", "http://loca\u00adlhost:{port}/", "http://[::1%25lo]:{port}/", "http://[::1%lo]:{port}/",
    "http://[127.0.0.1:{port}/", "http://[::1]x:{port}/", "http://127.0.0.1 :{port}/", "http://127.0.0.1\t:{port}/",
    "http://127.0.0.1:{port}/\r\nhost: x", "http://127.0.0.1\n:{port}/", "http://127.0.0.1:{port}\x00/", " http://127.0.0.1:{port}/",
    "file:///etc/passwd", "gopher://127.0.0.1:{port}/x", "ftp://127.0.0.1:{port}/", "dict://127.0.0.1:{port}/",
    "ws://127.0.0.1:{port}/", "unix:///run/x.sock", "http+unix://x/", "jar:http://127.0.0.1:{port}/!/",
    "http://localhost:0/", "http://localhost:65536/", "http://localhost:+{port}/", "http://localhost:٨٨/",
]  # fmt: skip

BEYOND = AgentRules(on_loopback=False)


class Door:
    """A listener on every address of this machine, and every attempt of the client to connect anywhere."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0
        self.attempts: list[str] = []


@pytest_asyncio.fixture(loop_scope="function")
async def door(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    listening = (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        if socket.has_dualstack_ipv6()
        else socket.create_server(("0.0.0.0", 0))
    )
    made = Door(listening.getsockname()[1])
    connect = httpcore.AnyIOBackend.connect_tcp

    def connected(_reader: Any, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret")
        writer.close()

    async def counted(self: Any, host: str, *arguments: Any) -> Any:
        made.attempts.append(host)
        return await connect(self, host, *arguments)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", counted)
    server = await asyncio.start_server(connected, sock=listening)
    yield made
    server.close()


def test_there_are_more_than_60() -> None:
    assert len({*THIS_MACHINE, *NEVER, *PRIVATE, *ODD}) >= 100


def target_of(url: str) -> Target | None:
    try:
        return read_url(url, "url")
    except InvalidRequest:
        return None


async def test_GOV_6_the_listener_hears_of_who_may_connect(door: Door) -> None:
    """Else the silence below means nothing."""
    url = f"http://localhost:{door.port}/"
    assert (await fetch(read_url(url, "url"), AgentRules(on_loopback=True).refusal)).body == b"secret"
    allowed = AgentRules(on_loopback=False, local_hosts=frozenset({"localhost"}))
    assert (await fetch(read_url(url, "url"), allowed.refusal)).body == b"secret"
    assert door.connections == 2


async def test_GOV_6_G5_webhooks_connect_to_no_hostile_url(door: Door) -> None:
    poster = Poster(WebhookRules().refusal, 2.0)
    for host in (*THIS_MACHINE, *NEVER, *PRIVATE):
        target = target_of(f"http://{host}:{door.port}/")
        if target is not None:
            answer = await poster.post(target, {}, b"x")
            assert (answer.status, bool(answer.error)) == (0, True), host
    await poster.close()
    assert (door.connections, door.attempts) == (0, [])


async def test_GOV_6_documents_come_from_no_hostile_url(door: Door) -> None:
    for host in (*THIS_MACHINE, *NEVER):
        target = target_of(f"http://{host}:{door.port}/")
        if target is not None:
            found = await fetch(target, BEYOND.refusal, seconds=2.0)
            assert (found.body, bool(found.error)) == (b"", True), host
    assert (door.connections, door.attempts) == (0, [])


async def test_GOV_6_odd_urls_are_none(door: Door) -> None:
    for odd in ODD:
        assert target_of(odd.replace("{port}", str(door.port))) is None, odd
        assert target_of(odd.replace("{port}", "80")) is None, odd


def dialler(rules: AgentRules) -> Dialler:
    """Dials agents that may be where the rules say."""
    settings = DialSettings(
        rules=rules, payload_limit=1, timeout_s=1.0, interval_ms=1_000, credentials=Credentials([], None)
    )
    nothing: Any = None
    return Dialler(nothing, nothing, settings)


async def route(url: str, rules: AgentRules = BEYOND) -> Any:
    """Where a dialled agent would be connected to; None: nowhere."""
    try:
        found, warnings = await dialler(rules).way("default", Endpoint(url))
    except InvalidRequest:
        return None
    assert found is not None or warnings, url
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_GOV_6_agents_are_dialled_at_no_hostile_url(door: Door, scheme: str) -> None:
    for host in (*THIS_MACHINE, *NEVER):
        assert await route(f"{scheme}://{host}:{door.port}") is None, host
    for odd in ODD:
        url = odd.replace("{port}", str(door.port)).replace("http://", f"{scheme}://")
        assert await route(url) is None, odd
    for host in NEVER:
        for rules in (AgentRules(on_loopback=True), AgentRules(False, frozenset({host.strip("[]")}))):
            assert await route(f"{scheme}://{host}:{door.port}", rules) is None, host
    assert await route(f"{scheme}://10.0.0.1:9000") is not None
    assert await route(f"{scheme}://127.0.0.1:9000", AgentRules(False, frozenset({"127.0.0.1"}))) is not None
    assert (door.connections, door.attempts) == (0, [])


async def test_GOV_6_G5_cards_of_agents_come_from_no_hostile_url(door: Door) -> None:
    pytest.importorskip("a2a")
    urls = [f"http://{host}:{door.port}/card.json" for host in (*THIS_MACHINE, *NEVER)]
    urls += [odd.replace("{port}", str(door.port)) for odd in ODD]
    for url in urls:
        with pytest.raises(InvalidRequest) as refused:
            await adopt(dialler(BEYOND), "default", agent_pb2.AdoptionTerms(card_url=url))
        assert refused.value.reason is Reason.INVALID_FIELD, url
    assert (door.connections, door.attempts) == (0, [])


MIXED = [
    ["8.8.8.8", "127.0.0.1"],
    ["10.0.0.1", "::1"],
    ["::ffff:127.0.0.1"],
    ["169.254.169.254"],
    ["fe80::1%lo"],
    ["x"],
]


@pytest.mark.parametrize("found", MIXED)
async def test_GOV_6_one_bad_address_of_a_name_is_enough(door: Door, found: list[str]) -> None:
    async def find(host: str, port: int) -> list[str]:
        return found

    target = read_url(f"http://evil.test:{door.port}/", "url")
    for refusal in (BEYOND.refusal, WebhookRules().refusal):
        assert (await fetch(target, refusal, find=find)).error
    assert (door.connections, door.attempts) == (0, [])


async def test_GOV_6_a_name_is_judged_each_time_it_is_connected_to(door: Door) -> None:
    """Rebinding: what is judged is what is connected to, and the next connection is judged anew."""
    answers = [["127.0.0.2"], ["127.0.0.1"]]

    async def find(host: str, port: int) -> list[str]:
        return answers.pop(0)

    def refusal(host: str, found: list[str]) -> str:
        return "" if found == ["127.0.0.2"] else "changed"

    target = read_url(f"http://evil.test:{door.port}/", "url")
    assert (await fetch(target, refusal, find=find)).body == b"secret"
    assert (await fetch(target, refusal, find=find)).error == "changed"
    assert door.attempts == ["127.0.0.2"]


LOCAL = AgentRules(on_loopback=True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_GOV_6_redirects_are_not_followed(door: Door, status: int) -> None:
    there = f"location: http://127.0.0.1:{door.port}/\r\n"
    port, stop = await answering(f"HTTP/1.1 {status} Moved\r\n{there}content-length: 0\r\n\r\n".encode())
    found = await fetch(read_url(f"http://127.0.0.1:{port}/", "url"), LOCAL.refusal)
    stop()
    assert found.error == f"it answered {status}: redirects are not followed"
    assert door.attempts == ["127.0.0.1"]


async def answering(raw: bytes) -> tuple[int, Any]:
    """A server that says the same to everybody."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1], server.close


BAD = [
    (answered(404), "it answered 404"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n" + bytes(101), "it is over 100 bytes"),
    (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n65\r\n" + bytes(101) + b"\r\n0\r\n\r\n",
        "it is over 100 bytes",
    ),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort", "peer closed"),
    (b"what\r\n\r\n", "illegal"),
    (b"", "disconnected"),
]


@pytest.mark.parametrize(("raw", "error"), BAD)
async def test_GOV_5_a_document_is_whole_and_not_too_large_or_there_is_none(raw: bytes, error: str) -> None:
    port, stop = await answering(raw)
    found = await fetch(read_url(f"http://127.0.0.1:{port}/", "url"), LOCAL.refusal, limit=100)
    stop()
    assert found.body == b""
    assert error in found.error


async def test_a_document_that_does_not_come_is_not_waited_for() -> None:
    async with receiver(lambda _: None) as target:
        found = await fetch(read_url(target.url, "url"), LOCAL.refusal, seconds=0.2, headers={"content-length": "0"})
    assert found.error == "no whole answer within 0.2 s"
