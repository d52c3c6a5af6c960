"""kill -9 of the server while conversations go on: each task that ended is one turn of its own, in order (SES-3)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentreach.v1 import session_pb2, session_pb2_grpc, task_pb2
from reach import Agent, Client, Task
from tests.e2e.processes import Server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = 5
SESSIONS = 8
EACH = 6
"""Turns of each session between two kills; its first five turns stay raw, so that all can be compared in the end."""


def agent_of(name: str, address: str, seen: dict[str, list[list[str]]]) -> Agent:
    agent = Agent(name, addr=address, max_concurrency=32)

    @agent.route()
    async def turn(task: Task) -> str:
        assert task.session is not None
        seen.setdefault(task.session.session_id, []).append([one.request.text for one in task.context.turns])
        await asyncio.sleep(random.random() * 0.02)
        return f"{name} heard {task.text}"

    return agent


async def talk(client: Client, session: str, first: int, said: list[str]) -> None:
    """One conversation: each turn after the answer to the one before, with agents of two types in turns."""
    for number in range(first, first + EACH):
        text = f"{session}-{number}"
        name = ("chat", "refund")[number % 2]
        result = await client.send(
            "", text, agent_id=name, session=("app", "user", session), task_id=text, start_to_close=60
        )
        assert result.text == f"{name} heard {text}"
        said.append(text)


async def test_SES_3_no_turn_is_lost_or_doubled_when_the_server_is_killed_in_the_middle(tmp_path: Path) -> None:
    chance = random.Random(7)
    said: dict[str, list[str]] = {f"s{number}": [] for number in range(SESSIONS)}
    seen: dict[str, list[list[str]]] = {}
    with Server(tmp_path / "server") as server:
        address = server.address
        async with (
            Client(address) as client,
            agent_of("chat", address, seen),
            agent_of("refund", address, seen),
        ):
            for kill in range(KILLS):
                talks = [
                    asyncio.create_task(talk(client, session, kill * EACH, told)) for session, told in said.items()
                ]
                await asyncio.sleep(chance.uniform(0.05, 0.6))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await asyncio.gather(*talks)
            known = {session: await known_of(address, session) for session in said}
    for session, told in said.items():
        assert known[session].turn_count == len(told) == KILLS * EACH
        assert [turn.request.text for turn in known[session].context.turns] == told[-5:]
        for number, before in enumerate(dict.fromkeys(tuple(turns) for turns in seen[session])):
            assert list(before) == told[max(0, number - 5) : number], "what an agent saw is what was said before"


async def known_of(address: str, session: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = session_pb2_grpc.SessionServiceStub(channel)
        key = task_pb2.SessionKey(app_id="app", user_id="user", session_id=session)
        answer = await stub.GetSession(session_pb2.GetSessionRequest(key=key), timeout=10)
        return answer.session
