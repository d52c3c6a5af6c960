"""Time limits, leases and signs of life against real agents (A15, B1, B2, C1, C2)."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time

import grpc
import pytest

from agentreach.v1 import agent_pb2, result_pb2, task_pb2
from reach import SyncClient
from reach.store.keys import SqliteKeyStore
from tests.e2e.plain import DEADLINE, Plain, refused, spec, timeouts
from tests.e2e.processes import AgentProcess, Server, begins, eventually, read_log, tell
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

SUCCEEDED, FAILED = task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_FAILED
LONG = timeouts(start_to_close=120)


def test_A15_schedule_to_close_ends_the_task_and_stops_the_agent(server, plain, start_agents, log):
    """200 ms for an agent that takes longer: ended by then, the agent told to stop, no further attempt."""
    start_agents(1)
    plain.dispatch(spec("echo", "warm"), wait=5)
    limits = timeouts(schedule_to_close=0.2)
    took_ms = []
    for number in range(5):
        task_id = f"task-{number}"
        result = plain.dispatch(spec("sleep", {"seconds": 5}, task_id, timeouts=limits), wait=DEADLINE).result
        assert (result.state, result.error.reason) == (FAILED, 25), result  # SCHEDULE_TO_CLOSE
        task = plain.get(task_id)
        took_ms.append((task.ended_at.ToNanoseconds() - task.accepted_at.ToNanoseconds()) / 1e6)
        stopped = eventually(lambda: read_log(log, "stopped", task_id), "the agent stopped")  # noqa: B023 - called at once
        assert stopped[0]["at"] - begins(log)[task_id][0]["at"] < 2
    # By the server's clock, and the median, so that a busy machine does not blur what is required: at most 300 ms.
    tell(f"ended {sorted(took_ms)} ms after they were accepted")
    assert min(took_ms) >= 198, "the clock that decides and the one that is shown tell whole milliseconds, each its own"
    assert statistics.median(took_ms) <= 300
    time.sleep(1)
    assert [len(begins(log)[f"task-{number}"]) for number in range(5)] == [1] * 5
    assert plain.get("task-0").state == FAILED


def test_A15_task_without_a_deadline_gets_the_default(server, plain, start_agents):
    """No limit set, none sent as about 0: a task that takes a while succeeds, and its retry plan is the default."""
    start_agents(1)
    result = plain.dispatch(spec("sleep", {"seconds": 1.5}), wait=DEADLINE).result
    assert (result.state, result.attempts) == (SUCCEEDED, 1)


def test_B1_blocked_loop_is_no_dead_agent_but_gets_nothing_new(server, plain, start_agents, log):
    """A handler blocks the agent's loop for 8 s, with a heartbeat of 2 s: marked, avoided, and not run again."""
    agents = {agent.instance() for agent in start_agents(2, "--heartbeat", "2")}
    plain.dispatch(spec("block", {"seconds": 8}, "task", timeouts=LONG))
    eventually(lambda: begins(log), "it runs")
    name = eventually(lambda: plain.get("task").attempts, "it is known where")[0].instance_id
    (other,) = agents - {name}
    agent = eventually(lambda: (found := plain.agents()[name]).blocked_by and found, "it is marked", seconds=7)
    (condition,) = (one for one in agent.conditions if one.type == agent_pb2.CONDITION_TYPE_STALLED)
    tell(f"{agent.blocked_by}: {condition.evidence}")
    assert agent.blocked_by == "stalled"
    assert "loop stalled" in condition.evidence
    assert agent.health in (agent_pb2.HEALTH_HEALTHY, agent_pb2.HEALTH_SUSPECT), "it beats"
    for _ in range(4):
        assert plain.dispatch(spec("echo", "x"), wait=5).result.instance_id == other
    result = plain.result("task")
    assert (result.state, result.attempts, result.instance_id) == (SUCCEEDED, 1, name)
    assert len(begins(log)["task"]) == 1
    eventually(lambda: plain.free() == sorted(agents), "it takes work again")
    assert agent_pb2.CONDITION_TYPE_STALLED not in [one.type for one in plain.agents()[name].conditions]


def test_B2_beats_are_no_progress(server, plain, start_agents, log):
    """The agent beats, its task says nothing for longer than its silence allows: tried elsewhere; the agent lives."""
    agents = {agent.instance(): agent for agent in start_agents(2, "--heartbeat", "1")}
    task = spec("sleep", {"seconds": 30}, "task", timeouts=timeouts(silence=1, start_to_close=60))
    task.retry.name = "quick"
    plain.dispatch(task)
    lines = eventually(lambda: len(found := begins(log)["task"]) >= 2 and found, "it is tried again")
    assert lines[1]["at"] - lines[0]["at"] >= 1
    assert lines[1]["pid"] != lines[0]["pid"], "elsewhere, for it failed there"
    eventually(lambda: read_log(log, "stopped", "task"), "the first was told to stop")
    assert all(agent.running for agent in agents.values())
    assert {agent.health for agent in plain.agents().values()} == {agent_pb2.HEALTH_HEALTHY}
    assert plain.free() == sorted(agents)
    first = plain.get("task").attempts[0]
    assert first.error.reason == 26, first  # SILENCE
    assert plain.cancel("task").state == task_pb2.TASK_STATE_CANCELLED


def test_C1_progress_keeps_an_attempt(server, plain, start_agents, log):
    """May be silent for 2 s, reports each second, runs 7 s: one execution. With a limit that does not move too."""
    start_agents(2)
    limits = timeouts(silence=2, start_to_close=30)
    plain.dispatch(spec("report", {"seconds": 7, "every": 1}, "task", timeouts=limits))
    text = Text().read(plain.results.StreamResult(result_pb2.StreamResultRequest(task_id="task"), timeout=DEADLINE))
    result = plain.result("task")
    assert (result.state, result.attempts, len(begins(log)["task"])) == (SUCCEEDED, 1, 1)
    assert text.kinds.count("progress") >= 5
    assert "retrying" not in text.kinds


def test_C1_lease_is_extended_by_a_unary_call(server, plain, start_agents, log):
    """An agent that cannot stream progress says so by ExtendLease: it counts as progress.

    The attempt that runs is extended, whichever it is, since a busy machine may hold this process for longer than an
    attempt may be silent. None would end well without it: each runs for longer than that.
    """
    (agent,) = start_agents(1)
    plain.dispatch(spec("sleep", {"seconds": 4}, "task", timeouts=timeouts(silence=1.5, start_to_close=30)))
    eventually(lambda: begins(log), "it runs")
    boot = plain.agents()[agent.instance()].registration.boot_id
    request = result_pb2.ExtendLeaseRequest(reporter=result_pb2.Reporter(instance_id=agent.instance(), boot_id=boot))
    request.key.task_id = "task"
    extended = 0
    while not (task := plain.get("task")).HasField("result"):
        request.key.attempt = task.attempts[-1].number if task.attempts else 1
        try:
            assert plain.call(plain.results.ExtendLease, request).lease.ToMilliseconds() > 1_000
            extended += 1
        except grpc.RpcError:
            assert plain.get("task").state != task_pb2.TASK_STATE_RUNNING, "refused only where it is over by now"
        time.sleep(0.4)
    result = plain.result("task")
    assert (result.state, len(begins(log)["task"])) == (SUCCEEDED, result.attempts)
    assert extended >= 4
    request.key.attempt = result.attempts + 1
    with refused("STALE_ATTEMPT"):
        plain.call(plain.results.ExtendLease, request)


class Cutting:
    """A way to the server that passes on what the client says, but cuts the connection once instead of an answer."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self.port = 0
        self.cutting = threading.Event()
        self.cuts = 0

    def __enter__(self) -> Cutting:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        self._end = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        ways = {asyncio.create_task(self._pass(reader, back, cuts=False)),
                asyncio.create_task(self._pass(there, writer, cuts=True))}  # fmt: skip
        self._open |= ways
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for one in (writer, back):
            one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cuts: bool) -> None:
        while data := await reader.read(65_536):
            if cuts and self.cutting.is_set() and b"C2-answer" in data:
                self.cuts += 1
                self.cutting.clear()
                return
            writer.write(data)
            await writer.drain()


def test_C2_P3_answer_that_was_lost_comes_again(tmp_path):
    """The connection is cut after the commit, submit again: the same task. Another tenant's same id is another one."""
    log = tmp_path / "agents.log"
    keys = SqliteKeyStore(tmp_path / "data")
    everything = ("agent", "caller", "reader", "operator")
    (_, ours), (_, theirs) = (keys.create(tenant, "app", everything) for tenant in ("ours", "theirs"))
    keys.close()
    environment = {"AGENT_REACH_SERVER_AUTH": "keys"}
    with (
        Server(tmp_path / "data", environment) as server,
        Cutting(server.port) as way,
        Plain(f"127.0.0.1:{way.port}", ours) as shaky,
        Plain(server.address, ours) as steady,
        Plain(server.address, theirs) as other,
        AgentProcess(server.address, log, environment={"AGENT_REACH_API_KEY": ours}),
    ):
        eventually(steady.free, "the agent takes work")
        shaky.dispatch(spec("echo", "warm"), wait=5)
        task = spec("echo", "mine", "C2-answer")
        way.cutting.set()
        with pytest.raises(grpc.RpcError) as lost:
            shaky.dispatch(task)
        assert (lost.value.code(), way.cuts) == (grpc.StatusCode.UNAVAILABLE, 1)
        with Plain(f"127.0.0.1:{way.port}", ours) as anew:
            again = anew.dispatch(task, wait=DEADLINE)
        assert (again.deduplicated, again.task_id, again.result.output.text) == (True, "C2-answer", "mine")
        assert len(begins(log)["C2-answer"]) == 1
        # The SDK does that by itself.
        way.cutting.set()
        with SyncClient(f"127.0.0.1:{way.port}", api_key=ours) as client:
            handle = client.submit("echo", "by the SDK", agent_type="worker", task_id="C2-answer-2")
            assert (handle.deduplicated, way.cuts, handle.result().text) == (True, 2, "by the SDK")
        assert len(begins(log)["C2-answer-2"]) == 1
        # Another tenant: neither seen nor in the way.
        with refused("TASK_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
            other.get("C2-answer")
        first = other.dispatch(spec("echo", "other content", "C2-answer"))
        assert (first.deduplicated, first.state) == (False, task_pb2.TASK_STATE_PENDING)
        assert other.cancel("C2-answer").state == task_pb2.TASK_STATE_CANCELLED
        assert steady.get("C2-answer").state == SUCCEEDED
        assert steady.dispatch(task, wait=5).result.output.text == "mine"
        assert not server.tracebacks()
