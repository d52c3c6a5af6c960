"""Calls that fail leave nothing behind, though the garbage collector looks at everything only once in a blue moon."""

import asyncio
import gc
from collections import Counter

import pytest

from tests.fuzz.hail import Hail, Input
from tests.rpc.peers import AgentByHand, CallerByHand, golden, pb, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS = 100
FEW = 20
"""Calls that may still be on their way out."""
UNKNOWN = pb.GetTaskRequest(task_id="nobody").SerializeToString()
REPORT = pb.ReportResultStreamRequest(reporter={"instance_id": "nobody", "boot_id": "b"}).SerializeToString()
TWICE = pb.AttachRequest(opening={"protocol_version": "1"}).SerializeToString()
FAILING = {
    "unary": Input("/agentreach.v1.DispatchService/GetTask", (UNKNOWN,)),
    "unary, malformed": Input("/agentreach.v1.DispatchService/GetTask", (b"\xff",)),
    "a stream of answers": Input("/agentreach.v1.ResultService/StreamResult", (UNKNOWN,)),
    "a stream of requests": Input("/agentreach.v1.ResultService/ReportResultStream", (REPORT,) * 4),
    "both": Input("/agentreach.v1.AgentService/Attach", (TWICE,) * 4),
}


def calls() -> int:
    """Calls that gRPC's Python part knows in this process."""
    return Counter(type(one).__name__ for one in gc.get_objects())["RPCState"]


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", FAILING)
async def test_a_call_that_failed_is_gone_without_the_collector(stubs, no_collector, kind):
    """Each took 8 KB and more until a full collection, of which a busy server has one in many minutes."""
    before = calls()
    hail = Hail(stubs, open_for=2.0, at_once=10)
    for _ in range(CALLS // 10):
        await hail.all([FAILING[kind]] * 10)
    assert hail.ends["OK"] == 0
    await _settled(before)
    await golden(stubs)


async def test_a_call_of_a_method_that_does_not_exist_is_gone_too(stubs, no_collector):
    before = calls()
    for _ in range(CALLS):
        call = stubs.channel.unary_unary("/agentreach.v1.DispatchService/Nothing", bytes, bytes)(b"")
        code, reason, _ = await refusal(call)
        assert (code, reason) == ("UNIMPLEMENTED", "NOT_IMPLEMENTED")
        call.cancel()
    await _settled(before)


async def _settled(before: int) -> None:
    async with asyncio.timeout(10):
        while calls() > before + FEW:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", ["cancelled", "half-closed"])
@pytest.mark.parametrize("kind", [AgentByHand, CallerByHand], ids=["Attach", "DispatchStream"])
async def test_a_stream_that_its_client_leaves_is_gone_too(stubs, no_collector, kind, how):
    before = calls()
    for _ in range(CALLS // 10):
        streams = [kind(stubs) for _ in range(10)]
        for stream in streams:
            await stream.send(opening={"protocol_version": "1"})
            await stream.first_frame()
        for stream in streams:
            if how == "half-closed":
                await stream.half_close()
                await stream.ended()
            await stream.close()
    await _settled(before)
