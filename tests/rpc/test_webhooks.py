"""Webhooks through a whole node (DLV-12, C5, F10): told once each, also when the node was away."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, ops_pb2, ops_pb2_grpc, task_pb2
from reach import Agent, Task
from reach.config import Config, Server, Storage, Webhooks, WebhookSecret
from reach.node import Node
from tests.transports.receivers import OK, Got, answered, receiver

SECRET = "hush"


def node_in(folder: Path, **fields: Any) -> Node:
    (folder / "secret").write_text(SECRET)
    webhooks = Webhooks(
        secrets=[WebhookSecret(name="main", file=str(folder / "secret"))], hosts=["127.0.0.1"], **fields
    )
    return Node(
        Config(server=Server(port=0, admin_port=0), storage=Storage(type="sqlite", path=str(folder)), webhooks=webhooks)
    )


def spec_of(task_id: str, url: str) -> task_pb2.TaskSpec:
    spec = task_pb2.TaskSpec(task_id=task_id, selector=task_pb2.Selector(agent_id="worker"))
    spec.payload.text = task_id
    spec.webhook.url = url
    return spec


def signed(got: Got) -> bool:
    content = f"{got.name}.{got.headers['webhook-timestamp']}.".encode() + got.body
    mac = hmac.new(SECRET.encode(), content, hashlib.sha256).digest()
    return got.headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()


async def until(condition: Any, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the node does it in its own time
            await asyncio.sleep(0.01)


async def test_C5_one_receiver_hangs_and_the_other_is_told_of_each_task_once(tmp_path: Path) -> None:
    node = node_in(tmp_path, timeout=0.5)
    await node.start()
    agent = Agent("worker", addr=f"127.0.0.1:{node.port}", max_concurrency=50)

    @agent.route()
    async def work(task: Task) -> str:
        return f"did {task.text}"

    async with receiver(lambda _: None) as hangs, receiver() as answers:
        async with agent, grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
            stub = dispatch_pb2_grpc.DispatchServiceStub(channel)
            await asyncio.gather(
                *(
                    stub.Dispatch(dispatch_pb2.DispatchRequest(task=spec_of(f"{name}{number}", target.url)))
                    for number in range(20)
                    for name, target in (("hangs", hangs), ("answers", answers))
                )
            )
            await until(lambda: len(answers.got) == 20, 5.0)  # 2 s, on a machine that does nothing else
            await until(lambda: len(hangs.got) >= 4)
            await asyncio.sleep(0.3)
        assert len(answers.got) == 20
        assert all(signed(got) for got in answers.got)
        told = {json.loads(got.body)["result"]["task_id"]: json.loads(got.body) for got in answers.got}
        assert set(told) == {f"answers{number}" for number in range(20)}
        assert told["answers3"]["result"]["output"]["text"] == "did answers3"
        assert told["answers3"]["result"]["state"] == "TASK_STATE_SUCCEEDED"
        first = {got.name for got in hangs.got}
    await node.stop()
    # Nobody answered for these: the next process tells of them under the same names.
    node = node_in(tmp_path)
    async with receiver() as again:
        # The receiver is elsewhere by now, so the old address is taken over.
        server = await asyncio.start_server(again.serve, "127.0.0.1", hangs.port)
        await node.start()
        await until(lambda: len(again.got) == 20)
        await asyncio.sleep(0.3)
        assert len({got.name for got in again.got}) == 20
        assert first <= {got.name for got in again.got}
        await node.stop()
        server.close()


async def test_what_was_told_is_not_told_again_by_the_next_process(tmp_path: Path) -> None:
    async with receiver() as target:
        node = node_in(tmp_path)
        await node.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
            stub = dispatch_pb2_grpc.DispatchServiceStub(channel)
            await stub.Dispatch(dispatch_pb2.DispatchRequest(task=spec_of("one", target.url)))
            await stub.CancelTask(dispatch_pb2.CancelTaskRequest(task_id="one"))
            await until(lambda: len(target.got) == 1)
            answer = await stub.GetTask(dispatch_pb2.GetTaskRequest(task_id="one"))
            assert answer.task.spec.webhook.url == target.url
        await node.stop()
        node = node_in(tmp_path)
        await node.start()
        await asyncio.sleep(0.5)
        await node.stop()
    assert len(target.got) == 1
    assert json.loads(target.got[0].body)["result"]["state"] == "TASK_STATE_CANCELLED"


async def test_webhooks_that_were_given_up_are_listed(tmp_path: Path) -> None:
    async with receiver(lambda got: OK if got.path.endswith("good") else answered(410)) as target:
        node = node_in(tmp_path)
        await node.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
            stub, ops = dispatch_pb2_grpc.DispatchServiceStub(channel), ops_pb2_grpc.OpsServiceStub(channel)
            for number in range(3):
                url = f"{target.url}/x?token=canary"
                await stub.Dispatch(dispatch_pb2.DispatchRequest(task=spec_of(f"t{number}", url)))
                await stub.CancelTask(dispatch_pb2.CancelTaskRequest(task_id=f"t{number}"))
            await until(lambda: node.metrics.webhooks["given_up"] == 3)
            found: list[Any] = []
            token = ""
            while True:
                page = await ops.ListFailedWebhooks(ops_pb2.ListFailedWebhooksRequest(page_size=2, page_token=token))
                found.extend(page.webhooks)
                token = page.next_page_token
                if not token:
                    break
            with pytest.raises(grpc.aio.AioRpcError, match="page_token"):
                await ops.ListFailedWebhooks(ops_pb2.ListFailedWebhooksRequest(page_token="x"))
            shown = await stub.GetTask(dispatch_pb2.GetTaskRequest(task_id="t0"))
        await node.stop()
    assert sorted(one.task_id for one in found) == ["t0", "t1", "t2"], "each once, in the order they were given up"
    assert {(one.error, one.tries) for one in found} == {("it answered 410", 1)}
    assert {one.delivery_id for one in found} == {got.name for got in target.got}
    assert found[0].destination == f"http://127.0.0.1:{target.port}"
    assert "canary" not in str(found) + str(shown)
    assert all(got.path.endswith("?token=canary") for got in target.got)


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "https://127.0.0.2/", "nonsense", "https://u:p@example.com/"])
async def test_GOV_6_a_task_with_a_webhook_that_is_not_allowed_is_refused(tmp_path: Path, url: str) -> None:
    node = node_in(tmp_path)
    await node.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        stub = dispatch_pb2_grpc.DispatchServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=r"task\.webhook\.url") as caught:
            await stub.Dispatch(dispatch_pb2.DispatchRequest(task=spec_of("one", url)))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await node.stop()
