"""Shards come and go while nodes run: two real hosts over one journal in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentreach.v1 import agent_pb2
from reach.core import events as ev
from reach.core.model import FIRST_TERMINAL, PoolKey, TaskState
from reach.core.placement import shard_of
from reach.core.stream import Interest
from reach.errors import Reason
from reach.runtime import claims
from reach.runtime.claims import LEARN_MS, SURE_MS
from reach.runtime.moving import take
from reach.wire.agents import read_registration
from tests.runtime.claiming import ALL, Link, Node, two_nodes
from tests.runtime.hosts import TENANT

NOBODY = shard_of(PoolKey(TENANT, "nobody"))
MOVED = ("refused", Reason.OWNER_UNAVAILABLE)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with two_nodes() as both:
        yield both


async def test_CLU_3_what_waits_goes_on_with_the_new_owner(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    reader = one.submit("t", Interest.EVENTS)
    await one.settle()
    assert (TENANT, "t") in one.host.tasks
    await one.own(())
    assert one.heard(reader)[-1] == MOVED, "whoever waits is told to ask again"
    assert not one.host.tasks
    assert not one.host.shards
    await two.own(ALL)
    task = two.host.tasks[TENANT, "t"]
    assert task.state < FIRST_TERMINAL
    two.cancel("t", "enough")
    await two.settle()
    assert task.state is TaskState.CANCELLED


async def test_CLU_2_an_owner_that_was_overtaken_promises_nothing(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await two.own(ALL)
    reader = one.submit("t", Interest.EVENTS)
    await one.settle()
    assert [what for what, _ in one.heard(reader)] == ["refused"]
    assert one.heard(reader)[0] == MOVED
    assert (TENANT, "t") not in one.host.tasks
    assert two.store.find(TENANT, "t") is None


async def test_CLU_2_only_the_shard_that_was_lost_is_given_up(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.settle()
    await two.own([NOBODY])
    lost, kept = one.submit("lost", Interest.EVENTS), one.submit("kept", Interest.EVENTS, capability="x")
    await one.settle()
    assert one.heard(lost) == [MOVED]
    assert one.heard(kept)[0][0] == "accepted"
    await one.confirm()
    assert one.claims.owned >= frozenset(ALL) - {NOBODY}


PLANNED, VOID = (
    ("INFO", "shards went to another node, as placed"),
    ("WARNING", "shards are another node's: what was decided here is void"),
)


def said_of_losses(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [one for one in said if one in (PLANNED, VOID)]


@pytest.mark.parametrize("who_knows_first", ["owner", "heir"])
async def test_CLU_4_a_shard_that_was_to_move_is_no_warning_though_its_heir_was_sooner(
    nodes: tuple[Node, Node],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    who_knows_first: str,
) -> None:
    """An operator who reads of void decisions looks for a node that hangs."""
    monkeypatch.setattr(claims, "LEARN_MS", 60_000)
    caplog.set_level("INFO")
    one, two = nodes
    rest = frozenset(ALL) - {NOBODY}
    if who_knows_first == "owner":
        one.claims._wished = rest  # and was not here yet
    await two.own([NOBODY])
    await one.confirm()
    assert said_of_losses(caplog) == ([PLANNED] if who_knows_first == "owner" else [])
    one.claims.wish(rest)
    await one.confirm()
    await two.confirm()
    assert said_of_losses(caplog) == [PLANNED]
    assert (one.claims.owned, two.claims.owned) == (rest, frozenset({NOBODY})), "nor was it claimed back"


async def test_CLU_2_a_shard_that_was_to_stay_is_a_warning_and_claimed_back(
    nodes: tuple[Node, Node], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one, two = nodes
    await two.own([NOBODY])
    two.claims._wished = frozenset()
    await one.confirm()
    one.clock.ahead_ms += LEARN_MS
    await one.confirm()
    assert said_of_losses(caplog) == [VOID]
    await one.confirm()
    assert one.claims.owned == frozenset(ALL)


async def test_CLU_2_who_was_overtaken_as_it_hung_says_so_whatever_is_wished_by_now(
    nodes: tuple[Node, Node], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = nodes
    await two.own(ALL)
    one.claims._wished = frozenset()
    one.clock.ahead_ms = SURE_MS + 500
    await one.confirm()
    assert said_of_losses(caplog) == [VOID]


async def test_CLU_2_a_node_that_was_paused_says_nothing_until_it_knows(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    reader = one.submit("t", Interest.EVENTS)
    await one.settle()
    await two.own(ALL)
    told = len(one.said)
    one.clock.ahead_ms = SURE_MS + 500
    again = one.submit("t", Interest.EVENTS)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(one.said) == told, "what it has in memory may be old"
    await one.confirm()
    assert one.heard(again) == [MOVED]
    assert one.heard(reader)[-1] == MOVED


async def test_CLU_2_a_node_that_is_still_the_owner_goes_on_where_it_was(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    one.submit("t", Interest.EVENTS)
    await one.settle()
    one.store.cut_off = True
    one.clock.ahead_ms = SURE_MS + 500
    again = one.submit("t", Interest.EVENTS)
    await one.settle()
    assert one.claims.is_in_doubt()
    assert one.heard(again) == []
    one.store.cut_off = False
    await one.confirm()
    assert not one.claims.is_in_doubt()
    assert one.heard(again)[0] == ("accepted", True)


async def test_CLU_4_without_a_wish_nothing_moves(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.own(ALL)
    await one.confirm()
    assert one.claims.owned == frozenset(ALL)
    assert two.claims.owned == frozenset()


async def test_CLU_3_mail_that_was_not_read_is_answered(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    reader = one.submit("t", Interest.EVENTS)
    one.claims._forget(frozenset(ALL))
    assert one.heard(reader) == [MOVED]
    await one.settle()
    assert one.store.find(TENANT, "t") is None


async def test_CLU_3_a_shard_that_comes_back_is_read_anew(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.submit("t", Interest.EVENTS)
    await one.settle()
    await two.own(ALL)
    two.cancel("t", "enough")
    await two.settle()
    await one.confirm()
    await two.own(())
    await one.own(ALL)
    assert (TENANT, "t") not in one.host.tasks
    reader = one.subscribe("t", Interest.OUTCOME)
    await one.settle()
    assert one.heard(reader) == [("ended", "cancelled: enough")]


async def test_CLU_2_what_was_claimed_by_another_while_it_loaded_is_not_served(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    one.claims.may_claim = lambda: False
    load, happened = two.store.load_some, list[str]()

    def overtaken(*asked: Any) -> Any:
        loaded = load(*asked)
        if loaded[1] is None:
            if not happened:
                one.store.claim([NOBODY])
            happened.append("loaded")
        return loaded

    monkeypatch.setattr(two.store, "load_some", overtaken)

    def served(*given: Any) -> None:
        happened.append("served")
        take(*given)

    monkeypatch.setattr("reach.runtime.claims.take", served)
    await two.own([NOBODY])
    assert happened == ["loaded", "loaded", "served"]


async def test_CLU_2_who_may_have_left_the_cluster_takes_nothing_back(nodes: tuple[Node, Node]) -> None:
    """Its wish is old: two would take the same shards from each other for ever."""
    one, two = nodes
    one.claims.may_claim = lambda: False
    await two.own([NOBODY])
    epoch = two.store.epochs()[NOBODY]
    for _ in range(5):
        await one.confirm()
        await two.confirm()
    assert two.store.epochs()[NOBODY] == epoch
    assert one.claims.owned == frozenset(ALL) - {NOBODY}, "and keeps the others"


def attach(node: Node, running: list[tuple[str, str, int, int]]) -> Link:
    link = Link()
    registration = agent_pb2.Registration(agent_id="nobody", boot_id="boot", instance_id="one", ready=True)
    node.reach.hello(TENANT, *read_registration(registration), link, running, {})
    return link


def answer(node: Node, link: Link) -> None:
    report = ev.Reported(link.instance, TENANT, "t", 1)
    report.content, report.media_type = "done", "text/plain"
    node.reach.post(node.host.pool_if_any(PoolKey(TENANT, "nobody")) or link.offers[0][0].pool, report)


def outcome_at(node: Node) -> int | None:
    """How the task ended, as the journal has it."""
    found = node.store.find(TENANT, "t")
    assert found is not None
    return found.outcome.state if found.outcome is not None else None


async def test_CLU_3_what_an_agent_says_while_its_pool_moves_is_for_the_new_owner(nodes: tuple[Node, Node]) -> None:
    """It is said again to that one; here it is neither answered nor does it disturb anything."""
    one, two = nodes
    link = attach(one, [])
    await one.settle()
    one.submit("t", Interest.OUTCOME)
    await one.settle()
    piece = ev.LeaseExtended(link.instance, TENANT, "t", 1, link)
    one.reach.post(link.offers[0][0].pool, piece)  # in the mail as the pool goes
    await one.own(())
    one.reach.post(link.offers[0][0].pool, piece)  # and after it went
    await two.own(ALL)
    assert attach(two, [(TENANT, "t", 1, 0)]).unknown == []


@pytest.mark.parametrize("knows", [False, True])
async def test_CLU_3_running_work_is_kept_by_the_new_owner_and_its_result_is_told_to_nobody_else(
    nodes: tuple[Node, Node], knows: bool
) -> None:
    one, two = nodes
    link = attach(one, [])
    await one.settle()
    reader = one.submit("t", Interest.OUTCOME)
    await one.settle()
    ((_, attempt),) = link.offers
    one.claims._wished = frozenset()
    await two.own(ALL)
    if knows:
        await one.confirm()
        assert link.reopened == 1
    answer(one, link)
    await one.settle()
    assert link.acknowledged == [], "or the agent would forget what nobody keeps"
    assert one.heard(reader) == [MOVED], "or it would wait for ever for an end that is void"
    assert link.reopened == 1
    assert outcome_at(two) is None
    again = attach(two, [(TENANT, "t", attempt, 0)])
    await two.settle()
    assert (again.unknown, again.offers) == ([], []), "it is kept, and not run again"
    answer(two, again)
    await two.settle()
    assert again.acknowledged == [1]
    assert outcome_at(two) == TaskState.SUCCEEDED


async def test_CLU_2_an_overtaken_owner_does_not_refuse_for_good_what_the_next_one_has_told(
    nodes: tuple[Node, Node],
) -> None:
    """Found by the simulation: a reader that had event 8 from the new owner was told that there is none."""
    one, two = nodes
    one.submit("t", Interest.EVENTS)
    await one.settle()
    at_home = one.subscribe("t", Interest.EVENTS, after=8)
    await one.settle()
    assert one.heard(at_home) == [("refused", Reason.SEQUENCE_OUT_OF_RANGE)]
    await two.own(ALL)
    one.claims._wished = frozenset()
    reader = one.subscribe("t", Interest.EVENTS, after=8)
    await one.settle()
    assert one.heard(reader) == [MOVED]


async def test_CLU_3_an_overtaken_owner_stops_nothing_that_it_does_not_know(nodes: tuple[Node, Node]) -> None:
    """Found by the simulation: it told an agent to stop what the new owner had sent."""
    one, two = nodes
    await two.own(ALL)
    one.claims._wished = frozenset()
    link = attach(one, [(TENANT, "t", 1, 0)])
    await one.settle()
    assert (link.unknown, link.reopened) == ([], 1), "it is to come back, by the new owner"
    assert attach(two, [(TENANT, "t", 1, 0)]).unknown == []
    await two.settle()


async def test_CLU_3_an_agent_whose_pool_goes_as_it_comes_opens_its_stream_anew(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    link = attach(one, [])
    one.claims._forget(frozenset(ALL))
    assert link.reopened == 1


async def test_CLU_2_what_is_owned_is_confirmed_also_while_a_shard_is_on_its_way_out(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: its turns waited for the confirmation, and the confirmation for its turns."""
    monkeypatch.setattr("reach.runtime.claims.CONFIRM_SECONDS", 0.01)
    one, _ = nodes
    confirmed = 0
    honest = one.store.confirm

    def confirm() -> frozenset[int]:
        nonlocal confirmed
        confirmed += 1
        return honest()

    async def never() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(one.store, "confirm", confirm)
    monkeypatch.setattr(one.host, "settled", never)
    one.claims.wish(())
    async with asyncio.timeout(5):
        while confirmed < 3:
            await one.settle(2)
            await asyncio.sleep(0.001)  # the writer is a thread
    assert one.claims.owned == frozenset(ALL)


async def test_CLU_2_what_an_agent_registers_with_a_new_owner_is_newer(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    for _ in range(50):
        one.host.next_revision()
    attach(one, [])
    await one.settle()
    before = one.store.load().agents[0].revision
    await one.own(())
    await two.own(ALL)
    registration = agent_pb2.Registration(agent_id="nobody", boot_id="new", instance_id="one", ready=True)
    two.reach.hello(TENANT, *read_registration(registration), Link(), [], {})
    await two.settle()
    kept = two.store.load().agents[0]
    assert kept.boot_id == "new"
    assert kept.revision > before > 50
