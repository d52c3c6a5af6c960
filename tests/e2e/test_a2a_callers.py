"""Callers over A2A, as the a2a-sdk makes them, against a real server and real agents that are killed (API-3, D1)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import a2a_pb2
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf import json_format
from grpc import aio

from reach.a2a.story import fold
from reach.wire.a2a.states import TERMINAL
from reach.wire.a2a.words import DISPATCH
from tests.e2e.agents.worker import text_of
from tests.e2e.processes import PATIENCE, Server, begins, eventually, tell

pytestmark = pytest.mark.e2e

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
COUNT = 150
PAUSE = 0.01


def request_for(number: int) -> a2a_pb2.SendMessageRequest:
    """A message that asks for a stream of pieces."""
    part = json_format.ParseDict({"data": {"count": COUNT, "pause": PAUSE}}, a2a_pb2.Part())
    message = a2a_pb2.Message(message_id=f"m-{number}", role=a2a_pb2.ROLE_USER, parts=[part])
    message.metadata.update({DISPATCH: {"method": "stream"}})
    return a2a_pb2.SendMessageRequest(message=message)


class Reader:
    """One caller, who is cut off now and then and comes back."""

    def __init__(self, client: Any, number: int, every: int) -> None:
        self.client = client
        self.request = request_for(number)
        self.every = every
        self.task = a2a_pb2.Task()
        self.cuts = 0

    async def read(self) -> None:
        """Until the task has ended."""
        stream = self.client.send_message(self.request)
        while self.task.status.state not in TERMINAL:
            try:
                await self._some(stream)
            except UnsupportedOperationError:  # it ended while nobody read
                self.task = await self.client.get_task(a2a_pb2.GetTaskRequest(id=self.task.id))
            except Exception:  # noqa: BLE001 - the server is gone for now, which each binding says in its own way
                await asyncio.sleep(0.1)
            self.cuts += 1
            known = bool(self.task.id)
            stream = (
                self.client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=self.task.id))
                if known
                else self.client.send_message(self.request)
            )

    async def _some(self, stream: Any) -> None:
        seen = 0
        async with contextlib.aclosing(stream):
            async for one in stream:
                seen += 1
                if one.HasField("task"):
                    self.task = one.task
                else:
                    self._take(one.artifact_update if one.HasField("artifact_update") else one.status_update)
                if seen >= self.every and self.task.status.state not in TERMINAL:
                    return

    def _take(self, update: Any) -> None:
        stands = [a2a_pb2.TaskArtifactUpdateEvent(artifact=one) for one in self.task.artifacts]
        fold(self.task, [*stands, update])

    @property
    def text(self) -> str:
        """The answer, as this caller has it."""
        return "".join(part.text for one in self.task.artifacts for part in one.parts)


async def readers_of(server: Server, http: httpx.AsyncClient, each: int) -> list[Reader]:
    """Some readers by each binding, from the card of the workers."""
    chance = random.Random(7)
    card = await A2ACardResolver(http, f"http://127.0.0.1:{server.admin_port}/a2a/t.worker").get_agent_card()
    asking = ClientFactory(ClientConfig(httpx_client=http)).create(card)
    card = await asking.get_extended_agent_card(a2a_pb2.GetExtendedAgentCardRequest())  # it names gRPC too
    made: list[Reader] = []
    for binding in BINDINGS:
        config = ClientConfig(
            httpx_client=http, supported_protocol_bindings=[binding], grpc_channel_factory=aio.insecure_channel
        )
        client = ClientFactory(config).create(card)
        made += [Reader(client, len(made) + n, chance.randint(15, 60)) for n in range(each)]
    return made


@pytest.mark.parametrize("killed", ["agent", "server"])
def test_API_3_callers_have_all_of_it_once_whoever_is_killed(server, start_agents, log, killed):
    agents = start_agents(2, "--heartbeat", "1")

    async def run() -> list[Reader]:
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            readers = await readers_of(server, http, 2)
            reading = asyncio.gather(*(one.read() for one in readers))
            async with asyncio.timeout(PATIENCE):
                while not all(one.task.artifacts for one in readers):  # noqa: ASYNC110 - they are other tasks
                    await asyncio.sleep(0.02)
            if killed == "agent":
                at_work = [one["pid"] for lines in begins(log).values() for one in lines]
                next(one for one in agents if one.pid == at_work[0]).kill()
            else:
                await asyncio.to_thread(server.restart)
            async with asyncio.timeout(2 * PATIENCE):
                await reading
            for one in readers:
                await one.client.close()
            return readers

    readers = asyncio.run(run())
    for one in readers:
        assert one.task.status.state == a2a_pb2.TASK_STATE_COMPLETED, one.task
        assert one.text == text_of(one.task.id, COUNT)
    begun = begins(log)
    assert len(begun) == len(readers)
    assert (max(len(lines) for lines in begun.values()) == 2) is (killed == "agent")
    assert sum(one.cuts for one in readers) >= len(readers)
    tell(f"{sum(one.cuts for one in readers)} cuts")
    eventually(lambda: not server.tracebacks(), "no tracebacks")
