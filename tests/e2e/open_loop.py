"""A caller that gives tasks at a rate of its own, whatever becomes of them, and a pool of agents in this process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, error_pb2, task_pb2
from reach import Agent, Task

TICK = 0.02


class OpenLoop:
    """One DispatchStream. What is told of each task is counted by second.

    Args:
        channel: To the server.
        rate: Tasks a second.
        agent_type: Who should do them.
    """

    def __init__(self, channel: grpc.aio.Channel, rate: float, agent_type: str) -> None:
        self._call: Any = dispatch_pb2_grpc.DispatchServiceStub(channel).DispatchStream()
        self.rate = rate
        self._agent_type = agent_type
        self.began = time.monotonic()
        self.given: dict[int, float] = {}
        """When each was given, by reference; taken out when it was refused or is done."""
        self.offered = 0
        self.refused: Counter[str] = Counter()
        self.without_retry_after = 0
        self.states: Counter[str] = Counter()
        self.done_at: list[tuple[float, float]] = []
        """(when, how long it took) of each that succeeded."""
        self._reader = asyncio.create_task(self._read(), name="open-loop-reader")

    async def run(self, seconds: float) -> None:
        """Gives tasks for so long."""
        began = time.monotonic()
        sent = 0
        while (passed := time.monotonic() - began) < seconds:
            frame = dispatch_pb2.DispatchStreamRequest()
            for _ in range(int(passed * self.rate) - sent):
                sent += 1
                self.offered += 1
                submit = frame.submits.add(reference=self.offered, interest=dispatch_pb2.INTEREST_OUTCOME)
                submit.task.task_id = f"open-{self.offered}"
                submit.task.selector.agent_type = self._agent_type
                self.given[self.offered] = time.monotonic()
            await self._call.write(frame)
            await asyncio.sleep(TICK)

    async def _read(self) -> None:
        while (frame := await self._call.read()) is not grpc.aio.EOF:
            now = time.monotonic()
            for refusal in frame.refusals:
                self.given.pop(refusal.reference)
                reason = error_pb2.ErrorReason.Name(refusal.error.reason).removeprefix("ERROR_REASON_")
                self.refused[reason] += 1
                self.without_retry_after += not refusal.error.HasField("retry_after")
            for event in frame.events:
                if event.HasField("complete"):
                    given = self.given.pop(int(event.task_id.removeprefix("open-")))
                    self.states[task_pb2.TaskState.Name(event.complete.state).removeprefix("TASK_STATE_")] += 1
                    if event.complete.state == task_pb2.TASK_STATE_SUCCEEDED:
                        self.done_at.append((now, now - given))

    def rate_of_success(self, since: float, until: float) -> float:
        """Tasks a second that succeeded between two times of the monotonic clock."""
        return sum(since <= at < until for at, _ in self.done_at) / (until - since)

    async def close(self) -> None:
        """Leaves."""
        self._call.cancel()
        await asyncio.wait({self._reader})


@asynccontextmanager
async def pool(
    address: str, agent_type: str, count: int, slots: int, handle: Callable[[Task], Awaitable[str]]
) -> AsyncIterator[list[Agent]]:
    """Instances of one type that all do the same."""
    async with AsyncExitStack() as stack:
        agents = []
        for number in range(count):
            agent = Agent(
                agent_type, agent_type=agent_type, addr=address, instance_id=f"{agent_type}-{number}",
                max_concurrency=slots,
            )  # fmt: skip
            agent.add_handler(handle)
            agents.append(await stack.enter_async_context(agent))
        yield agents
