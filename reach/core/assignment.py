"""How a waiting task gets its instance: the pin of its session, else level 2, else the queue (RTE-1, RTE-7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reach.core import circuit, drain
from reach.core.at_hand import ASSIGN, CONSISTENT_HASH, IRREVERSIBLE
from reach.core.choosing import Propose
from reach.core.decision import Verdict
from reach.core.effects import Noted, Offer, Turn, Unplaced
from reach.core.filters import version_of
from reach.core.handoff import WAITS
from reach.core.model import Fault, Instance, Task, TaskState
from reach.core.pieces import Fold, Kind
from reach.core.ring import BOUND
from reach.core.rows import AttemptRow, EffectRow, MoveRow
from reach.core.session import PINNED_FULL, Pin
from reach.core.states import next_state
from reach.core.stream import emit

if TYPE_CHECKING:
    from reach.core.events import Arrived, Respecified
    from reach.core.pool import Pool

SESSION_PAUSE_MS = 100
"""How long a new session waits at least before it asks again for an instance that may hold another one."""
HALF_FULL = 0.5
"""Below this load an instance is not passed over, however idle the others are."""
SESSION_SLOT, AVOIDS = "\0session slot", "\0avoids"
"""What tasks wait for that have a queue of their own: for an instance that may hold one more session; for another
instance than those on which they failed. Those that wait for the instance of their session name it."""


class Assignment:
    """Gives the tasks of one pool to its instances."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        pool.pins.counted = self._sessions_counted

    def arrived(self, event: Arrived, turn: Turn) -> None:
        """A waiting task came from another pool. It may have been undone on its way: then it never was. That it is here
        is written with what it begins here."""
        task = event.task
        if task.row <= 0:
            return
        if event.left is not None and not task.volatile:
            task.hop += 1
            to, key = self.pool.shard, self.pool.key
            turn.writes.moves.append(
                MoveRow(task.row, event.left, to, key.tenant, key.agent_type, task.hop, task.reserved)
            )
        if self.pool.router.declared.any:
            self.pool.delivery.declared(task)
        if task.state is TaskState.PENDING and task.not_before_ms > turn.now_ms:
            self.pool.queue.delay(task)
            self.pool.deadlines.arm(task, turn)
        elif task.state is TaskState.PENDING:
            self.route(task, turn)

    def respecified(self, event: Respecified, turn: Turn) -> None:
        """What a waiting task asks for has another form under new rules."""
        task, queue = event.task, self.pool.queue
        if task in queue:
            queue.remove(task)
            task.requirement = event.requirement
            queue.push(task)
            self.pool.slot_freed = True
        elif task.state is TaskState.PENDING:
            task.requirement = event.requirement  # its time has not come

    def route(self, task: Task, turn: Turn) -> bool:
        """Begins an attempt if an instance can take the task, else lets it wait. False if it waits."""
        pool = self.pool
        if pool.queue and (pool.slot_freed or pool.queue.waits(task.requirement)):
            pool.slot_freed = True  # others wait: whose turn it is, the end of the step decides
            if not task.pending_reason.startswith("no_match"):
                task.pending_reason = "queued"
            instance = None
        else:
            instance = self.find(task, turn)
        if instance is None:
            pool.queue.push(task, self.waits_for(task, turn) if task.session or task.avoided else "")
            pool.backlog.look(turn)
            pool.deadlines.arm(task, turn)
            if (task.attempt or task.start_delay_ms) and task.pending_reason.startswith("no_match"):
                turn.sends.append(Unplaced())
            if pool.waker is not None:
                pool.waker.task_waits(turn)
            return False
        self.assign(task, instance, turn)
        return True

    def find(self, task: Task, turn: Turn) -> Instance | None:
        """The instance that can take the task now: the one of its session, else the best."""
        if task.session:
            pin = self.pool.pins.get((task.tenant, task.session), turn.now_ms)
            task.pin_until_ms = 0
            if pin is not None:
                instance = self._pinned(task, pin, turn)
                if instance is not None or task.pin_until_ms:
                    return instance
            return self._for_session(task, pin, turn)
        verdict = self.decide(task)
        if verdict.chosen is None and not task.pending_reason.startswith(verdict.cause):
            task.pending_reason = verdict.cause  # level 1 may have said more about what is missing
        return verdict.chosen

    def decide(self, task: Task, pin: Pin | None = None) -> Verdict:
        """Level 2: the best instance that can take the task now. Changes nothing but the verdict of the task."""
        verdict = self._decide(task, pin, begins=pin is None)
        if verdict.chosen is None and pin is not None and self.pool.router.probing:
            verdict = self._decide(task, pin, begins=True)  # its session has to move, and nobody else is there
        return verdict

    def _decide(self, task: Task, pin: Pin | None, *, begins: bool) -> Verdict:
        """As `decide`; `begins`: no session of before depends on the task, so that it may show whether an instance
        works again."""
        pool, requirement = self.pool, task.requirement
        router = pool.router
        seed = pool.seed + task.row * 31 + task.attempt  # mixed only where there is something to choose
        may_probe = task.effects is not IRREVERSIBLE or bool(router.probing and pool.circuits.nobody_probes())
        if not (task.session or task.policy):
            propose = self._by_key(task) if router.policy.way is CONSISTENT_HASH else None
            verdict = router.pick(requirement, task.avoided, task.cost, seed, may_probe=may_probe, propose=propose)
            task.decision = verdict
            return verdict
        policy = router.policy_of(task.policy)
        propose = None
        if task.session:
            propose = self._by_session(task)
        elif policy.way is CONSISTENT_HASH:
            propose = self._by_key(task)
        verdict = router.pick(
            requirement, task.avoided, task.cost, seed, policy, new_session=bool(task.session),
            may_probe=may_probe and begins, propose=propose,
            version=pin.version if pin is not None else "",
        )  # fmt: skip
        task.decision = verdict
        return verdict

    # -- sessions and keys --------------------------------------------------------------------------------------------

    def _pinned(self, task: Task, pin: Pin, turn: Turn) -> Instance | None:
        """The instance of the session, if it may have the task. One that is merely full is waited for: then
        `pin_until_ms` says for how long."""
        since_ms = max(task.accepted_ms, task.not_before_ms)
        instance, until_ms = self.by_pin(task, pin, turn.now_ms, since_ms)
        if instance is None and pin.moving_to:
            pin.moving_to = ""  # it was to have the session, and will not
            instance, until_ms = self.by_pin(task, pin, turn.now_ms, since_ms)
        if instance is None:
            return None
        if not until_ms:
            router = self.pool.router
            static = router.filters.static(task.requirement)
            task.decision = router.verdict(instance, "pin", self.pool.seed, router.policy, static, [instance])
            return instance
        task.pin_until_ms = until_ms
        task.pending_reason = PINNED_FULL
        return None

    def by_pin(self, task: Task, pin: Pin, now_ms: int, since_ms: int) -> tuple[Instance | None, int]:
        """(the instance of a session if it passes every filter, until when it is waited for because it is full; 0: it
        has room).

        Args:
            task: A task of the session.
            pin: The session's.
            now_ms: Now.
            since_ms: Since when the task could run.
        """
        pool, router = self.pool, self.pool.router
        where = pin.moving_to or pin.instance_id
        instance = pool.instances.get(where)
        if instance is None or where in task.avoided:
            return None, 0
        if instance.link is None and now_ms < instance.awaited_until_ms:
            return instance, instance.awaited_until_ms  # its session is waited for as one of an instance that is full
        if not drain.serves_sessions(instance, now_ms):
            return None, 0
        if not router.matches(instance, task.requirement):
            return None, 0
        if router.has_slots(instance, task.cost):
            return instance, 0
        until_ms = since_ms + pool.pin_wait_ms
        if instance.blocked_by:
            until_ms = min(until_ms, instance.drain_until_ms)
        return (instance, until_ms) if now_ms < until_ms else (None, 0)

    def _for_session(self, task: Task, pin: Pin | None, turn: Turn) -> Instance | None:
        """An instance for a session that has none, or cannot stay where it is."""
        pool, pins = self.pool, self.pool.pins
        verdict = self.decide(task, pin)
        if verdict.cause == "session_slots" and pins.sweep(turn.now_ms):
            verdict = self.decide(task, pin)
        if verdict.chosen is None:
            task.pending_reason = verdict.cause
            if verdict.cause == "session_slots":
                expiry = pins.next_expiry_ms()
                task.pin_until_ms = max(turn.now_ms + SESSION_PAUSE_MS, expiry if expiry is not None else 0)
        elif pin is not None and pin.instance_id != verdict.chosen.instance_id:
            verdict.moved_from = pin.instance_id
            task.pin_until_ms = pool.handoffs.wait_until_ms(task, pin, turn)
            if task.pin_until_ms:
                task.pending_reason = WAITS
                return None
        return verdict.chosen

    def _by_session(self, task: Task) -> Propose:
        """The ring's proposal for a session, with bounded load (RTE-7)."""
        pool = self.pool

        def propose(allowed: Callable[[Instance], bool | int]) -> Instance | None:
            mean = (len(pool.pins) + 1) / max(1, pool.router.admitted().bit_count())
            name = pool.pins.ring.propose(
                f"{task.tenant}\0{task.session}",
                pool.pins.counts,
                lambda one: (found := pool.instances.get(one)) is not None and bool(allowed(found)),
                mean,
            )
            return pool.instances[name] if name is not None else None

        return propose

    def _by_key(self, task: Task) -> Propose:
        """The ring's proposal by the key of a task, passing over those that are more than half full and have more than
        1.25 times the mean load: a key stays where it is as long as that hurts nobody."""
        pool = self.pool
        bound = max(HALF_FULL, BOUND * pool.router.figures.mean_load)

        def propose(allowed: Callable[[Instance], bool | int]) -> Instance | None:
            fallback: Instance | None = None
            for name in pool.pins.ring.walk(f"{task.tenant}\0{task.fairness_key or task.root_task_id or task.task_id}"):
                instance = pool.instances.get(name)
                if instance is None or not allowed(instance):
                    continue
                if instance.inflight < bound * instance.max_concurrency:
                    return instance
                fallback = fallback or instance
            return fallback

        return propose

    def _sessions_counted(self, instance_id: str) -> None:
        """An instance has more sessions, or fewer: whether it may have another one follows (RTE-8)."""
        instance = self.pool.instances.get(instance_id)
        if instance is not None:
            self.count_sessions(instance)

    def count_sessions(self, instance: Instance) -> None:
        """Whether an instance may hold another session, by what it holds and may hold now."""
        router, most = self.pool.router, instance.max_sessions
        full = most is not None and self.pool.pins.counts.get(instance.instance_id, 0) >= most
        if router.holds_all_sessions(instance, full) and not full:
            self.pool.slot_freed = True

    # -- how attempts end ---------------------------------------------------------------------------------------------

    def succeeded(self, task: Task, instance: Instance, turn: Turn) -> None:
        """An attempt went well."""
        self.pool.circuits.succeeded(task, instance, turn)
        if task.retries:
            self.pool.budget.went_well()
        if self.pool.router.canary.trials:
            self._tried(instance, True, turn.now_ms - (task.started_ms or task.offered_ms), turn)

    def failed(self, task: Task, instance: Instance, fault: Fault, turn: Turn) -> None:
        """An attempt failed, and its instance is there."""
        self.pool.circuits.failed(task, instance, fault, turn)
        if self.pool.router.canary.trials and circuit.counts(fault):
            self._tried(instance, False, 0, turn)

    def _tried(self, instance: Instance, good: bool, duration_ms: int, turn: Turn) -> None:
        """A task of a pool with a canary ended: if that decides the trial, somebody should know (RTE-9)."""
        trial = self.pool.router.canary.record(instance, good, duration_ms)
        if trial is not None:
            self.pool.slot_freed = True
            turn.sends.append(Noted(f"canary_{trial.stage.name.lower()}", trial.evidence(), instance=instance))

    # -- attempts -----------------------------------------------------------------------------------------------------

    def assign(self, task: Task, instance: Instance, turn: Turn) -> None:
        """Begins an attempt: memory, row, offer."""
        pool = self.pool
        state = next_state(task.state, ASSIGN)
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
        task.handle = ""
        task.pending_reason = ""
        task.pin_until_ms = 0
        if not instance.running:
            instance.moved_ms = turn.now_ms
        instance.running[task.key] = task
        instance.inflight += task.cost
        pool.router.place(instance)
        if task.decision is not None and task.decision.cause == "probe":
            pool.circuits.began(task, instance, turn)
        if pool.scores.follows_load:
            pool.scores.changed(instance)
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
                    task.decision,
                )
            )
        if task.effects is IRREVERSIBLE:
            self._grant_by_sending(task, instance, turn)
        turn.sends.append(Offer(task, instance))
        self.pool.deadlines.watch(task, turn)

    def _grant_by_sending(self, task: Task, instance: Instance, turn: Turn) -> None:
        """A dialled agent that cannot ask may begin the effect as soon as it has the task (DLV-7)."""
        endpoint = instance.endpoint
        if task.effect_granted or endpoint is None or endpoint.asks_effects:
            return
        task.effect_granted = task.attempt
        if not task.volatile:
            turn.writes.effects.append(EffectRow(task.row, self.pool.shard, task.attempt, "sent", turn.wall_ms))

    def take_grant_back(self, task: Task, turn: Turn) -> None:
        """The attempt that has the grant has certainly not begun."""
        if not task.volatile:
            number = -task.effect_granted
            turn.writes.effects.append(EffectRow(task.row, self.pool.shard, number, "returned", turn.wall_ms))
        task.effect_granted = 0

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
        pin = pool.pins.get(name, turn.now_ms)
        moves = pin is None or pool.handoffs.goes(task, pin, instance, turn)
        where = instance.instance_id if pin is None or moves else pin.instance_id
        pin = pool.pins.set(name, where, turn.now_ms, task.session_ttl_ms)
        pin.generation = pin.generation or instance.generation
        pin.version = pin.version or version_of(instance)
        if not task.volatile:
            pool.handoffs.write(name, pin, turn)

    def waits_for(self, task: Task, turn: Turn) -> str:
        """What a task waits for that was just given nobody, if others with its requirement may not have to."""
        if task.pin_until_ms:
            pin = self.pool.pins.get((task.tenant, task.session), turn.now_ms)
            return pin.instance_id if pin is not None else SESSION_SLOT
        return AVOIDS if task.avoided else ""
