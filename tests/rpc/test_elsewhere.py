"""Calls at a node that does not own what they are about (CLU-1): real servers, real connections."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from agentreach.internal.v1 import peer_pb2, peer_pb2_grpc
from reach.core.model import PoolKey, TaskState
from reach.core.placement import shard_of_session
from tests.rpc.nodes import SECRET, Cluster, agent_of, cluster, owned, serve, spec, until
from tests.rpc.peers import TIMEOUT, key_of, kind_of, pb, refusal, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three") as made:
        yield made


async def test_CLU_1_dispatch_at_a_node_that_does_not_own_the_pool_is_answered_by_the_owner(nodes):
    agent_type = owned(nodes, "two")
    agent = await agent_of(nodes, agent_type, "two")
    task = spec(agent_type)
    serving = asyncio.ensure_future(serve(agent))
    asked = pb.DispatchRequest(task=task, wait={"seconds": 15})
    answer = await nodes.stubs("one").dispatch.Dispatch(asked, timeout=TIMEOUT)
    await serving
    assert answer.result.output.text == "pong"
    assert task["task_id"] in nodes["two"].tasks()
    assert task["task_id"] not in nodes["one"].tasks()
    again = await nodes.stubs("three").dispatch.Dispatch(asked, timeout=TIMEOUT)
    assert again.deduplicated
    assert again.result.output.text == "pong"
    await agent.close()


async def test_CLU_1_run_streams_from_the_owner(nodes):
    agent_type = owned(nodes, "two")
    agent = await agent_of(nodes, agent_type, "two")

    async def stream() -> None:
        offer = await agent.next("offers")
        await agent.accept(offer)
        for number in range(1, 4):
            await agent.delta(offer, number, str(number))
        await agent.finish(offer, "done")

    serving = asyncio.ensure_future(stream())
    events = []
    async for frame in nodes.stubs("one").dispatch.Run(pb.RunRequest(task=spec(agent_type)), timeout=TIMEOUT):
        events.extend(frame.events)
    await serving
    assert [event.delta.payload.text for event in events if kind_of(event) == "delta"] == ["1", "2", "3"]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].complete.output.text == "done"
    await agent.close()


async def test_CLU_1_calls_by_id_find_the_task_wherever_it_is(nodes):
    agent_type = owned(nodes, "three")
    agent = await agent_of(nodes, agent_type, "three")
    for durability in ("DURABILITY_DURABLE", "DURABILITY_VOLATILE"):
        task = spec(agent_type, durability=durability)
        name = task["task_id"]
        await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        offer = await agent.next("offers")
        await agent.accept(offer)
        got = await nodes.stubs("two").dispatch.GetTask(pb.GetTaskRequest(task_id=name), timeout=TIMEOUT)
        assert got.task.state in (pb.TASK_STATE_DELIVERED, pb.TASK_STATE_RUNNING)
        waiting = asyncio.ensure_future(
            nodes.stubs("two").dispatch.WaitForResult(pb.WaitForResultRequest(task_id=name), timeout=TIMEOUT)
        )
        reading = nodes.stubs("one").result.StreamResult(pb.StreamResultRequest(task_id=name), timeout=TIMEOUT)
        seen: list[Any] = []

        async def read(call, into) -> None:
            async for frame in call:
                into.extend(frame.events)

        reader = asyncio.ensure_future(read(reading, seen))
        await agent.delta(offer, 1, "a piece")
        await agent.finish(offer, "done")
        assert (await waiting).result.output.text == "done"
        await reader
        assert kind_of(seen[-1]) == "complete"
        assert "a piece" in [event.delta.payload.text for event in seen]
    await agent.close()


async def test_CLU_1_cancel_and_input_are_brought_to_the_owner(nodes):
    agent_type = owned(nodes, "two")
    agent = await agent_of(nodes, agent_type, "two")
    task = spec(agent_type)
    await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    offer = await agent.next("offers")
    await agent.accept(offer)
    await agent.send(results=[{"link": 1, "key": key_of(offer), "waiting": {"prompt": {"text": "which?"}}}])
    await agent.next("acknowledgements")
    request = pb.SendInputRequest(task_id=task["task_id"], payload={"text": "that"})
    answer = await nodes.stubs("three").dispatch.SendInput(request, timeout=TIMEOUT)
    assert answer.input_id
    cancelled = await nodes.stubs("three").dispatch.CancelTask(
        pb.CancelTaskRequest(task_id=task["task_id"]), timeout=TIMEOUT
    )
    assert cancelled.state == pb.TASK_STATE_CANCELLED
    await agent.close()


async def test_CLU_1_what_nobody_has_is_not_found(nodes):
    calls = nodes.stubs("one")
    for call in (
        calls.dispatch.GetTask(pb.GetTaskRequest(task_id="nowhere"), timeout=TIMEOUT),
        calls.dispatch.CancelTask(pb.CancelTaskRequest(task_id="nowhere"), timeout=TIMEOUT),
        calls.dispatch.SendInput(pb.SendInputRequest(task_id="nowhere"), timeout=TIMEOUT),
        calls.dispatch.WaitForResult(pb.WaitForResultRequest(task_id="nowhere"), timeout=TIMEOUT),
        calls.result.StreamResult(pb.StreamResultRequest(task_id="nowhere"), timeout=TIMEOUT),
    ):
        assert (await refusal(call))[:2] == ("NOT_FOUND", "TASK_NOT_FOUND")


async def test_CLU_1_errors_of_the_owner_come_through_as_they_are(nodes):
    agent_type = owned(nodes, "two")
    task = spec(agent_type)
    await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    other = spec(agent_type, task_id=task["task_id"], payload={"text": "something else"})
    code, reason, text = await refusal(
        nodes.stubs("three").dispatch.Dispatch(pb.DispatchRequest(task=other), timeout=TIMEOUT)
    )
    assert (code, reason) == ("ALREADY_EXISTS", "TASK_ID_REUSED")
    assert task["task_id"] in text


async def test_CLU_1_one_hop_only_then_the_entry_asks_again(nodes):
    """One believes that two owns it, two believes that one does: nobody may be asked for ever."""
    agent_type = owned(nodes, "two")
    nodes.give(agent_type, "one", seen_by=("two", "three"))
    call = nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=spec(agent_type)), timeout=TIMEOUT)
    assert (await refusal(call))[:2] == ("UNAVAILABLE", "OWNER_UNAVAILABLE")
    nodes.give(agent_type, "two")
    answer = await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=spec(agent_type)), timeout=TIMEOUT)
    assert answer.state == pb.TASK_STATE_PENDING


async def test_CLU_3_a_call_waits_while_its_pool_has_no_owner_for_a_moment(nodes):
    agent_type = owned(nodes, "nobody")
    task = spec(agent_type)
    asked = asyncio.ensure_future(nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT))
    await asyncio.sleep(0.3)
    nodes.give(agent_type, "three")
    assert (await asked).state == pb.TASK_STATE_PENDING
    assert task["task_id"] in nodes["three"].tasks()


async def test_CLU_6_a_call_waits_for_an_owner_that_has_not_loaded_yet_what_it_was_handed(nodes):
    agent_type = owned(nodes, "two")
    nodes.give(agent_type, "three", seen_by=("one",))
    answer = asyncio.ensure_future(
        nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=spec(agent_type)), timeout=TIMEOUT)
    )
    await asyncio.sleep(1.0)  # longer than three tries
    assert not answer.done(), "it is asked for as long as it may soon be there"
    nodes.give(agent_type, "three")
    assert not (await answer).deduplicated


async def test_CLU_1_calls_about_agents_reach_the_owner_of_their_pool(nodes):
    agent_type = owned(nodes, "two")
    registration: dict[str, Any] = {
        "agent_id": unique("agent"),
        "agent_type": agent_type,
        "instance_id": unique("instance"),
        "boot_id": "b1",
        "ready": True,
    }
    name = registration["instance_id"]
    one, three = nodes.stubs("one"), nodes.stubs("three")
    answer = await one.registry.Register(pb.RegisterRequest(registration=registration), timeout=TIMEOUT)
    assert answer.instance_id == name
    assert PoolKey("default", agent_type) not in {pool.key for pool in nodes["one"].host.pools()}
    beat = {"instance_id": name, "boot_id": "b1"}
    await three.heartbeat.Heartbeat(pb.HeartbeatRequest(beat=beat), timeout=TIMEOUT)
    got = await three.registry.GetAgent(pb.GetAgentRequest(instance_id=name), timeout=TIMEOUT)
    assert got.agent.registration.agent_type == agent_type
    await three.registry.Deregister(pb.DeregisterRequest(instance_id=name, boot_id="b1"), timeout=TIMEOUT)
    call = one.registry.GetAgent(pb.GetAgentRequest(instance_id=name), timeout=TIMEOUT)
    assert (await refusal(call))[1] == "AGENT_NOT_FOUND"


async def test_CLU_1_the_caller_of_a_proxied_call_that_leaves_is_gone_at_the_owner_too(nodes):
    agent_type = owned(nodes, "two")
    task = spec(agent_type, cancel_with_caller=True)
    call = nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task, wait={"seconds": 15}), timeout=TIMEOUT)
    await until(lambda: task["task_id"] in nodes["two"].tasks())
    call.cancel()
    known = nodes["two"].host.tasks["default", task["task_id"]]
    await until(lambda: known.state is TaskState.CANCELLED)


async def test_CLU_1_nobody_without_the_secret_is_served(nodes, tmp_path: Path):
    two = nodes.addresses["two"].address
    async with grpc.aio.insecure_channel(two) as channel:
        stub = peer_pb2_grpc.PeerServiceStub(channel)
        request = peer_pb2.LocateRequest(tenant="default", task_id="x")
        good = nodes["one"].peers.secret
        proofs = {
            "none": (),
            "nonsense": (("x-reach-peer", "1:2:3:one"),),
            "for another node": (("x-reach-peer", good.proof("three")),),
            "of another node": (("x-reach-peer", good.proof("two").replace(":one", ":three")),),
        }
        for what, metadata in proofs.items():
            call = stub.Locate(request, metadata=metadata, timeout=TIMEOUT)
            assert (await refusal(call))[1] == "UNAUTHENTICATED", what
        await stub.Locate(request, metadata=(("x-reach-peer", good.proof("two")),), timeout=TIMEOUT)
        info = peer_pb2.CallRequest(method="/agentreach.v1.OpsService/GetServerInfo")
        assert (await refusal(stub.Call(info, timeout=TIMEOUT)))[1] == "UNAUTHENTICATED"


async def test_CLU_1_a_node_with_another_secret_is_told_apart_from_a_client(tmp_path: Path):
    secrets = {"one": SECRET, "two": SECRET[::-1]}
    async with cluster(tmp_path, "one", "two", secrets=secrets) as made:
        made.give("t", "two")
        call = made.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=spec("t")), timeout=1.0)
        code, reason, _ = await refusal(call)
        assert (code, reason) in {("UNAVAILABLE", "OWNER_UNAVAILABLE"), ("DEADLINE_EXCEEDED", "")}


async def test_CLU_1_agents_of_all_nodes_are_listed_in_pages(nodes):
    types = [owned(nodes, name) for name in ("one", "two", "three")]
    tag = unique("tag")
    names = []
    for number in range(12):
        registration = {
            "agent_id": "listed",
            "agent_type": types[number % 3],
            "instance_id": f"{tag}-{number:02}",
            "boot_id": "b",
            "tags": [tag],
        }
        await nodes.stubs("one").registry.Register(pb.RegisterRequest(registration=registration), timeout=TIMEOUT)
        names.append(registration["instance_id"])
    for size in (1, 5, 12, 100):
        token, seen = "", []
        while True:
            request = pb.ListAgentsRequest(filter={"tags": [tag]}, page_size=size, page_token=token)
            page = await nodes.stubs("two").registry.ListAgents(request, timeout=TIMEOUT)
            assert len(page.agents) <= size
            seen += [one.registration.instance_id for one in page.agents]
            token = page.next_page_token
            if not token:
                break
        assert seen == names


async def test_CLU_1_streamed_beats_and_reports_reach_the_owner(nodes):
    agent_type = owned(nodes, "two")
    agent = await agent_of(nodes, agent_type, "two")
    reporter = {"instance_id": agent.instance_id, "boot_id": agent.boot_id}
    beats = nodes.stubs("one").heartbeat.StreamHeartbeats(timeout=TIMEOUT)
    known = nodes["two"].host.pool(PoolKey("default", agent_type)).instances[agent.instance_id]
    before = len(known.beats)
    await beats.write(pb.StreamHeartbeatsRequest(beats=[reporter, {"instance_id": "nobody", "boot_id": "b"}]))
    refused = await beats.read()
    assert [one.instance_id for one in refused.refusals] == ["nobody"]
    await until(lambda: len(known.beats) > before)
    await beats.done_writing()
    task = spec(agent_type)
    await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    offer = await agent.next("offers")
    await agent.accept(offer)
    report = nodes.stubs("three").result.ReportResultStream(timeout=TIMEOUT)
    piece = {"payload": {"text": "piece"}, "mode": "DELTA_MODE_APPEND"}
    key = key_of(offer)
    await report.write(
        pb.ReportResultStreamRequest(reporter=reporter, deltas=[{"key": key, "attempt_sequence": 1, "delta": piece}])
    )
    await report.write(pb.ReportResultStreamRequest(result={"key": key, "output": {"text": "reported"}}))
    await report.done_writing()
    await report
    request = pb.WaitForResultRequest(task_id=task["task_id"])
    answer = await nodes.stubs("one").dispatch.WaitForResult(request, timeout=TIMEOUT)
    assert answer.result.output.text == "reported"
    await agent.close()


async def test_CLU_1_a_dead_letter_is_tried_again_where_its_pool_is(nodes):
    agent_type = owned(nodes, "one")
    agent = await agent_of(nodes, agent_type, "one")
    task = spec(agent_type, retry={"never": True})
    await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    offer = await agent.next("offers")
    await agent.send(results=[{"link": 1, "key": key_of(offer), "error": {"error_class": 3, "message": "no"}}])
    await agent.next("acknowledgements")
    nodes.give(agent_type, "two")  # the journal of one has the dead letter, as all would if they shared it
    request = pb.RequeueDeadLettersRequest(task_ids=[task["task_id"]], request_id="r")
    answer = await nodes.stubs("one").ops.RequeueDeadLetters(request, timeout=TIMEOUT)
    assert not answer.refused
    assert answer.new_task_ids[task["task_id"]] in nodes["two"].tasks()
    await agent.close()


async def test_CLU_1_a_session_is_asked_of_the_node_that_keeps_it(nodes):
    key = {"app_id": "a", "user_id": unique("u"), "session_id": "s"}
    name = ("default", f"a:{key['user_id']}:s")
    for node in nodes.nodes.values():
        node.owners.give(shard_of_session(name), "three")
    agent_type = owned(nodes, "three")
    agent = await agent_of(nodes, agent_type, "three")
    serving = asyncio.ensure_future(serve(agent))
    asked = pb.DispatchRequest(task=spec(agent_type, session=key), wait={"seconds": 15})
    await nodes.stubs("one").dispatch.Dispatch(asked, timeout=TIMEOUT)
    await serving
    found = await nodes.stubs("two").session.GetSession(pb.GetSessionRequest(key=key), timeout=TIMEOUT)
    assert found.session.key.user_id == key["user_id"]
    await nodes.stubs("one").session.DeleteSession(pb.DeleteSessionRequest(key=key), timeout=TIMEOUT)
    call = nodes.stubs("two").session.GetSession(pb.GetSessionRequest(key=key), timeout=TIMEOUT)
    assert (await refusal(call))[1] == "SESSION_NOT_FOUND"
    await agent.close()


async def test_CLU_1_all_instances_of_an_agent_are_drained_wherever_they_are(nodes):
    agent_id, names = unique("drained"), []
    for name in ("one", "two"):
        names.append(unique(agent_id))
        registration = {
            "agent_id": agent_id,
            "agent_type": owned(nodes, name),
            "instance_id": names[-1],
            "boot_id": "b",
        }
        await nodes.stubs("three").registry.Register(pb.RegisterRequest(registration=registration), timeout=TIMEOUT)
    answer = await nodes.stubs("three").registry.Drain(pb.DrainRequest(agent_id=agent_id), timeout=TIMEOUT)
    assert answer.instance_ids == sorted(names)
    call = nodes.stubs("three").registry.Drain(pb.DrainRequest(agent_id="nobody"), timeout=TIMEOUT)
    assert (await refusal(call))[1] == "AGENT_NOT_FOUND"
    one = await nodes.stubs("three").registry.Drain(pb.DrainRequest(instance_id=names[1], undo=True), timeout=TIMEOUT)
    assert one.instance_ids == names[1:]
