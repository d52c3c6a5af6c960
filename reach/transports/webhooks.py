"""Delivers webhooks: the receiver of `webhook` facts of the outbox (DLV-12).

Each destination has a line of its own with few tries at a time, so one that hangs delays nobody else; while it fails,
one at a time. What is not received is tried again with growing delays until it is too old, and then kept as a fact of
the kind `webhook_failed`, for operators to look at.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from agentreach.v1 import task_pb2
from reach.core.chance import fraction
from reach.core.effects import Turn
from reach.core.model import Outcome, Task
from reach.core.rows import OutboxDone, OutboxRow
from reach.errors import InvalidRequest, ReachError
from reach.runtime.clock import Clock
from reach.runtime.outbox import Bounds, owner_of
from reach.store.base import StoreError
from reach.transports.posting import Answer
from reach.wire.answers import outcome_size
from reach.wire.urls import Target
from reach.wire.webhooks import (
    FAILED,
    FailedDelivery,
    SecretUnreadable,
    WebhookRules,
    body_of,
    delivery_id,
    headers_of,
)

log = logging.getLogger(__name__)

BOUNDS: Final = Bounds(facts=64, lanes=1_024, of_owner=256)
"""Deliveries in memory for each destination, and destinations, in all and of one tenant; what is beyond waits in the
journal."""
AT_ONCE: Final = 4
"""Tries to one destination at a time; 1 while it is not well."""
NOT_WELL: Final = 2
"""Failed tries in a row from which on a destination gets one at a time."""
DOWN: Final = 4
"""Failed tries in a row from which on a destination was down: when it answers again, nobody waits any longer."""
LARGE_BYTES: Final = 64 << 10
"""Results from here on are large: made into bodies off the loop, and bounded by MOST_LARGE."""
MOST_TRIES: Final = 512
"""Tries to all destinations at a time."""
MOST_OF_TENANT: Final = 128
"""Tries of one tenant at a time: many receivers that hang must not hold up those of others."""
MOST_LARGE: Final = 16
"""Tries with large results at a time, one to a destination; such a result and its body take some 20 MiB."""
DELAYS_S: Final = (5, 30, 120, 600, 1_800, 3_600)
"""Seconds before each next try; the last one repeats. ± 20 % by chance."""
PATIENCE_MS: Final = 3_600_000
"""Nothing is given up before it has been tried for so long by this process: the wall clock may have leapt."""
LONGEST_WAIT_S: Final = 3_600
"""The most that a receiver's Retry-After counts for."""
GONE: Final = 410

Post = Callable[[Target, Any, bytes], Awaitable[Answer]]
"""`Poster.post`."""
Find = Callable[[str, str], Awaitable[Task | None]]
"""Looks a task up, in memory or in the journal (`TaskViews.get`)."""


class WebhookNotes(Protocol):
    """Who hears how deliveries go."""

    def webhook(self, outcome: str) -> None:
        """`delivered`, `failed` (and tried again), `given_up`."""


class WebhookSettings(NamedTuple):
    """Limits, from the configuration."""

    give_up_ms: int = 24 * 3_600_000
    """Age of a fact from which a failed try is the last one."""
    delays_s: tuple[float, ...] = DELAYS_S


class _Delivery:
    __slots__ = ("fact", "taken_ms", "timer", "tries")

    def __init__(self, fact: OutboxRow, now_ms: int) -> None:
        self.fact = fact
        self.taken_ms = now_ms
        self.tries = 0
        self.timer: Any = None


class _Line:
    """What goes to one destination."""

    __slots__ = ("failures", "large", "ready", "running", "waiting")

    def __init__(self) -> None:
        self.ready: deque[_Delivery] = deque()
        self.waiting: dict[_Delivery, None] = {}
        """Those whose next try has a time."""
        self.running = 0
        self.failures = 0
        """Failed tries since the last good one."""
        self.large = asyncio.Lock()


class Webhooks:
    """The webhooks of a node. Owns the coroutines of its tries.

    Args:
        done: Hears which facts are delivered (`Outbox.done`).
        submit: Takes a turn to be committed (`Committer.submit`).
        find: Looks tasks up.
        post: Makes one try.
        rules: Who signs.
        clock: Times, and the seed of chance.
        notes: Hears of outcomes.
        settings: Limits.
        loop: Runs tries and timers.
    """

    def __init__(
        self,
        done: Callable[[OutboxRow], None],
        submit: Callable[[Turn], None],
        find: Find,
        post: Post,
        rules: WebhookRules,
        clock: Clock,
        notes: WebhookNotes,
        settings: WebhookSettings | None = None,
        loop: Any = None,
    ) -> None:
        self._done = done
        self._submit = submit
        self._find = find
        self._post = post
        self._rules = rules
        self._clock = clock
        self._notes = notes
        self._settings = settings or WebhookSettings()
        self._loop = loop or asyncio.get_running_loop()
        self._seed = clock.seed()
        self._lines: dict[str, _Line] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._large = asyncio.Semaphore(MOST_LARGE)
        self._of_tenant: dict[str, int] = {}
        """Tries that run."""
        self._held_back: dict[str, None] = {}
        """Lanes that could go on but for `MOST_TRIES`, in order."""
        self._stopped = False

    def take(self, fact: OutboxRow) -> None:
        """See `outbox.Receiver`."""
        line = self._lines.get(fact.lane)
        if line is None:
            line = self._lines[fact.lane] = _Line()
        line.ready.append(_Delivery(fact, self._clock.now_ms()))
        self._go(fact.lane, line)

    async def stop(self) -> None:
        """Ends all tries; the next process makes them again."""
        self._stopped = True
        for line in self._lines.values():
            for delivery in line.waiting:
                delivery.timer.cancel()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # -- lines --------------------------------------------------------------------------------------------------------

    def _go(self, lane: str, line: _Line) -> None:
        """Begins as many tries as there may be."""
        tenant = owner_of(lane)
        while line.ready and line.running < (AT_ONCE if line.failures < NOT_WELL else 1) and not self._stopped:
            of_tenant = self._of_tenant.get(tenant, 0)
            if len(self._running) >= MOST_TRIES or of_tenant >= MOST_OF_TENANT:
                self._held_back[lane] = None
                return
            line.running += 1
            self._of_tenant[tenant] = of_tenant + 1
            self._run(self._try(lane, line, line.ready.popleft()), tenant)
        if not (line.ready or line.running or line.waiting):
            self._lines.pop(lane, None)

    def _run(self, work: Coroutine[Any, Any, None], tenant: str) -> None:
        task = self._loop.create_task(work, name="webhook")
        self._running.add(task)
        task.add_done_callback(lambda done: self._ran(done, tenant))

    def _ran(self, task: asyncio.Task[None], tenant: str) -> None:
        self._running.discard(task)
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        if self._stopped:
            return
        for lane in list(self._held_back):
            if len(self._running) >= MOST_TRIES:
                return
            if self._of_tenant.get(owner_of(lane), 0) < MOST_OF_TENANT:
                del self._held_back[lane]
                line = self._lines.get(lane)
                if line is not None:
                    self._go(lane, line)

    async def _try(self, lane: str, line: _Line, delivery: _Delivery) -> None:
        delivery.tries += 1
        try:
            answer = await self._deliver(delivery.fact, line)
        except Exception:
            log.exception("a webhook could not be tried; please report this")
            answer = Answer(error="a fault of the server")
        line.running -= 1
        if self._stopped:
            return
        if answer is None:
            self._give_up(delivery, Answer(error="its task is kept no longer"))
        elif 200 <= answer.status < 300:
            was_down, line.failures = line.failures >= DOWN, 0
            self._done(delivery.fact)
            self._notes.webhook("delivered")
            for other in list(line.waiting) if was_down else ():
                other.timer.cancel()
                self._due(lane, line, other)
        else:
            line.failures += 1
            self._failed(lane, line, delivery, answer)
        self._go(lane, line)

    def _failed(self, lane: str, line: _Line, delivery: _Delivery, answer: Answer) -> None:
        fact, tries = delivery.fact, delivery.tries
        delays, limit_ms = self._settings.delays_s, self._settings.give_up_ms
        wait_s = delays[min(tries, len(delays)) - 1] * (0.8 + 0.4 * fraction(self._seed, fact.row + tries))
        wait_s = max(wait_s, min(answer.retry_after_s, LONGEST_WAIT_S))
        wait_ms = wait_s * 1_000
        too_old = self._clock.wall_ms() - fact.wall_ms + wait_ms > limit_ms
        known_for_ms = self._clock.now_ms() - delivery.taken_ms + wait_ms
        if answer.status == GONE or (too_old and known_for_ms > min(limit_ms, PATIENCE_MS)):
            self._give_up(delivery, answer)
            return
        self._notes.webhook("failed")
        line.waiting[delivery] = None
        delivery.timer = self._loop.call_later(wait_s, self._due, lane, line, delivery)

    def _due(self, lane: str, line: _Line, delivery: _Delivery) -> None:
        line.waiting.pop(delivery, None)
        line.ready.append(delivery)
        self._go(lane, line)

    def _give_up(self, delivery: _Delivery, answer: Answer) -> None:
        """What is known of it is kept in its place."""
        fact = delivery.fact
        error = answer.error or f"it answered {answer.status}"
        name = delivery_id(fact)
        destination = fact.lane.partition(" ")[2]
        body = msgspec.json.encode(FailedDelivery(name, fact.task_id, destination, error, delivery.tries))
        turn = Turn(0, 0)
        kept = fact._replace(kind=FAILED, lane=fact.tenant, wall_ms=self._clock.wall_ms(), body=body)
        turn.writes.outbox.append(kept)
        turn.writes.outbox_done.append(OutboxDone(fact.shard, fact.kind, fact.lane, fact.key))
        self._submit(turn)
        self._notes.webhook("given_up")
        extra = {"task_id": fact.task_id, "destination": destination, "tries": delivery.tries, "error": error}
        log.error("a webhook was given up", extra=extra)

    # -- one try ------------------------------------------------------------------------------------------------------

    async def _deliver(self, fact: OutboxRow, line: _Line) -> Answer | None:
        """One try; None if there is nothing to deliver any more."""
        try:
            task = await self._find_ended(fact)
            if task is None or outcome_size(_outcome(task)) <= LARGE_BYTES:
                return await self._send(fact, task)
            task = None  # not in memory while it waits for its turn
            async with line.large, self._large:
                return await self._send(fact, await self._find_ended(fact), large=True)
        except (StoreError, ReachError) as error:
            return Answer(error=f"its task cannot be read: {error}")

    async def _find_ended(self, fact: OutboxRow) -> Task | None:
        """The task that a fact is about; None if it is kept no longer."""
        task = await self._find(fact.tenant, fact.task_id)
        return task if task is not None and task.row == fact.row and task.outcome is not None else None

    async def _send(self, fact: OutboxRow, task: Task | None, *, large: bool = False) -> Answer | None:
        if task is None:
            return None
        spec = task_pb2.TaskSpec.FromString(task.spec)
        try:
            target = self._rules.target(spec.webhook)
            key = self._rules.key(fact.tenant, spec.webhook.secret_name)
        except (InvalidRequest, SecretUnreadable) as error:
            return Answer(error=str(error))
        body = await asyncio.to_thread(body_of, fact, task, spec) if large else body_of(fact, task, spec)
        del task, spec
        return await self._post(target, headers_of(delivery_id(fact), key, self._clock.wall_ms(), body), body)


def _outcome(task: Task) -> Outcome:
    assert task.outcome is not None
    return task.outcome
