"""A disk that fails (F7) and clocks that leap (F9): the process ends rather than lying, or holds and goes on by itself.

`FSYNCS=50` tries a failing sync at each of the first 50 commits; else a few of them are tried.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import grpc
import pytest

from agentreach.v1 import task_pb2
from tests.e2e.plain import DEADLINE, Plain, refused, spec, timeouts
from tests.e2e.processes import AgentProcess, Server, begins, eventually, tell

pytestmark = pytest.mark.e2e

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
LONG = timeouts(start_to_close=120)
FSYNCS = int(os.environ.get("FSYNCS", "0"))
SYNCS = range(1, FSYNCS + 1) if FSYNCS else (1, 2, 7)


class FailingServer(Server):
    """`agents/failing_server.py` in place of `reach serve`."""

    def __init__(self, folder: Path, what: str, number: int) -> None:
        super().__init__(folder)
        self.failing: list[str] = [what, str(number)]

    def command(self) -> list[str]:
        command = super().command()
        if not self.failing:
            return command
        serve = command[command.index("serve") :]
        script = Path(__file__).parent / "agents" / "failing_server.py"
        return [sys.executable, str(script), *self.failing, *serve]


@pytest.fixture(autouse=True)
def path_of_the_repository(monkeypatch):
    """For the script, which imports the tests."""
    root = str(Path(__file__).parent.parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))


@pytest.mark.slow
@pytest.mark.timeout(120 + 6 * FSYNCS)
def test_F7_a_sync_that_fails_ends_the_process_and_nothing_told_is_lost(tmp_path):
    """EIO from the N-th commit on: whoever was told of an acceptance finds the task after the repair."""
    told, unsure = 0, 0
    for at in SYNCS:
        server = FailingServer(tmp_path / str(at), "sync", at)
        accepted: list[str] = []
        with server, Plain(server.address) as plain:
            for number in range(at + 1):
                try:
                    plain.dispatch(spec("echo", "x", f"task-{number}"), deadline=5, wait_for_ready=True)
                except grpc.RpcError:
                    unsure += 1
                    break
                accepted.append(f"task-{number}")
            code = server.wait(10)
            assert code not in (0, None), "it says that it failed"
            assert len(accepted) < at, "what was not synced was not told"
            lines = server.log_text().splitlines()
            words = [line for line in lines if '"level":"critical"' in line or '"level":"error"' in line]
            assert 1 <= len(words) <= 3, words
            assert not [line for line in lines if "Traceback" in line]
            server.failing = []
            server.start()
            for task_id in accepted:
                assert plain.get(task_id, wait_for_ready=True).state == task_pb2.TASK_STATE_PENDING
            told += len(accepted)
    tell(f"{len(list(SYNCS))} servers with a sync that failed: {told} acceptances told and there, {unsure} not told")


@pytest.mark.timeout(120)
def test_F7_the_page_limit_of_sqlite_is_a_full_disk(tmp_path):
    log = tmp_path / "agents.log"
    server = FailingServer(tmp_path / "data", "pages", 120)
    with server, Plain(server.address) as plain, AgentProcess(server.address, log):
        eventually(plain.free, "the agent takes work")
        accepted: list[str] = []
        asked = 0
        plain.dispatch(spec("sleep", {"seconds": 2}, "runs", timeouts=LONG))
        accepted.append("runs")
        reasons: list[str] = []

        def is_refused() -> bool:
            nonlocal asked
            asked += 1
            try:
                plain.dispatch(spec("echo", "x" * 20_000, f"task-{asked}"), deadline=1)
            except grpc.RpcError as error:
                reasons.append(str(error.code()))
                return "RESOURCE_EXHAUSTED" in reasons[-1]
            accepted.append(f"task-{asked}")
            return False

        eventually(is_refused, "new work is refused")
        with refused("STORE_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED):
            plain.dispatch(spec("echo", "x"))
        assert plain.get("runs").state == task_pb2.TASK_STATE_RUNNING
        assert plain.agents()
        time.sleep(3)  # what ran ends meanwhile; nobody is told yet
        server.signal(signal.SIGUSR1)

        def takes_work() -> bool:
            try:
                return plain.dispatch(spec("echo", "after"), wait=5).result.output.text == "after"
            except grpc.RpcError:
                return False

        eventually(takes_work, "it takes work again, by itself", seconds=5)
        for task_id in accepted:
            result = plain.result(task_id)
            assert (result.state, result.attempts) == (SUCCEEDED, 1), (task_id, result)
        errors = [line for line in server.log_text().splitlines() if '"level":"error"' in line]
        assert 1 <= len(errors) <= 2, "one line in 10 s"
        assert all(len(lines) == 1 for lines in begins(log).values())
        server.failing = []
        server.restart()
        for task_id in accepted:
            assert plain.get(task_id, wait_for_ready=True).state == SUCCEEDED
        tell(f"{len(accepted)} accepted, refused as {set(reasons)}")
        assert not server.tracebacks()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ahead_s", [3_600, -3_600, 86_400, -86_400])
def test_F9_S3_a_clock_that_leaps_expires_nothing(tmp_path, ahead_s):
    """The wall clock leaps back while tasks run and wait; and it has leapt while the server was away."""
    log = tmp_path / "agents.log"
    server = FailingServer(tmp_path / "data", "clock", ahead_s * 1_000)
    with server, Plain(server.address) as plain, AgentProcess(server.address, log):
        eventually(plain.free, "the agent takes work")
        plain.dispatch(spec("sleep", {"seconds": 5}, "runs", timeouts=timeouts(start_to_close=60)))
        plain.dispatch(
            spec("stream", {"count": 100, "pause": 0.04}, "streams", timeouts=timeouts(schedule_to_close=90))
        )
        nobody = timeouts(schedule_to_start=60, schedule_to_close=300)
        plain.dispatch(spec("echo", "x", "waits", agent_type="nobody", timeouts=nobody))
        eventually(lambda: len(begins(log)) == 2, "they run")
        server.signal(signal.SIGUSR1)  # the clock leaps under the running server
        time.sleep(1)
        for task_id in ("runs", "streams"):
            assert plain.get(task_id).state == task_pb2.TASK_STATE_RUNNING
        server.failing = ["clock", str(-ahead_s * 1_000)]
        server.restart()  # and again, the other way, while it is away
        assert plain.get("waits", wait_for_ready=True).state == task_pb2.TASK_STATE_PENDING
        for task_id in ("runs", "streams"):
            result = plain.result(task_id, timeout=DEADLINE)
            assert (result.state, result.attempts) == (SUCCEEDED, 1), result
        assert plain.get("waits").state == task_pb2.TASK_STATE_PENDING
        assert all(len(lines) == 1 for lines in begins(log).values())
        assert not server.tracebacks()
