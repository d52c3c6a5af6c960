"""One pool: all instances of one (owning tenant, agent_type), and the tasks that are theirs to do.

`step(events, turn)` is the whole interface: what happened goes in, what is to be written and sent comes out in the
turn. One pool has one owner, so its in-flight counts are exact without asking anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from reach.core import events as ev
from reach.core.admission import Admission
from reach.core.assignment import Assignment
from reach.core.at_hand import PENDING
from reach.core.backlog import Backlog
from reach.core.circuit import Circuit, Circuits
from reach.core.conditions import Conditions
from reach.core.deadlines import Deadlines
from reach.core.delivery import Delivery
from reach.core.effects import AskJournal, Done, Then, Turn
from reach.core.finished import Finished
from reach.core.fleet import Fleet
from reach.core.handoff import Handoffs
from reach.core.health import THRESHOLDS
from reach.core.held import Held, HeldSlots
from reach.core.leases import Leases
from reach.core.model import FIRST_TERMINAL, Instance, PoolKey, Task, TaskKey
from reach.core.questions import Questions
from reach.core.queue import WaitQueue
from reach.core.reports import Reports
from reach.core.retry import RetryBudget
from reach.core.routing import Router
from reach.core.row_numbers import RowNumbers
from reach.core.scores import Scores
from reach.core.session import PIN_WAIT_MS, Pins
from reach.core.stream import flush, unsubscribe
from reach.core.turns import pump
from reach.core.vitals import Vitals
from reach.core.wake import Waker
from reach.core.wheel import TimerWheel

STALLED_MS = 1_000
"""A timer this late means that we ourselves stood still: for as long afterwards we hear what was said meanwhile, and
judge nobody by what we could not hear."""
PEERS_PATIENCE_MS = 4_000
"""A peer gives up its connection when a ping has no answer for 5 s; so if we stood still for about that long, links
that end right afterwards end by our doing."""


class Pool:
    """See the module."""

    __slots__ = (
        "_handlers", "admission", "assignment", "backlog", "budget", "circuits", "conditions", "dead_letters",
        "deadlines", "delivery", "dirty", "excused_until_ms", "finished", "fleet", "handoffs", "heartbeat_ms", "held",
        "instances", "judge_from_ms", "key", "late_outcomes", "leases", "names_cost", "pin_wait_ms", "pins",
        "questions", "queue", "reports", "router", "rows", "same_content", "scores", "seed", "shard", "slot_freed",
        "tasks", "thresholds", "vitals", "waker", "wheel",
    )  # fmt: skip

    def __init__(
        self,
        key: PoolKey,
        shard: int,
        rows: RowNumbers,
        seed: int,
        same_content: Callable[[bytes, bytes], bool],
        queue: WaitQueue | None = None,
        router: Router | None = None,
        pins: Pins | None = None,
        tasks: dict[TaskKey, Task] | None = None,
    ) -> None:
        self.key = key
        self.shard = shard
        self.rows = rows
        self.seed = seed
        self.same_content = same_content
        self.instances: dict[str, Instance] = {}
        self.tasks: dict[TaskKey, Task] = tasks if tasks is not None else {}
        """All of the node, whatever their pool: a task is in one pool at a time, and says in which."""
        self.queue = queue if queue is not None else WaitQueue()
        self.router = router if router is not None else Router()
        self.pins = pins if pins is not None else Pins()
        self.wheel = TimerWheel()
        self.judge_from_ms = self.excused_until_ms = 0
        self.budget = RetryBudget()
        self.fleet = Fleet(self)
        self.vitals = Vitals(self)
        self.conditions = Conditions(self)
        self.admission = Admission(self)
        self.leases = Leases(self)
        self.scores = Scores(self)
        self.circuits = Circuits(self)
        self.assignment = Assignment(self)
        self.deadlines = Deadlines(self)
        self.delivery = Delivery(self)
        self.reports = Reports(self)
        self.dirty: dict[int, Task] = {}
        self.names_cost: Callable[[bytes], bool] = lambda _: False  # whether a request says how many slots it takes
        self.slot_freed = False
        self.heartbeat_ms = 5_000
        """How often an instance beats that does not ask for another interval."""
        self.thresholds = THRESHOLDS
        self.waker: Waker | None = None
        """Its wake hook, if it has one."""
        self.dead_letters = True
        """What is given up becomes a dead letter; else it is merely FAILED."""
        self.pin_wait_ms = PIN_WAIT_MS
        """How long a task waits for the full instance of its session before it may go elsewhere."""
        self.late_outcomes = 0
        self.finished = Finished()
        self.held = Held(self)
        self.handoffs = Handoffs(self)
        self.questions = Questions(self)
        self.backlog = Backlog(self)
        self._handlers: dict[type, Callable[[Any, Turn], None]] = {
            ev.Submitted: lambda event, turn: self.delivery.accept(event.task, event.reader, turn),
            ev.Placed: lambda event, turn: self.delivery.accept(event.task, event.reader, turn, event.placing),
            ev.Repeated: self._repeated,
            ev.Reported: self.reports.reported,
            ev.TakenUp: self.reports.taken_up,
            ev.DeltaCame: self.reports.delta_came,
            ev.Progressed: self.reports.progressed,
            ev.Beat: self.vitals.beat,
            ev.Probed: self.vitals.probed,
            ev.Checked: self.vitals.checked,
            ev.WakeAnswered: self.admission.wake_answered,
            ev.Joined: self.fleet.join,
            ev.LinkEnded: self.fleet.link_ended,
            ev.Left: self.fleet.leave,
            ev.Drained: self.fleet.drain,
            ev.EffectAsked: self.reports.effect_asked,
            ev.LeaseExtended: self.reports.lease_extended,
            ev.Cancelled: self._cancelled,
            ev.InputCame: self.questions.answered,
            ev.Subscribed: self._subscribed,
            ev.Unsubscribed: lambda event, turn: unsubscribe(event.reader),
            ev.Credited: self._credited,
            ev.SessionForgotten: self.handoffs.forget,
            ev.SnapshotCame: self.handoffs.came,
            ev.Arrived: self.assignment.arrived,
            ev.Refuted: lambda event, turn: self.delivery.refute(event.task, event.fault, turn),
            ev.Respecified: self.assignment.respecified,
            ev.Reworded: self.fleet.reworded,
            ev.RowTaken: lambda event, turn: self.delivery.undo(event.task, turn),
        }

    def step(self, events: Iterable[Any], turn: Turn) -> None:
        """Applies what happened, then what is due, then gives freed slots to those who wait."""
        due_ms = self.wheel.next_ms()
        if due_ms is not None and turn.now_ms - due_ms > STALLED_MS:
            self.stood_still(turn.now_ms - due_ms, turn)
        self.scores.refresh(turn)
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event, turn)
        if due_ms is not None and due_ms <= turn.now_ms:
            self._due(turn)
        if self.slot_freed:
            self.slot_freed = False
            if self.questions.resuming:
                self.questions.resume(turn)
            if self.queue:
                pump(self, turn)
            if self.backlog.told:
                self.backlog.look(turn)
        self.router.place_freed()
        if self.dirty:
            for task in self.dirty.values():
                flush(task, turn)
            self.dirty.clear()
        if self.router.canary.changed:
            self.fleet.keep_trials(turn)
        self.finished.drop(turn)

    def stood_still(self, stalled_ms: int, turn: Turn) -> None:
        """We could hear nobody for a while."""
        self.judge_from_ms = turn.now_ms + STALLED_MS
        if stalled_ms >= PEERS_PATIENCE_MS:
            self.excused_until_ms = turn.now_ms + STALLED_MS
        self.vitals.forgive(turn)

    def next_wake_ms(self) -> int | None:
        """When `step` should be called at the latest, though nothing happens."""
        return self.wheel.next_ms()

    def _due(self, turn: Turn) -> None:
        for entry in self.wheel.due(turn.now_ms):
            if isinstance(entry, Task):
                if entry.state is not PENDING and turn.now_ms < self.judge_from_ms:
                    self.wheel.arm(entry, self.judge_from_ms)
                else:
                    self.deadlines.due(entry, turn)
            elif isinstance(entry, Instance):
                self.vitals.due(entry, turn)
            elif isinstance(entry, HeldSlots):
                self.held.free(entry)
            elif isinstance(entry, Circuit):
                self.circuits.due(entry)
            elif isinstance(entry, Waker):
                entry.due(turn)

    def find(self, tenant: str, task_id: str) -> Task | None:
        """A task of this pool; those of others are none of its agents' business, and one without a row is not taken in
        yet, or is undone."""
        task = self.tasks.get((tenant, task_id))
        return task if task is not None and task.pool is self and task.row > 0 else None

    # -- what callers say ---------------------------------------------------------------------------------------------

    def _repeated(self, event: ev.Repeated, turn: Turn) -> None:
        known = self.find(*event.task.key)
        if known is None:
            turn.sends.append(Then(event.again))
        else:
            self.delivery.accept_again(known, event.task, event.reader, turn)

    def _cancelled(self, event: ev.Cancelled, turn: Turn) -> None:
        task = self.find(event.tenant, event.task_id)
        if task is None:
            turn.sends.append(AskJournal(None, event.tenant, event.task_id, 0, event.reply))
            return
        if task.state < FIRST_TERMINAL:
            self.delivery.cancel(task, event.reason, turn)
        turn.sends.append(Done(event.reply, task))

    def _subscribed(self, event: ev.Subscribed, turn: Turn) -> None:
        task = self.find(event.tenant, event.task_id)
        if task is None:
            turn.sends.append(AskJournal(None, event.tenant, event.task_id, 0, event.reader))
        else:
            self.delivery.subscribe(task, event.reader, turn)

    def _credited(self, event: ev.Credited, turn: Turn) -> None:
        event.reader.credit += event.bytes
        if (task := event.reader.task) is not None and task.log is not None:
            self.dirty[id(task)] = task

    def waiting(self) -> list[Task]:
        """Its tasks that wait for an instance, or for their time to come."""
        return [*self.queue, *self.queue.delayed()]

    def hand_over(self, task: Task, to: Pool) -> None:
        """Gives a waiting task to another pool; that pool goes on when it hears of it (`Arrived`)."""
        self.queue.remove(task)
        self.wheel.disarm(task)
        task.pool = to
