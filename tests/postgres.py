"""A PostgreSQL of the system's packages for tests: started once per run when it is first asked for, on a free port,
with a data folder of its own, stopped by its process id."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

_numbers = count(1)


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    named = shutil.which("initdb")
    return found[-1].parent if found else Path(named).parent if named else None


class Server:
    """A running server."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="reach-pg-"))
        self.user: dict[str, Any] = {}
        if os.getuid() == 0:  # PostgreSQL does not run as root
            account = pwd.getpwnam("postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self.user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data = self.folder / "data"
        made = subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "reach", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
            capture_output=True, cwd="/", check=False, **self.user,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr.decode()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()
        atexit.register(self.end)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-k", self.folder,
                 "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=32MB"],
                stdout=log, stderr=log, cwd="/", **self.user,
            )  # fmt: skip
        for _ in range(200):
            try:
                asyncio.run(self.execute("select 1"))
            except (OSError, asyncpg.PostgresError):
                time.sleep(0.05)
            else:
                return
        raise AssertionError((self.folder / "log").read_text())

    def stop(self, how: int = signal.SIGINT) -> None:
        """SIGINT: at once, with order. SIGQUIT: as in a crash."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None

    def end(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def address(self, database: str) -> str:
        return f"postgres://reach@127.0.0.1:{self.port}/{database}"

    async def execute(self, text: str) -> None:
        connection = await asyncpg.connect(self.address("postgres"), timeout=2)
        try:
            await connection.execute(text)
        finally:
            await connection.close()

    def database(self) -> str:
        """The address of a new, empty database."""
        name = f"t{next(_numbers)}"
        asyncio.run(self.execute(f"create database {name}"))
        return self.address(name)


@cache
def _server() -> Server | None:
    binaries = _binaries()
    return Server(binaries) if binaries is not None else None


def server() -> Server:
    """The server of this run; skips the test where PostgreSQL is not installed."""
    found = _server()
    if found is None:
        pytest.skip("PostgreSQL is NOT INSTALLED (make services): the journal of clusters is not tested")
    return found
