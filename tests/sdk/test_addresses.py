"""Several servers that work as one: who is asked next (CLU-1, CLU-3)."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

from reach import Agent, Client, InvalidRequest, SyncClient
from reach.cli.settings import checked_address
from reach.errors import Reason, Unavailable
from reach.sdk.addresses import MOST, Rotation, Told, read_addresses
from reach.sdk.channel import Target
from reach.sdk.connection import LONGEST_WAIT_S
from tests.sdk.fake_server import FakeServer


def test_CLU_1_addresses_are_read_from_a_text_or_a_list():
    assert read_addresses(" a:1, b:2,,a:1 ") == ("a:1", "b:2")
    assert read_addresses(["a:1", "b:2,c:3"]) == ("a:1", "b:2", "c:3")
    assert read_addresses("ipv4:1.2.3.4:5,1.2.3.5:5") == ("ipv4:1.2.3.4:5,1.2.3.5:5",)
    assert checked_address("a, [::1]:7,::2") == "a:8900,[::1]:7,[::2]:8900"
    with pytest.raises(InvalidRequest):
        read_addresses(f"h:{number}" for number in range(MOST + 1))
    with pytest.raises(InvalidRequest, match=r"host:port, without http:// or a path, not 'http://b:2'"):
        read_addresses("a:1,http://b:2")


def test_CLU_3_a_round_asks_each_that_was_given_once():
    rotation = Rotation(("a", "b", "c"), Told())
    asked = [rotation.current]
    while rotation.failed():
        asked.append(rotation.current)
    assert sorted(asked) == ["a", "b", "c"]
    assert rotation.current != asked[-1], "a round does not begin with the one that failed last"


def test_CLU_3_those_that_were_told_of_are_asked_one_a_round_after_the_given():
    told = Told()
    rotation = Rotation(("a",), told)
    assert rotation.is_alone
    told.hear(["x", "y", "a"])
    assert not rotation.is_alone
    asked = []
    for _ in range(4):
        assert rotation.current == "a"
        assert rotation.failed()
        asked.append(rotation.current)
        assert not rotation.failed()
    assert asked[0] != asked[1]
    assert asked == asked[:2] * 2


def test_CLU_3_all_who_lost_a_server_spread_over_the_others():
    random.seed(7)
    chosen = set()
    for _ in range(50):
        told = Told()
        told.works = "a"
        rotation = Rotation(("a", "b", "c"), told)
        assert rotation.current == "a", "what works is asked first"
        rotation.failed()
        chosen.add(rotation.current)
    assert chosen == {"b", "c"}


@pytest.fixture
async def second() -> AsyncIterator[FakeServer]:
    made = FakeServer()
    await made.start()
    yield made
    await made.stop()


def greeter(address: str | list[str]) -> Agent:
    agent = Agent("greeter", addr=address)
    agent.add_handler(lambda task: task.text)
    return agent


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Waits for what nobody tells of."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # nobody tells


async def test_CLU_3_an_agent_goes_on_at_the_next(server, second):
    servers = {one.address: one for one in (server, second)}
    async with greeter([f"127.0.0.1:{unused_port()}", *servers]) as agent:
        await asyncio.wait(
            [asyncio.ensure_future(one.agent()) for one in servers.values()], return_when=asyncio.FIRST_COMPLETED
        )
        first = next(one for one in servers.values() if one.open)
        other = next(one for one in servers.values() if not one.open)
        await until(lambda: agent.generation)
        await first.stop()
        await until(lambda: other.open, 1)  # at once, also if one that refuses comes between


async def test_CLU_3_an_agent_goes_on_at_one_that_it_was_told_of(server, second):
    async with greeter(server.address):
        stream = await server.agent()
        stream.send(nodes={"addresses": [f"127.0.0.1:{unused_port()}", second.address]})
        await stream.settle()
        await server.stop()
        await second.agent(timeout=3)


async def test_CLU_3_a_caller_asks_again_at_one_that_it_was_told_of(server, second):
    async with Client(server.address) as client:
        answer = asyncio.ensure_future(client.send("m", "x", agent_id="a", task_id="t"))
        stream = await server.caller()
        await stream.wait("submits")
        stream.send(nodes={"addresses": [second.address]})
        await until(lambda: client._target.told.addresses)
        await server.stop()
        stream = await second.caller(timeout=3)
        assert [one.task.task_id for one in await stream.wait("submits")] == ["t"]
        stream.complete("t", "there")
        assert (await answer).text == "there"


async def test_CLU_3_a_single_call_asks_the_next_at_once(server, second):
    server.get_task = second.get_task = lambda task_id: {"spec": {"task_id": task_id}}
    for one, other in ((server, second), (second, server)):
        async with Client([one.address, other.address]) as client:
            await client.get_task("t1")
            calls = client._calls
            assert calls is not None
            current = server if calls._rotation.current == server.address else second
            rest = second if current is server else server
            port = current.port
            await current.stop()
            began = time.monotonic()
            assert (await client.get_task("t2")).task_id == "t2"
            assert time.monotonic() - began < 0.5
            assert calls._rotation.current == rest.address
        current.port = port
        await current.start()


async def test_CLU_3_a_single_call_leaves_a_node_that_cannot_answer_now(server, second):
    server.get_task = lambda _: Unavailable("in doubt", Reason.STORE_UNAVAILABLE, retry_after_ms=5_000)
    second.get_task = lambda task_id: {"spec": {"task_id": task_id}}
    async with Client([server.address, second.address]) as client:
        for _ in range(5):
            assert (await client.get_task("t")).task_id == "t"


async def test_CLU_3_a_single_call_finds_a_server_that_is_back(server):
    """gRPC's channel sat out waits of its own, up to a second, behind our back."""
    server.get_task = lambda task_id: {"spec": {"task_id": task_id}}
    async with Client(server.address) as client:
        await client.get_task("t1")
        await server.stop()
        answer = asyncio.ensure_future(client.get_task("t2", timeout=10))
        await asyncio.sleep(2)  # long enough for gRPC's own waits to grow
        began = time.monotonic()
        await server.start()
        await answer
        assert time.monotonic() - began < 0.8


async def test_CLU_3_one_that_takes_no_connections_is_left_soon(server):
    """A machine that is gone, or a process that is stopped, does not refuse."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with asyncio.timeout(LONGEST_WAIT_S), Client([address, server.address]) as client:
            client._target.told.works = address  # it is asked first
            pending = asyncio.ensure_future(client.send("m", "x", agent_id="a", task_id="t"))
            stream = await server.caller()
            await stream.wait("submits")
            pending.cancel()


async def test_CLU_1_callers_without_asyncio_and_single_tools_take_several(server, second):
    client = SyncClient([server.address, second.address])
    assert client.address == f"{server.address},{second.address}"
    port = second.port
    await second.stop()
    target = Target([f"127.0.0.1:{port}", server.address], None, None)
    for _ in range(5):
        assert await asyncio.to_thread(target.answering) == server.address


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
