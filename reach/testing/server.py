"""A real server for tests: `reach serve` as a process of its own, on free ports, with a data folder of its own.

    with LocalServer() as server:
        client = SyncClient(server.address)

It can be killed and started again in the same place, to see what your code does then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECONDS = 40.0
"""Long: a machine that runs tests is busy."""
STOP_SECONDS = 35.0


class LocalServer:
    """One server process.

    Args:
        folder: Where it keeps its data; None: a temporary folder, removed at the end.
        arguments: More arguments for `reach serve`.
        environment: More environment variables, such as `AGENT_REACH_SERVER_DRAIN_SECONDS`.
        own_session: Ctrl-C in the terminal is not for it.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        own_session: bool = False,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="reach-") if folder is None else None
        self.folder = Path(self._temporary.name if self._temporary is not None else folder or ".")
        self._arguments = list(arguments)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._own_session = own_session
        self._log = self.folder / "server.log"
        self._seen = 0
        self.port = 0
        self.admin_port = 0

    @property
    def address(self) -> str:
        """`host:port` of gRPC."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """The file that it logs to."""
        return self._log

    def command(self) -> list[str]:
        """The command line that starts it."""
        where = ["--data", str(self.folder), "--port", str(self.port), "--admin-port", str(self.admin_port)]
        return [sys.executable, "-m", "reach.cli", "serve", *where, *self._arguments]

    def start(self) -> Self:
        """Starts it, on the same ports as before if it ran before, and waits until it serves.

        Raises:
            RuntimeError: it ended, or did not serve in time; the message has its log.
        """
        self.spawn()
        return self.await_serving()

    def spawn(self) -> None:
        """Starts it without waiting."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._seen = log.tell()
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=self._own_session,
            )

    def await_serving(self) -> Self:
        """Waits until a server that was spawned serves.

        Raises:
            RuntimeError: it ended, or did not serve in time; the message has its log.
        """
        deadline = time.monotonic() + START_SECONDS
        while self.running and time.monotonic() < deadline:
            for line in self._log.read_bytes()[self._seen :].splitlines():
                if self._is_serving(line):
                    return self
            time.sleep(0.02)  # its log is all that it says before it serves
        log_text = self.log_text()[-4000:]
        self.kill()
        raise RuntimeError(f"the server did not start:\n{log_text}")

    def _is_serving(self, line: bytes) -> bool:
        try:
            record = json.loads(line)
        except ValueError:
            return False
        if not isinstance(record, dict) or record.get("message") != "serving":
            return False
        fields = record["fields"]
        self.port, self.admin_port = fields["grpc"], fields["http"]
        return True

    def kill(self) -> None:
        """Ends it with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """Ends it with SIGTERM, as an operator would; returns its exit code."""
        if self._process is None:
            return 0
        self.ask_to_stop()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._process = None

    def ask_to_stop(self) -> None:
        """Sends SIGTERM, without waiting."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def log_text(self) -> str:
        """What it has logged so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
