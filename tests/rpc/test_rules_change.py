"""Rules that change while tasks wait, and texts whose meaning takes a while (REG-5, RTE-5), over real gRPC."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence

import pytest

from reach.runtime.matcher import Matcher
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, pb, refusal, running, unique


async def submit(stubs: Stubs, **selector: str) -> str:
    task_id = unique("task")
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task={"task_id": task_id, "selector": selector}), timeout=TIMEOUT)
    return task_id


async def pending_reason(stubs: Stubs, task_id: str) -> str:
    answer = await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id))
    return str(answer.task.pending_reason)


async def test_REG_5_a_new_alias_finds_agents_for_what_waits_everywhere(tmp_path):
    skills, routes = tmp_path / "skills.yaml", tmp_path / "routes.yaml"
    skills.write_text("skills: {a: {}}\n")
    routes.write_text("routes: [{intent_prefix: i, require_capability: a}]\n")
    named = {"router__vocabulary_file": str(skills), "router__routes_file": str(routes)}
    async with running(tmp_path / "data", **named) as node, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        await agent.join("one", agent_type="typed", capabilities=[{"name": "b"}], max_concurrency=9)
        nowhere = await submit(stubs, capability="a")
        in_pool = await submit(stubs, capability="a", agent_type="typed")
        by_intent = await submit(stubs, intent="i.x")
        assert "no agent has capability 'a'" in await pending_reason(stubs, nowhere)
        assert "no agent has capability 'a'" in await pending_reason(stubs, in_pool)
        skills.write_text("skills: {a: {aliases: [b]}}\n")
        assert await node.rules.reload()
        got = {(await agent.next("offers")).task.task_id for _ in range(3)}
        assert got == {nowhere, in_pool, by_intent}
        await agent.close()


async def test_RTE_6_a_waiting_task_follows_the_route_as_it_is_now(tmp_path):
    routes = tmp_path / "routes.yaml"
    routes.write_text("routes: [{intent_prefix: i, require_capability: a}]\n")
    async with running(tmp_path / "data", router__routes_file=str(routes)) as node, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        await agent.join("one", capabilities=[{"name": "b"}], tags=["x"])
        waiting = await submit(stubs, intent="i")
        routes.write_text("routes: [{intent_prefix: i, require_capability: b, tags: [x]}]\n")
        assert await node.rules.reload()
        assert (await agent.next("offers")).task.task_id == waiting
        await agent.close()


class Gate:
    """An embedder that answers when it is let."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked.extend(texts)
        assert self.open.wait(10)
        return [[1.0, float("refund" in text)] for text in texts]


@contextlib.asynccontextmanager
async def with_matcher(folder, wait_ms):
    async with running(folder) as node, Stubs(node.port) as stubs:
        gate, host = Gate(), node.reach.host
        matcher = node.reach.texts.matcher = Matcher(host.directory, gate, host.clock, 0.6, wait_ms)
        agent = AgentByHand(stubs)
        capability = {"name": "refund", "description": "Pays money back"}
        await agent.join("one", capabilities=[capability], max_concurrency=9)
        try:
            yield node, stubs, agent, gate
        finally:
            gate.open.set()
            await asyncio.sleep(0.05)
            matcher.stop()
            await agent.close()


async def test_RTE_5_a_task_waits_for_the_meaning_of_its_text_and_no_longer_than_it_may(tmp_path):
    async with with_matcher(tmp_path, 60_000) as (node, stubs, agent, gate):
        spec = {"task_id": "t", "selector": {"text": "reimburse me"}}
        call = asyncio.ensure_future(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), timeout=TIMEOUT))
        async with asyncio.timeout(TIMEOUT):
            while not gate.asked:  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0.01)
        assert not call.done()
        gate.open.set()
        await call
        assert (await agent.next("offers")).task.task_id == "t"
        assert not node.reach._first._waiting
        await submit(stubs, text="reimburse me")
        await agent.next("offers")


async def test_RTE_5_words_decide_when_the_time_is_over(tmp_path):
    async with with_matcher(tmp_path, 20) as (_, stubs, agent, _gate):
        task_id = await submit(stubs, text="refund me")
        assert (await agent.next("offers")).task.task_id == task_id
        said = await refusal(stubs.dispatch.Dispatch(pb.DispatchRequest(task={"selector": {"text": "reimburse me"}})))
        assert said[1] == "NO_TEXT_MATCH"


async def test_RTE_5_who_speaks_of_a_task_that_waits_for_its_meaning_finds_it(tmp_path):
    async with with_matcher(tmp_path, 60_000) as (_, stubs, agent, _gate):
        spec = {"task_id": "t", "selector": {"text": "refund me"}}
        call = asyncio.ensure_future(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), timeout=TIMEOUT))
        await asyncio.sleep(0.1)
        cancelled = await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id="t"), timeout=TIMEOUT)
        assert cancelled.state == pb.TASK_STATE_CANCELLED
        await call
        again = {"task_id": "u", "selector": {"text": "refund me"}}
        both = [asyncio.ensure_future(stubs.dispatch.Dispatch(pb.DispatchRequest(task=again), timeout=TIMEOUT))
                for _ in range(2)]  # fmt: skip
        answers = [await one for one in both]
        assert sorted(answer.deduplicated for answer in answers) == [False, True]
        await agent.next("offers")


@pytest.mark.parametrize("meanwhile", ["delayed", "running"])
async def test_REG_5_a_task_that_does_not_wait_yet_follows_a_renamed_skill_too(tmp_path, meanwhile):
    skills = tmp_path / "skills.yaml"
    skills.write_text("skills: {a: {aliases: [b]}}\n")
    async with running(tmp_path / "data", router__vocabulary_file=str(skills)) as node, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        await agent.join("one", capabilities=[{"name": "b"}], max_concurrency=9)
        delay = {"start_delay": {"seconds": 1}} if meanwhile == "delayed" else {}
        spec = {"selector": {"capability": "b"}, **delay}
        tasks = [spec | {"task_id": unique("task")} for _ in range(2)]
        for task in tasks:
            await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        offers = [] if delay else [await agent.next("offers") for _ in tasks]
        skills.write_text("skills: {z: {aliases: [b]}}\n")
        assert await node.rules.reload()
        for offer in offers:
            await agent.finish(offer, released={"reason": "later"})
        async with asyncio.timeout(8):
            got = {(await agent.next("offers")).task.task_id for _ in tasks}
        assert got == {task["task_id"] for task in tasks}
        await agent.close()
