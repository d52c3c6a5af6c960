"""A PostgreSQL of the system's packages for tests: started once per run when it is first asked for, on a free port,
with a data folder of its own, stopped by its process id."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from reach.testing.services import HERE, NotInstalled, Place, PostgresServer
from tests.e2e.processes import free_port

_numbers = count(1)


class Server(PostgresServer):
    """A running server in a folder that goes away with it."""

    def __init__(self, place: Place = HERE) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="reach-pg-")), port=free_port(), place=place)
        atexit.register(self.end)
        self.prepare()
        self.start()

    def end(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self) -> str:
        """The address of a new, empty database."""
        return self.create(f"t{next(_numbers)}")


@cache
def _server() -> Server | None:
    try:
        return Server()
    except NotInstalled:
        return None


def server() -> Server:
    """The server of this run; skips the test where PostgreSQL is not installed."""
    found = _server()
    if found is None:
        pytest.skip("PostgreSQL is NOT INSTALLED (make services): the journal of clusters is not tested")
    return found
