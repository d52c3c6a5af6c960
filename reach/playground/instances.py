"""Modelled instances: how long they take, when they fail, and what happens to them."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import Any

from reach.core.model import Instance, Task
from reach.playground.trace import InstanceModel


class Work:
    """An attempt that a modelled instance has."""

    __slots__ = ("attempt", "boot", "ends_ms", "fails", "process", "task")

    def __init__(self, task: Task, process: Process) -> None:
        self.task = task
        self.attempt = task.attempt
        self.process = process
        self.boot = process.boot
        self.ends_ms = 0
        """When it will be over; 0 while it waits, or if that is never."""
        self.fails = False


class Process:
    """One modelled instance and its present process."""

    def __init__(self, model: InstanceModel, name: str, seed: int) -> None:
        self.model = model
        self.name = name
        self.seed = seed
        self.instance: Instance | None = None
        """The core's view of it."""
        self.link: Any = None
        self.boot = 0
        self.ready_ms = 0.0
        self.slow = 1.0
        self.fail = model.fail
        self.hangs = False
        self.frozen_until_ms = 0.0
        self.leaked = 0.0
        self.working: dict[tuple[str, int], Work] = {}
        self.waiting: deque[Work] = deque()
        # Figures
        self.attempts = 0
        self.done = 0
        self.failed = 0
        self.peak = 0
        self.busy_ms = 0.0

    def begin(self, now_ms: float) -> None:
        """A new process."""
        self.boot += 1
        self.link = (self.name, self.boot)
        self.ready_ms = now_ms + self.model.ready_after.ms
        self.leaked = 0.0
        self.hangs = False
        self.working.clear()
        self.waiting.clear()

    def end(self) -> None:
        """Its process is gone, and what it was doing."""
        self.link = None
        self.working.clear()
        self.waiting.clear()

    def forget(self, key: tuple[str, int]) -> None:
        """An attempt that waits here is not wanted any more."""
        self.waiting = deque(one for one in self.waiting if (one.task.task_id, one.attempt) != key)

    @property
    def held(self) -> int:
        """Attempts that it has."""
        return len(self.working) + len(self.waiting)

    def service_ms(self, work: Work, effort: float, now_ms: float) -> int | None:
        """How long an attempt that begins now will take; None: for ever. The same task has the same luck under every
        policy."""
        model = self.model
        chance = Random(f"{self.seed} {work.task.task_id} {self.name} {work.attempt}")
        usual = model.service.median.ms * math.exp(model.service.sigma * chance.gauss(0, 1)) * effort
        usual *= self.slow * (1 + self.leaked) * self._coldness(now_ms)
        work.fails = chance.random() < self.fail
        if work.fails and model.fail_in is not None:
            usual = model.fail_in.ms
        return None if self.hangs else max(1, round(usual))

    def _coldness(self, now_ms: float) -> float:
        model = self.model
        if model.cold == 1.0 or self.boot <= 1:
            return 1.0  # those that are there at the start have been there for long
        warm = min(1.0, max(0.0, now_ms - self.ready_ms) / max(1.0, model.cold_for.ms))
        return model.cold + (1.0 - model.cold) * warm

    def status(self, now_ms: float) -> dict[str, Any]:
        """What its beat says."""
        return {"inflight": self.held, "max_concurrency": self.model.slots, "ready": now_ms >= self.ready_ms}
