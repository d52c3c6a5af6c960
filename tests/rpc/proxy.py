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
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry_both, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers |= {writer, there[1]}
        for source, target in ((reader, there[1]), (there[0], writer)):
            self._tasks.add(asyncio.create_task(self._carry(source, target)))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()
            self._writers.discard(target)

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
