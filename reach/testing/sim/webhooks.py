"""Receivers of webhooks that are away, hang, refuse, or answer in vain; and what must be true of what they get."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any, Final

from reach.core.model import TaskKey
from reach.core.rows import OutboxDone, OutcomeRow, TaskRow
from reach.testing.sim.loop import VirtualLoop
from reach.transports.posting import Answer
from reach.wire.urls import Target
from reach.wire.webhooks import KIND, Secret, WebhookRules

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker

HOSTS: Final = ("hook-a", "hook-b")
TENANTS: Final = ("acme", "beta")
DELAYS_S: Final = (0.2, 1.0, 3.0)
"""Between the tries: shorter than in life, so that there are many."""
_MARK: Final = b"https://hook-"


def url_of(random: Random, tenant: str) -> str:
    """Where a task of a tenant is told of. The path names the tenant, which the body does not."""
    return f"https://{random.choice(HOSTS)}/{tenant}"


class Rules(WebhookRules):
    """Every tenant has a secret, which is in no file."""

    def __init__(self) -> None:
        super().__init__([Secret("sim", "", frozenset(TENANTS))])

    def key(self, tenant: str, name: str) -> bytes:
        """See WebhookRules."""
        return f"secret of {tenant}".encode()


class WebhookTruth:
    """What is to be told, and what was. Belongs to a `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._wanted: dict[TaskKey, int] = {}
        """Tasks whose end is to be told, and their rows."""
        self._ends: dict[TaskKey, str] = {}
        self._names: dict[TaskKey, str] = {}
        self._keys: dict[str, TaskKey] = {}
        self._forgotten: set[str] = set()
        self._past: dict[TaskKey, str | None] = {}
        """How removed tasks ended."""

    def accepted(self, key: TaskKey, row: TaskRow) -> None:
        """A task is durable."""
        if _MARK in row.spec:
            self._wanted[key] = row.row

    def ended(self, key: TaskKey, row: OutcomeRow) -> None:
        """The outcome of a task is durable."""
        self._ends.setdefault(key, str(int(row.state)))

    def removed(self, key: TaskKey) -> None:
        """A task is removed: who was not told by now need not be."""
        if self._wanted.pop(key, None) is not None:
            self._past[key] = self._ends.pop(key, None)
            self._names.pop(key, None)

    def is_removed(self, task_id: str) -> bool:
        """Whether a task of this id was removed: then there is nothing to tell."""
        return any(key[1] == task_id for key in self._past)

    def forgotten(self, done: OutboxDone) -> None:
        """The journal forgets a delivery: somebody has received it, for certain."""
        if done.kind == KIND:
            key = next((key for key, row in self._wanted.items() if str(row) == done.key), None)
            if key is None:
                return  # its row was refused, for the id is another task's: nothing of it was kept
            if key not in self._names:
                self._checker.violate("WEBHOOKS_ARE_RECEIVED", key, f"delivery {done.key} was forgotten, not received")
            self._forgotten.add(done.key)

    def received(self, key: TaskKey, name: str, state: str) -> None:
        """A receiver got a delivery."""
        violate = self._checker.violate
        if self._past.get(key) == state:  # of the task that had the id before, or of the one that has it now
            if self._ends.get(key) == state:
                self._names.setdefault(key, name)
            return
        if key not in self._wanted:
            violate("WEBHOOKS_ARE_WANTED", key, "nobody asked to be told of it")
        elif self._ends.get(key) != state:
            violate("WEBHOOKS_TELL_ENDS", key, f"it is told to have ended as {state}; it did as {self._ends.get(key)}")
        elif str(self._wanted[key]) in self._forgotten:
            violate("WEBHOOKS_END", key, "it was told again after the journal had forgotten that")
        if self._names.setdefault(key, name) != name or self._keys.setdefault(name, key) != key:
            violate("WEBHOOKS_HAVE_ONE_NAME", key, f"it was told as {name} and as {self._names[key]}")

    def finish(self) -> None:
        """Nothing happens any more."""
        for key in self._wanted:
            if key in self._ends and key not in self._names:
                self._checker.violate("WEBHOOKS_ARE_RECEIVED", key, "it ended, and who wanted to know was never told")


class Receivers:
    """All hosts that webhooks go to."""

    def __init__(self, loop: VirtualLoop, random: Random, checker: Checker, tell: Any) -> None:
        self._loop = loop
        self._random = random
        self._checker = checker
        self._tell = tell
        self.raging = True
        """Receivers behave badly."""

    async def post(self, target: Target, headers: Any, body: bytes) -> Answer:
        """One try, as `Poster.post`."""
        random = self._random
        await self._pass_by(random.choice((0.001, 0.05, 0.5)))
        chance = random.random() if self.raging else 1.0
        if chance < 0.15:
            return Answer(error="connection refused")
        if chance < 0.3:
            return Answer(random.choice((500, 503, 404, 302)))
        if chance < 0.35:
            await self._pass_by(10.0)
            return Answer(error="no answer within 10 s")
        told = json.loads(body)
        result = told["result"]
        key = (target.path.removeprefix("/"), result["task_id"])
        self._tell("{} is told of {}", target.host, key)
        self._checker.webhooks.received(key, headers["webhook-id"], _STATES[result["state"]])
        if chance < 0.45:
            await self._pass_by(random.random())
            return Answer(error="the answer was lost")
        await self._pass_by(random.choice((0.001, 0.2)))
        return Answer(200)

    async def _pass_by(self, seconds: float) -> None:
        over = self._loop.create_future()
        self._loop.call_later(seconds, lambda: None if over.done() else over.set_result(None))
        await over


_STATES: Final = {
    f"TASK_STATE_{name}": str(number)
    for number, name in enumerate(("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED", "DEAD_LETTERED"), 5)
}
