"""How a waiting task gets its instance: the pin of its session, else level 2, else the queue (RTE-1, RTE-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import drain
from reach.core.chance import mix
from reach.core.effects import Offer, Turn
from reach.core.model import Instance, Task
from reach.core.rows import AttemptRow, PinRow
from reach.core.states import TaskInput, next_state
from reach.core.stream import Fold, Kind, emit

if TYPE_CHECKING:
    from reach.core.pool import Pool

PIN_WAIT_MS = 5_000
"""How long a session's task waits for its full instance before it may go elsewhere."""
SET_ASIDE = 8
"""Heads of a queue that may be passed over because the instances they failed on are the only free ones."""


class Assignment:
    """Gives the tasks of one pool to its instances."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def route(self, task: Task, turn: Turn) -> bool:
        """Begins an attempt if an instance can take the task, else lets it wait. False if it waits."""
        pool = self.pool
        if pool.queue and (pool.slot_freed or pool.queue.waits(task.requirement)):
            pool.slot_freed = True  # others wait: whose turn it is, the end of the step decides
            task.pending_reason = "queued"
            instance = None
        else:
            instance = self._find(task, turn)
        if instance is None:
            pool.queue.push(task)
            pool.deadlines.arm(task, turn)
            if pool.waker is not None:
                pool.waker.task_waits(turn)
            return False
        self.assign(task, instance, turn)
        return True

    def _find(self, task: Task, turn: Turn) -> Instance | None:
        instance = self.pinned(task, turn) if task.session else None
        if instance is None and not task.pin_until_ms:
            instance = self.choose(task)
        return instance

    def choose(self, task: Task) -> Instance | None:
        """Level 2: the best instance that can take the task now."""
        pool = self.pool
        seed = pool.seed + task.row * 31 + task.attempt  # mixed only where there is something to choose
        verdict = pool.router.pick(task.requirement, task.excluded, task.cost, seed)
        if verdict.chosen is None:
            task.pending_reason = verdict.cause
        return verdict.chosen

    def pinned(self, task: Task, turn: Turn) -> Instance | None:
        """The instance of the session, or the one that the ring proposes for a new one."""
        pool = self.pool
        name = (task.tenant, task.session)
        pin = pool.pins.get(name, turn.now_ms)
        task.pin_until_ms = 0
        if pin is not None and pin.instance_id not in task.excluded:
            pinned = pool.instances.get(pin.instance_id)
            drains = pinned is not None and drain.keeps_sessions(pinned, turn.now_ms)
            if pinned is not None and (drains or not pinned.blocked_by):
                matches = pool.router.matches(pinned, task.requirement)
                if matches and pool.router.has_slots(pinned, task.cost):
                    return pinned
                until = max(task.accepted_ms, task.not_before_ms) + PIN_WAIT_MS
                if drains:
                    until = min(until, pinned.drain_until_ms)
                if turn.now_ms < until and matches:
                    task.pin_until_ms = until
                    task.pending_reason = "pinned_instance_full"
                    return None

        return self._propose(task, turn)

    def _propose(self, task: Task, turn: Turn) -> Instance | None:
        """What the ring proposes for a session that has no instance, or whose instance does not take it any more. Where
        nothing but a bound on sessions is in the way, it waits for one of them to end."""
        pool = self.pool
        crowded = False
        cold = pool.router.slow_start
        back = cold.stand_back(mix(pool.seed, task.row)) if cold.cold else 0  # new sessions too come slowly

        def allowed(instance_id: str) -> bool:
            nonlocal crowded
            instance = pool.instances.get(instance_id)
            if (
                instance is None
                or instance_id in task.excluded
                or back >> instance.bit & 1
                or instance.inflight + task.cost > instance.max_concurrency
                or not pool.router.fits(instance, task.requirement, task.cost)
            ):
                return False
            if instance.max_sessions and pool.pins.counts.get(instance_id, 0) >= instance.max_sessions:
                crowded = True
                return False
            return True

        pool.pins.expire(turn.now_ms)
        session = f"{task.tenant}\0{task.session}"
        proposed = pool.pins.ring.propose(session, pool.pins.counts, allowed)
        if proposed is None and back:
            back = 0
            proposed = pool.pins.ring.propose(session, pool.pins.counts, allowed)
        if proposed is not None:
            return pool.instances[proposed]
        if crowded:
            task.pin_until_ms = turn.now_ms + PIN_WAIT_MS
            task.pending_reason = "session_slots"
        return None

    def assign(self, task: Task, instance: Instance, turn: Turn) -> None:
        """Begins an attempt: memory, row, offer."""
        pool = self.pool
        state = next_state(task.state, TaskInput.ASSIGN)
        assert state is not None, task
        task.state = state
        if task.attempt == 0:
            pool.budget.first_attempt()
        elif task.instance_id != instance.instance_id:
            task.transfers += 1
        task.attempt += 1
        task.instance = instance
        task.instance_id = instance.instance_id
        task.offered_ms = turn.now_ms
        task.started_ms = task.progressed_ms = task.lease_until_ms = task.attempt_sequence = 0
        task.pending_reason = ""
        task.pin_until_ms = 0
        if not instance.running:
            instance.moved_ms = turn.now_ms
        instance.running[task.key] = task
        instance.inflight += task.cost
        pool.router.place(instance)
        if task.session:
            self._pin(task, instance, turn)
        if task.log is not None and task.attempt > 1:
            self._begin_anew(task, turn)
        if task.reserved and not task.volatile:
            turn.writes.attempts.append(
                AttemptRow(
                    task.row,
                    pool.shard,
                    task.attempt,
                    instance.instance_id,
                    instance.agent_id,
                    instance.generation,
                    turn.wall_ms,
                    task.reserved,
                )
            )
        turn.sends.append(Offer(task, instance))
        self.pool.deadlines.watch(task, turn)

    def _begin_anew(self, task: Task, turn: Turn) -> None:
        """What earlier attempts said is void. Where we do not know what that was, readers are told so too."""
        if task.log.fold.channels or not task.log.fold_whole:
            emit(task, Kind.ATTEMPT_RESET, 0, turn)
            self.pool.delivery.touch(task)
        task.log.fold = Fold()
        task.log.fold_whole = True

    def _pin(self, task: Task, instance: Instance, turn: Turn) -> None:
        pool = self.pool
        name = (task.tenant, task.session)
        before = pool.pins.get(name, turn.now_ms)
        before_id = before.instance_id if before is not None else ""
        pin = pool.pins.set(name, instance.instance_id, turn.now_ms)
        if before_id and before_id != instance.instance_id:
            emit(task, Kind.HANDOFF, (before_id, instance.instance_id), turn)
            self.pool.delivery.touch(task)
        if not task.volatile:
            expires = turn.wall_ms + pool.pins.ttl_ms
            row = PinRow(pool.shard, pool.key.tenant, pool.key.agent_type, task.tenant, task.session,
                         instance.instance_id, expires, pin.handoffs)  # fmt: skip
            turn.writes.pins.append(row)

    def pump(self, turn: Turn) -> None:
        """Gives free slots to waiting tasks: queue by queue, the most urgent head first."""
        queue = self.pool.queue
        for first in queue.heads() if self.pool.router.has_room() else ():
            aside: list[Task] = []
            while (head := queue.head(first.requirement)) is not None and len(aside) < SET_ASIDE:
                instance = self._find(head, turn)
                if instance is not None:
                    queue.pop(head)
                    self.assign(head, instance, turn)
                elif head.excluded or head.pin_until_ms:
                    queue.pop(head)
                    aside.append(head)
                else:
                    break
            for task in aside:
                queue.push(task)
                self.pool.deadlines.arm(task, turn)
