"""Attempts over HTTP that go on after their answer (202): what else comes, or does not, must not end or repeat them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from reach.core.joining import NO_BOOT_ID
from reach.node import Node
from reach.transports import http_call, http_endpoint
from reach.transports.http_bodies import Lines
from tests.rpc.peers import Stubs, pb, running
from tests.transports.endpoint_agent import eventually
from tests.transports.http_agent import Act, Heard, HttpAgent, answer, serving
from tests.transports.test_http_agents import accepted, accepted_only, ask, fixed, given, result_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONCE: Any = {"retry": {"name": "never"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reach.transports.http_call.POLL_S", (0.02, 0.05))
    monkeypatch.setattr("reach.transports.http_call.SMALL_S", 0.3)


async def hang(agent: HttpAgent, heard: Heard) -> None:
    await heard.hung_up()


def job(said: Any, raw: bytes = b"") -> Act:
    """Answers 202, and says so of the attempt when it is asked."""

    async def act(agent: HttpAgent, heard: Heard) -> bytes | None:
        path = f"/jobs/{heard.said['task_id']}"
        agent.jobs[path] = answer({**said, "task_id": heard.said["task_id"]})
        if not raw:
            return answer(said, "202 Accepted", location=path, retry_after="0")
        heard.write.write(b"HTTP/1.1 202 Accepted\r\nlocation: %s\r\nretry-after: 0\r\n%s" % (path.encode(), raw))
        if not raw.endswith(b"{"):
            await hang(agent, heard)
        return b""

    return act


@pytest.mark.parametrize(
    "said",
    [
        {"status": "running", "result": None, "error": None},
        {"status": "In-Progress", "error": None},
        {"status": "queued", "result": None},
        {"status": "whatever", "error": None, "data": None},
    ],
)
async def test_REG_6_a_job_that_runs_may_be_told_of_with_all_its_fields(node: Node, stubs: Stubs, said: Any):
    async with serving(agent := HttpAgent(slow=job(said))):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow", **ONCE)
        await eventually(lambda: len(agent.others) > 1)
        agent.jobs[agent.others[0].path] = answer({"status": "done", "result": 5, "error": None})
        assert (await result_of(stubs, task_id)).output.text == "5"


async def test_REG_6_a_job_that_is_done_may_have_no_result(node: Node, stubs: Stubs):
    async with serving(agent := HttpAgent(slow=job({"status": "done", "result": None}))):
        await agent.register(stubs)
        assert (await result_of(stubs, await given(stubs, agent, "slow", **ONCE))).output.text == "null"


@pytest.mark.parametrize("said", ['{"error":null,"data":null}', '{"error":null,"data":"x"}', '{"error":null}'])
async def test_GOV_5_an_object_without_an_outcome_is_the_answer(node: Node, stubs: Stubs, said: str):
    async with serving(agent := HttpAgent(own=fixed(answer(said)))):
        await agent.register(stubs)
        assert (await ask(stubs, agent, "own")).output.text == said


@pytest.mark.parametrize(
    "raw",
    [b"content-length: 99\r\n\r\n{", b"content-length: 99\r\n\r\n", b"content-length: 70000\r\n\r\n" + b"x" * 70_000],
    ids=["breaks", "hangs", "large"],
)
async def test_DLV_3_who_said_202_has_begun_whatever_becomes_of_the_rest_of_it(node: Node, stubs: Stubs, raw: bytes):
    async with serving(agent := HttpAgent(slow=job({"status": "running"}, raw))):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow", **ONCE)
        await eventually(lambda: agent.others)
        agent.jobs[agent.others[0].path] = answer({"result": 5})
        assert (await result_of(stubs, task_id)).output.text == "5"


async def test_REG_6_a_place_in_a_body_without_an_end_is_read(node: Node, stubs: Stubs):
    async def slow(agent: HttpAgent, heard: Heard) -> None:
        agent.jobs["/jobs/1"] = answer({"result": 5})
        heard.write.write(b'HTTP/1.1 202 Accepted\r\nretry-after: 0\r\n\r\n{"status_url": "/jobs/1"}')
        await heard.hung_up()

    async with serving(agent := HttpAgent(slow=slow)):
        await agent.register(stubs)
        assert (await result_of(stubs, await given(stubs, agent, "slow", **ONCE))).output.text == "5"


async def test_DLV_11_work_that_hangs_leaves_connections_for_questions_and_cancels(
    node: Node, stubs: Stubs, monkeypatch
):
    monkeypatch.setattr(http_endpoint, "CONNECTIONS", 2)
    monkeypatch.setattr(http_endpoint, "CONNECT_S", 0.2)
    async with serving(agent := HttpAgent(slow=accepted, hang=hang)):
        await agent.register(stubs, features=["cancel"])
        first, second = [await given(stubs, agent, "slow", **ONCE) for _ in range(2)]
        await eventually(lambda: len(agent.jobs) == 2 and len({one.path for one in agent.others}) == 2)
        hung = [await given(stubs, agent, "hang", **ONCE) for _ in range(2)]
        await eventually(lambda: len(agent.asked) == 4)
        seen = len(agent.others)
        await eventually(lambda: len(agent.others) > seen)
        agent.jobs[f"/jobs/{first}/1"] = answer({"result": 5})
        assert (await result_of(stubs, first)).output.text == "5"
        for task_id in (second, *hung):
            await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id), timeout=5)
        told = {f"/jobs/{second}/1", *(f"/ask/{task_id}?attempt=1" for task_id in hung)}
        await eventually(lambda: {one.path for one in agent.others if one.verb == "DELETE"} == told)


async def test_DLV_3_a_question_that_finds_no_connection_ends_nothing(node: Node, stubs: Stubs, monkeypatch):
    monkeypatch.setattr(http_endpoint, "ASIDE", 1)
    monkeypatch.setattr(http_endpoint, "CONNECT_S", 0.2)
    monkeypatch.setattr(http_endpoint, "POLL_S", 0.6)
    async with serving(agent := HttpAgent(slow=accepted)):
        await agent.register(stubs)
        agent.slow_places = True
        tasks = [await given(stubs, agent, "slow", **ONCE) for _ in range(3)]
        await eventually(lambda: len(agent.others) > 1)
        agent.slow_places = False
        for task_id in tasks:
            agent.jobs[f"/jobs/{task_id}/1"] = answer({"result": 5})
        assert [(await result_of(stubs, task_id)).output.text for task_id in tasks] == ["5"] * 3


async def test_GOV_5_what_a_piece_of_a_line_costs_does_not_grow_with_the_line():
    lines = Lines(1_000)
    assert lines.feed(b"a") == lines.feed(b"b") == []
    assert isinstance(lines._rest, bytearray), "grows in place: to send byte by byte took 10 s of ours for each MB"
    assert lines.feed(b"c\r\nd\ne") == [b"abc", b"d"]
    assert lines.rest == b"e"


async def test_HLT_4_several_processes_at_one_address_are_no_restarts(node: Node, stubs: Stubs):
    """Workers of one server, each of which answers for itself, in turn."""
    async with serving(agent := HttpAgent(hang=hang)):
        agent.boot_id = NO_BOOT_ID
        asked = itertools.count()
        agent.tells_health = lambda: answer({"boot_id": f"worker-{next(asked) // 2 % 2}", "running": []})
        await agent.register(stubs)
        await eventually(lambda: agent.checks > 6)
        await given(stubs, agent, "hang")
        await eventually(lambda: agent.asked)
        seen = agent.checks
        await eventually(lambda: agent.checks > seen + 10)
        assert len(agent.asked) == 1, "its work was taken for lost"


async def test_HLT_4_another_process_at_the_address_is_a_restart(node: Node, stubs: Stubs):
    async with serving(agent := HttpAgent(hang=hang)):
        agent.boot_id = NO_BOOT_ID
        agent.health = answer({"boot_id": "one"})
        await agent.register(stubs)
        await given(stubs, agent, "hang")
        await eventually(lambda: agent.asked)
        agent.health = answer({"boot_id": "two"})
        await eventually(lambda: len(agent.asked) == 2)


@pytest.mark.parametrize("status", ["404 Not Found", "410 Gone"])
async def test_DLV_3_a_place_that_is_not_known_any_more_is_a_loss(node: Node, stubs: Stubs, status: str):
    async with serving(agent := HttpAgent(slow=accepted)):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow")
        await eventually(lambda: agent.others)
        agent.jobs[f"/jobs/{task_id}/1"] = answer("", status)
        lost = await eventually(lambda: len(agent.asked) > 1 and agent.asked[1])
        assert lost.headers["agentreach-attempt"] == "2"
        agent.jobs[f"/jobs/{task_id}/2"] = answer({"result": 5})
        assert (await result_of(stubs, task_id)).output.text == "5"


@pytest.mark.parametrize(("said", "pause_s"), [("0", 0.2), ("7", 7.0), ("900", 60.0), ("soon", 1.5), ("", 1.5)])
async def test_REG_6_when_to_ask_again_is_the_agents_word_within_bounds(said: str, pause_s: float):
    assert http_call._pause({"retry-after": said}, 1.5) == pause_s


async def test_REG_6_a_place_is_of_one_attempt_also_after_a_restart(tmp_path: Path):
    async def once(agent: HttpAgent, heard: Heard) -> bytes | None:
        return await (accepted if heard.said["attempt"] == 1 else accepted_only)(agent, heard)

    async def last_of(stubs: Stubs) -> tuple[int, str]:
        task = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=5)).task
        return task.attempts[-1].number, task.attempts[-1].handle

    kept: Any = {"storage__type": "sqlite"}
    async with serving(agent := HttpAgent(slow=once)):
        async with running(tmp_path, **kept) as node, Stubs(node.port) as stubs:
            await agent.register(stubs)
            task_id = await given(stubs, agent, "slow")
            await eventually(lambda: agent.others)
            agent.jobs[f"/jobs/{task_id}/1"] = answer("", "404 Not Found")
            await eventually(lambda: len(agent.asked) > 1)
            assert await last_of(stubs) == (2, "")
        asked, checks = len(agent.others), agent.checks
        async with running(tmp_path, **kept) as node, Stubs(node.port) as stubs:
            await eventually(lambda: agent.checks > checks)
            assert await last_of(stubs) == (2, "")
    assert len(agent.others) == asked, "it was asked about another attempt"
