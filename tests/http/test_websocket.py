"""Many calls on one WebSocket of a real node (API-2, STR-4, STR-5, GOV-2, GOV-5)."""

import asyncio
import json
import logging
from typing import Any

import pytest
from wsproto.events import Message

from reach import Agent, Task
from reach.http import websocket
from reach.rpc.access import Admission
from tests.http.conftest import client_of
from tests.http.socket_client import Closed, Refused, SocketClient
from tests.http.test_api import is_problem
from tests.http.test_sse import given
from tests.rpc.nodes import until
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, running, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


@pytest.fixture
def gate(node):
    return node._grpc.entrance.gates[Admission.STREAMS]


def spec_for(agent, **fields):
    return {"selector": {"agentId": agent.agent_id}, "payload": {"text": "x"}, **fields}


def kinds_of(frames):
    """The events in frames, by kind."""
    return [
        next(kind for kind in ("accepted", "started", "delta", "complete") if kind in event)
        for frame in frames
        for event in frame.get("response", {}).get("events", [])
    ]


async def test_API_2_one_socket_submits_follows_answers_and_cancels_many_tasks(node, agent):
    await agent.join(unique("agent"), max_concurrency=50)
    names = [unique("task") for _ in range(20)]
    async with SocketClient(node.admin_port) as ws:
        for name in names:
            await ws.ask(name, "DispatchService/Run", {"task": spec_for(agent, taskId=name)})
        offers = [await agent.next("offers") for _ in names]
        for offer in offers[:-1]:
            await agent.accept(offer)
            await agent.delta(offer, 1, f"of {offer.task.task_id}")
        for offer in offers[:-1]:
            await agent.finish(offer, "done")
        await ws.ask("c", "DispatchService/CancelTask", {"taskId": offers[-1].task.task_id})
        frames: dict[str, list[Any]] = {}
        while sum(told[-1].get("end", False) for told in frames.values()) < len(names) + 1:
            frame = await ws.hear()
            frames.setdefault(frame["id"], []).append(frame)
    for offer in offers[:-1]:
        told = frames[offer.task.task_id]
        assert kinds_of(told) == ["accepted", "started", "delta", "complete"]
        events = [event for frame in told for event in frame.get("response", {}).get("events", [])]
        assert {event["taskId"] for event in events} == {offer.task.task_id}
        assert events[2]["delta"]["payload"]["text"] == f"of {offer.task.task_id}"
    (cancelled,) = frames["c"]
    assert cancelled["response"]["state"] == "TASK_STATE_CANCELLED"
    assert "complete" in kinds_of(frames[offers[-1].task.task_id])


async def test_STR_2_a_reader_goes_on_where_it_was_and_may_stop(node, http, agent, gate):
    task_id, offer = await given(http, agent)
    await agent.delta(offer, 1, "one")
    async with SocketClient(node.admin_port) as ws:
        await ws.ask(1, "ResultService/StreamResult", {"taskId": task_id, "afterSequence": "2"})
        first = await ws.hear()
        assert (first["id"], kinds_of([first])) == (1, ["delta"])
        held = gate.held
        await ws.say(id=1, stop=True)
        assert await ws.hear() == {"id": 1, "end": True}
        assert gate.held == held - 1
        await ws.say(id=1, stop=True)  # of what has ended: nothing
        last = first["response"]["events"][-1]["sequence"]
        await ws.ask(1, "ResultService/StreamResult", {"taskId": task_id, "afterSequence": last})  # the id is free
        await agent.finish(offer, "done")
        assert kinds_of(await ws.hear_all(1)) == ["complete"]


async def test_DLV_1_a_question_is_answered_on_the_socket(node):
    name, agent_id = unique("task"), unique("asks")
    agent = Agent(agent_id, addr=f"127.0.0.1:{node.port}")

    @agent.route("default")
    async def ask(task: Task) -> str:
        return f"it is {(await task.ask('which?', timeout=30)).text}"

    async with agent, SocketClient(node.admin_port) as ws:
        await agent.register(10)
        spec = {"selector": {"agentId": agent_id}, "payload": {"text": "x"}, "taskId": name}
        await ws.ask("run", "DispatchService/Run", {"task": spec})
        seen: list[Any] = []
        while not any("waiting" in event for event in seen):
            seen += (await ws.hear())["response"]["events"]
        await ws.ask("say", "DispatchService/SendInput", {"taskId": name, "inputId": "i", "payload": {"text": "that"}})
        frames: list[Any] = []
        while sum(frame.get("end", False) for frame in frames) < 2:
            frames.append(await ws.hear())
    (said,) = [frame for frame in frames if frame["id"] == "say"]
    assert said["response"]["inputId"] == "i"
    answers = [frame["response"] for frame in frames if frame["id"] == "run" and "response" in frame]
    assert answers[-1]["events"][-1]["complete"]["output"]["text"] == "it is that"


async def test_each_call_has_one_end_whenever_it_is_stopped(node, http, agent):
    """At once, before it could begin; when it has said something; when it has ended."""
    task_id, offer = await given(http, agent)
    async with SocketClient(node.admin_port) as ws:
        for number in range(50):
            method, request = "ResultService/StreamResult", {"taskId": task_id, "afterSequence": "2"}
            if number % 2:
                method, request = "DispatchService/GetTask", {"taskId": task_id}
            text = json.dumps({"id": number, "method": method, "request": request})
            stop = json.dumps({"id": number, "stop": True})
            ws.writer.write(ws.conn.send(Message(text)) + ws.conn.send(Message(stop)))
            if number % 4 > 1:
                await asyncio.sleep(0.002)
        ends: list[int] = []
        while len(ends) < 50:
            frame = await ws.hear()
            ends += [frame["id"]] if frame.get("end") else []
        await ws.say(ping="all said")
        assert await ws.hear() == {"pong": "all said"}
        assert sorted(ends) == list(range(50))
    await agent.finish(offer, "done")


async def test_STR_4_who_gives_no_credit_gets_no_more_and_others_go_on(node, http, agent):
    slow, offer = await given(http, agent)
    quick, other = await given(http, agent)
    async with SocketClient(node.admin_port) as ws:
        await ws.ask("slow", "ResultService/StreamResult", {"taskId": slow}, credit=1)
        await ws.ask("quick", "ResultService/StreamResult", {"taskId": quick})
        first: dict[str, Any] = {}
        while first.keys() != {"slow", "quick"}:
            frame = await ws.hear()
            first[frame["id"]] = frame
        for number in range(1, 91):
            await agent.delta(offer, number, "x" * 30_000)  # over 2 MiB: more than a task keeps for a reader
            await agent.delta(other, number, f"{number} ")
        await agent.finish(other, "done")
        frames = await ws.hear_all("quick")  # and of the slow one nothing
        texts = [event["delta"]["payload"]["text"] for frame in frames if "response" in frame
                 for event in frame["response"]["events"] if "delta" in event]  # fmt: skip
        assert "".join(texts) == "".join(f"{number} " for number in range(1, 91))
        await agent.finish(offer, "done")
        await ws.say(id="slow", credit=1 << 30)
        rest = await ws.hear_all("slow")
        assert "complete" in kinds_of_all(rest)
        assert "gap" in kinds_of_all(rest), "what waited for a reader without credit is bounded"


def kinds_of_all(frames):
    return [kind for frame in frames for event in frame.get("response", {}).get("events", []) for kind in event]


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("{", None, "MALFORMED_MESSAGE"),
        ("[]", None, "MALFORMED_MESSAGE"),
        ("{}", None, "MALFORMED_MESSAGE"),
        ('{"id": "a"}', "a", "MALFORMED_MESSAGE"),
        ('{"id": ""}', None, "MALFORMED_MESSAGE"),
        ('{"id": 1.5}', None, "MALFORMED_MESSAGE"),
        ('{"id": "a", "x": 1}', "a", "MALFORMED_MESSAGE"),
        ('{"id": "a", "credit": -1}', "a", "MALFORMED_MESSAGE"),
        ('{"id": 7, "method": "OpsService/Nothing"}', 7, "NOT_IMPLEMENTED"),
        ('{"id": 7, "method": "AgentService/Attach"}', 7, "NOT_IMPLEMENTED"),
        ('{"id": 7, "method": "DispatchService/Run", "request": []}', 7, "MALFORMED_MESSAGE"),
        ('{"id": 7, "method": "DispatchService/Run", "request": {"x": 1}}', 7, "MALFORMED_MESSAGE"),
        ('{"id": 7, "method": "DispatchService/Run", "request": {"task": {}}}', 7, "INVALID_FIELD"),
        ('{"id": 7, "method": "DispatchService/Run", "request": ' + '{"task":' * 50_000, None, "MALFORMED_MESSAGE"),
        ('{"id": 7, "method": "ResultService/StreamResult", "request": {"taskId": "none"}}', 7, "TASK_NOT_FOUND"),
        ('{"id": "\\ud800", "method": "DispatchService/GetTask"}', None, "MALFORMED_MESSAGE"),
    ],
)
async def test_GOV_5_what_is_wrong_is_an_item_and_the_socket_goes_on(node, text, name, reason):
    async with SocketClient(node.admin_port) as ws:
        await ws.say(text)
        told = await ws.hear()
        assert (told.get("id"), told["problem"]["reason"], told["end"]) == (name, reason, True)
        assert reason != "NOT_IMPLEMENTED" or "one is DispatchService/Run" in told["problem"]["detail"]
        await ws.say(ping="still there?")
        assert await ws.hear() == {"pong": "still there?"}


async def test_an_id_that_is_in_use_stays_with_its_call(node, http, agent):
    task_id, offer = await given(http, agent)
    async with SocketClient(node.admin_port) as ws:
        await ws.ask("a", "ResultService/StreamResult", {"taskId": task_id, "afterSequence": "2"})
        await ws.ask("a", "DispatchService/GetTask", {"taskId": task_id})
        told = await ws.hear()
        assert (told["id"], told["problem"]["reason"]) == ("a", "MALFORMED_MESSAGE")
        assert "end" not in told  # for the call that has the id goes on
        await agent.finish(offer, "done")
        assert kinds_of(await ws.hear_all("a")) == ["complete"]


async def test_GOV_5_calls_of_a_socket_and_of_all_sockets_are_bounded(node, http, agent, gate, monkeypatch):
    monkeypatch.setattr(websocket, "CALLS", 3)
    monkeypatch.setattr(websocket, "ALL_CALLS", 5)
    task_id, offer = await given(http, agent)
    held = gate.held
    request = {"taskId": task_id, "afterSequence": "2"}
    async with SocketClient(node.admin_port) as one, SocketClient(node.admin_port) as two:
        for ws, most, said in ((one, 3, "this socket"), (two, 2, "sockets of this node")):
            for number in range(most + 1):
                await ws.ask(number, "ResultService/StreamResult", request)
            told = await ws.hear()
            assert (told["id"], told["problem"]["reason"]) == (most, "TOO_MANY_STREAMS")
            assert said in told["problem"]["detail"]
            assert told["problem"]["retryable"] is True
        assert gate.held == held + 5
    await until(lambda: gate.held == held)
    async with SocketClient(node.admin_port) as ws:
        await ws.ask("a", "ResultService/StreamResult", request)
        await agent.finish(offer, "done")
        assert kinds_of(await ws.hear_all("a")) == ["complete"]


async def test_GOV_5_requests_of_open_calls_hold_so_much_and_no_more(node, monkeypatch):
    monkeypatch.setattr(websocket, "HELD_FRAMES", 0.00001)  # some 90 bytes
    async with SocketClient(node.admin_port) as ws:
        told = await ws.call("DispatchService/GetTask", {"taskId": "x" * 200})
        assert told["problem"]["reason"] == "TOO_MANY_STREAMS"
        assert (await ws.call("DispatchService/GetTask", {"taskId": "x"}))["problem"]["reason"] == "TASK_NOT_FOUND"


async def test_GOV_5_frames_above_the_rate_wait(node, monkeypatch):
    monkeypatch.setattr(websocket, "FRAMES", 20)
    async with SocketClient(node.admin_port) as ws:
        began = asyncio.get_running_loop().time()
        for number in range(30):
            await ws.say(ping=str(number))
        assert [(await ws.hear())["pong"] for _ in range(30)] == [str(number) for number in range(30)]
        assert asyncio.get_running_loop().time() - began >= 0.45


async def test_A17_a_socket_that_is_reset_frees_everything_within_a_second(node, http, agent, gate, caplog):
    given_ones = [await given(http, agent) for _ in range(10)]
    offers = [offer for _, offer in given_ones]
    held = gate.held
    ws = SocketClient(node.admin_port)
    await ws.open()
    for number, (task_id, _) in enumerate(given_ones):
        await ws.ask(number, "ResultService/StreamResult", {"taskId": task_id})
    for _ in range(10):
        await ws.hear()
    assert gate.held == held + 10
    with caplog.at_level(logging.WARNING):
        ws.reset()
        async with asyncio.timeout(1):
            await until(lambda: gate.held == held)
        for offer in offers:
            await agent.delta(offer, 1, "to nobody")
            await agent.finish(offer, "done")
    assert not [record for record in caplog.records if "socket.send" in record.getMessage()]


async def test_a_page_of_another_site_gets_no_socket(node):
    for headers, host in (({"origin": "https://evil.example"}, "localhost"), ({}, "evil.example")):
        with pytest.raises(Refused) as refused:
            await SocketClient(node.admin_port, headers).open(host)
        assert (refused.value.status, refused.value.told["reason"]) == (403, "PERMISSION_DENIED")
    async with SocketClient(node.admin_port, {"origin": "http://localhost"}) as ws:
        await ws.say(ping="x")
        assert await ws.hear() == {"pong": "x"}


async def test_what_asks_for_no_socket_is_told_so(node, http):
    answer = await http.get("/v1/ws")
    is_problem(answer, 426, "MALFORMED_MESSAGE")
    assert answer.headers["upgrade"] == "websocket"
    for path in ("/v1/tasks", "/v1/nothing"):
        with pytest.raises(Refused) as refused:
            await SocketClient(node.admin_port).open(path=path)
        assert refused.value.status == 404
    with pytest.raises(Refused) as refused:
        await SocketClient(node.admin_port, protocols=("chat",)).open()
    assert (refused.value.status, refused.value.told["reason"]) == (409, "VERSION_NOT_SUPPORTED")
    async with SocketClient(node.admin_port, protocols=("agentreach.v1", "bearer.x")) as ws:
        assert ws.subprotocol == "agentreach.v1"


async def test_binary_frames_are_none(node):
    async with SocketClient(node.admin_port) as ws:
        await ws.say(b'{"ping": "x"}')
        with pytest.raises(Closed) as closed:
            await ws.hear()
        assert closed.value.code == websocket.NOT_TEXT


async def hear_to_the_end(ws):
    async with asyncio.timeout(TIMEOUT):
        while True:
            assert (await ws.hear())["id"] == "a"


async def test_DLV_13_a_server_that_stops_closes_its_sockets_and_says_why(tmp_path, caplog):
    async with running(tmp_path) as node, client_of(node.admin_port) as http, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        task_id, _ = await given(http, agent)
        async with SocketClient(node.admin_port) as ws:
            await ws.ask("a", "ResultService/StreamResult", {"taskId": task_id})
            assert kinds_of([await ws.hear()])[0] == "accepted"
            stopping = asyncio.ensure_future(node.stop())
            with pytest.raises(Closed) as closed:
                await hear_to_the_end(ws)
            assert closed.value.code == websocket.LEAVING
            assert closed.value.reason.startswith("SHUTTING_DOWN")
        await agent.close()
        await stopping
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


@pytest.mark.parametrize("how", ["stop", "reset"])
async def test_STR_5_who_leaves_ends_his_task_only_where_he_said_so(node, http, agent, how):
    await agent.join(unique("agent"), max_concurrency=5)
    kept, ended = unique("kept"), unique("ended")
    ws = SocketClient(node.admin_port)
    await ws.open()
    for name in (kept, ended):
        task = spec_for(agent, taskId=name, cancelWithCaller=name == ended)
        await ws.ask(name, "DispatchService/Run", {"task": task})
        await agent.accept(await agent.next("offers"))
        await ws.hear()
    if how == "reset":
        ws.reset()
    else:
        for name in (kept, ended):
            await ws.say(id=name, stop=True)
        await ws.hear()
    assert (await agent.next("cancels")).key.task_id == ended
    states = [(await http.get(f"/v1/tasks/{name}")).json()["task"]["state"] for name in (kept, ended)]
    assert states == ["TASK_STATE_RUNNING", "TASK_STATE_CANCELLED"]
    ws.writer.transport.abort()
