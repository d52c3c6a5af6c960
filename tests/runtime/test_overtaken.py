"""What a node has decided, or is about to say, for a shard that was taken away meanwhile, goes to nobody (CLU-2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from reach.core.effects import GiveInput
from reach.core.stream import Interest
from reach.runtime.moving import add
from tests.runtime.claiming import ALL, Node, two_nodes
from tests.runtime.hosts import TENANT
from tests.runtime.test_claims import answer, attach


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with two_nodes() as both:
        yield both


@pytest.mark.parametrize("lost", [False, True])
async def test_CLU_2_what_comes_to_a_shard_that_was_lost_meanwhile_is_offered_to_nobody(
    nodes: tuple[Node, Node], lost: bool
) -> None:
    """Found by the simulation: a node that was overtaken offered a task that had just come, on nobody's account."""
    one, two = nodes
    link = attach(one, [])
    one.submit("t", Interest.ACCEPTANCE)
    await one.settle()
    stored = one.store.find(TENANT, "t")
    assert stored is not None
    answer(one, link)
    await one.settle()
    link.offers.clear()
    stored = stored._replace(task=stored.task._replace(task_id="u", row=stored.task.row + 1, attempt=0))
    add(one.host, [stored])
    if lost:
        two.store.claim(ALL)
    await one.settle()
    assert bool(link.offers) is not lost


@pytest.mark.parametrize("lost", [False, True])
async def test_CLU_2_an_answer_whose_context_comes_after_the_task_has_gone_is_given_to_nobody(
    nodes: tuple[Node, Node], lost: bool
) -> None:
    """An agent that is dialled is called anew with it: by the owner of the task alone."""
    one, two = nodes
    link = attach(one, [])
    one.submit("t", Interest.ACCEPTANCE)
    await one.settle()
    task, given = link.offers[0][0], list[Any]()
    asked = GiveInput(task, None)
    asked.link = SimpleNamespace(give_input=lambda *what: given.append(what))
    if lost:
        await two.own(ALL)
        await one.confirm()
    one.host.sends._give_input_with(asked, b"context")
    assert len(given) == (not lost)
