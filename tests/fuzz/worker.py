"""The instance that is there while bad input rains: it answers every offer, and comes back when it was thrown out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from tests.fuzz.orders import WORKER
from tests.rpc.peers import AgentByHand, Ended, Stubs, key_of


class FuzzWorker:
    """See the module."""

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs
        self._task: asyncio.Task[None] | None = None
        self._agent: AgentByHand | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._serve(), name="fuzz-worker")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._agent is not None:
            await self._agent.close()

    async def _serve(self) -> None:
        boot = 0
        while True:
            agent = self._agent = AgentByHand(self._stubs)
            try:
                await agent.join("fuzz", instance_id=WORKER, boot_id="b" if boot == 0 else f"b{boot}")
                while True:
                    with contextlib.suppress(TimeoutError):  # nobody wants anything for a while
                        offer = await agent.next("offers")
                        if offer.attempt % 2 or len(offer.task.task_id) % 2:
                            await agent.serve(offer, "x")
                        else:
                            await agent.send(results=[{"link": offer.link, "key": key_of(offer), "error": {}}])
            except (Ended, TimeoutError):
                await agent.close()
                boot += 1
                await asyncio.sleep(0.05)
