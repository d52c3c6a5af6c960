"""An id that the journal has given to a task before, which is no longer in memory (DLV-3): all that is answered in the
moment before the commit tells so is answered from the journal instead. Found by the simulation."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import agent_pb2, task_pb2
from reach.core.dialogue import Input
from reach.core.events import Refuted
from reach.core.model import Fault
from reach.core.rows import InputRow, OutboxRow, Writes
from reach.core.stream import Interest, Reader
from reach.errors import ErrorClass, Reason
from reach.runtime.outbox import Bounds
from reach.wire.agents import read_registration
from tests.runtime.hosts import READER, TENANT, Shell, message_of

FIRST = "cancelled: first"
HAD_ALL: list[tuple[int, str, None]] = []


@pytest.fixture
async def shell():
    """A host whose journal has the task "t", which was cancelled, and whose memory does not know it."""
    before = Shell()
    before.submit("t", Interest.OUTCOME)
    before.cancel("t", "first")
    await before.stop()
    made = Shell(before.journal)
    yield made
    await made.stop()


async def test_DLV_3_a_reader_of_events_begins_at_the_beginning(shell):
    reader = shell.submit("t", Interest.EVENTS)
    await shell.settle()
    assert shell.heard(reader) == [("accepted", True), ("events", [(1, "GAP", (1, 1)), (2, "COMPLETE", None)])]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("interest", [Interest.OUTCOME, Interest.ANSWER])
async def test_DLV_1_a_cancel_is_told_how_it_ended_first(shell, interest, later):
    """`later`: it is stepped after the commit that tells that the id is taken has begun."""
    reader = shell.submit("t", interest)
    if later:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert shell.writer.work
    shell.cancel("t", "second")
    await shell.settle()
    assert (0, "cancelled", FIRST) in shell.said
    assert [detail for what, detail in shell.heard(reader) if what == "ended"] == [FIRST]


async def test_STR_2_who_resumes_at_the_end_has_had_all(shell):
    shell.submit("t", Interest.ACCEPTANCE)
    reader = shell.subscribe("t", Interest.EVENTS, after=2)
    await shell.settle()
    assert shell.heard(reader) == [("events", HAD_ALL)]


@pytest.mark.parametrize("text", ["", "something else"])
@pytest.mark.parametrize("after", [0, 1])
async def test_who_only_reads_is_answered_too(shell, after, text):
    """After 1 there was nothing to tell of the task that is undone. Whatever others asked for by that id."""
    shell.submit("t", Interest.ACCEPTANCE, text)
    events = shell.subscribe("t", Interest.EVENTS, after)
    outcome = shell.subscribe("t", Interest.OUTCOME)
    await shell.settle()
    (told,) = [detail for what, detail in shell.heard(events) if what == "events"]
    assert told[-1] == (2, "COMPLETE", None)
    assert ("ended", FIRST) in shell.heard(outcome)


async def test_DLV_3_the_same_content_is_measured_by_the_task_that_stands(shell):
    other = shell.submit("t", Interest.OUTCOME, "something else")
    same = shell.submit("t", Interest.OUTCOME)
    await shell.settle()
    assert shell.heard(other) == [("refused", Reason.TASK_ID_REUSED)]
    assert ("ended", FIRST) in shell.heard(same)


async def test_a_reader_is_answered_once(shell):
    readers = [shell.submit("t", interest) for interest in Interest]
    shell.cancel("t", "second")
    await shell.settle()
    for reader in readers:
        kinds = [what for what, _ in shell.heard(reader)]
        assert len(kinds) == len(set(kinds)), kinds


async def test_DLV_1_a_cancel_that_comes_before_the_task_does_not_end_it():
    """In the same turn of the loop, by another stream."""
    shell = Shell()
    shell.cancel("t", "too early")
    reader = shell.submit("t", Interest.EVENTS, capability="sing")
    await shell.settle()
    assert ("refused", Reason.OWNER_UNAVAILABLE) in [(what, detail) for _, what, detail in shell.said], "ask again"
    assert shell.heard(reader) == [("accepted", False), ("events", [(1, "ACCEPTED", None)])]
    await shell.stop()


async def test_DLV_1_a_read_tells_how_it_ended_first(shell):
    shell.reads.held = True
    look = asyncio.create_task(shell.reach.tasks.get("acme", "t"))
    for _ in range(5):
        await asyncio.sleep(0)
    shell.submit("t", Interest.ACCEPTANCE)
    shell.cancel("t", "second")
    for _ in range(5):
        await asyncio.sleep(0)
    shell.reads.go()
    assert message_of(await look) == FIRST


async def test_a_caller_that_left_cancels_what_nobody_knows(shell, caplog):
    shell.reach.cancel("acme", "unknown", "the caller is gone", None)
    await shell.settle()
    assert not caplog.records


@pytest.mark.parametrize("turns", [0, 2, 3])
async def test_DLV_12_nobody_hears_of_the_end_of_a_task_that_never_was(shell, turns):
    """It ends before, or while, or just after its commit says that the id is taken."""
    heard: list[OutboxRow] = []
    receiver = SimpleNamespace(take=heard.append)
    shell.host.outbox.register("note", receiver, Bounds(facts=8, lanes=8))
    task, selector = READER.read(
        "acme", task_pb2.TaskSpec(task_id="t", selector=task_pb2.Selector(agent_type="nobody"))
    )
    task.announce = (("note", "somebody"),)
    shell.reach.submit(task, selector, Reader(shell, 1, Interest.ACCEPTANCE))
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns == 3:
        shell.writer.go()
    shell.cancel("t", "second")
    await shell.settle()
    assert heard == []
    assert shell.journal.facts("note", "somebody", 0, 10) == []
    assert (0, "cancelled", FIRST) in shell.said


async def test_DLV_1_an_answer_that_was_taken_is_known_while_the_task_is_submitted_again(shell):
    """Its id is in memory anew and seems to ask nothing; the journal knows what it asked and was told."""
    given = Input("in-1", "", "text/plain", "yes")
    row = shell.journal.find(TENANT, "t").task.row
    writes = Writes()
    writes.inputs.append(InputRow(row, 0, 1, "in-1", "", "text/plain", "yes", 0))
    shell.journal.commit(writes)
    answers: list[object] = []
    reply = SimpleNamespace(
        done=lambda value: answers.append(value[1]), refused=lambda fault: answers.append(fault.reason)
    )
    shell.submit("t", Interest.OUTCOME)
    shell.reach.send_input(TENANT, "t", given, "", reply)
    shell.reach.send_input(TENANT, "t", given._replace(input_id="in-2"), "", reply)
    await shell.settle()
    assert answers == [True, Reason.WRONG_STATE]


async def test_DLV_11_a_cancel_that_meets_a_task_between_two_pools_is_asked_again():
    """Found by the simulation: there was said to be no such task."""
    shell = Shell()
    shell.submit("t", Interest.ACCEPTANCE)
    await shell.settle()
    task = shell.host.tasks.pop(("acme", "t"))
    task.pool.tasks.pop(task.key, None)
    shell.cancel("t", "now")
    await shell.settle()
    assert shell.said[-1][1:] == ("refused", Reason.OWNER_UNAVAILABLE)
    await shell.stop()


@pytest.mark.parametrize("by_shard", [False, True])
@pytest.mark.parametrize("told", range(4))
@pytest.mark.parametrize("comes", range(4))
async def test_DLV_3_a_task_that_never_was_does_not_go_on_in_another_pool(comes, told, by_shard):
    """It waits for an agent, which comes before, while or after its commit says that the id is taken. Found by the
    simulation: it was at work for ever at an agent that was never offered it."""
    before = Shell()
    before.submit("t", Interest.OUTCOME, capability="sing")
    before.cancel("t", "first")
    await before.stop()
    shell = Shell(before.journal)
    shell.host.by_shard = by_shard
    readers = [shell.submit("t", interest, capability="sing") for interest in Interest]
    said = agent_pb2.Registration(agent_id="singer", boot_id="b", instance_id="singer-1")
    said.capabilities.add(name="sing")
    for turn in range(4):
        if turn == comes:
            shell.reach.register(TENANT, *read_registration(said), SimpleNamespace(done=lambda _: None))
        if turn == told:
            shell.writer.go()
        await asyncio.sleep(0)
    await shell.settle()
    assert not shell.host.tasks
    assert not any(pool.queue for pool in shell.host.pools())
    for reader in readers:
        assert [what for what, _ in shell.heard(reader)][-1] in ("accepted", "events", "ended")
    await shell.stop()


async def test_DLV_3_a_task_that_never_was_has_no_end_of_its_own(shell, monkeypatch):
    """New rules refuse it in the moment in which its commit says that the id is taken."""
    ends: list[int] = []
    commit = shell.journal.commit

    def observed(writes: Writes) -> Any:
        ends.extend(one.row for one in writes.outcomes)
        return commit(writes)

    monkeypatch.setattr(shell.journal, "commit", observed)
    reader = shell.submit("t", Interest.OUTCOME)
    for _ in range(3):
        await asyncio.sleep(0)
    task = shell.host.tasks["acme", "t"]
    shell.writer.go()
    shell.host.post(task.pool, Refuted(task, Fault(ErrorClass.INVALID_REQUEST, Reason.INVALID_FIELD, "no such skill")))
    await shell.settle()
    assert shell.heard(reader)[-1] == ("ended", FIRST)
    assert ends == []
