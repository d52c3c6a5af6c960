"""The outbox: each fact is handed over after its commit, once in a process, again after a crash until it is done."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentreach.v1 import task_pb2
from reach.core.effects import Turn
from reach.core.rows import OutboxDone, OutboxRow
from reach.core.stream import Interest, Reader
from reach.runtime import outbox as outbox_module
from reach.runtime.outbox import Bounds
from reach.store.base import StoreUnavailable
from reach.store.memory import MemoryJournal
from tests.runtime.hosts import READER, TENANT, HeldReads, Shell

KIND = "news"


def fact(key: str, lane: str = "a", row: int = 0) -> OutboxRow:
    return OutboxRow(0, KIND, lane, key, row, TENANT, "", 1, b"")


class Desk:
    """Takes facts and keeps them until the test says that they are done."""

    def __init__(self) -> None:
        self.taken: list[OutboxRow] = []
        self.failing = False

    def take(self, one: OutboxRow) -> None:
        assert not self.failing
        self.taken.append(one)

    @property
    def keys(self) -> list[str]:
        return [one.key for one in self.taken]


class Node:
    """A shell with a desk in it."""

    def __init__(self, journal: MemoryJournal | None = None, bounds: Bounds | None = None) -> None:
        self.desk = Desk()
        self.shell = Shell(journal)
        self.outbox = self.shell.host.outbox
        self.outbox.register(KIND, self.desk, bounds)
        self.outbox.start()

    def commit(self, *facts: OutboxRow, done: tuple[OutboxRow, ...] = ()) -> None:
        turn = Turn(0, 0)
        turn.writes.outbox.extend(facts)
        turn.writes.outbox_done.extend(OutboxDone(one.shard, one.kind, one.lane, one.key) for one in done)
        self.shell.host.committer.submit(turn)

    async def finish(self, *facts: OutboxRow) -> None:
        for one in facts:
            self.outbox.done(one)
        self.outbox.flush()
        await self.shell.settle()

    def stored(self) -> list[str]:
        journal = self.shell.journal
        return [one.fact.key for lane in journal.fact_lanes(KIND, None, 99) for one in journal.facts(KIND, lane, 0, 99)]

    def crash(self, bounds: Bounds | None = None) -> Node:
        """Another process, with what the journal has; of this one nothing is heard any more."""
        self.shell.writer.work.clear()
        self.shell.host.committer.submit = lambda _: None  # type: ignore[method-assign, assignment]
        return Node(self.shell.journal, bounds)


async def test_DLV_2_a_fact_is_handed_over_after_its_commit_and_forgotten_when_it_is_done() -> None:
    node = Node()
    await node.shell.settle()
    node.commit(fact("one"), fact("two"))
    assert node.desk.keys == []
    await node.shell.settle()
    assert node.desk.keys == ["one", "two"]
    assert node.stored() == ["one", "two"]
    await node.finish(node.desk.taken[0])
    assert node.stored() == ["two"]
    assert node.outbox.held(KIND) == 1
    await node.finish(node.desk.taken[1])
    assert (node.stored(), node.outbox.held(KIND)) == ([], 0)
    await node.shell.stop()


async def test_DLV_2_what_is_not_done_is_handed_over_again_by_the_next_process() -> None:
    node = Node()
    await node.shell.settle()
    node.commit(fact("one"), fact("two"), fact("three", "b"))
    await node.shell.settle()
    node.commit(fact("lost"))  # its commit never began
    node.outbox.done(node.desk.taken[1])
    node.outbox.done(node.desk.taken[0])  # and neither did the one that forgets these
    again = node.crash()
    await again.shell.settle()
    assert again.desk.keys == ["one", "two", "three"]
    again.commit(done=(fact("one"),))
    await again.shell.settle()
    assert again.stored() == ["two", "three"]
    await again.shell.stop()


async def test_DLV_2_a_done_that_is_committed_with_its_effect_happens_once() -> None:
    """In-process receivers: whenever the process dies, what the fact changes is changed once."""
    for dies_after in range(6):
        node = Node()
        await node.shell.settle()
        node.commit(fact("turn"))
        for _ in range(dies_after):
            node.shell.writer.go()
            for one in node.desk.taken:
                node.commit(fact(f"changed by {one.key}", "b"), done=(one,))
            node.desk.taken.clear()
            await node.shell.settle(1)
        stored = node.stored()
        assert stored in ([], ["turn"], ["changed by turn"])
        again = node.crash()
        await again.shell.settle()
        assert again.desk.keys == stored
        await again.shell.stop()


async def test_a_fact_about_a_task_whose_id_is_taken_is_not_handed_over() -> None:
    """C1: another task has the id; nothing is told of one that never was."""
    journal = MemoryJournal()
    first = Node(journal)
    first.shell.submit("one", Interest.OUTCOME, "this")
    await first.shell.settle()
    taken = next(iter(first.shell.host.tasks.values())).row
    spec = task_pb2.TaskSpec(task_id="one")
    spec.selector.agent_type = "nobody"
    spec.payload.text = "that"
    first.shell.host.tasks.clear()  # as if it had left the memory
    task, selector = READER.read(TENANT, spec)
    task.announce = ((KIND, "a"),)
    first.shell.reach.submit(task, selector, Reader(first.shell, 1, Interest.OUTCOME))
    first.shell.cancel("one", "before it is known that the id is taken")
    await first.shell.settle()
    assert first.desk.keys == []
    assert first.stored() == []
    assert journal.find(TENANT, "one").task.row == taken  # type: ignore[union-attr]
    await first.shell.stop()


async def test_the_end_of_a_task_is_a_fact_for_those_who_are_to_hear_of_it() -> None:
    node = Node()
    await node.shell.settle()
    reader = node.shell.submit("one", Interest.OUTCOME)
    await node.shell.settle()
    task = node.shell.host.tasks[TENANT, "one"]
    task.announce = ((KIND, "x"), (KIND + "s", "y"))
    assert node.stored() == []
    node.shell.cancel("one", "enough")
    await node.shell.settle()
    assert [(one.lane, one.task_id, one.row) for one in node.desk.taken] == [("x", "one", task.row)]
    assert [one.fact.lane for one in node.shell.journal.facts(KIND + "s", "y", 0, 9)] == ["y"]
    assert node.shell.heard(reader)
    await node.shell.stop()


# Bounds


async def test_a_lane_is_held_to_its_bound_and_read_on_in_order() -> None:
    node = Node(bounds=Bounds(facts=4, lanes=3))
    await node.shell.settle()
    keys = [f"k{number:02}" for number in range(20)]
    for key in keys:
        node.commit(fact(key))
    await node.shell.settle()
    assert node.desk.keys == keys[:4]
    for number in range(20):
        assert node.outbox.held(KIND) <= 4
        await node.finish(node.desk.taken[number])
    assert node.desk.keys == keys
    assert node.stored() == []
    await node.shell.stop()


async def test_P7_a_lane_that_hangs_holds_back_no_other() -> None:
    node = Node(bounds=Bounds(facts=2, lanes=3))
    await node.shell.settle()
    for number in range(30):
        node.commit(fact(f"slow{number}", "slow"), fact(f"fast{number}", "fast"))
        await node.shell.settle()
        await node.finish(*[one for one in node.desk.taken if one.lane == "fast" and one.key in node.stored()])
    assert [one.key for one in node.desk.taken if one.lane == "fast"] == [f"fast{number}" for number in range(30)]
    assert [one.key for one in node.desk.taken if one.lane == "slow"] == ["slow0", "slow1"]
    again = node.crash(Bounds(facts=2, lanes=3))
    await again.shell.settle()
    assert again.desk.keys == ["slow0", "slow1"]
    await again.shell.stop()


async def test_lanes_without_room_wait_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "READ_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(outbox_module, "LANES_AT_ONCE", 2)
    node = Node(bounds=Bounds(facts=2, lanes=2))
    await node.shell.settle()
    for number in range(9):
        node.commit(fact(f"x{number}", f"lane{number}"), fact(f"y{number}", f"lane{number}"))
    await node.shell.settle()
    assert node.desk.keys == ["x0", "y0", "x1", "y1"]
    done = 0
    while done < 18:
        (*now,) = node.desk.taken[done:]
        assert 0 < len(now) <= 4
        done += len(now)
        await node.finish(*now)
        await node.shell.settle(60)
    assert sorted(node.desk.keys) == sorted([f"x{n}" for n in range(9)] + [f"y{n}" for n in range(9)])
    await node.shell.stop()


async def test_P7_nobody_takes_all_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners with many lanes that hang: the others have room, also when the journal is read."""
    monkeypatch.setattr(outbox_module, "READ_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(outbox_module, "LANES_AT_ONCE", 3)
    bounds = Bounds(facts=2, lanes=6, of_owner=2)
    node = Node(bounds=bounds)
    await node.shell.settle()
    for number in range(20):
        node.commit(fact(f"hog{number:02}", f"hog {number:02}"))
    node.commit(fact("a", "other 1"), fact("b", "zebra 1"), fact("c", "aunt 1"))
    await node.shell.settle()
    assert sorted(node.desk.keys) == ["a", "b", "c", "hog00", "hog01"]
    again = node.crash(bounds)
    await again.shell.settle(60)
    assert sorted(again.desk.keys) == ["a", "b", "c", "hog00", "hog01"]
    for done in range(20):
        hogs = [one for one in again.desk.taken if one.key.startswith("hog")]
        await again.finish(hogs[done])
        await again.shell.settle(60)
    assert len(again.desk.keys) == 23
    assert again.outbox._kinds[KIND].owners == {"other": 1, "zebra": 1, "aunt": 1}
    await again.shell.stop()


# Races with reads


async def test_facts_that_come_before_the_old_ones_are_read_wait_behind_them() -> None:
    old = Node()
    await old.shell.settle()
    old.commit(fact("old"))
    await old.shell.settle()
    node = old.crash()
    node.commit(fact("new"))
    await node.shell.settle()
    assert node.desk.keys == ["old", "new"]
    await node.shell.stop()


async def test_a_fact_that_comes_while_the_journal_is_read_is_read_after_it() -> None:
    old = Node()
    await old.shell.settle()
    old.commit(fact("old"))
    await old.shell.settle()
    node = old.crash()
    node.shell.reads.held = True
    await node.shell.settle()
    node.commit(fact("new"))
    await node.shell.settle()
    assert node.desk.keys == []
    node.shell.reads.held = False
    node.shell.reads.go()
    await node.shell.settle()
    assert node.desk.keys == ["old", "new"]
    await node.shell.stop()


async def test_what_was_forgotten_while_the_journal_was_read_is_not_handed_over_again() -> None:
    node = Node(bounds=Bounds(facts=2, lanes=2))
    reads: HeldReads = node.shell.reads
    await node.shell.settle()
    for key in ("a", "b", "c"):
        node.commit(fact(key))
    await node.shell.settle()
    reads.held = True
    await node.finish(node.desk.taken[0])  # begins to read: it sees b and c
    await node.finish(node.desk.taken[1])  # b is forgotten before the answer is there
    reads.held = False
    reads.go()
    await node.shell.settle()
    assert node.desk.keys == ["a", "b", "c"]
    await node.shell.stop()


async def test_a_store_that_cannot_be_read_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "READ_AGAIN_SECONDS", 0.0)
    old = Node()
    await old.shell.settle()
    old.commit(fact("old"))
    await old.shell.settle()
    journal = old.shell.journal
    failures = [StoreUnavailable("busy")] * 4

    def failing(read: Any) -> Any:
        def first_fails(*arguments: Any) -> Any:
            return read(*arguments) if not failures else failures.pop()

        return first_fails

    class Failing(HeldReads):
        def submit(self, function: Any, /, *arguments: Any, **names: Any) -> Any:
            future = super().submit(failing(function), *arguments, **names)
            if isinstance(error := future.result(), Exception):
                future = type(future)()
                future.set_exception(error)
            return future

    node = Node.__new__(Node)
    node.desk, node.shell = Desk(), Shell(journal)
    node.outbox = outbox_module.Outbox(journal, Failing(), node.shell.host.committer.submit)
    node.outbox.register(KIND, node.desk)
    node.outbox.start()
    await node.shell.settle(60)
    assert node.desk.keys == ["old"]
    assert not failures
    await node.shell.stop()


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_all_facts_are_handed_over_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits, deliveries, slow reads and crashes in any order: nothing is lost, and in one process nothing doubled."""
    monkeypatch.setattr(outbox_module, "READ_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(outbox_module, "LANES_AT_ONCE", 2)
    chance = random.Random(seed)
    bounds = Bounds(chance.randint(1, 4), chance.randint(1, 4))
    node = Node(bounds=bounds)
    finished: set[str] = set()
    for number in range(80):
        act = chance.random()
        if act < 0.5:
            node.commit(fact(f"{number:03}", chance.choice("abcde")))
            if chance.random() < 0.9:
                node.shell.writer.go()
            else:
                node = await crashed(node, bounds)
        elif act < 0.8 and (open_ones := [one for one in node.desk.taken if one.key not in finished]):
            one = chance.choice(open_ones[:3])
            finished.add(one.key)
            node.outbox.done(one)
            node.outbox.flush()
            node.shell.writer.go()
        elif act < 0.85:
            node = await crashed(node, bounds)
            finished -= set(node.stored())
        else:
            node.shell.reads.held = chance.random() < 0.3
            if not node.shell.reads.held:
                node.shell.reads.go()
            await node.shell.settle(chance.randint(1, 5))
        assert len(node.desk.keys) == len(set(node.desk.keys))
    node.shell.reads.held = False
    node.shell.reads.go()
    for _ in range(60):
        await node.shell.settle(10)
        await node.finish(*[one for one in node.desk.taken if one.key in node.stored()])
    assert node.stored() == []
    assert len(node.desk.keys) == len(set(node.desk.keys))
    for lane in "abcde":
        told = [one.key for one in node.desk.taken if one.lane == lane]
        assert told == sorted(told)
    await node.shell.stop()


async def crashed(node: Node, bounds: Bounds) -> Node:
    await node.shell.settle(1)
    return node.crash(bounds)
