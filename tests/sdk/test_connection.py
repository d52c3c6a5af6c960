"""How the SDK finds a server again that was away (fault F1)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest

from reach.errors import ReachError
from reach.sdk.channel import Target
from reach.sdk.connection import Connection


class Peer:
    """Counts how often it was lost."""

    def __init__(self) -> None:
        self.lost_times = 0
        self.enough = asyncio.Event()

    def opening(self) -> Iterable[bytes]:
        return ()

    def gather(self) -> None: ...

    def prefix(self) -> bytes:
        return b""

    def received(self, frame: Any) -> None:
        raise AssertionError("nobody speaks to it")

    def lost(self, error: ReachError) -> None:
        self.lost_times += 1
        if self.lost_times == 12:
            self.enough.set()


async def test_F1_every_try_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's channel waits between its own tries, up to a second, and what is asked meanwhile fails unasked: those
    waits came on top of ours, and a server that was back was not found for as long."""
    monkeypatch.setattr(random, "uniform", lambda *_: 0.01)
    came = 0

    def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    peer = Peer()
    target = Target(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", None, None)
    running = asyncio.create_task(Connection(target, "/x/y", bytes, peer).run())
    async with asyncio.timeout(10), server:
        await peer.enough.wait()
    running.cancel()
    await asyncio.wait({running})
    assert came >= peer.lost_times - 1
