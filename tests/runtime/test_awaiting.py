"""A shard is wished here, and a process that lives has it still: it is waited for, and not for ever (DLV-13, CLU-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from reach.runtime.claims import HAND_OVER_MS
from tests.runtime.claiming import ALL, Node, two_nodes


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with two_nodes() as both:
        yield both


async def test_DLV_13_who_is_to_have_a_shard_waits_until_it_is_given_up(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    two.claims.gives_up = lambda process: True
    two.claims.wish(ALL)
    two._running = asyncio.create_task(two.claims.run())
    for _ in range(5):
        await two.settle()
        await asyncio.sleep(0.025)
    assert two.store.epochs() == {}
    await one.own(())
    began = asyncio.get_running_loop().time()
    await two.own(ALL)
    assert asyncio.get_running_loop().time() - began < HAND_OVER_MS / 4_000, "it looks often enough"


async def test_CLU_3_who_waits_for_a_node_that_hangs_does_not_wait_for_ever(nodes: tuple[Node, Node]) -> None:
    _, two = nodes
    two.claims.gives_up = lambda process: True
    two.claims.wish(ALL)
    two._running = asyncio.create_task(two.claims.run())
    await two.settle()
    assert two.store.epochs() == {}
    two.clock.ahead_ms += HAND_OVER_MS
    await two.own(ALL)
    assert two.claims.owned == frozenset(ALL)


async def test_DLV_13_who_waited_for_a_shard_that_went_elsewhere_waits_as_long_the_next_time(
    nodes: tuple[Node, Node],
) -> None:
    """What it waited for long ago does not count against the one that has it now."""
    _, two = nodes
    two.claims.gives_up = lambda process: True
    two.claims.wish(ALL)
    two._running = asyncio.create_task(two.claims.run())
    await two.settle()
    two.claims.wish(())
    await two.settle()
    two.clock.ahead_ms += HAND_OVER_MS
    two.claims.wish(ALL)
    await two.settle()
    assert two.claims._waits
    assert two.store.epochs() == {}


async def test_CLU_3_what_nobody_gives_up_is_claimed_at_once(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    two.claims.gives_up = lambda process: process == one.claims.process
    one.store._shared.holders |= dict.fromkeys(range(32, 64), "of a process that is dead")
    two.claims.wish(ALL)
    two._running = asyncio.create_task(two.claims.run())
    await two.settle()
    assert two.store.epochs().keys() == set(range(32, 64))


async def test_CLU_4_who_waits_for_a_shard_does_not_hammer_a_store_that_is_away(nodes: tuple[Node, Node]) -> None:
    _, two = nodes
    two.claims.gives_up = lambda process: True
    two.claims.wish(ALL)
    two._running = asyncio.create_task(two.claims.run())
    await two.settle()
    assert two.claims._waits
    two.store.cut_off = True
    await two.confirm()
    assert not two.claims._waits
    two.store.cut_off = False
    await two.confirm()
    assert two.claims._waits
