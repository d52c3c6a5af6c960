"""The clusters that the contract suite runs against."""

import asyncio
import time
from contextlib import asynccontextmanager

from reach.cluster.single import Memory, SingleCluster


async def eventually(holds, seconds=10.0):
    """Waits until it holds: the caches follow by themselves, soon."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.005)


class MemoryBackend:
    rejoins_by_itself = False

    def __init__(self):
        self._memory = Memory()

    async def node(self):
        return SingleCluster(self._memory)

    async def revision(self):
        return self._memory.revision


@asynccontextmanager
async def open_backend(kind):
    assert kind == "memory"
    yield MemoryBackend()
