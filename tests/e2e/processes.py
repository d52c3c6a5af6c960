"""Real processes for the fault tests: a server and agents that are killed, stopped and started again.

Only processes that were started here are ever signalled, each by its own id.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from reach.testing.server import LocalServer

HERE = Path(__file__).parent
PATIENCE = 30.0
"""Seconds within which anything must happen that has no bound of its own: the machine may be busy."""


LOCKS = Path(tempfile.gettempdir()) / f"agent-reach-test-ports-{os.getuid()}"


def free_port() -> int:
    """A port below those that the system gives to connections, so that nobody takes it while its server is down; nor
    does another process of tests, for each keeps a lock for each of its ports."""
    LOCKS.mkdir(exist_ok=True)
    for port in range(20_000 + os.getpid() % 5_000, 32_000, 7):
        if port in _given:
            continue
        lock = (LOCKS / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _given[port] = lock
        return port
    raise RuntimeError("no port is free")


_given: dict[int, IO[str]] = {}
"""Ports, and the locks that are held as long as this process lives."""


class Server(LocalServer):
    """`reach serve` on ports that stay its own."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, arguments, environment)
        self.port, self.admin_port = free_port(), free_port()

    def restart(self) -> None:
        """kill -9, and a new one in its place."""
        self.kill()
        self.start()

    def signal(self, number: int) -> None:
        """Any signal, without waiting."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Its exit code, once it has ended."""
        process = self._process
        assert process is not None
        code = process.wait(seconds)
        self._process = None
        return code

    def rss(self) -> int:
        """Bytes of memory that it takes."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def tracebacks(self) -> list[str]:
        """What it logged that it never should, whatever happens to it."""
        lines = self.log_text().splitlines()
        return [line for line in lines if "Traceback" in line or '"level": "critical"' in line]


class AgentProcess:
    """One process of agents/worker.py."""

    script = "worker.py"

    def __init__(self, address: str, log: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        script = [sys.executable, str(HERE / "agents" / self.script), "--addr", address, "--log", str(log), *arguments]
        self.log = log
        self.output = log.with_name(f"{log.stem}-{len(list(log.parent.iterdir()))}.out")
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                script,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        if self.running:
            self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        """Any signal."""
        self._process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(seconds)

    def instance(self) -> str:
        """The id of its instance."""
        lines = eventually(lambda: [one for one in read_log(self.log, "up") if one["pid"] == self.pid], "it is up")
        return str(lines[0]["instance"])

    def text(self) -> str:
        """What it wrote."""
        return self.output.read_text(errors="replace")


def read_log(path: Path, what: str = "", task: str = "") -> list[dict[str, Any]]:
    """Lines of the agents' log, of one kind, of one task; in the order of their times. What a process wrote that was
    killed where two pages of the file meet may lack its end: the next line follows it at once."""
    if not path.exists():
        return []
    begin = b'{"at"'
    lines = [json.loads(line[line.rindex(begin) :]) for line in path.read_bytes().splitlines()]
    kept = [one for one in lines if (not what or one["what"] == what) and (not task or one.get("task") == task)]
    return sorted(kept, key=lambda one: float(one["at"]))


def begins(path: Path) -> dict[str, list[dict[str, Any]]]:
    """What the agents began, by task."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in read_log(path, "begin"):
        found[line["task"]].append(line)
    return found


def eventually(condition: Callable[[], Any], what: str, seconds: float = PATIENCE, every: float = 0.02) -> Any:
    """Waits until the condition gives something true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(every)


def tell(text: object) -> None:
    """What was measured, for those who run the tests with -s, and a seed, for those who see them fail."""
    sys.stdout.write(f"{text}\n")
