"""A server that was killed comes back: results from the journal, running attempts adopted, streams resumed."""

from __future__ import annotations

import asyncio
import signal
import time

import grpc
import pytest

from agentreach.v1 import result_pb2, task_pb2
from reach import Client
from tests.e2e.agents.worker import text_of
from tests.e2e.plain import DEADLINE, refused, spec, timeouts
from tests.e2e.processes import begins, eventually, read_log
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED


def test_DLV2_P3_results_and_first_answers_outlive_kill_9(server, plain, start_agents):
    (agent,) = start_agents(1)
    tasks = [spec("echo", f"content {number}", f"task-{number}") for number in range(20)]
    tasks.append(spec("stream", {"count": 50, "pause": 0}, "streamed"))
    before = {task.task_id: plain.dispatch(task, wait=DEADLINE).result for task in tasks}
    assert {result.state for result in before.values()} == {SUCCEEDED}
    (why,) = {one.decision.chosen_instance_id for one in plain.get("task-0").attempts}
    assert why
    agent.kill()
    server.restart()
    plain.get("task-0", wait_for_ready=True)
    for task in tasks:
        (attempt,) = plain.get(task.task_id).attempts
        told = [one.instance_id for one in attempt.decision.candidates]
        assert (attempt.decision.chosen_instance_id, told) == (why, [why]), "RTE-13: also after a restart"
        first, task_id = before[task.task_id], task.task_id
        stored = plain.get(task_id)
        assert (stored.state, stored.result, stored.spec.payload) == (SUCCEEDED, first, task.payload)
        assert plain.result(task_id) == first
        again = plain.dispatch(task, wait=5)
        assert (again.deduplicated, again.state, again.result) == (True, SUCCEEDED, first)
        accepted = plain.dispatch(task)
        assert (accepted.deduplicated, accepted.state) == (True, SUCCEEDED)
        other = task_pb2.TaskSpec()
        other.CopyFrom(task)
        other.payload.text += "!"
        with refused("TASK_ID_REUSED", grpc.StatusCode.ALREADY_EXISTS):
            plain.dispatch(other)
        for after in (0, 1, first.sequence - 1):
            request = result_pb2.StreamResultRequest(task_id=task_id, after_sequence=after)
            text = Text().read(plain.results.StreamResult(request, timeout=DEADLINE))
            assert text.kinds[-1] == "complete"
            assert text.kinds[:-1] in ([], ["gap"])
            assert (text.result, text.last) == (first.output.text, first.sequence)
        with refused("SEQUENCE_OUT_OF_RANGE", grpc.StatusCode.OUT_OF_RANGE):
            request = result_pb2.StreamResultRequest(task_id=task_id, after_sequence=first.sequence + 1)
            list(plain.results.StreamResult(request, timeout=DEADLINE))


def test_DLV2_what_waits_is_done_after_kill_9(server, plain, start_agents, log):
    """Accepted for an agent that is not there yet: it waits over two restarts and then runs, once."""
    for number in range(30):
        plain.dispatch(spec("echo", f"content {number}", f"task-{number}"))
    server.restart()
    plain.get("task-0", wait_for_ready=True)
    assert plain.get("task-7").state == task_pb2.TASK_STATE_PENDING
    server.restart()
    plain.get("task-0", wait_for_ready=True)
    start_agents(1)
    for number in range(30):
        result = plain.result(f"task-{number}")
        assert (result.state, result.output.text, result.attempts) == (SUCCEEDED, f"content {number}", 1)
    assert [len(lines) for lines in begins(log).values()] == [1] * 30


@pytest.mark.slow
async def test_CLU3_STR2_stream_goes_on_over_kill_9_of_the_server(server, start_agents, log):
    """An agent streams 2,000 pieces; the server dies in the middle, twice. The text is whole and nothing is doubled."""
    count, text = 2_000, Text()
    await asyncio.to_thread(start_agents, 2)
    async with Client(server.address, reconnect_timeout=None) as client:

        async def read() -> None:
            payload = {"count": count, "pause": 0.003}
            async for event in client.stream(
                "stream", payload, agent_type="worker", task_id="long", start_to_close=120
            ):
                text.add(event.message)

        reading = asyncio.create_task(read())
        for share in (0.2, 0.5):
            while len(text.value) < share * len(text_of("long", count)):
                await asyncio.sleep(0.01)
                assert not reading.done(), "it must last longer than this"
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.start)
        await asyncio.wait_for(reading, 60)
        task = await client.get_task("long")
    assert text.kinds.count("resumed") + text.kinds.count("gap") >= 1, "nothing was interrupted"
    assert text.value == text.result == text_of("long", count)
    assert (task.attempts, text.attempts, len(begins(log)["long"])) == (1, {1}, 1)
    assert text.kinds.count("started") <= 3, "each of the three owners says it at most once"


async def test_CLU3_text_of_a_stream_over_kill_9_of_the_server(server, start_agents):
    """What `stream_text` gives is the whole text too, for a caller that looks at nothing but `restarts`."""
    count, shown = 600, ""
    await asyncio.to_thread(start_agents, 1)
    async with Client(server.address, reconnect_timeout=None) as client:
        killed: asyncio.Task[None] | None = None
        payload = {"count": count, "pause": 0.003}
        async for piece in client.stream_text("stream", payload, agent_type="worker", task_id="t", start_to_close=120):
            shown = str(piece) if piece.restarts else shown + piece
            if killed is None and len(shown) > 1_000:
                killed = asyncio.create_task(asyncio.to_thread(server.restart))
        assert killed is not None
        await killed
    assert shown == text_of("t", count)


def test_HAZ3_a_time_limit_of_an_attempt_waits_for_its_agent(server, plain, start_agents, log):
    """An attempt gets a full grace after a restart: its agent is not back yet, so its silence means nothing."""
    agents = start_agents(2)
    limits = timeouts(start_to_close=2, silence=1.5)
    plain.dispatch(spec("report", {"seconds": 4, "every": 0.2}, "limited", timeouts=timeouts(silence=1.5)))
    plain.dispatch(spec("sleep", {"seconds": 1.2}, "short", timeouts=limits))
    eventually(lambda: len(begins(log)) == 2, "both run")
    server.kill()
    for agent in agents:
        agent.signal(signal.SIGSTOP)  # they come back late
    server.start()
    time.sleep(3.5)
    for agent in agents:
        agent.signal(signal.SIGCONT)
    for task_id in ("limited", "short"):
        result = plain.result(task_id)
        assert (result.state, result.attempts) == (SUCCEEDED, 1), result
    assert [len(lines) for lines in begins(log).values()] == [1, 1]
    assert len(read_log(log, "end")) == 2
