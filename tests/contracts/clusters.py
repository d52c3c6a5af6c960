"""The clusters that the contract suite runs against."""

import asyncio
import time
import uuid
from contextlib import AsyncExitStack, asynccontextmanager

from reach.cluster.etcd import EtcdCluster
from reach.cluster.etcd_api import Access
from reach.cluster.single import Memory, SingleCluster


async def eventually(holds, seconds=10.0):
    """Waits until it holds: the caches follow by themselves, soon. Returns how long it took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() < begun + seconds, "it did not come about"
        await asyncio.sleep(0.005)
    return time.monotonic() - begun


class MemoryBackend:
    rejoins_by_itself = False

    def __init__(self):
        self._memory = Memory()

    async def node(self):
        return SingleCluster(self._memory)

    async def revision(self):
        return self._memory.revision


class EtcdBackend:
    """A cluster of its own on etcd that runs already."""

    rejoins_by_itself = True

    def __init__(self, stack, **access):
        self._stack = stack
        self.access = Access(**access)
        self.name = uuid.uuid4().hex

    async def node(self, **more):
        return await self._stack.enter_async_context(EtcdCluster(self.access, self.name, **more))

    async def revision(self):
        node = await self.node()
        return (await node.client.list(b"/"))[1]


@asynccontextmanager
async def open_backend(kind, servers=None, **access):
    if kind == "memory":
        yield MemoryBackend()
        return
    async with AsyncExitStack() as stack:
        yield EtcdBackend(stack, endpoints=servers.endpoints, **access)
