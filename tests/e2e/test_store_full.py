"""A full disk (F7): new work is refused with a reason, reading goes on, nothing is lost, intake resumes by itself."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pytest

from agentreach.v1 import result_pb2, task_pb2
from tests.e2e.plain import DEADLINE, Plain, refused, spec, timeouts
from tests.e2e.processes import AgentProcess, Server, begins, eventually, tell
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
LONG = timeouts(start_to_close=120)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB. Only root can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("NOT TESTED: a full disk (F7). Only root can mount the small file system that it takes.")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes all the space there is."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4_096))
        except OSError:
            pass
    return ballast


def test_F7_full_disk_refuses_work_and_loses_nothing(small_disk, tmp_path):
    log = tmp_path / "agents.log"
    with Server(small_disk / "data") as server, Plain(server.address) as plain, AgentProcess(server.address, log):
        eventually(plain.free, "the agent takes work")
        before = plain.dispatch(spec("echo", "before", "before"), wait=DEADLINE).result
        plain.dispatch(spec("sleep", {"seconds": 3}, "runs", timeouts=LONG))
        plain.dispatch(spec("stream", {"count": 100, "pause": 0.03}, "streamed", timeouts=LONG))
        eventually(lambda: len(begins(log)) == 3, "all run")
        ballast = fill(small_disk)
        # The first that does not fit finds the disk full; from then on all are refused.
        accepted: list[str] = ["before", "runs", "streamed"]
        unsure: list[str] = []

        def is_refused() -> bool:
            task_id = f"during-{len(accepted) + len(unsure)}"
            try:
                plain.dispatch(spec("echo", "x" * 2_000, task_id), deadline=1)
            except grpc.RpcError as error:
                unsure.append(task_id)
                return "RESOURCE_EXHAUSTED" in str(error.code())
            accepted.append(task_id)
            return False

        eventually(is_refused, "new work is refused")
        with refused("STORE_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED):
            plain.dispatch(spec("echo", "x"))
        # Reading goes on.
        assert plain.get("before").result == before
        assert plain.result("before") == before
        text = Text().read(plain.results.StreamResult(result_pb2.StreamResultRequest(task_id="before"), timeout=5))
        assert text.result == "before"
        assert plain.get("streamed").state == task_pb2.TASK_STATE_RUNNING
        assert ready(server)[0] == 503
        time.sleep(4)  # what runs ends meanwhile, and nobody may hear of it before it is kept
        with pytest.raises(grpc.RpcError) as late:
            plain.result("runs", timeout=0.5)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert plain.agents(), "the registry answers"
        # Space again: it goes on by itself, with all that it was told meanwhile.
        ballast.unlink()
        eventually(lambda: ready(server)[0] == 200, "it is ready again")
        eventually(lambda: plain.dispatch(spec("echo", "after", "after"), wait=5).result.output.text, "it takes work")
        for task_id in accepted:
            result = plain.result(task_id)
            assert (result.state, result.attempts) == (SUCCEEDED, 1), result
        assert [len(lines) for lines in begins(log).values()] == [1] * len(begins(log))
        errors = [line for line in server.log_text().splitlines() if '"level":"error"' in line]
        tell(f"{len(accepted)} accepted, {len(unsure)} without an answer or refused; logged: {errors[:1]}")
        assert 1 <= len(errors) <= 4, "one line in 10 s"
        server.restart()
        plain.get("after", wait_for_ready=True)
        for task_id in (*accepted, "after"):
            assert plain.get(task_id).state == SUCCEEDED
        assert not server.tracebacks()


def ready(server: Server) -> tuple[int, dict[str, object]]:
    """What /readyz says."""
    try:
        with urlopen(f"http://127.0.0.1:{server.admin_port}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
