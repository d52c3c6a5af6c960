"""The sessions of a node: summaries, what goes wrong, and how much is written (SES-3)."""

import asyncio
import threading
from typing import Any

import pytest

from reach.core.context import SUMMARISE_EVERY
from reach.runtime import sessions
from reach.runtime.outbox import Bounds
from reach.runtime.summarisers import EndpointSummariser, SummariserError
from tests.rpc.peers import AgentByHand, Stubs, running, unique
from tests.rpc.test_sessions import ask, got
from tests.transports.endpoint_agent import eventually

TURNS = 5 + SUMMARISE_EVERY


class Slow:
    """A summariser that waits to be let go."""

    def __init__(self):
        self.go = threading.Event()
        self.asked = []
        self.answer: Any = "in other words"

    def summarise(self, summary, turns):
        self.asked.append((summary, [turn.task_id for turn in turns]))
        self.go.wait(60)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def talk(node, stubs, session, turns):
    agent = AgentByHand(stubs)
    await agent.join(unique("talker"))
    for number in range(turns):
        await ask(stubs, agent, session, f"question {number}. And more.", f"answer {number}")
    return agent


async def summary_of(stubs, session, expected):
    await eventually(lambda: _says(stubs, session, expected))
    return (await got(stubs, session)).context.summary


async def _says(stubs, session, expected):
    return expected in (await got(stubs, session)).context.summary


@pytest.mark.asyncio
async def test_SES_3_ten_old_turns_become_part_of_the_summary(tmp_path):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        agent = await talk(node, stubs, "s", TURNS - 1)
        before = (await got(stubs, "s")).context
        assert len(before.turns) == 5
        assert "user: question 0." in before.summary, "what is in no summary yet stands there in short"
        await ask(stubs, agent, "s", "one more", "ok")
        after = (await got(stubs, "s")).context
        assert after.turn_count == TURNS
        (context,) = [one for home in node.host.sessions.homes() for one in home]
        assert context.older == []
        assert "question" in after.summary
        await agent.close()


@pytest.mark.asyncio
async def test_SES_3_a_summariser_of_ones_own_does_not_delay_the_conversation(tmp_path):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        slow = node.host.sessions._summariser = Slow()
        agent = await talk(node, stubs, "s", TURNS + 1)
        await eventually(lambda: len(slow.asked) == 1)
        slow.go.set()
        found = await summary_of(stubs, "s", "in other words")
        assert "question 10" in found, "what came meanwhile is in short"
        await agent.close()


@pytest.mark.asyncio
async def test_SES_3_a_summariser_that_fails_is_replaced_by_extracts(tmp_path, caplog):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        slow = node.host.sessions._summariser = Slow()
        slow.answer = SummariserError("no model")
        slow.go.set()
        agent = await talk(node, stubs, "s", TURNS)
        await eventually(lambda: "no model" in caplog.text)
        assert "question" in (await got(stubs, "s")).context.summary
        await agent.close()


@pytest.mark.asyncio
async def test_a_summariser_that_never_answers_does_not_let_turns_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_OLDER", 12)
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        slow = node.host.sessions._summariser = Slow()
        agent = await talk(node, stubs, "s", 5 + 12)
        name = ("default", "shop:u1:s")
        context = node.host.sessions.home(name).look(name, 0)
        assert context is not None
        assert context.older == []
        assert context.summary
        slow.go.set()
        await asyncio.sleep(0.1)
        assert "in other words" not in context.summary, "it comes too late"
        await agent.close()


@pytest.mark.asyncio
async def test_a_turn_that_breaks_us_keeps_no_answer_from_its_caller(tmp_path, monkeypatch, caplog):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        monkeypatch.setattr(node.host.codec, "exchange_of", lambda task: 1 / 0)
        monkeypatch.setattr(node.host.codec, "offered_context", lambda *_: 1 / 0)
        agent = await talk(node, stubs, "s", 2)
        assert "the turn of a task was lost" in caplog.text
        await eventually(lambda: not node.host.outbox._kinds["turn"].lanes)
        await agent.close()


@pytest.mark.asyncio
async def test_SES_3_an_outbox_without_room_loses_and_doubles_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("reach.runtime.host.BOUNDS", Bounds(facts=1, lanes=1))
    monkeypatch.setattr("reach.core.context.APPLIED", 2)
    monkeypatch.setattr(sessions, "FLUSH_SECONDS", 0.3)
    async with running(tmp_path, storage__type="sqlite") as node, Stubs(node.port) as stubs:
        agents = await asyncio.gather(*(talk(node, stubs, f"s{number}", 20) for number in range(3)))
        journal = node.host.past._journal
        await eventually(lambda: journal.fact_lanes("turn", None, 9) == [])
        await asyncio.sleep(0.5)  # what waited for room in the outbox is handed over by now
        assert [(await got(stubs, f"s{number}")).turn_count for number in range(3)] == [20, 20, 20]
        for agent in agents:
            await agent.close()
    async with running(tmp_path, storage__type="sqlite") as node, Stubs(node.port) as stubs:
        assert [(await got(stubs, f"s{number}")).turn_count for number in range(3)] == [20, 20, 20]


@pytest.mark.asyncio
async def test_large_contexts_are_written_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "FLUSH_RATE", 1_000)
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        waits = []

        class Loop:
            @staticmethod
            def call_later(seconds, act):
                waits.append(seconds)
                return asyncio.get_running_loop().call_later(0, act)

        agent = await talk(node, stubs, "s", 1)
        await eventually(lambda: node.host.sessions._flushing is None)
        assert node.host.sessions._flushed_bytes > 500
        monkeypatch.setattr(node.host.sessions, "_loop", Loop)
        await ask(stubs, agent, "s", "again", "ok")
        assert sessions.FLUSH_SECONDS < waits[0] <= sessions.LONGEST_FLUSH_SECONDS
        await agent.close()


@pytest.mark.parametrize("url", ["ftp://x", "nothing"])
def test_a_summariser_is_called_by_http_only(url):
    with pytest.raises(ValueError, match="http"):
        EndpointSummariser(url, "model")
