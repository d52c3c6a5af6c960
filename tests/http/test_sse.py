"""Streams as server-sent events on a real node: order, resuming, heartbeats, ends (API-2, STR-2)."""

import asyncio
import logging
import socket
from contextlib import suppress

import httpx
import pytest

from reach.http import sse
from reach.rpc.access import Admission
from tests.http.conftest import client_of
from tests.http.sse_reader import events_of
from tests.http.test_api import is_problem
from tests.rpc.nodes import until
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, running, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


async def given(http, agent, **fields):
    """A task that its agent has taken up: its id and the offer."""
    if not agent.agent_id:
        await agent.join(unique("agent"), max_concurrency=50)
    task_id = unique("task")
    spec = {"task_id": task_id, "selector": {"agent_id": agent.agent_id}, "payload": {"text": "x"}, **fields}
    answer = await http.post("/v1/tasks", json={"task": spec})
    assert answer.status_code == 200, answer.text
    offer = await agent.next("offers")
    await agent.accept(offer)
    return task_id, offer


async def test_STR_1_a_task_is_followed_event_by_event(http, agent):
    task_id, offer = await given(http, agent)
    async with http.stream("GET", f"/v1/tasks/{task_id}/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert len(answer.headers["x-trace-id"]) == 32
        reader = events_of(answer)
        first = [await anext(reader) for _ in range(2)]
        assert [one.kind for one in first] == ["accepted", "started"]
        await agent.delta(offer, 1, "one\n\ntwo")  # a line break in a text ends no event
        piece = await anext(reader)
        assert (piece.kind, piece.data["delta"]["payload"]["text"]) == ("delta", "one\n\ntwo")
        await agent.finish(offer, "done")
        rest = [one async for one in reader]
    assert [one.kind for one in rest] == ["complete"]
    assert rest[0].data["complete"]["output"]["text"] == "done"
    ids = [int(one.event_id) for one in (*first, piece, *rest)]
    assert ids == sorted(set(ids))
    assert [str(number) for number in ids] == [one.data["sequence"] for one in (*first, piece, *rest)]


async def test_STR_2_a_reader_cut_twenty_times_has_each_event_once(http, agent):
    task_id, offer = await given(http, agent)
    seen, last = [], ""
    for number in range(1, 21):
        await agent.delta(offer, number, f"{number} ")
        async with http.stream("GET", f"/v1/tasks/{task_id}/events", headers={"last-event-id": last}) as answer:
            async for one in events_of(answer):
                seen.append(one)
                last = one.event_id
                if one.kind == "delta":
                    break  # cut
    await agent.finish(offer, "end")
    async with http.stream("GET", f"/v1/tasks/{task_id}/events", headers={"last-event-id": last}) as answer:
        seen += [one async for one in events_of(answer)]
    assert "".join(one.data["delta"]["payload"]["text"] for one in seen if one.kind == "delta") == "".join(
        f"{number} " for number in range(1, 21)
    )
    assert [one.kind for one in seen if one.kind != "delta"] == ["accepted", "started", "complete"]
    assert len({one.event_id for one in seen}) == len(seen)
    over = await http.get(f"/v1/tasks/{task_id}/events", headers={"last-event-id": seen[-1].event_id})
    assert over.status_code == 204  # and a browser does not come again


async def test_run_gives_a_task_and_follows_it(http, agent):
    await agent.join(unique("agent"))
    body = {"task": {"selector": {"agent_id": agent.agent_id}, "payload": {"text": "x"}}}
    key = unique("key")
    async with http.stream("POST", "/v1/run", json=body, headers={"idempotency-key": key}) as answer:
        await agent.serve(await agent.next("offers"), "done")
        seen = [one async for one in events_of(answer)]
    assert [one.kind for one in seen] == ["accepted", "started", "complete"]
    assert {one.data["taskId"] for one in seen} == {key}


async def test_a_refusal_before_the_first_event_is_a_plain_answer(http):
    is_problem(await http.get("/v1/tasks/none/events"), 404, "TASK_NOT_FOUND")
    is_problem(await http.get("/v1/tasks/a/events", headers={"last-event-id": "x"}), 400, "INVALID_FIELD")
    is_problem(await http.post("/v1/run", json={"task": {}}), 400, "INVALID_FIELD")
    is_problem(await http.get("/v1/watch/tasks", params={"session.app_id": "a"}), 400, "INVALID_FIELD")


async def test_a_silent_stream_begins_and_beats(http, agent, monkeypatch):
    monkeypatch.setattr(sse, "START_SECONDS", 0.02)
    monkeypatch.setattr(sse, "BEAT_SECONDS", 0.02)
    task_id, offer = await given(http, agent)
    async with http.stream("GET", f"/v1/tasks/{task_id}/events") as answer:
        assert (await anext(events_of(answer))).kind == "accepted"
    comments: list[str] = []
    async with http.stream("GET", f"/v1/tasks/{task_id}/events", headers={"last-event-id": "2"}) as answer:
        reading = asyncio.ensure_future(anext(events_of(answer, comments)))
        await until(lambda: len(comments) >= 3)
        await agent.finish(offer, "done")
        assert (await reading).kind == "complete"


async def test_REG_9_agents_are_watched_and_a_watch_goes_on_where_it_was(http, stubs):
    agent_id = unique("watched")
    params = {"agent_id": agent_id}
    async with http.stream("GET", "/v1/watch/agents", params=params) as answer:
        reader = events_of(answer)
        first = await anext(reader)
        assert (first.kind, first.data["inSync"]) == ("change", True)
        one = AgentByHand(stubs)
        await one.join(agent_id)
        change = await anext(reader)
        assert [row["registration"]["instanceId"] for row in change.data["agents"]] == [one.instance_id]
    async with http.stream(
        "GET", "/v1/watch/agents", params=params, headers={"last-event-id": change.event_id}
    ) as answer:
        again = await anext(events_of(answer))
        assert not again.data.get("reset", False)
    await one.close()


async def test_tasks_are_watched(http, agent):
    async with http.stream("GET", "/v1/watch/tasks") as answer:
        reader = events_of(answer)
        assert (await anext(reader)).data["events"] == []
        task_id, offer = await given(http, agent)
        await agent.serve(offer, "done")
        seen: list[str] = []
        async with asyncio.timeout(TIMEOUT):
            while "complete" not in seen:
                told = await anext(reader)
                seen += [kind for event in told.data["events"] if event["taskId"] == task_id for kind in event]
    assert "accepted" in seen


async def test_A17_a_reader_that_is_reset_frees_everything_within_a_second(http, node, agent, caplog):
    task_id, offer = await given(http, agent)
    gate = node._grpc.entrance.gates[Admission.STREAMS]
    before = gate.held
    reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
    writer.write(f"GET /v1/tasks/{task_id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    async with asyncio.timeout(TIMEOUT):
        await reader.readuntil(b"event: started")
        assert gate.held == before + 1
    made = writer.get_extra_info("socket")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()
    async with asyncio.timeout(1):
        await until(lambda: gate.held == before)
    with caplog.at_level(logging.WARNING):
        await agent.delta(offer, 1, "to nobody")
    assert not [record for record in caplog.records if "socket.send" in record.getMessage()]


async def test_DLV_13_a_server_that_stops_says_so_to_its_readers(tmp_path, caplog):
    async with running(tmp_path) as node, client_of(node.admin_port) as http, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        task_id, _ = await given(http, agent)
        async with http.stream("GET", f"/v1/tasks/{task_id}/events") as answer:
            reader = events_of(answer)
            assert (await anext(reader)).kind == "accepted"
            waiting = asyncio.ensure_future(http.get(f"/v1/tasks/{task_id}/result"))
            await asyncio.sleep(0.1)
            stopping = asyncio.ensure_future(node.stop())
            told = [one async for one in reader][-1]
            assert (told.kind, told.data["reason"], told.data["retryable"]) == ("problem", "SHUTTING_DOWN", True)
        is_problem(await waiting, 503, "SHUTTING_DOWN")
        with suppress(Exception):
            await agent.close()
        await stopping
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
    assert isinstance(http, httpx.AsyncClient)
