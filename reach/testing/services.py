"""etcd and PostgreSQL, from the system's packages, as processes of one's own: for tests, and for `cluster.py`.

Nothing here touches a service that the system runs: each has a folder and ports of its own, and is ended by its
process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg

START_SECONDS: Final = 20.0
"""How long a service may take to answer: the machine may be busy."""
STOP_SECONDS: Final = 10.0
_STEP_SECONDS: Final = 0.05


class NotInstalled(RuntimeError):
    """A program is not on this machine; the message says which package has it."""


class Place(NamedTuple):
    """Where a service runs."""

    host: str = "127.0.0.1"
    """What it listens on."""
    within: Sequence[str] = ()
    """A command that runs others there, such as in a network namespace, as root: `ip netns exec NAME`."""


HERE: Final = Place()
_AS_POSTGRES: Final = ("setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class EtcdMembers:
    """The members of an etcd of one's own; `start_all`, and `kill_all` in a `finally`.

    Args:
        folder: Where data and logs are; it must be there.
        members: How many: 1 or 3.
        ports: Of clients, then of members among each other, `members` each; None: free ones.
        options: More options for each member.
        scheme: How clients speak to it.
        own_session: Ctrl-C in the terminal is not for them.
        place: Where they run.
    """

    def __init__(
        self,
        folder: Path,
        members: int = 1,
        options: Sequence[str] = (),
        scheme: str = "http",
        *,
        ports: Sequence[int] | None = None,
        own_session: bool = False,
        place: Place = HERE,
    ) -> None:
        self.place = place
        self.folder, self.members, self.options, self.scheme = folder, members, list(options), scheme
        chosen = list(ports) if ports is not None else free_ports(2 * members)
        self.client_ports, self.peer_ports = chosen[:members], chosen[members:]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * members
        self._own_session = own_session

    @property
    def endpoints(self) -> list[str]:
        """Where clients reach the members."""
        return [f"{self.place.host}:{port}" for port in self.client_ports]

    def start(self, number: int) -> None:
        """Starts one member, without waiting.

        Raises:
            NotInstalled: there is no etcd.
        """
        if shutil.which("etcd") is None:
            raise NotInstalled("etcd is not installed (Debian: etcd-server and etcd-client; `make services`)")
        client = f"{self.scheme}://{self.place.host}:{self.client_ports[number]}"
        peers = [f"http://{self.place.host}:{port}" for port in self.peer_ports]
        command = [
            *self.place.within,
            *("etcd", "--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
            *("--initial-cluster", ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))),
            *("--logger", "zap", "--log-level", "error", "--heartbeat-interval", "100", "--election-timeout", "1000"),
            *self.options,
        ]
        with (self.folder / f"m{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=self._own_session
            )

    def start_all(self) -> None:
        """Starts all members, without waiting: who connects to them tries until they answer."""
        for number in range(self.members):
            self.start(number)

    def kill(self, number: int) -> None:
        """Ends one member as a crash does, a stopped one too."""
        process = self.processes[number]
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        if process is not None:
            process.wait(STOP_SECONDS)
        self.processes[number] = None

    def signal(self, number: int, what: int) -> None:
        """Any signal."""
        process = self.processes[number]
        assert process is not None, "this member is not running"
        process.send_signal(what)

    def kill_all(self) -> None:
        """Ends all members as a crash does: what was acknowledged is on disk."""
        for number in range(self.members):
            self.kill(number)


class PostgresServer:
    """A PostgreSQL server of one's own. As root it runs as the user `postgres`, as it refuses to be root.

    Args:
        folder: Where data and log are; it is made, and may be one that was used before.
        port: None: a free one.
        durable: Writes are synced to disk; without it a crash of the machine may spoil the data.
        own_session: Ctrl-C in the terminal is not for it.
        place: Where it runs.

    Raises:
        NotInstalled: there is no PostgreSQL.
    """

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        *,
        durable: bool = False,
        own_session: bool = False,
        place: Place = HERE,
    ) -> None:
        self.place = place
        self.binaries = postgres_binaries()
        self.folder = folder
        self.port = port or free_ports(1)[0]
        self.process: subprocess.Popen[bytes] | None = None
        self._durable = durable
        self._own_session = own_session
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        # With `user=` Python forks with all handlers of forks, of which gRPC's may crash where it has been used.
        self._as: list[str] = []
        self._owner = self._user
        if self._user and shutil.which(_AS_POSTGRES[0]):
            self._as, self._user = list(_AS_POSTGRES), {}

    def prepare(self) -> None:
        """Makes the data folder, if it is not there.

        Raises:
            RuntimeError: initdb failed; the message says why.
        """
        data = self.folder / "data"
        if (data / "PG_VERSION").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._owner:
            os.chown(self.folder, self._owner["user"], self._owner["group"])
        made = subprocess.run(
            [*self._as, self.binaries / "initdb", "-D", data, "-U", "reach", "-A", "trust", "-E", "UTF8",
             "--locale=C", "-N"],
            capture_output=True, cwd="/", check=False, **self._user,
        )  # fmt: skip
        if made.returncode != 0:
            raise RuntimeError(f"PostgreSQL's data folder {data} could not be made:\n{made.stderr.decode()}")
        if self.place != HERE:
            with (data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {self.place.host}/16 trust\n")

    def start(self) -> None:
        """Starts it, and waits until it answers. Not from within a running event loop.

        Raises:
            RuntimeError: it ended, or does not answer; the message has its log.
        """
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.place.within, *self._as, self.binaries / "postgres", "-D", self.folder / "data",
                 "-p", str(self.port), "-c", f"listen_addresses={self.place.host}", "-c", "unix_socket_directories=",
                 "-c", "shared_buffers=32MB",
                 "-c", f"fsync={'on' if self._durable else 'off'}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=self._own_session, **self._user,
            )  # fmt: skip
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            try:
                asyncio.run(self.execute("select 1"))
            except (OSError, asyncpg.PostgresError):
                time.sleep(_STEP_SECONDS)  # it does not answer yet
            else:
                return
        code = self.process.poll()
        self.stop(signal.SIGQUIT)
        said = "does not answer" if code is None else f"ended with code {code}"
        raise RuntimeError(f"PostgreSQL {said}:\n{(self.folder / 'log').read_text(errors='replace')[-2000:]}")

    def stop(self, how: int = signal.SIGINT) -> None:
        """SIGINT: at once, with order. SIGQUIT: as in a crash."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                self.process.send_signal(how)
            self.process.wait(2 * STOP_SECONDS)
            self.process = None

    def address(self, database: str) -> str:
        """The URL of a database."""
        return f"postgres://reach@{self.place.host}:{self.port}/{database}"

    async def execute(self, text: str) -> None:
        """One statement, outside of a transaction."""
        connection = await asyncpg.connect(self.address("postgres"), timeout=2)
        try:
            await connection.execute(text)
        finally:
            await connection.close()

    def create(self, database: str) -> str:
        """The address of a database, which is made if it is not there. Not from within a running event loop."""
        with contextlib.suppress(asyncpg.DuplicateDatabaseError):  # it is there
            asyncio.run(self.execute(f'create database "{database}"'))
        return self.address(database)


def postgres_binaries() -> Path:
    """The folder with PostgreSQL's programs, of the newest version there is.

    Raises:
        NotInstalled: there is none.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    named = shutil.which("initdb")
    if not found and named is None:
        raise NotInstalled("PostgreSQL is not installed (Debian: postgresql; `make services`)")
    return found[-1].parent if found else Path(named or "").parent
