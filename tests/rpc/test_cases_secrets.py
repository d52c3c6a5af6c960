"""Cases G7 and G8: whatever ids and secrets come in, telemetry grows with neither and shows none."""

import asyncio
import io
import logging
import random
import urllib.request
from typing import Any

import grpc
import pytest

from reach.node import Node
from reach.store import keys as key_store
from reach.telemetry.logs import setup_logging
from tests.rpc.peers import TIMEOUT, AgentByHand, CallerByHand, Stubs, golden, key_of, pb, refusal, running, unique
from tests.telemetry.collector import Collector

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = 10_000


async def metrics(node: Node, header: str = "") -> str:
    """What a scraper gets."""
    request = urllib.request.Request(f"http://127.0.0.1:{node.admin_port}/metrics")
    if header:
        request.add_header("authorization", header)
    return await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=TIMEOUT).read().decode())


def series(text: str) -> set[str]:
    """The names and labels of all series."""
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


async def test_g7_ids_make_no_series(tmp_path):
    """Tasks, agents, types, capabilities, methods and paths, thousands of each: the number of series stays."""
    async with running(tmp_path, server__max_streams=50_000) as node, Stubs(node.port) as stubs:
        chance = random.Random(7)

        async def hail(count: int) -> None:
            caller, agent = CallerByHand(stubs), AgentByHand(stubs)
            await agent.join(f"agent-{chance.random()}", max_concurrency=100, capabilities=[{"name": "c"}])
            ids = [f"id-{chance.getrandbits(64):x}" for _ in range(count)]
            for start in range(0, count, 500):
                await caller.send(
                    submits=[
                        {
                            "reference": start,
                            "task": {
                                "task_id": task_id,
                                "selector": {"agent_type": f"type-{task_id[-2:]}", "capability": task_id},
                                "method": task_id,
                                "labels": {task_id: task_id},
                                "durability": "DURABILITY_VOLATILE",
                            },
                        }
                        for task_id in ids[start : start + 500]
                    ],
                )
                await caller.send(
                    cancels=[{"reference": start, "task_id": task_id} for task_id in ids[start : start + 500]],
                    subscribes=[{"reference": start, "task_id": f"{task_id}x"} for task_id in ids[start : start + 500]],
                )
                await caller.until(lambda most=start + 500: len(caller.seen["cancelled"]) >= min(most, count))
            for task_id in ids[: count // 50]:
                path = f"/agentreach.v1.DispatchService/{task_id}"
                method: Any = stubs.channel.unary_unary(path)
                assert (await refusal(method(b"")))[:2] == ("UNIMPLEMENTED", "NOT_IMPLEMENTED")
                registration = {"agent_id": task_id, "instance_id": task_id, "boot_id": task_id}
                await stubs.registry.Register(pb.RegisterRequest(registration=registration))
                await refusal(stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id)))
                await refusal(stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=f"{task_id}y")))
            await caller.close()
            await agent.close()
            async with asyncio.timeout(TIMEOUT):
                while node.metrics.sources.streams()["streams"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        await hail(200)  # every label that has a bound reaches it
        before = series(await metrics(node))
        await hail(MANY)
        after = series(await metrics(node))
        assert after == before
        assert len(after) <= 2_000
        await golden(stubs)


async def test_g8_secrets_appear_nowhere_but_where_they_were_sent(tmp_path):
    """Canaries in metadata, keys, payloads, deltas, notes, checkpoints and texts of errors; everything at DEBUG with
    traces on. None is in a log line, a metric, a span, or the details of an error."""
    canary = {
        name: f"canary{name}4bf92f35" for name in ("payload", "header", "error", "delta", "note", "check", "label")
    }
    log = io.StringIO()
    root = logging.getLogger()
    level = root.level
    handler = setup_logging("debug", "json", log)
    said: list[str] = []
    try:
        async with Collector() as collector:
            settings = {"telemetry__otlp_endpoint": collector.endpoint, "telemetry__sample_ratio": 1.0}
            keys = key_store.SqliteKeyStore(tmp_path)
            token = keys.create("acme", "app", ("agent", "caller", "reader", "operator"))[1]
            async with (
                running(tmp_path, server__auth="keys", telemetry__metrics_interval=1, **settings) as node,
                Stubs(node.port) as stubs,
            ):
                header = (
                    ("authorization", f"Bearer {token}"),
                    ("x-secret", canary["header"]),
                    ("cookie", canary["header"]),
                )
                await everything(stubs, header, canary, said)
                scraped = await metrics(node, f"Bearer {token}")
            keys.close()
            sent = b"\n".join(collector.raw).decode(errors="replace")
            assert collector.spans
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        logging.captureWarnings(capture=False)
    secrets = [*canary.values(), token, token.rpartition("_")[2]]
    for what, text in (("log", log.getvalue()), ("metrics", scraped), ("spans", sent), ("statuses", "\n".join(said))):
        assert text, what
        assert [secret for secret in secrets if secret in text] == [], what


async def everything(stubs: Stubs, header: Any, canary: dict[str, str], said: list[str]) -> None:
    """One of each: a task that succeeds, one that fails, attempts that are lost, and calls that are refused."""
    agent, caller = AgentByHand(stubs, header), CallerByHand(stubs, header)
    await agent.join(unique("g8"), max_concurrency=4)
    spec = {
        "selector": {"instance_id": agent.instance_id},
        "payload": {"text": canary["payload"]},
        "attachments": [{"name": "a", "payload": {"data": canary["payload"].encode()}}],
        "labels": {"l": canary["label"]},
        "retry": {"delays": [{"nanos": 1_000_000}]},
    }
    ids = [unique("g8") for _ in range(4)]
    for task_id in ids:
        await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, **spec)
    offers = [await agent.next("offers") for _ in ids]
    await agent.delta(offers[0], 1, canary["delta"])
    await agent.send(
        progress=[
            {
                "link": 1,
                "key": key_of(offers[0]),
                "progress": {"note": canary["note"]},
                "checkpoint": canary["check"].encode(),
            }
        ]
    )
    await agent.finish(offers[0], canary["payload"])
    await agent.finish(offers[1], error={"message": canary["error"], "metadata": {"m": canary["error"]}})
    broken = {"error_class": "ERROR_CLASS_INTERNAL", "reason": "ERROR_REASON_AGENT_CRASHED", "message": canary["error"]}
    await agent.finish(offers[2], error=broken)
    await agent.finish(offers[3], error={"error_class": "ERROR_CLASS_UNAVAILABLE", "message": canary["error"]})
    offer = await agent.next("offers")
    await agent.close()  # lost in the middle
    again = AgentByHand(stubs, header)
    await again.join(agent.agent_id, instance_id=agent.instance_id)
    await again.finish(await again.next("offers"), canary["payload"])
    for task_id in ids:
        await caller.complete(task_id)
    assert offer.task.task_id == ids[3]
    unary: Any = stubs.channel.unary_unary("/agentreach.v1.DispatchService/Dispatch", request_serializer=bytes)
    calls: list[Any] = [
        stubs.dispatch.Dispatch(pb.DispatchRequest(task={**spec, "priority": 99}), metadata=header),
        stubs.dispatch.Dispatch(pb.DispatchRequest(task={**spec, "task_id": ids[0], "method": "m"}), metadata=header),
        stubs.dispatch.Run(pb.RunRequest(task={**spec, "selector": {}}), metadata=header),
        stubs.dispatch.GetTask(pb.GetTaskRequest(task_id="nobody"), metadata=header),
        stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=ids[0]), metadata=header[1:]),
        stubs.dispatch.GetTask(
            pb.GetTaskRequest(task_id=ids[0]), metadata=(("authorization", f"Bearer {canary['header']}"),)
        ),
        unary(b"\x0a\x7f" + canary["payload"].encode(), metadata=header),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer_of(call)
        error = caught.value
        said.append(f"{error.details()} {error.trailing_metadata()!r} {error.debug_error_string()}")
    for stream in (again, caller):
        await stream.close()


async def answer_of(call: Any) -> None:
    """The first answer of a call of any kind."""
    async with asyncio.timeout(TIMEOUT):
        await (call.read() if hasattr(call, "read") else call)
