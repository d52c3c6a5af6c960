"""The instances of a pool: joining, leaving, beating, and what becomes of their work (REG, HLT, DLV-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core import health
from reach.core.effects import CloseLink, Done, DrainLink, Noted, Refused, Turn, Welcome
from reach.core.health import Sign
from reach.core.model import Availability, Condition, Fault, Health, Instance, Task, TaskState
from reach.core.policies import base_score
from reach.core.rows import AgentGone, AgentRow
from reach.core.signals import BEAT_WINDOW_MS
from reach.core.states import TaskInput, next_state
from reach.core.stream import Kind, emit, log_of, place_of
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.events import Beat, Drained, Joined, Joining, Left, LinkEnded
    from reach.core.pool import Pool

LOOP_STALLED = "loop stalled"
"""Evidence: what an agent says of itself while a handler blocks its loop."""
STALE_BOOTS = 16
REATTACH_MS = 5_000
"""How long attempts wait for their instance after we closed its link."""
RETURN_MS = 30_000
"""How long attempts wait for an instance that did not hear us, and those with a granted effect for a lost one."""
KEEP_OFFLINE_MS = 600_000
"""How long an instance that is gone stays in the registry."""
MAX_BEATS = 64
"""Beats of an instance that are remembered: twice what the fastest settable interval needs."""
REFRESH_MS = 200
"""Signals other than the load are folded in at most this late (RTE-4)."""
BASELINE_MOVES = 0.05
"""By how much the baseline must differ from the one in use for all scores to be made anew."""


class Fleet:
    """The instances of one pool."""

    __slots__ = ("_changed", "_refreshed_ms", "baseline_ms", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._changed: dict[str, Instance] = {}
        self._refreshed_ms = 0
        self.baseline_ms = 0.0
        """Median of the mean latencies of the pool."""

    # -- coming and going ---------------------------------------------------------------------------------------------

    def join(self, event: Joined, turn: Turn) -> None:
        """An instance registers or says hello (REG-2): same boot = update, new boot = new generation."""
        joining, pool = event.joining, self.pool
        instance = pool.instances.get(joining.instance_id)
        if instance is not None and joining.boot_id in instance.stale_boots:
            message = f"a newer process of {joining.instance_id!r} has registered; this one is stale"
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_GENERATION, message)
            stale = Refused(event.reply, fault) if event.link is None else CloseLink(event.link, fault)
            turn.sends.append(stale)
            return
        if instance is None:
            instance = Instance(joining.instance_id, joining.profile, pool.key)
            instance.registered_wall_ms = turn.wall_ms
            instance.heartbeat_ms = pool.heartbeat_ms
            instance.beats_expected_from_ms = turn.now_ms
            pool.instances[joining.instance_id] = instance
            pool.router.add(instance)
            pool.pins.ring.add(joining.instance_id)
        if instance.boot_id != joining.boot_id:
            self._next_generation(instance, joining, turn)
        self._update(instance, joining, event.revision, turn)
        if event.link is None:
            turn.sends.append(Done(event.reply, instance))
        else:
            self._attach(instance, event, turn)
        self._prove(instance, "registered", turn)
        self._score(instance, turn)
        pool.slot_freed = True  # it may have more slots now, or match what it did not match before
        if event.status:
            self._apply_status(instance, event.status, turn)
        self._check(instance, turn)

    def _next_generation(self, instance: Instance, joining: Joining, turn: Turn) -> None:
        if instance.boot_id:
            instance.stale_boots = (*instance.stale_boots, instance.boot_id)[-STALE_BOOTS:]
        instance.boot_id = joining.boot_id
        instance.generation += 1
        instance.ready = joining.ready
        instance.beats.clear()
        instance.beats_expected_from_ms = turn.now_ms
        instance.availability = Availability.READY
        instance.conditions.clear()
        instance.revision = 0  # a new row is due, though it may have registered with the same words
        message = f"instance {instance.instance_id!r} was replaced by a new process"
        if instance.link is not None:
            stale = Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_GENERATION, message)
            turn.sends.append(CloseLink(instance.link, stale))
            instance.link = None
        self._place(instance)
        self.pool.held.free_all(instance, ())
        fault = _lost(message)
        for task in list(instance.running.values()):
            self.pool.delivery.give_up_attempt(task, fault, turn, lost=True)

    def _update(self, instance: Instance, joining: Joining, revision: int, turn: Turn) -> None:
        """Takes over what was said; what was not said stays (REG-3)."""
        pool = self.pool
        if joining.profile != instance.profile:
            pool.router.remove(instance)
            instance.profile = joining.profile
            instance.agent_id = joining.profile.agent_id
            pool.router.add(instance)
        if joining.weight is not None:
            instance.weight = joining.weight
        if joining.priority is not None:
            instance.priority = joining.priority
        if joining.max_concurrency is not None:
            instance.max_concurrency = joining.max_concurrency
        if joining.heartbeat_ms is not None:
            instance.heartbeat_ms = joining.heartbeat_ms
        if joining.ready is not None:
            instance.ready = joining.ready
        self._says(instance, joining.availability)
        instance.warnings = joining.warnings
        if joining.registration != instance.registration or instance.revision == 0:
            instance.registration = joining.registration
            instance.revision = revision
            row = AgentRow(
                pool.key.tenant,
                instance.instance_id,
                pool.key.agent_type,
                instance.boot_id,
                instance.generation,
                instance.stale_boots,
                instance.registration,
                instance.registered_wall_ms,
                revision,
            )
            turn.writes.agents.append(row)

    def _attach(self, instance: Instance, event: Joined, turn: Turn) -> None:
        """Opens the link. The hello is complete: attempts it does not name are not running."""
        pool = self.pool
        instance.link = event.link
        unknown: list[tuple[str, str, int]] = []
        replay: list[tuple[str, str, int]] = []
        named = set()
        for tenant, task_id, attempt, last in event.running:
            task = pool.find(tenant, task_id)
            if task is None or not self._adopt(task, instance, attempt, turn):
                unknown.append((tenant, task_id, attempt))
                continue
            named.add(task.key)
            if last > task.attempt_sequence:
                task.attempt_sequence = 0
                log_of(task, turn.now_ms).fold_whole = False
                replay.append((tenant, task_id, attempt))
            elif last < task.attempt_sequence and task.log is not None:
                task.log.fold_whole = False  # it has ended there: whether more was said, only the outcome can tell
        turn.sends.append(Welcome(event.link, instance, instance.warnings, unknown, replay))
        pool.held.free_all(instance, unknown)
        fault = _lost(f"instance {instance.instance_id!r} came back without this attempt")
        for task in [task for key, task in instance.running.items() if key not in named]:
            if task.state is not TaskState.WAITING and not task.outcome:
                pool.delivery.give_up_attempt(task, fault, turn, lost=True)
                task.excluded = tuple(one for one in task.excluded if one != instance.instance_id)

    def _adopt(self, task: Task, instance: Instance, attempt: int, turn: Turn) -> bool:
        """The instance still runs the attempt: it goes on, also after we gave it up, unless another one began."""
        if task.attempt != attempt or task.instance_id != instance.instance_id:
            return False
        state = next_state(task.state, TaskInput.ADOPT)
        if state is None:
            return task.state is TaskState.WAITING
        self.pool.delivery.unqueue(task)
        if task.instance is not instance:
            self.pool.delivery.release(task)
            task.instance = instance
            instance.running[task.key] = task
            instance.inflight += task.cost
        task.state = state
        task.lease_until_ms = 0
        task.not_before_ms = 0
        task.paced = False
        task.progressed_ms = turn.now_ms
        if not task.started_ms:
            task.started_ms = turn.now_ms
            emit(task, Kind.STARTED, place_of(task), turn)
            self.pool.delivery.touch(task)
        self.pool.deadlines.arm(task, turn)
        return True

    def link_ended(self, event: LinkEnded, turn: Turn) -> None:
        """A link is gone. The peer's doing: certain evidence, its work moves at once. Ours, for we closed it or stood
        still until the peer gave us up: its work waits for it."""
        instance = event.instance
        if instance.link is not event.link:
            return
        instance.link = None
        excused = turn.now_ms < self.pool.excused_until_ms
        if event.ours or excused:
            for task in instance.running.values():
                wait = RETURN_MS if excused or task.effect_granted == task.attempt else REATTACH_MS
                task.lease_until_ms = turn.now_ms + wait
                self.pool.deadlines.arm(task, turn)
        else:
            self._lose(instance, "its stream ended", turn)
        self._place(instance)
        self._check(instance, turn)

    def _lose(self, instance: Instance, why: str, turn: Turn) -> None:
        if health.move(instance, Sign.LOST, why, turn.now_ms, turn.wall_ms):
            turn.sends.append(Noted("health", "OFFLINE", instance=instance))
        self._place(instance)
        fault = _lost(f"instance {instance.instance_id!r} is gone: {why}")
        for task in list(instance.running.values()):
            if task.effect_granted == task.attempt:
                task.lease_until_ms = turn.now_ms + RETURN_MS
                self.pool.deadlines.arm(task, turn)
            else:
                self.pool.delivery.give_up_attempt(task, fault, turn, lost=True)

    def leave(self, event: Left, turn: Turn) -> None:
        """An instance deregisters: its attempts move, its record goes."""
        instance = event.instance
        self._lose(instance, "it deregistered", turn)
        self._remove(instance, turn)
        if event.reply is not None:
            turn.sends.append(Done(event.reply))

    def _remove(self, instance: Instance, turn: Turn) -> None:
        pool = self.pool
        if pool.instances.get(instance.instance_id) is not instance:
            return
        del pool.instances[instance.instance_id]
        pool.router.remove(instance)
        pool.pins.ring.remove(instance.instance_id)
        pool.wheel.disarm(instance)
        self._changed.pop(instance.instance_id, None)
        instance.link = None
        turn.writes.agents_gone.append(AgentGone(pool.key.tenant, instance.instance_id))
        turn.sends.append(Noted("removed", "", instance=instance))

    def drain(self, event: Drained, turn: Turn) -> None:
        """An operator stops new work for an instance, or allows it again."""
        instance = event.instance
        instance.availability = Availability.READY if event.undo else Availability.DRAINING
        if instance.link is not None and not event.undo:
            turn.sends.append(DrainLink(instance.link, event.deadline_ms))
        self._place(instance)
        turn.sends.append(Done(event.reply, instance.instance_id))

    # -- signs of life ------------------------------------------------------------------------------------------------

    def beat(self, event: Beat, turn: Turn) -> None:
        """A beat: proof of life, and a status."""
        instance = event.instance
        instance.beats.append(turn.now_ms)
        if len(instance.beats) > MAX_BEATS or instance.beats[0] < turn.now_ms - BEAT_WINDOW_MS:
            del instance.beats[0]
        if event.status:
            self._apply_status(instance, event.status, turn)
        self._prove(instance, "beat", turn)

    def _apply_status(self, instance: Instance, status: dict[str, Any], turn: Turn) -> None:
        instance.status.update(status)
        if "ready" in status:
            instance.ready = status["ready"]
        if "max_concurrency" in status:
            slots = max(1, status["max_concurrency"])
            if slots > instance.max_concurrency:
                self.pool.slot_freed = True
            instance.max_concurrency = slots
        self._says(instance, status.get("availability"))
        if instance.conditions or "loop_stalled" in status:
            self._stalls(instance, status.get("loop_stalled", 0), turn)
        self._place(instance)

    def _stalls(self, instance: Instance, stalled_ms: int, turn: Turn) -> None:
        """It beats, but the loop of its handlers is blocked: nothing new until it runs again (case B1)."""
        instance.status.pop("loop_stalled", None)
        if stalled_ms:
            _, since = instance.conditions.get(Condition.STALLED, ("", turn.now_ms - stalled_ms))
            instance.conditions[Condition.STALLED] = (f"{LOOP_STALLED} for {stalled_ms} ms", since)
        elif instance.conditions.get(Condition.STALLED, ("", 0))[0].startswith(LOOP_STALLED):
            del instance.conditions[Condition.STALLED]

    def _says(self, instance: Instance, said: Availability | None) -> None:
        """What it says of itself counts, but once it drains it drains: until an operator or a new process ends that."""
        if said is not None and instance.availability is not Availability.DRAINING:
            instance.availability = said

    def prove(self, instance: Instance, turn: Turn) -> None:
        """Traffic is proof of life too (HLT-2, HLT-7)."""
        instance.beat_ms = turn.now_ms
        if instance.health is not Health.HEALTHY:
            self._prove(instance, "traffic", turn)

    def _prove(self, instance: Instance, why: str, turn: Turn) -> None:
        if instance.bit < 0:
            return  # it has left; what it still says proves nothing
        instance.beat_ms = turn.now_ms
        if health.move(instance, Sign.PROOF, why, turn.now_ms, turn.wall_ms):
            turn.sends.append(Noted("health", "HEALTHY", instance=instance))
            self._check(instance, turn)
        self.changed(instance)
        self._place(instance)

    def _place(self, instance: Instance) -> None:
        """Routing follows from state: call it after every change."""
        before = instance.blocked_by
        instance.blocked_by = health.blocked_by(instance)
        self.pool.router.place(instance)
        if bool(before) != bool(instance.blocked_by):
            self.pool.slot_freed = True  # also when it is blocked now: who avoided another one may go there after all

    def _check(self, instance: Instance, turn: Turn) -> None:
        """Sets the instance's one timer: the next meaning of its silence, or its removal."""
        at = health.next_check_ms(instance, turn.now_ms)
        if instance.health is Health.OFFLINE:
            at = instance.health_since_ms + KEEP_OFFLINE_MS if instance.link is None else None
        if at is not None:
            self.pool.wheel.arm(instance, at)

    def due(self, instance: Instance, turn: Turn) -> None:
        """A timer of an instance."""
        if instance.health is Health.OFFLINE:
            if instance.link is None and turn.now_ms >= instance.health_since_ms + KEEP_OFFLINE_MS:
                self._remove(instance, turn)
                return
        else:
            sign = health.sign_of_silence(instance, turn.now_ms)
            silent = turn.now_ms - instance.beat_ms
            if sign is not None and health.move(instance, sign, f"silent for {silent} ms", turn.now_ms, turn.wall_ms):
                turn.sends.append(Noted("health", instance.health.name, instance=instance))
                self.changed(instance)
                self._place(instance)
        self._check(instance, turn)

    def forgive(self, turn: Turn) -> None:
        """We were stalled ourselves: nobody is judged by what we could not hear."""
        for instance in self.pool.instances.values():
            if instance.link is not None:
                instance.beat_ms = max(instance.beat_ms, turn.now_ms - instance.heartbeat_ms)

    # -- leases and slots ---------------------------------------------------------------------------------------------

    def lease_until_ms(self, task: Task) -> int:
        """Until when the current attempt may be silent. Any sign of life of its instance renews it (DLV-7)."""
        instance: Instance | None = task.instance
        if instance is None or (instance.link is None and task.lease_until_ms):
            return task.lease_until_ms
        timeout = health.TIMEOUT_BEATS * instance.heartbeat_ms + health.WAIT_UNHEALTHY_MS
        return max(task.lease_until_ms, instance.beat_ms + timeout)

    def lease_expired(self, task: Task, turn: Turn) -> None:
        """The instance of an attempt was silent for too long, or did not come back."""
        instance: Instance | None = task.instance
        if instance is None or instance.link is None:
            fault, lost = _lost(f"instance {task.instance_id!r} did not come back"), True
        else:
            message = f"instance {task.instance_id!r} was silent for too long"
            fault, lost = Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_UNHEALTHY, message), False
            self.pool.delivery.stop_attempt(task, Reason.INSTANCE_UNHEALTHY, turn)
        self.pool.delivery.give_up_attempt(task, fault, turn, lost=lost)

    # -- signals ------------------------------------------------------------------------------------------------------

    def changed(self, instance: Instance) -> None:
        """A signal of the instance changed; its score follows at the next refresh."""
        if instance.bit >= 0:
            self._changed[instance.instance_id] = instance

    def refresh(self, turn: Turn) -> None:
        """Folds changed signals into the scores, at most every 200 ms."""
        if not self._changed or turn.now_ms < self._refreshed_ms + REFRESH_MS:
            return
        self._refreshed_ms = turn.now_ms
        pool = self.pool
        known = sorted(one.latency_ms for one in pool.instances.values() if one.latency_ms > 0)
        baseline = known[len(known) // 2] if known else 0.0
        moved = abs(baseline - self.baseline_ms) > BASELINE_MOVES * self.baseline_ms
        if moved:
            self.baseline_ms = baseline
        for instance in pool.instances.values() if moved else self._changed.values():
            self._score(instance, turn)
        self._changed.clear()

    def _score(self, instance: Instance, turn: Turn) -> None:
        instance.base = base_score(self.pool.router.policy, instance, self.baseline_ms, turn.now_ms)
        self.pool.router.place(instance)


def _lost(message: str) -> Fault:
    return Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, message)
