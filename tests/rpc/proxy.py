"""A network that fails on purpose: a TCP proxy that can cut its connections or stop carrying anything."""

import asyncio
import socket
import struct
from typing import Self


class Proxy:
    """Listens on a port of its own and carries everything to another one, both ways."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead: dict[str, set[asyncio.StreamWriter]] = {"up": set(), "down": set()}
        """Where what is written goes nowhere any more."""
        self._targets: dict[str, set[asyncio.StreamWriter]] = {"up": set(), "down": set()}
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry_both, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for writer in self._dead["up"] | self._dead["down"]:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers |= {writer, there[1]}
        for way, source, target in (("up", reader, there[1]), ("down", there[0], writer)):
            self._targets[way].add(target)
            self._tasks.add(asyncio.create_task(self._carry(way, source, target)))

    async def _carry(self, way: str, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if target in self._dead[way]:
                    continue
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            if target not in self._dead[way]:  # nobody hears of an end over a dead network either
                target.close()
            self._writers.discard(target)
            self._targets[way].discard(target)

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """What is connected now carries nothing any more, to the server (`up`), from it (`down`) or both ways, and
        nobody is told. Who connects from now on is carried as before."""
        for way, wanted in (("up", up), ("down", down)):
            if wanted:
                self._dead[way] |= self._targets[way]

    def cut(self) -> None:
        """Ends all connections at once, both ends by RST, as a crash or a firewall does."""
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()


def established(port: int) -> int:
    """TCP connections of this machine to a local port that are established, by both of their ends."""
    count = 0
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name) as table:
                lines = table.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            local, remote, state = line.split()[1:4]
            if state == "01" and port in (int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)):
                count += 1
    return count
