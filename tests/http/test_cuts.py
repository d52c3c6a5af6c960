"""Readers over HTTP whose connections break, by events and by a network that resets them: each event once, and none
missing (D1, D2, D5, STR-2)."""

import asyncio
import json
import os
import random
from typing import Any

import httpx
import pytest
from google.protobuf import json_format

from agentreach.v1 import event_pb2
from reach.rpc.access import Admission
from tests.e2e.processes import tell
from tests.e2e.reading import Text
from tests.http.conftest import client_of
from tests.http.socket_client import Closed, SocketClient
from tests.http.sse_reader import events_of
from tests.http.test_api import is_problem
from tests.http.test_sse import given
from tests.rpc.nodes import until
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, key_of, running, unique
from tests.rpc.proxy import Proxy

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

PIECES = 2_000
CUTS = 20
AT_ONCE = 5
"""Pieces in a frame of the agent."""


class Left(httpx.TransportError, ConnectionError):
    """The reader leaves here."""


def event_of(data: dict[str, Any]) -> Any:
    return json_format.ParseDict(data, event_pb2.TaskEvent())


async def sse_once(port: int, task_id: str, text: Text, reached) -> None:
    """Reads until the connection breaks, or the task ends. `reached` is called after each event."""
    headers = {"last-event-id": str(text.last)} if text.last else {}
    try:
        async with (
            client_of(port) as http,
            http.stream("GET", f"/v1/tasks/{task_id}/events", headers=headers) as answer,
        ):
            async for told in events_of(answer):
                text.add(event_of(told.data))
                assert told.event_id == str(text.last)
                reached()
    except httpx.TransportError:
        pass


async def socket_once(port: int, task_id: str, text: Text, reached) -> None:
    """The same on a WebSocket; it gives credit for what it has read."""
    ws = SocketClient(port)
    try:
        await ws.open()
        request = {"taskId": task_id, "afterSequence": str(text.last)}
        await ws.ask("read", "ResultService/StreamResult", request, credit=2_000)
        while not text.ended:
            frame = await ws.hear()
            assert frame["id"] == "read"
            for data in frame["response"]["events"]:
                text.add(event_of(data))
                reached()
            await ws.say(id="read", credit=len(json.dumps(frame["response"])))
    except (Closed, ConnectionError):
        pass
    finally:
        ws.writer.transport.abort()


async def read(once, to_port: int, task_id: str, cuts: list[int]) -> tuple[Text, int, int]:
    """Follows a task over a network that is reset when the reader has so many events, and comes back each time."""
    text, came = Text(), 0
    asked = len(cuts)
    async with Proxy(to_port) as proxy:

        def reached() -> None:
            if cuts and text.last >= cuts[0]:
                cuts.pop(0)
                proxy.cut()

        while not text.ended:
            came += 1
            await once(proxy.port, task_id, text, reached)
    return text, came, asked - len(cuts)


def leave_at(text: Text, sequence: int) -> None:
    if text.last == sequence:
        raise Left("enough")


@pytest.fixture
def chance():
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def gate(node):
    return node._grpc.entrance.gates[Admission.STREAMS]


async def test_D1_STR_2_readers_that_are_reset_20_times_have_each_of_2000_deltas_once(node, http, agent, chance, gate):
    task_id, offer = await given(http, agent)
    held = gate.held

    async def write() -> None:
        for number in range(0, PIECES, AT_ONCE):
            pieces = [
                {
                    "link": offer.link,
                    "key": key_of(offer),
                    "attempt_sequence": piece + 1,
                    "delta": {"payload": {"text": f"{piece} "}, "mode": "DELTA_MODE_APPEND"},
                }
                for piece in range(number, number + AT_ONCE)
            ]
            await agent.send(deltas=pieces)
            await asyncio.sleep(0.003)
        await agent.finish(offer, "done")

    cuts = [sorted(chance.sample(range(3, PIECES), CUTS)) for _ in range(2)]
    async with asyncio.timeout(6 * TIMEOUT):
        by_sse, by_socket, _ = await asyncio.gather(
            read(sse_once, node.admin_port, task_id, cuts[0]),
            read(socket_once, node.admin_port, task_id, cuts[1]),
            write(),
        )
    for text, came, cut in (by_sse, by_socket):
        assert text.value == "".join(f"{number} " for number in range(PIECES))
        assert (text.result, text.kinds.count("delta"), cut) == ("done", PIECES, CUTS)
        assert set(text.kinds) == {"accepted", "started", "delta", "complete"}, "and no gap"
        assert came > CUTS // 2, "events come in frames, and a cut falls between two of them"
    await until(lambda: gate.held == held)  # nothing is left subscribed


@pytest.mark.parametrize("once", [sse_once, socket_once])
async def test_D1_what_happened_between_two_connections_comes_once(node, http, agent, once):
    task_id, offer = await given(http, agent)
    text = Text()
    async with Proxy(node.admin_port) as proxy:
        await agent.delta(offer, 1, "1 ")
        await once(proxy.port, task_id, text, lambda: proxy.cut() if text.last == 3 else None)
        assert text.last == 3
        for number in range(2, 8):
            await agent.delta(offer, number, f"{number} ")
        await agent.finish(offer, "done")
        await once(proxy.port, task_id, text, lambda: None)
    assert (text.value, text.last, text.kinds.count("gap")) == ("1 2 3 4 5 6 7 ", 10, 0)


@pytest.mark.parametrize("last", ["-1", "x", str(1 << 64), "1.5", "0x3", "٣", "3 4"])
async def test_D2_a_last_event_id_that_is_no_number_is_refused(http, agent, last):
    task_id, offer = await given(http, agent)
    answer = await http.get(f"/v1/tasks/{task_id}/events", headers={"last-event-id": last.encode()})
    is_problem(answer, 400, "INVALID_FIELD")
    await agent.finish(offer, "done")


@pytest.mark.parametrize("last", [1_000, (1 << 63) - 1, (1 << 64) - 1])
async def test_D2_a_last_event_id_that_never_was_is_refused_and_nobody_waits_for_ever(http, node, agent, last):
    """That of another task, or of nothing; while the task runs, and when it has ended."""
    task_id, offer = await given(http, agent)
    headers = {"last-event-id": str(last)}
    request = {"taskId": task_id, "afterSequence": str(last)}
    async with SocketClient(node.admin_port) as ws:
        for _ in range(2):
            answer = await http.get(f"/v1/tasks/{task_id}/events", headers=headers)
            is_problem(answer, 400, "SEQUENCE_OUT_OF_RANGE")
            told = await ws.call("ResultService/StreamResult", request)
            assert told["problem"]["reason"] == "SEQUENCE_OUT_OF_RANGE"
            if (await http.get(f"/v1/tasks/{task_id}")).json()["task"]["state"] == "TASK_STATE_RUNNING":
                await agent.finish(offer, "done")


async def test_D2_D1_a_reader_goes_on_after_a_restart(tmp_path):
    """Numbers never repeat: what is no longer held is told by a gap, and the whole text comes with the end."""
    agent_id, task_ids = unique("agent"), [unique("ended"), unique("runs")]
    settings = {"storage__type": "sqlite", "storage__path": str(tmp_path)}
    texts = [Text(), Text(), Text()]
    async with running(tmp_path, **settings) as node, client_of(node.admin_port) as http, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        await agent.join(agent_id, instance_id="one", max_concurrency=5)
        offers = []
        for task_id in task_ids:
            body = {"task": {"taskId": task_id, "selector": {"agentId": agent_id}, "payload": {"text": "x"}}}
            assert (await http.post("/v1/tasks", json=body)).status_code == 200
            offers.append(await agent.next("offers"))
            await agent.accept(offers[-1])
            await agent.delta(offers[-1], 1, "before ")
        await agent.finish(offers[0], "whole")
        for task_id, text, once in (
            (task_ids[0], texts[0], sse_once),
            (task_ids[1], texts[1], sse_once),
            (task_ids[1], texts[2], socket_once),
        ):
            await once(node.admin_port, task_id, text, lambda t=text: leave_at(t, 3))
            assert (text.last, text.value, text.ended) == (3, "before ", False)
        await agent.close()
    async with running(tmp_path, **settings) as node, client_of(node.admin_port), Stubs(node.port) as stubs:
        again = AgentByHand(stubs)
        again.boot_id = agent.boot_id
        await again.join(agent_id, instance_id="one", max_concurrency=5, running=[{"key": key_of(offers[1])}])
        await again.finish(offers[1], "before and after")
        for task_id, text, once in (
            (task_ids[0], texts[0], sse_once),
            (task_ids[1], texts[1], sse_once),
            (task_ids[1], texts[2], socket_once),
        ):
            async with asyncio.timeout(TIMEOUT):
                await once(node.admin_port, task_id, text, lambda: None)
            assert text.ended
            assert text.result == ("whole" if task_id == task_ids[0] else "before and after")
            assert task_id == task_ids[0] or "resumed" in text.kinds or "gap" in text.kinds, text.kinds
        await again.close()


async def test_D5_an_id_of_one_tasks_event_says_nothing_of_another(http, agent):
    one, first = await given(http, agent)
    two, second = await given(http, agent)
    for number in range(1, 6):
        await agent.delta(first, number, f"one {number} ")
    for number in range(1, 3):
        await agent.delta(second, number, f"two {number} ")
    await agent.finish(first, "one")
    await agent.finish(second, "two")
    for task_id, whose in ((one, "one"), (two, "two")):
        async with http.stream("GET", f"/v1/tasks/{task_id}/events", headers={"last-event-id": "4"}) as answer:
            told = [one async for one in events_of(answer)]
        assert {one.data["taskId"] for one in told} == {task_id}
        assert all(one.data["delta"]["payload"]["text"].startswith(whose) for one in told if one.kind == "delta")
        assert told[-1].data["complete"]["output"]["text"] == whose


async def test_REG_9_a_watch_of_agents_that_is_cut_ends_with_what_there_is(node, stubs, http):
    """20 cuts while instances come and go: what the watcher knows in the end is what there is."""
    agent_id, cursor = unique("watched"), ""
    known: set[str] = set()
    agents: list[AgentByHand] = []

    async def come_and_go() -> None:
        for _ in range(25):
            agents.append(AgentByHand(stubs))
            await agents[-1].join(agent_id)
            if len(agents) % 5 == 0:
                name = agents[-2].instance_id
                await http.delete(f"/v1/agents/{name}")

    changing = asyncio.ensure_future(come_and_go())
    cuts = 0
    async with Proxy(node.admin_port) as proxy, asyncio.timeout(2 * TIMEOUT):
        while cuts < CUTS or not changing.done():
            headers = {"last-event-id": cursor} if cursor else {}
            try:
                async with (
                    client_of(proxy.port) as through,
                    through.stream("GET", "/v1/watch/agents", params={"agent_id": agent_id}, headers=headers) as answer,
                ):
                    async for told in events_of(answer):
                        cursor = told.event_id or cursor
                        if told.data.get("reset"):
                            known.clear()
                        known |= {one["registration"]["instanceId"] for one in told.data["agents"]}
                        known -= set(told.data["removed"])
                        proxy.cut()
                        cuts += 1
            except httpx.TransportError:
                pass
        headers = {"last-event-id": cursor}
        async with http.stream("GET", "/v1/watch/agents", params={"agent_id": agent_id}, headers=headers) as answer:
            there = {one["instanceId"] for one in await rows(http, agent_id)}
            reader = events_of(answer)
            while True:
                told = await anext(reader)
                known -= set(told.data["removed"])
                known |= {one["registration"]["instanceId"] for one in told.data["agents"]}
                if told.data.get("inSync") or known == there:
                    break
    assert known == there
    for one in agents:
        await one.close()


async def rows(http, agent_id):
    """The instances of an agent, as a list tells them."""
    listed = (await http.get("/v1/agents", params={"agent_id": agent_id, "page_size": 100})).json()
    return [one["registration"] for one in listed["agents"]]


async def test_watches_of_tasks_that_are_cut_hear_what_comes_and_leave_nothing(node, http, agent, gate):
    """A watch of tasks begins now, each time: what was begun while somebody watched is told, each once."""
    await agent.join(unique("agent"))
    held = gate.held
    async with Proxy(node.admin_port) as proxy, asyncio.timeout(2 * TIMEOUT):
        for number in range(CUTS):
            async with client_of(proxy.port) as through:
                seen: list[str] = []
                params = {"agent_type": agent.agent_id}
                async with through.stream("GET", "/v1/watch/tasks", params=params) as answer:
                    reader = events_of(answer)
                    assert (await anext(reader)).data["events"] == []
                    task_id, offer = await given(http, agent)
                    await agent.finish(offer, f"{number}")
                    while "complete" not in seen:
                        told = await anext(reader)
                        assert {event["taskId"] for event in told.data["events"]} <= {task_id}
                        seen += [next(kind for kind in ("accepted", "started", "complete") if kind in event)
                                 for event in told.data["events"]]  # fmt: skip
                    proxy.cut()
                    with pytest.raises(httpx.TransportError):
                        await anext(reader)
                assert seen == ["accepted", "started", "complete"]
        await until(lambda: gate.held == held)
