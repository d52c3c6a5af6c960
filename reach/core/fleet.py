"""The instances of a pool, coming and going, and what becomes of their work (REG-2, REG-3, REG-7, HLT-6).

How they fare while they are here is in `vitals.py`; how long their attempts wait for them, in `leases.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import drain, health
from reach.core.effects import AskReopen, CloseLink, Done, DrainLink, Noted, Refused, Turn, Welcome
from reach.core.health import Sign
from reach.core.instance_states import Availability, Health
from reach.core.joining import NO_BOOT_ID
from reach.core.leases import REATTACH_MS, RETURN_MS, lost
from reach.core.model import Fault, Instance, Task, TaskState
from reach.core.pieces import Kind
from reach.core.rows import AgentGone, AgentRow
from reach.core.states import TaskInput, next_state
from reach.core.stream import emit, log_of
from reach.core.warmup import STEPS
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.events import Drained, Joined, Left, LinkEnded, Reworded
    from reach.core.joining import Joining
    from reach.core.pool import Pool

STALE_BOOTS = 16


class Fleet:
    """The instances of one pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

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
        if instance is not None and joining.boot_id == instance.boot_id and 0 < joining.hello < instance.hello:
            message = f"{joining.instance_id!r} has said hello again since, by another stream"
            turn.sends.append(CloseLink(event.link, lost(message)))
            return
        if instance is not None and joining.boot_id == instance.boot_id and self._may_be_old(instance, event):
            instance.hello = joining.hello
            turn.sends.append(AskReopen(event.link))
            return
        if instance is None:
            instance = Instance(joining.instance_id, joining.profile, pool.key)
            instance.registered_wall_ms = turn.wall_ms
            instance.heartbeat_ms = pool.heartbeat_ms
            pool.instances[joining.instance_id] = instance
            pool.router.add(instance)
            pool.pins.ring.add(joining.instance_id)
        if instance.boot_id != joining.boot_id:
            self._next_generation(instance, joining, turn)
        self._update(instance, joining, event.revision, turn)
        if event.status and "ready" in event.status:
            instance.ready = event.status["ready"]
        pool.conditions.readiness(instance, turn)
        if event.status:
            pool.vitals.apply_status(instance, event.status, turn)
        pool.admission.place(instance, turn)  # before any of its attempts is routed anew
        if event.link is None:
            turn.sends.append(Done(event.reply, instance))
        else:
            self._attach(instance, event, turn)
        pool.vitals.proven(instance, "registered", turn)
        pool.scores.score(instance, turn)
        pool.slot_freed = True  # it may have more slots now, or match what it did not match before
        pool.vitals.check(instance, turn)
        turn.sends.append(Noted("registered", "", instance=instance))

    def _may_be_old(self, instance: Instance, event: Joined) -> bool:
        """Whether the first hello after a restart or a move lacks some of what ran before. Which numbers came by then
        nobody knows any more, so the agent is asked for another one, which nobody hears on a stream that is no more."""
        if not instance.hello < 0 < event.joining.hello:
            return False
        named = {(tenant, task_id) for tenant, task_id, *_ in event.running}
        return any(one.key not in named for one in (*instance.running.values(), *self.pool.questions.of(instance)))

    def _next_generation(self, instance: Instance, joining: Joining, turn: Turn) -> None:
        if instance.boot_id and instance.boot_id != NO_BOOT_ID:  # who says no process may be any, also the next
            instance.stale_boots = (*instance.stale_boots, instance.boot_id)[-STALE_BOOTS:]
        instance.boot_id = joining.boot_id
        instance.generation += 1
        instance.ready = joining.ready
        pool = self.pool
        pool.router.slow_start.place(instance.bit, STEPS)
        instance.begin(turn.now_ms)
        pool.circuits.renewed(instance)
        instance.health, instance.health_since_ms = Health.STARTING, turn.now_ms
        health.note(instance, Health.STARTING.name, f"process {instance.generation} joined", turn.wall_ms)
        instance.dialled = joining.dialled
        instance.foreign = 0
        instance.availability = Availability.READY
        instance.availability_until_ms = instance.drain_until_ms = 0
        instance.revision = 0  # a new row is due, though it may have registered with the same words
        message = f"instance {instance.instance_id!r} was replaced by a new process"
        if instance.link is not None:
            stale = Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_GENERATION, message)
            turn.sends.append(CloseLink(instance.link, stale))
            instance.link = None
        self.pool.admission.place(instance, turn)
        self.pool.held.free_all(instance, ())
        fault = lost(message)
        for task in (*instance.running.values(), *self.pool.questions.of(instance)):
            self.pool.delivery.give_up_attempt(task, fault, turn, lost=True)

    def _update(self, instance: Instance, joining: Joining, revision: int, turn: Turn) -> None:
        """Takes over what was said; what was not said stays (REG-3)."""
        pool = self.pool
        if joining.profile != instance.profile:
            pool.router.reprofile(instance, joining.profile)
        if joining.weight is not None:
            instance.weight = joining.weight
        if joining.priority is not None:
            instance.priority = joining.priority
        if joining.max_concurrency is not None:
            instance.max_concurrency = joining.max_concurrency
        if joining.max_sessions is not None:
            instance.max_sessions = joining.max_sessions
        pool.assignment.count_sessions(instance)
        if joining.heartbeat_ms is not None:
            instance.heartbeat_ms = joining.heartbeat_ms
        if joining.ready is not None:
            instance.ready = joining.ready
        pool.vitals.says(instance, joining.availability, 0, turn)
        instance.endpoint = joining.endpoint
        instance.warnings = joining.warnings
        registration = joining.completed(instance.registration)
        if registration != instance.registration or instance.revision == 0:
            instance.registration = registration
            instance.revision = revision
            self.keep(instance, turn)

    def keep(self, instance: Instance, turn: Turn) -> None:
        """Writes what of an instance outlives the process: what it registered, an operator's drain, its trial."""
        pool = self.pool
        row = AgentRow(
            pool.key.tenant,
            instance.instance_id,
            pool.key.agent_type,
            instance.boot_id,
            instance.generation,
            instance.stale_boots,
            instance.registration,
            instance.registered_wall_ms,
            instance.revision,
            turn.wall_ms + instance.drain_until_ms - turn.now_ms if instance.drain_until_ms else 0,
            pool.router.canary.standing(instance),
        )
        turn.writes.agents.append(row)

    def keep_trials(self, turn: Turn) -> None:
        """Trials began, ended or were given up: so the rows of those versions say (RTE-9)."""
        changed = self.pool.router.canary.take_changed()
        for instance in self.pool.instances.values():
            if (instance.profile.agent_id, instance.profile.version) in changed and instance.revision:
                self.keep(instance, turn)

    def reworded(self, event: Reworded, turn: Turn) -> None:
        """The vocabulary or the words of an instance's profile changed: it matches other tasks than before."""
        instance, pool = event.instance, self.pool
        if instance.bit >= 0:
            pool.router.reprofile(instance, event.profile)
            pool.slot_freed = True

    def _attach(self, instance: Instance, event: Joined, turn: Turn) -> None:
        """Opens the link. The hello is complete: attempts it does not name are not running."""
        pool = self.pool
        instance.link, instance.hello = event.link, event.joining.hello
        if instance.dialled is not event.joining.dialled:
            instance.dialled = event.joining.dialled
            pool.vitals.forget_probes(instance, turn)
        pool.conditions.attached(instance, turn)
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
                log = log_of(task, turn)
                log.said_again = True
                if not log.fold_whole:
                    task.attempt_sequence = 0  # what it came to begins anew, else it goes on where it is
                replay.append((tenant, task_id, attempt))
            elif last < task.attempt_sequence and task.log is not None:
                task.log.fold_whole = False  # it has ended there: whether more was said, only the outcome can tell
        turn.sends.append(Welcome(event.link, instance, instance.warnings, unknown, replay))
        if instance.drain_until_ms:  # also to who was not reached when it was drained
            turn.sends.append(DrainLink(event.link, max(0, instance.drain_until_ms - turn.now_ms)))
        pool.questions.attached(instance, named, turn)
        pool.held.free_all(instance, unknown)
        fault = lost(f"instance {instance.instance_id!r} came back without this attempt")
        for task in [task for key, task in instance.running.items() if key not in named]:
            if not task.outcome and not (task.state is TaskState.WAITING and instance.dialled):
                pool.delivery.give_up_attempt(task, fault, turn, lost=True)
                task.avoided = tuple(one for one in task.avoided if one != instance.instance_id)

    def _adopt(self, task: Task, instance: Instance, attempt: int, turn: Turn) -> bool:
        """The instance still runs the attempt: it goes on, also after we gave it up, unless another one began."""
        if task.attempt != attempt or task.instance_id != instance.instance_id:
            return False
        state = next_state(task.state, TaskInput.ADOPT)
        if state is None:
            return task.state is TaskState.WAITING
        self.pool.delivery.unqueue(task)
        if task.history and task.history[-1].number == attempt:  # so it was not lost: connections that break by the
            task.history.pop()  # dozen in a long attempt must not look like a task that kills its agents
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
            emit(task, Kind.STARTED, None, turn)
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
            for task in (*instance.running.values(), *self.pool.questions.of(instance)):
                wait = RETURN_MS if excused or event.unheard or task.effect_granted == task.attempt else REATTACH_MS
                task.lease_until_ms = turn.now_ms + wait
                self.pool.deadlines.arm(task, turn)
        else:
            self._lose(instance, event.why, turn)
        self.pool.admission.place(instance, turn)
        self.pool.vitals.check(instance, turn)

    def _lose(self, instance: Instance, why: str, turn: Turn) -> None:
        if health.move(instance, Sign.LOST, why, turn.now_ms, turn.wall_ms):
            turn.sends.append(Noted("health", "OFFLINE", instance=instance))
        self.pool.admission.place(instance, turn)
        fault = lost(f"instance {instance.instance_id!r} is gone: {why}")
        for task in (*instance.running.values(), *self.pool.questions.of(instance)):
            if task.effect_granted == task.attempt:
                task.lease_until_ms = turn.now_ms + RETURN_MS
                self.pool.deadlines.arm(task, turn)
            else:
                self.pool.delivery.give_up_attempt(task, fault, turn, lost=True)

    def leave(self, event: Left, turn: Turn) -> None:
        """An instance deregisters: its attempts move, its record goes."""
        instance = event.instance
        if event.generation == instance.generation:
            self._lose(instance, "it deregistered", turn)
            self.remove(instance, turn)
        if event.reply is not None:
            turn.sends.append(Done(event.reply))

    def remove(self, instance: Instance, turn: Turn) -> None:
        pool = self.pool
        if pool.instances.get(instance.instance_id) is not instance:
            return
        del pool.instances[instance.instance_id]
        pool.router.remove(instance)
        pool.pins.ring.remove(instance.instance_id)
        pool.wheel.disarm(instance)
        pool.scores.forget(instance)
        pool.admission.leave(instance, turn)
        instance.link = None
        turn.writes.agent_goes(AgentGone(pool.key.tenant, instance.instance_id, pool.key.agent_type))
        turn.sends.append(Noted("removed", "", instance=instance))

    def drain(self, event: Drained, turn: Turn) -> None:
        """An operator stops new work for an instance, or allows it again."""
        instance = event.instance
        if event.undo:
            drain.undo(instance, turn.wall_ms)
        else:
            drain.begin(instance, event.deadline_ms, turn.now_ms, turn.wall_ms)
            if instance.link is not None:
                turn.sends.append(DrainLink(instance.link, event.deadline_ms))
        self.keep(instance, turn)
        self.pool.admission.place(instance, turn)
        turn.sends.append(Noted("drained", "", instance=instance))
        turn.sends.append(Done(event.reply, instance.instance_id))
