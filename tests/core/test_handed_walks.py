"""Chains of owners, some of which hand over and some of which die, whatever an agent says and holds meanwhile: a reader
has in the end what came out, no number means two things, and who handed over made no gap (DLV-13, STR-1, STR-2)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from reach.core.model import FIRST_TERMINAL, TaskState
from reach.core.pieces import Kind
from reach.errors import ErrorClass, Reason
from tests.core.harness import Shell
from tests.core.test_stream import text_of

WALKS = 300


class Agent:
    """What it said of the attempt that it does, and how much of that it still holds."""

    def __init__(self, attempt: int, chance: random.Random) -> None:
        self.attempt = attempt
        self.pieces: list[str] = []
        self.mute = False
        self.holds = chance.choice(("all", "all", "none", "some"))

    def __str__(self) -> str:
        return "".join(self.pieces)


class Walk:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shell = Shell()
        self.shell.join()
        self.task = self.shell.submit(start_to_close_ms=10_000_000, retry="exponential")
        self.agent = Agent(1, self.chance)
        self.told: list[Any] = []
        self.meaning: dict[int, Any] = {}
        self.reader = self.shell.read(self.task)
        self.handed: bool | None = None
        """How the owner of now came to it."""

    def hear(self) -> None:
        """What the reader is told, as it comes."""
        shell, reader = self.shell, self.reader
        reader.credit = 1 << 20
        for event in shell.seen.pop(reader.reference, []):
            last = self.told[-1][0] if self.told else 0
            assert event[0] > last, "numbers only grow"
            assert event[3] == Kind.GAP or self.meaning.setdefault(event[0], event[3:]) == event[3:]
            if event[3] == Kind.GAP:
                assert event[4].first == last + 1
                assert not self.handed, "who was up to date sees no gap"
            else:
                assert event[0] == last + 1, "and none that nobody tells of"
            self.told.append(event)

    def read_on(self) -> None:
        self.reader = self.shell.read(self.task, after=self.told[-1][0] if self.told else 0)
        self.hear()
        self.handed = None

    def attach(self) -> None:
        """The agent comes back, and says again what it is asked for, as far as it holds it."""
        shell, agent, task = self.shell, self.agent, self.task
        running = [(task.tenant, task.task_id, agent.attempt, len(agent.pieces))]
        sends = shell.step(shell.joined("one", running=running if task.attempt == agent.attempt else []))
        welcome = next(send for send in sends if hasattr(send, "replay"))
        assert not welcome.unknown
        if welcome.replay:
            first = {"all": 1, "none": len(agent.pieces) + 1, "some": 1 + len(agent.pieces) // 2}[agent.holds]
            agent.mute = agent.mute or agent.holds == "none"
            for number in range(first, len(agent.pieces) + 1):
                shell.delta(task, number, agent.pieces[number - 1])
        self.hear()

    def act(self) -> None:
        acts, odds = zip(*ACTS.items(), strict=True)
        self.chance.choices(acts, odds)[0](self)
        self.hear()

    def says(self) -> None:
        self.speaks_unheard()
        agent = self.agent
        if not agent.mute and self.task.instance is not None:
            self.shell.delta(self.task, len(agent.pieces), agent.pieces[-1])

    def speaks_unheard(self) -> None:
        agent = self.agent
        agent.pieces.append(f"{agent.attempt}.{len(agent.pieces) + 1} ")

    def hands_over(self) -> None:
        self.changes(handed=True)

    def dies(self) -> None:
        self.changes(handed=False)

    def changes(self, *, handed: bool, comes_back: bool = True) -> None:
        """Another owner; its reader comes before the agent, or behind it."""
        self.hear()
        (self.task,) = self.shell.hand_over() if handed else self.shell.crash_and_load()
        first = self.chance.random() < 0.5
        self.handed = handed and first  # else more may have been told than is held
        if first:
            self.read_on()
        if comes_back:
            self.attach()
        if not first:
            self.read_on()

    def does_not_come_back(self) -> None:
        self.changes(handed=True, comes_back=False)
        self.shell.advance(40_000)
        self.hear()
        self.begin_again()

    def fails(self) -> None:
        self.shell.report(self.task, error=(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE))
        self.hear()
        if self.task.state < FIRST_TERMINAL and self.chance.random() < 0.5:
            self.changes(handed=True, comes_back=False)
        self.begin_again()

    def progresses(self) -> None:
        self.shell.progress(self.task)

    def asks(self) -> None:
        self.shell.ask(self.task)
        if self.chance.random() < 0.5:
            self.changes(handed=True)
        self.shell.answer(self.task)

    def begin_again(self) -> None:
        """Another attempt begins."""
        if self.task.state >= FIRST_TERMINAL:
            return
        self.shell.step(self.shell.joined("one", running=[]))
        for _ in range(20):
            if self.task.state is not TaskState.PENDING:
                break
            self.shell.advance_beating(10_000, self.shell.pool.instances["one"])
        self.hear()
        if self.task.state < FIRST_TERMINAL:
            assert self.task.state is not TaskState.PENDING
            self.agent = Agent(self.task.attempt, self.chance)
            self.shell.take_up(self.task)
            self.hear()

    def end(self) -> None:
        shell, task, agent = self.shell, self.task, self.agent
        if task.state < FIRST_TERMINAL:
            self.attach()
            if agent.pieces and not agent.mute and self.chance.random() < 0.5:
                sends = shell.report(task, folded=len(agent.pieces))
                if task.state < FIRST_TERMINAL:
                    assert any(type(send).__name__ == "RefuseItem" for send in sends)
                    shell.report(task, str(agent))
            else:
                shell.report(task, str(agent))
            self.hear()
            assert task.outcome.content == str(agent)
        self.hear()
        assert self.told[-1][3] == Kind.COMPLETE
        outcome = self.told[-1][4]
        if outcome.fault is None:
            text = text_of(self.told)
            assert text in ("", outcome.content), "what was streamed is the answer, or was taken back"


ACTS = {
    Walk.says: 10, Walk.speaks_unheard: 3, Walk.hands_over: 4, Walk.dies: 2, Walk.attach: 2, Walk.fails: 1,
    Walk.progresses: 1, Walk.asks: 1, Walk.does_not_come_back: 1,
}  # fmt: skip


@pytest.mark.parametrize("some", range(10))
def test_DLV_13_readers_have_what_came_out_whoever_owned_it_meanwhile(some: int) -> None:
    for seed in range(some * WALKS // 10, (some + 1) * WALKS // 10):
        walk = Walk(seed)
        try:
            for _ in range(walk.chance.randrange(5, 25)):
                if walk.task.state >= FIRST_TERMINAL:
                    break
                walk.act()
            walk.end()
        except Exception as error:
            error.add_note(f"seed {seed}: {[(event[0], Kind(event[3]).name) for event in walk.told]}")
            raise
