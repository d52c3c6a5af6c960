"""Load of hundreds of tasks a second while processes are killed, and the sums that must come out even afterwards."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reach import Client, TaskState
from tests.e2e.agents.worker import piece, text_of
from tests.e2e.processes import begins, tell
from tests.e2e.reading import Text

RATE = float(os.environ.get("RATE", "100"))
"""Tasks a second, whatever happens to those before: an open loop. `make kill-test` gives 250, alone."""
PATIENCE = 60.0
LOOKS = 64
"""Tasks that are looked up at a time."""


class Asked(NamedTuple):
    """Who was asked for a task."""

    at: float
    """Seconds of `time.time`."""
    client: int
    """Which of the clients."""
    agent_type: str


class Load:
    """Gives tasks at `RATE` and remembers what it was told of each.

    Four in five are answered at once; the others take up to a second, and some stream their answer.

    Args:
        client: Who gives them; of several, any.
        chance: What is drawn.
        types: The types of agents they are for.
        patience: How many seconds those that were given may take in the end.
    """

    def __init__(
        self, client: Client | Sequence[Client], chance: random.Random, types: Sequence[str] = ("worker",),
        patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self._clients = [client] if isinstance(client, Client) else list(client)
        self._chance = chance
        self._types = types
        self._patience = patience
        self.asked: dict[str, Asked] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._driver: asyncio.Task[None] | None = None
        self.wanted: dict[str, str] = {}
        """What the answer of each must be."""
        self.told: dict[str, tuple[str, float]] = {}
        """The answer that was told, and when (time.time)."""
        self.failed: dict[str, str] = {}
        self.gaps: dict[str, str] = {}
        """Streams whose reader was told that numbers jump, and how; what it has in the end is compared in any case."""
        self.began_at = 0.0
        self.seconds = 0.0

    def start(self) -> None:
        """Begins to give tasks."""
        self.began_at = time.monotonic()
        self._driver = asyncio.create_task(self._drive(), name="load")

    async def stop(self) -> None:
        """Gives no more, and waits for what was given."""
        assert self._driver is not None
        self._driver.cancel()
        await asyncio.wait({self._driver})
        self.seconds = time.monotonic() - self.began_at
        if self._running:
            await asyncio.wait(self._running, timeout=self._patience)
        for task in list(self._running):
            self.failed[task.get_name()] = "no answer at the end"
            task.cancel()

    async def abandon(self) -> None:
        """Gives no more, and waits for nothing: the test has failed."""
        left = [one for one in (self._driver, *self._running) if one is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _drive(self) -> None:
        number = 0
        while True:
            due = int((time.monotonic() - self.began_at) * RATE)
            while number < due:
                name = f"t{number}"
                task = asyncio.create_task(self._one(name, self._chance.random()), name=name)
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                number += 1
            await asyncio.sleep(0.004)

    async def _one(self, name: str, kind: float) -> None:
        client = self._chance.randrange(len(self._clients))
        self.asked[name] = Asked(time.time(), client, self._chance.choice(self._types))
        try:
            if kind < 0.8:
                self.wanted[name] = name
                text = (await self._send("echo", name, name)).text
            elif kind < 0.95:
                seconds = round(self._chance.uniform(0.05, 1.0), 3)
                self.wanted[name] = f"slept {seconds}"
                text = (await self._send("sleep", {"seconds": seconds}, name)).text
            else:
                text = await self._streamed(name, self._chance.randrange(5, 40))
        except Exception as error:  # noqa: BLE001 - every failure counts as one
            self.failed[name] = f"{type(error).__name__}: {error}"
        else:
            self.told[name] = (text, time.time())

    async def _send(self, method: str, payload: Any, name: str) -> Any:
        _, client, agent_type = self.asked[name]
        result = await self._clients[client].send(
            method, payload, agent_type=agent_type, task_id=name, start_to_close=60
        )
        if result.state is not TaskState.SUCCEEDED:
            self.failed[name] = f"{result.state.name} after {result.attempts} attempts: {result.error}"
        return result

    async def _streamed(self, name: str, count: int) -> str:
        self.wanted[name] = text_of(name, count)
        text = Text()
        payload = {"count": count, "pause": 0.02}
        _, client, agent_type = self.asked[name]
        events = self._clients[client].stream("stream", payload, agent_type=agent_type, task_id=name, start_to_close=60)
        async for event in events:
            text.add(event.message)
            if event.kind == "gap":
                gap = event.message.gap
                self.gaps[name] = f"{agent_type}: {gap.from_sequence} to {gap.to_sequence} after {text.kinds}"
        if text.value != self.wanted[name]:
            missing = [number for number in range(count) if piece(name, number) not in text.value]
            self.failed[name] = f"the pieces that were streamed do not make the whole: {missing} {text.kinds}"
        return text.result

    def unserved(self, lives: list[tuple[float, float]]) -> list[float]:
        """For each time that the server was up (from, to; time.time): seconds of it before the first answer.

        Lives that were over before anybody could have connected are left out; a longer one without an answer counts
        whole.
        """
        times = sorted(at for _, at in self.told.values())
        found = []
        for begin, end in lives:
            first = next((at for at in times if at > begin), end)
            if first < end or end - begin > 1.0:
                found.append(min(first, end) - begin)
        return found


def even(
    load: Load, log: Path, excused: Callable[[str, dict[str, Any]], bool], buried: Collection[str] = ()
) -> dict[str, int]:
    """The sums; raises AssertionError where one does not come out.

    Args:
        load: What was given and told.
        log: What the agents began.
        excused: Whether a begin of a task may be followed by another one, because its agent was killed.
        buried: Tasks that are rightly given up.
    """
    begun = begins(log)
    failed = {name: why for name, why in load.failed.items() if name not in buried}
    wrong = {
        name: (text, load.wanted[name])
        for name, (text, _) in load.told.items()
        if text != load.wanted[name] and name not in buried
    }
    doubled = {
        name: lines
        for name, lines in begun.items()
        if len(lines) > 1 and not all(excused(name, line) for line in lines[:-1])
    }
    late = [
        name for name, (_, told_at) in load.told.items() for line in begun.get(name, []) if line["at"] > told_at + 0.001
    ]
    lost = load.wanted.keys() - load.told.keys()
    unasked = begun.keys() - load.wanted.keys()
    sums = {
        "given": len(load.wanted), "answered": len(load.told), "lost": len(lost), "wrong": len(wrong),
        "doubled": len(doubled), "begun after their answer": len(late), "begun again": sum(
            len(lines) - 1 for lines in begun.values()), "unasked": len(unasked),
    }  # fmt: skip
    tell(sums)
    assert not failed, (len(failed), dict(list(failed.items())[:5]))
    assert not lost, (len(lost), sorted(lost)[:5])
    assert not wrong, (len(wrong), list(wrong.items())[:5])
    assert not doubled, (len(doubled), list(doubled.items())[:3])
    assert not late, (len(late), late[:5])
    assert not unasked
    return sums


async def kept(client: Client, load: Load) -> None:
    """What the journal has of each task is what was told."""
    room = asyncio.Semaphore(LOOKS)
    states: Counter[str] = Counter()

    async def look(name: str) -> None:
        async with room:
            task = await client.get_task(name)
            assert task.result is not None, name
            assert (task.result.state, task.result.text) == (TaskState.SUCCEEDED, load.told[name][0]), name
            states[task.result.state.name] += 1

    await asyncio.gather(*(look(name) for name in load.told if name not in load.failed))
    tell(f"kept: {dict(states)}")


def tell_times(what: str, seconds: list[float]) -> None:
    """Median and worst, for people."""
    tell(f"{what}: median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s, of {len(seconds)}")
