"""When agents that are dialled are probed and checked (HLT-3, HLT-4): one heap of times, and few calls at once.

What a probe is, and what it means, others know: the transport asks, the core judges and says when the next one is due.
Probes have connections and a bound of their own, and never wait for delivery or make it wait.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from typing import Final, Protocol

from reach.cancelling import heed_cancellation

log = logging.getLogger(__name__)

LOOK_AGAIN_MS: Final = 200
"""How soon after a probe we ask the core for the time of the next one: it has judged the last one by then."""
SKIPPED_MS: Final = 1_000
"""A probe or check that was skipped comes again within this time; many of them spread over it, so that they do not meet
again, as they would after a restart for ever."""


class Target(Protocol):
    """Something to be probed and checked."""

    @property
    def gone(self) -> bool:
        """It is of no interest any more."""

    @property
    def probe_due_ms(self) -> int:
        """When it should be probed next; in the past: now."""

    async def probe(self) -> None:
        """Asks whether it can be reached, and tells the core. Ends in bounded time."""

    async def check(self) -> None:
        """Asks how it is, and tells the core. Ends in bounded time."""

    def leave(self) -> None:
        """It is gone, and will not be asked again."""


class Probes:
    """See the module.

    Args:
        now_ms: The clock.
        at_once: How many probes and checks may be under way; one that finds no room is skipped.
        check_ms: Time between checks of one target.
    """

    def __init__(self, now_ms: Callable[[], int], at_once: int, check_ms: int) -> None:
        self._now_ms = now_ms
        self._at_once = at_once
        self._check_ms = check_ms
        self._heap: list[tuple[int, int, bool, Target]] = []
        self._number = 0
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._hasty: set[Target] = set()
        self.skipped = 0
        """Probes and checks that found no room."""

    def add(self, target: Target) -> None:
        """Probes a target from now on, until it is gone."""
        self._push(self._now_ms() + LOOK_AGAIN_MS, False, target)
        self._push(self._now_ms() + self._check_ms, True, target)

    def hasten(self, target: Target) -> None:
        """Something happened: the next probe is due now."""
        if target not in self._hasty:
            self._hasty.add(target)
            self._push(self._now_ms(), False, target)

    def _push(self, due_ms: int, is_check: bool, target: Target) -> None:
        self._number += 1
        heapq.heappush(self._heap, (due_ms, self._number, is_check, target))
        if self._heap[0][1] == self._number:
            self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled; the one owner of all probes."""
        try:
            while True:
                self._wake.clear()
                self.begin_due()
                wait_s = None
                if self._heap:
                    wait_s = max(0.0, (self._heap[0][0] - self._now_ms()) / 1_000)
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def begin_due(self) -> None:
        """Begins what is due. Called by `run`; also by tests with a clock of their own."""
        now = self._now_ms()
        while self._heap and self._heap[0][0] <= now:
            _, _, is_check, target = heapq.heappop(self._heap)
            if target.gone:
                self._hasty.discard(target)
                if is_check:  # each target has one entry of this kind, so it leaves once
                    target.leave()
                continue
            self._begin(target, is_check, now)

    def _begin(self, target: Target, is_check: bool, now: int) -> None:
        hasty = not is_check and target in self._hasty
        if not is_check and not hasty and target.probe_due_ms > now:
            self._push(target.probe_due_ms, False, target)
        elif len(self._running) >= self._at_once:
            self.skipped += 1
            if not hasty:
                self._push(now + LOOK_AGAIN_MS + self._number * 389 % (SKIPPED_MS - LOOK_AGAIN_MS), is_check, target)
            self._hasty.discard(target)
        else:
            self._hasty.discard(target)
            task = asyncio.create_task(self._ask(target, is_check, hasty), name="check" if is_check else "probe")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _ask(self, target: Target, is_check: bool, hasty: bool) -> None:
        try:
            await (target.check() if is_check else target.probe())
        except asyncio.CancelledError:
            heed_cancellation()
            log.debug("a probe or check was ended by others: its target moved")
        except Exception:
            log.exception("a probe broke; please report this")
        if not hasty:  # its regular entry is in the heap
            self._push(self._now_ms() + (self._check_ms if is_check else LOOK_AGAIN_MS), is_check, target)
