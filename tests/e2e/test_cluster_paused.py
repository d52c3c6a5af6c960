"""SIGSTOP of a node past its lease, and SIGCONT (F4, CLU-2): what it owned is others' by then, and it learns that."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, result_pb2, result_pb2_grpc
from tests.e2e.cluster_load import seeded, under_load
from tests.e2e.nodes import LEASE_S
from tests.e2e.plain import DEADLINE, spec, timeouts
from tests.e2e.processes import eventually, tell

PAUSE_S = 2.0 * LEASE_S + 1.0
"""Past its lease, and past what others need to own what it had."""
TOLD_S = 2.0
"""How soon a node that was overtaken tells those who wait at it, by its own clock (CLU-2)."""

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


async def read_until_told(stub, task_id, after):
    """Reads events until there are no more; the last sequence, the code of the end, whether all was told, and when."""
    whole = False
    call = stub.StreamResult(result_pb2.StreamResultRequest(task_id=task_id, after_sequence=after), timeout=DEADLINE)
    try:
        async for frame in call:
            for event in frame.events:
                after, whole = max(after, event.sequence), event.HasField("complete")
    except grpc.aio.AioRpcError as failure:
        return after, failure.code(), whole, time.monotonic()
    return after, grpc.StatusCode.OK, whole, time.monotonic()


async def test_F4_CLU_2_a_node_that_was_stopped_past_its_lease_learns_that_others_own_what_it_owned(nodes, agents, log):
    victim, others = nodes.all["a"], [nodes.all["b"], nodes.all["c"]]
    kind = nodes.type_at("a")
    async with (
        under_load(nodes, agents, log, seeded(), {kind: "b"}) as load,
        grpc.aio.insecure_channel(victim.address) as channel,
    ):
        given, read = dispatch_pb2_grpc.DispatchServiceStub(channel), result_pb2_grpc.ResultServiceStub(channel)
        load.wanted["long"] = f"slept {PAUSE_S + 5}"
        task = spec("sleep", {"seconds": PAUSE_S + 5}, "long", kind, timeouts=timeouts(start_to_close=60))
        await given.Dispatch(dispatch_pb2.DispatchRequest(task=task), timeout=DEADLINE)
        reading = asyncio.create_task(read_until_told(read, "long", 0))
        request = dispatch_pb2.WaitForResultRequest(task_id="long")
        waiting = asyncio.create_task(_ended(given.WaitForResult(request, timeout=DEADLINE)))
        await asyncio.sleep(0.5)  # it is in the middle
        before, served, stopped = await nodes.epochs(), nodes.served_by(), time.monotonic()
        victim.freeze()
        await asyncio.to_thread(eventually, lambda: sum(one.owned() for one in others) == 64, "others own all")
        tell(f"others own all {time.monotonic() - stopped:.2f} s after SIGSTOP")
        await asyncio.sleep(max(0.0, PAUSE_S - (time.monotonic() - stopped)))  # for so long in all
        assert not reading.done()
        victim.thaw()
        woken = time.monotonic()
        last, code, whole, told = await reading
        assert whole or (code is grpc.StatusCode.UNAVAILABLE and told - woken <= TOLD_S), "reads on, or is told"
        code, told_waiting = await waiting
        assert code is grpc.StatusCode.OK or told_waiting - woken <= TOLD_S, "brought to the new owner, or told"
        read_on = "read on" if whole else f"was told in {told - woken:.2f} s"
        tell(f"after SIGCONT who read {read_on}; who waited: {code.name}")
        await asyncio.to_thread(nodes.settle)
        assert victim.checks()["membership"] == "member"
        void = victim.records("shards are another node's: what was decided here is void")
        refused = {shard for one in void for shard in one["fields"]["shards"]}
        assert refused >= {shard for shard, name in served.items() if name == "a"}, "its writes were refused"
        after = await nodes.epochs()
        assert {shard for shard, epoch in after.items() if epoch > before[shard]} >= refused
        if not whole:
            again, _, whole, _ = await read_until_told(read, "long", last)
            assert again > last
        assert whole, "it goes on at the same node, which knows the new owner"
        result = await given.WaitForResult(request, timeout=DEADLINE)
        load.told["long"] = (result.result.output.text, time.time())


async def _ended(call):
    try:
        await call
    except grpc.aio.AioRpcError as failure:
        return failure.code(), time.monotonic()
    return grpc.StatusCode.OK, time.monotonic()
