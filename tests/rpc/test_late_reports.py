"""Reports that come late, twice, or after a restart (DLV-14): idempotent by (task, attempt); the first end holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rpc.peers import AgentByHand, CallerByHand, Stubs, key_of, pb, refusal, running, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


def report(stubs: Stubs, agent: AgentByHand, key: Any, text: str = "", **outcome: Any) -> Any:
    who = {"instance_id": agent.instance_id, "boot_id": agent.boot_id}
    result = {"key": key, **(outcome or {"output": {"text": text}})}
    return stubs.result.ReportResult(pb.ReportResultRequest(reporter=who, result=result))


async def begun(stubs: Stubs, agent: AgentByHand, caller: CallerByHand, **spec: Any) -> Any:
    spec = {"task_id": unique("late"), "selector": {"instance_id": agent.instance_id}, **spec}
    await caller.submit(1, "INTEREST_EVENTS", **spec)
    return await agent.next("offers")


async def result_of(stubs: Stubs, task_id: str) -> Any:
    return (await stubs.dispatch.WaitForResult(pb.WaitForResultRequest(task_id=task_id))).result


async def test_DLV_14_a_report_that_comes_twice_counts_once(stubs: Stubs, caller: CallerByHand) -> None:
    agent = AgentByHand(stubs)
    await agent.join(unique("twice"))
    key = key_of(await begun(stubs, agent, caller))
    await report(stubs, agent, key, "first")
    await report(stubs, agent, key, "first")
    await report(stubs, agent, key, "second, which is too late")
    late = {"reason": "ERROR_REASON_AGENT_FAILED", "message": "changed my mind"}
    assert (await refusal(report(stubs, agent, key, error=late)))[0] == "OK"
    ended = await result_of(stubs, key["task_id"])
    assert (ended.state, ended.output.text, ended.attempts) == (pb.TASK_STATE_SUCCEEDED, "first", 1)
    assert len([event for event in caller.events_of(key["task_id"]) if event.WhichOneof("kind") == "complete"]) == 1
    await agent.close()


async def test_DLV_14_a_report_after_a_cancel_changes_nothing(stubs: Stubs, caller: CallerByHand) -> None:
    agent = AgentByHand(stubs)
    await agent.join(unique("cancelled"))
    key = key_of(await begun(stubs, agent, caller))
    await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=key["task_id"]))
    await report(stubs, agent, key, "done all the same")
    assert (await result_of(stubs, key["task_id"])).state == pb.TASK_STATE_CANCELLED
    await agent.close()


async def test_DLV_14_a_report_of_an_attempt_that_was_replaced_is_refused(stubs: Stubs, caller: CallerByHand) -> None:
    first, second = AgentByHand(stubs), AgentByHand(stubs)
    name = unique("moved")
    await first.join(name)
    offer = await begun(stubs, first, caller, selector={"agent_id": name})
    await second.join(name, instance_id=f"{name}-2")
    await report(stubs, first, key_of(offer), released={"reason": "not now"})
    again = await second.next("offers")
    assert again.attempt == 2
    code, reason, _ = await refusal(report(stubs, first, key_of(offer), "the old one"))
    assert reason in ("STALE_ATTEMPT", "WRONG_STATE"), code
    await report(stubs, second, key_of(again), "the new one")
    await report(stubs, second, key_of(again), "the new one")
    assert (await result_of(stubs, offer.task.task_id)).output.text == "the new one"
    assert (await refusal(report(stubs, first, key_of(offer), "the old one")))[1] in ("", "STALE_ATTEMPT")
    assert (await result_of(stubs, offer.task.task_id)).output.text == "the new one"
    await first.close()
    await second.close()


async def test_DLV_14_reports_are_taken_by_another_process_and_repeats_acknowledged_later(tmp_path: Path) -> None:
    settings = {"storage__type": "sqlite"}
    names: dict[str, Any] = {"instance_id": "one"}
    async with running(tmp_path, **settings) as node, Stubs(node.port) as stubs:
        agent, caller = AgentByHand(stubs), CallerByHand(stubs)
        await agent.join("late", max_concurrency=2, **names)
        await caller.open()
        before = key_of(await begun(stubs, agent, caller))
        after = key_of(await begun(stubs, agent, caller))
        await report(stubs, agent, before, "before")
        assert (await result_of(stubs, before["task_id"])).output.text == "before"
        await caller.close()
    async with running(tmp_path, **settings) as node, Stubs(node.port) as stubs:
        # Nothing but unary calls: the reports come before the agent has attached again, and after the end.
        await report(stubs, agent, before, "not that")
        await report(stubs, agent, after, "after")
        await report(stubs, agent, after, "after")
        assert (await result_of(stubs, before["task_id"])).output.text == "before"
        ended = await result_of(stubs, after["task_id"])
        assert (ended.output.text, ended.attempts) == ("after", 1)
        assert (await refusal(report(stubs, agent, {**after, "attempt": 7}, "of no attempt")))[1] != "INTERNAL_FAULT"
    async with running(tmp_path, **settings) as node, Stubs(node.port) as stubs:
        await report(stubs, agent, after, "once more")
        assert (await result_of(stubs, after["task_id"])).output.text == "after"


async def test_DLV_14_a_report_of_what_never_was_is_refused(stubs: Stubs) -> None:
    agent = AgentByHand(stubs)
    await agent.join(unique("never"))
    code, reason, text = await refusal(report(stubs, agent, {"task_id": unique("never"), "attempt": 1}, "x"))
    assert (code, reason) == ("NOT_FOUND", "UNKNOWN_ATTEMPT"), text
    await agent.close()
