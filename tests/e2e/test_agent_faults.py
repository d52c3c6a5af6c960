"""Agents that are killed, frozen and replaced (F2, P5, HLT, REG-2, B5): their work moves, and nobody else's."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import Callable

import grpc
import pytest

from agentreach.v1 import agent_pb2, dispatch_pb2, heartbeat_pb2, registry_pb2, result_pb2, task_pb2
from reach import Client
from tests.e2e.agents.worker import text_of
from tests.e2e.plain import DEADLINE, Plain, refused, spec, timeouts
from tests.e2e.processes import begins, eventually, read_log, tell
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
LONG = timeouts(start_to_close=120)
FAILOVER_MS = 100
"""The bound of the requirement, for the median: from the end of the stream to running elsewhere."""
NOISE_MS = 100
"""What a busy machine of two shared cores may add to each of the three processes' wake-ups, between them."""


def started(plain: Plain, task_id: str) -> Callable[[], bool]:
    """Whether a task runs."""
    return lambda: plain.get(task_id).state == task_pb2.TASK_STATE_RUNNING


def of_instance(plain: Plain, task_id: str, attempt: int) -> str:
    """Where an attempt is, or was."""
    return next((one.instance_id for one in plain.get(task_id).attempts if one.number == attempt), "")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_HLT6_F2_work_of_a_killed_agent_runs_elsewhere_within_100_ms(server, plain, start_agents, log):
    """Median of 20 agents that were killed with -9 in the middle of their task."""
    agents = {agent.instance(): agent for agent in start_agents(2)}
    moved, told, noticed = [], [], []
    for number in range(20):
        task_id = f"task-{number}"
        plain.dispatch(spec("sleep", {"seconds": 60}, task_id, timeouts=LONG))
        (first,) = eventually(lambda: begins(log)[task_id], f"{task_id} runs")  # noqa: B023 - called at once
        eventually(started(plain, task_id), f"the server knows that {task_id} runs")
        victim = agents.pop(of_instance(plain, task_id, 1))
        assert victim.pid == first["pid"]
        killed_at = time.time()
        victim.kill()
        lines = eventually(lambda: begins(log)[task_id][1:], f"{task_id} runs elsewhere")  # noqa: B023
        assert len(lines) == 1
        (again,) = lines
        assert (again["attempt"], again["pid"] != victim.pid) == (2, True)
        moved.append((again["at"] - killed_at) * 1_000)
        eventually(started(plain, task_id), "the server knows that it runs again")
        request = result_pb2.StreamResultRequest(task_id=task_id, after_sequence=2)
        times: dict[str, float] = {}
        for frame in plain.results.StreamResult(request, timeout=DEADLINE):
            for event in frame.events:
                times[event.WhichOneof("kind")] = event.time.ToNanoseconds() / 1e6
            if "started" in times:
                break
        told.append(times["started"] - times["retrying"])
        noticed.append(times["retrying"] - killed_at * 1_000)
        plain.cancel(task_id)
        (fresh,) = start_agents(1)
        agents[fresh.instance()] = fresh
    for what, values in (("kill to retrying", noticed), ("retrying to started", told), ("kill to begun", moved)):
        tell(f"{what}: median {statistics.median(values):.1f} ms, worst {max(values):.1f} ms")
    assert statistics.median(told) <= FAILOVER_MS
    assert statistics.median(moved) <= FAILOVER_MS + NOISE_MS


def test_P5_F4_frozen_agent_is_out_of_routing_and_comes_back(server, plain, start_agents):
    """SIGSTOP in a pool of two: out within three beats and a second, whatever is not lost; back after SIGCONT."""
    heartbeat = 1.0
    agents = {agent.instance(): agent for agent in start_agents(2, "--heartbeat", str(heartbeat))}
    name, frozen = next(iter(agents.items()))
    time.sleep(2 * heartbeat)  # a process that stands still cannot tell when it has for long enough
    stopped_at = time.monotonic()
    frozen.signal(signal.SIGSTOP)
    agent = eventually(lambda: (found := plain.agents()[name]).blocked_by and found, "it is out of routing")
    out_after = time.monotonic() - stopped_at
    tell(f"out of routing after {out_after:.2f} s, {agent.blocked_by}")
    assert agent.blocked_by == "unhealthy"
    assert agent.health == agent_pb2.HEALTH_UNHEALTHY
    assert out_after <= 3 * heartbeat + 1
    (other,) = plain.free()
    for number in range(5):
        answer = plain.dispatch(spec("echo", "x", f"task-{number}"), wait=5)
        assert answer.result.instance_id == other
    frozen.signal(signal.SIGCONT)
    eventually(lambda: len(plain.free()) == 2, "it is back", seconds=10)
    assert plain.agents()[name].generation == 1


def test_DLV7_HLT6_work_of_a_frozen_agent_is_not_taken_from_it_at_once(server, plain, start_agents, log):
    """Silence is only suspicion: the attempts wait, and are finished by the agent when it goes on. Once."""
    agents = {agent.instance(): agent for agent in start_agents(2, "--heartbeat", "1")}
    plain.dispatch(spec("sleep", {"seconds": 2}, "task", timeouts=LONG))
    eventually(started(plain, "task"), "it runs")
    name = of_instance(plain, "task", 1)
    agents[name].signal(signal.SIGSTOP)
    eventually(lambda: plain.agents()[name].blocked_by, "it is out of routing")
    time.sleep(0.5)  # in all less than the 5 s after which gRPC gives up a connection whose ping nobody answers
    agents[name].signal(signal.SIGCONT)
    result = plain.result("task")
    assert (result.state, result.attempts, result.instance_id) == (SUCCEEDED, 1, name)
    assert len(begins(log)["task"]) == 1


def test_REG2_two_instances_of_an_agent_on_a_host(server, plain, start_agents, log):
    """Two copies started alike live side by side, and both work."""
    agents = {agent.instance(): agent for agent in start_agents(2, "--agent", "twin", "--slots", "2")}
    rows = plain.agents()
    assert rows.keys() == agents.keys()
    assert {row.registration.agent_id for row in rows.values()} == {"twin"}
    assert {row.generation for row in rows.values()} == {1}
    for number in range(4):
        plain.dispatch(spec("sleep", {"seconds": 1}, f"task-{number}", timeouts=LONG))
    results = [plain.result(f"task-{number}") for number in range(4)]
    assert {result.instance_id for result in results} == agents.keys()
    assert {result.attempts for result in results} == {1}
    assert all(agent.running for agent in agents.values())


def test_B5_REG2_restart_with_the_same_instance_id_replaces_only_that_one(server, plain, start_agents, log):
    """The old process is frozen, so that only its successor can say that it is gone: its work moves at once."""
    (old,) = start_agents(1, "--instance", "x-1")
    plain.dispatch(spec("sleep", {"seconds": 6}, "moves", timeouts=LONG))
    eventually(started(plain, "moves"), "it runs")
    (bystander,) = start_agents(1, "--instance", "x-2")
    selector = task_pb2.Selector(agent_type="worker", instance_id="x-2")
    stays = spec("sleep", {"seconds": 4}, "stays", timeouts=LONG)
    stays.selector.CopyFrom(selector)
    plain.dispatch(stays)
    eventually(started(plain, "stays"), "it runs")
    old_boot = plain.agents()["x-1"].registration.boot_id
    old.signal(signal.SIGSTOP)
    (new,) = start_agents(1, "--instance", "x-1", wait=False)
    again = eventually(lambda: begins(log)["moves"][1:], "it runs again")
    up = next(line for line in read_log(log, "up") if line["pid"] == new.pid)
    tell(f"redelivered {again[0]['at'] - up['at']:.3f} s after the new process was up")
    assert again[0]["at"] - up["at"] <= 2
    assert again[0]["attempt"] == 2
    rows = plain.agents()
    assert (rows["x-1"].generation, rows["x-2"].generation) == (2, 1)
    assert rows["x-1"].registration.boot_id != old_boot
    # What the old process still says changes nothing.
    with refused("STALE_GENERATION", grpc.StatusCode.FAILED_PRECONDITION):
        beat = heartbeat_pb2.Beat(instance_id="x-1", boot_id=old_boot)
        plain.call(plain.heartbeats.Heartbeat, heartbeat_pb2.HeartbeatRequest(beat=beat))
    with refused("STALE_GENERATION", grpc.StatusCode.FAILED_PRECONDITION):
        registration = agent_pb2.Registration(
            agent_id="worker", agent_type="worker", instance_id="x-1", boot_id=old_boot
        )
        plain.call(plain.registry.Register, registry_pb2.RegisterRequest(registration=registration))
    with refused("STALE_GENERATION", grpc.StatusCode.FAILED_PRECONDITION):
        report = result_pb2.ReportResultRequest(reporter=result_pb2.Reporter(instance_id="x-1", boot_id=old_boot))
        report.result.key.task_id, report.result.key.attempt = "moves", 1
        report.result.output.text = "late"
        plain.call(plain.results.ReportResult, report)
    old.signal(signal.SIGCONT)
    assert old.wait() != 0, "it is told that it was replaced, and does not come back"
    assert "replaced by a new process" in old.text()
    stays_result, moves_result = plain.result("stays"), plain.result("moves")
    assert (stays_result.attempts, stays_result.instance_id) == (1, "x-2")
    assert (moves_result.state, moves_result.attempts, moves_result.output.text) == (SUCCEEDED, 2, "slept 6")
    assert len(begins(log)["stays"]) == 1
    assert bystander.running
    assert new.running
    listed = plain.call(plain.dispatching.ListTasks, dispatch_pb2.ListTasksRequest())
    assert {task.state for task in listed.tasks} == {SUCCEEDED}


def test_F4_F11_P5_a_server_that_stood_still_judges_nobody_by_it(server, plain, start_agents, log):
    """The server is frozen for longer than heartbeat timeout and silence. Agents beat and report all the while, and
    what they said waits in the sockets: nobody is out, nothing runs again."""
    names = {agent.instance() for agent in start_agents(2, "--heartbeat", "1")}
    limits = timeouts(silence=2, start_to_close=60)
    for number in range(4):
        task = spec("report", {"seconds": 8, "every": 0.5}, f"reports-{number}", timeouts=limits)
        plain.dispatch(task)
    # This one is done while the server stands still, before its time is over.
    plain.dispatch(spec("sleep", {"seconds": 2}, "ends", timeouts=timeouts(start_to_close=4)))
    eventually(lambda: len(begins(log)) == 5, "all run")
    seen = len(server.log_text())
    server.signal(signal.SIGSTOP)
    time.sleep(4)  # less than the 5 s after which gRPC gives up a connection whose ping nobody answers
    server.signal(signal.SIGCONT)
    for task_id in ("ends", *(f"reports-{number}" for number in range(4))):
        result = plain.result(task_id)
        assert (result.state, result.attempts) == (SUCCEEDED, 1), result
    assert [len(lines) for lines in begins(log).values()] == [1] * 5
    assert '"UNHEALTHY"' not in server.log_text()[seen:]
    assert set(plain.free()) == names


@pytest.mark.slow
async def test_F4_STR2_pieces_that_were_lost_with_a_connection_are_made_good(server, start_agents, log):
    """The server is frozen until agents and callers give up their connections, with all that was on its way in them.
    One stream ends meanwhile, one goes on: readers have the whole of both, nothing runs again."""
    await asyncio.to_thread(start_agents, 2)
    texts, shown = {"ends": Text(), "goes-on": Text()}, ""
    async with Client(server.address, reconnect_timeout=None) as client:

        async def read(task_id: str, count: int) -> None:
            asked = {"count": count, "pause": 0.01}
            events = client.stream("stream", asked, agent_type="worker", task_id=task_id, start_to_close=60)
            async for event in events:
                texts[task_id].add(event.message)

        async def show() -> None:
            nonlocal shown
            asked = {"count": 150, "pause": 0.01}
            pieces = client.stream_text("stream", asked, agent_type="worker", task_id="shown", start_to_close=60)
            async for piece in pieces:
                shown = str(piece) if piece.restarts else shown + piece

        reading = asyncio.gather(read("ends", 150), read("goes-on", 1_000), show())
        both = [*texts.values()]
        await asyncio.to_thread(eventually, lambda: shown and all(one.value for one in both), "all read")
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(7)
        server.signal(signal.SIGCONT)
        await asyncio.wait_for(reading, DEADLINE)
    assert (texts["ends"].value, shown) == (text_of("ends", 150), text_of("shown", 150))
    assert texts["goes-on"].value == text_of("goes-on", 1_000)
    assert [text.attempts for text in both] == [{1}, {1}]
    assert [len(lines) for lines in begins(log).values()] == [1, 1, 1]
