"""Conversations over three real nodes under kill -9: pools here, sessions there, each turn once (SES-3, CLU-1)."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from reach import Client
from tests.e2e.processes import tell
from tests.e2e.test_sessions_killed import EACH, agent_of, known_of, talk

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = int(os.environ.get("KILLS", "2"))
SESSIONS = 12


@pytest.mark.timeout(180)
async def test_SES_3_no_turn_is_lost_or_doubled_when_nodes_are_killed(nodes: Any) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed}")
    chance = random.Random(seed)
    said: dict[str, list[str]] = {f"s{number}": [] for number in range(SESSIONS)}
    seen: dict[str, list[list[str]]] = {}
    addresses = ",".join(node.address for node in nodes.all.values())
    async with Client(addresses) as client, agent_of("chat", addresses, seen), agent_of("refund", addresses, seen):
        first = [asyncio.create_task(talk(client, session, 0, told)) for session, told in said.items()]
        await asyncio.gather(*first)
        for session, told in said.items():
            saw = list(dict.fromkeys(tuple(turns) for turns in seen[session]))
            expected = [tuple(told[max(0, number - 5) : number]) for number in range(EACH)]
            assert saw == expected, "each agent saw what was said to all of them"
        for kill in range(1, KILLS + 1):
            talks = [asyncio.create_task(talk(client, session, kill * EACH, told)) for session, told in said.items()]
            await asyncio.sleep(chance.uniform(0.05, 0.6))  # at any moment
            victim = nodes.all[chance.choice("abc")]
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(chance.uniform(0, 3))  # away
            await asyncio.to_thread(victim.start)
            await asyncio.to_thread(nodes.settle)
            await asyncio.gather(*talks)
    for node in nodes.all.values():
        async with asyncio.timeout(20):
            while {(await known_of(node.address, one)).turn_count for one in said} != {(KILLS + 1) * EACH}:  # noqa: ASYNC110
                await asyncio.sleep(0.2)  # turns whose node died come with the next owner of its pools
        for session, told in said.items():
            last = [turn.request.text for turn in (await known_of(node.address, session)).context.turns]
            assert len(set(last)) == len(last) == 5
            assert set(last) <= set(told)
    await asyncio.sleep(1)  # time for a turn that would come twice
    for session in said:
        assert (await known_of(node.address, session)).turn_count == (KILLS + 1) * EACH
    for node in nodes.all.values():
        assert not node.tracebacks()
