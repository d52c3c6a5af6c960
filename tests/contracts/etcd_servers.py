"""Real etcd, one member or three, on free ports in a folder of the test's."""

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess

import pytest

from reach.cluster.etcd_api import Access, EtcdClient


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class EtcdServers:
    def __init__(self, folder, members=1, options=(), scheme="http"):
        self.folder, self.members, self.options, self.scheme = folder, members, list(options), scheme
        ports = free_ports(2 * members)
        self.client_ports, self.peer_ports = ports[:members], ports[members:]
        self.processes: list = [None] * members

    @property
    def endpoints(self):
        return [f"127.0.0.1:{port}" for port in self.client_ports]

    def start(self, number):
        client = f"{self.scheme}://127.0.0.1:{self.client_ports[number]}"
        peers = [f"http://127.0.0.1:{port}" for port in self.peer_ports]
        command = [
            *("etcd", "--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
            *("--initial-cluster", ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))),
            *("--logger", "zap", "--log-level", "error", "--heartbeat-interval", "100", "--election-timeout", "1000"),
            *self.options,
        ]
        with (self.folder / f"m{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_all(self):
        for number in range(self.members):
            self.start(number)

    def kill(self, number):
        process = self.processes[number]
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        if process is not None:
            process.wait(10)
        self.processes[number] = None

    def signal(self, number, what):
        self.processes[number].send_signal(what)

    def kill_all(self):
        for number in range(self.members):
            self.kill(number)

    async def leader(self):
        """Number of the member that leads etcd."""
        for number, endpoint in enumerate(self.endpoints):
            said = json.loads(await self.ctl("endpoint", "status", "-w", "json", endpoint=endpoint))[0]["Status"]
            if said["leader"] == said["header"]["member_id"]:
                return number
        raise AssertionError("no member leads")

    async def ctl(self, *arguments, endpoint=None, extra=()):
        process = await asyncio.create_subprocess_exec(
            *("etcdctl", "--endpoints", endpoint or self.endpoints[0], *extra, *arguments),
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin:/usr/local/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def ready(self, **access):
        client = EtcdClient(Access(self.endpoints, **access))
        try:
            for _ in range(100):
                with contextlib.suppress(Exception):
                    await client.get(b"x")
                    return
                await asyncio.sleep(0.1)
            raise AssertionError((self.folder / "m0.log").read_text()[-2000:])
        finally:
            await client.close()


def need_etcd():
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        pytest.skip("NOT TESTED: etcd is not installed (make services)")
