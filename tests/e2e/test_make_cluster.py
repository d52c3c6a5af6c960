"""`make cluster`: a cluster that is started by hand, killed, and goes on with what it had; `reach demo` on it, with a
node that is killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reach import SyncClient, TaskState
from reach.core.placement import SHARDS
from reach.testing.cluster import LocalCluster, Ports
from reach.testing.services import NotInstalled, postgres_binaries
from tests.contracts.etcd_servers import need_etcd
from tests.e2e.processes import PATIENCE, eventually, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class Started:
    """One run of `python -m reach.testing.cluster`."""

    def __init__(self, folder: Path, base: int) -> None:
        self.folder, self.output = folder, folder.with_name("output")
        command = [sys.executable, "-m", "reach.testing.cluster", "--data", str(folder), "--base", str(base)]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--members", "1"], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def ready(self) -> dict[str, Any]:
        """What `cluster.json` says once it serves."""

        def served() -> bool:
            assert self.process.poll() is None, self.text()
            return "Ctrl-C stops everything" in self.text()

        eventually(served, "the cluster is there", 2 * PATIENCE)
        known: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return known

    def text(self) -> str:
        return self.output.read_text()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter, whose processes are ended if the test has failed to."""
    need_etcd()
    try:
        postgres_binaries()
    except NotInstalled as absent:
        pytest.skip(f"NOT TESTED: {absent}")
    made = Path(tempfile.mkdtemp(prefix="reach-cluster-"))  # pytest shuts its own folders for all others
    made.chmod(0o755)
    data = made / "data"
    yield data
    for pid, _ in running(data):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(made, ignore_errors=True)


def running(folder: Path) -> list[tuple[int, str]]:
    """Processes that have the folder in their command line, but for those that run it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command and "reach.testing.cluster" not in command:
            found.append((int(process.name), command))
    return found


def free_base() -> int:
    """A base whose ports are all free."""
    for _ in range(50):
        base = free_port() + 100
        if all(_free(port) for port in Ports.from_base(base, 3, 1).all()):
            return base
    raise AssertionError("no ports are free")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def demo_while(addresses: list[str], act: Callable[[], None]) -> str:
    """What `reach demo` says of itself when this is done while its tasks run."""
    command = [sys.executable, "-m", "reach.cli", "demo", "--server", ",".join(addresses)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if line.startswith("▸ SIGKILL to "):
                act()
        assert demo.wait(PATIENCE) == 0, said
    return said


@pytest.mark.timeout(200)
def test_CLU_3_a_cluster_by_hand_goes_on_after_its_owner_was_killed(folder):
    base = free_base()
    first = Started(folder, base)
    known = first.ready()
    assert len(known["addresses"]) == 3
    assert f"{base + 1}" in first.text()
    with SyncClient(known["addresses"][0]) as client:
        client.submit("", "kept", agent_id="nobody-yet", task_id="kept")
    refused = subprocess.run(
        [sys.executable, "-m", "reach.testing.cluster", "--data", str(folder), "--base", str(base)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "runs in" in refused.stderr
    first.process.kill()
    first.process.wait()
    assert len(running(folder)) >= 5
    second = Started(folder, base)
    known = second.ready()
    with SyncClient(known["addresses"][1]) as client:
        assert client.get_task("kept").state is TaskState.PENDING
    victim = random.choice("abc")
    told = demo_while(known["addresses"], lambda: os.kill(known["processes"][f"node-{victim}"], signal.SIGKILL))
    assert ", 0 failed, 0 lost;" in told.splitlines()[-1], (victim, told)
    eventually(lambda: f"node {victim} is started again" in second.text(), "a node that died is started again")
    asked_at = time.monotonic()
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(PATIENCE) == 0
    assert time.monotonic() - asked_at < 15
    assert not running(folder)
    assert not (folder / "cluster.json").exists()
    assert "Traceback" not in first.text() + second.text()


@pytest.mark.parametrize("absent", ["etcd", "PostgreSQL"])
def test_what_is_not_installed_is_said(tmp_path, monkeypatch, capsys, absent):
    from reach.testing import services
    from reach.testing.cluster.__main__ import main

    def missing() -> Path:
        raise NotInstalled("PostgreSQL is not installed (Debian: postgresql; `make services`)")

    tmp_path.chmod(0o755)
    if absent == "etcd":
        monkeypatch.setattr("reach.testing.services.shutil.which", lambda name: None)
        monkeypatch.setattr("reach.testing.cluster.PostgresServer", lambda *_, **__: Fake())
    else:
        monkeypatch.setattr(services, "postgres_binaries", missing)
    monkeypatch.setattr("reach.testing.cluster._refuse_shut_folders", lambda folder: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code = main(["--data", str(tmp_path / "data"), "--base", str(free_base())])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert code == 3
    assert f"{absent} is not installed (Debian: " in capsys.readouterr().err


class Fake:
    """A PostgreSQL that is there."""

    process = None

    def address(self, database: str) -> str:
        return f"postgres://reach@127.0.0.1:1/{database}"

    def prepare(self) -> None:
        pass  # there is nothing to make

    def stop(self) -> None:
        pass  # nor to end


def test_owned_by_nobody_while_nobody_runs(tmp_path):
    cluster = LocalCluster(tmp_path, nodes=2, members=1, free=True)
    assert sum(cluster.owned(name) for name in cluster.nodes) == 0 != SHARDS
