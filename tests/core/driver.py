"""A hostile world around one pool: agents and callers that say anything, in any order, at any time."""

from random import Random
from typing import Any

from reach.core import drain
from reach.core import effects as fx
from reach.core import events as ev
from reach.core.instance_states import Availability
from reach.core.model import Instance, Requirement, Task, TaskState
from reach.core.pieces import Delta, Mode
from reach.core.queue import WaitQueue
from reach.core.stream import Interest, Reader
from reach.errors import ErrorClass, Reason
from tests.core import invariants
from tests.core.harness import TENANT, Shell, fault

NAMES = ("a", "b", "c", "d")
EVERYTHING: dict[str, Any] = {"tags": ("gpu",), "capabilities": (("echo", "1"), ("sum", "1"))}
REQUIREMENTS = (
    Requirement(),
    Requirement(),
    Requirement(capability="sum"),
    Requirement(required_tags=("gpu",)),
    Requirement(instance_id="a"),
)
FAULTS = (
    (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE),
    (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY),
    (ErrorClass.TIMEOUT, Reason.START_TO_CLOSE),
    (ErrorClass.INTERNAL, Reason.AGENT_CRASHED),
    (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED),
    (ErrorClass.INVALID_REQUEST, Reason.CANCELLED),
    (ErrorClass.INVALID_REQUEST, Reason.AGENT_REJECTED),
)


class Driver:
    """Does one random thing after another and checks everything after each."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.shell = Shell(random.randrange(99), WaitQueue(max_tasks=10), random.choice((1.0, 1.5)), 60_000)
        self.everyone: list[Instance] = []
        self.tasks: list[Task] = []
        self.readers: list[tuple[Reader, int]] = []
        self.links: list[tuple[Instance, str]] = []
        self.ends: dict[int, tuple[TaskState, Any]] = {}
        self.offered: dict[int, int] = {}
        self.taken: list[Task] = []
        self.boots = 0
        self.acts = [self.submit] * 5 + [self.say] * 14 + [self.join] * 4 + [self.end_link] * 2 + [self.beat] * 3
        self.acts += [
            self.cancel,
            self.leave,
            self.drain,
            self.subscribe,
            self.subscribe,
            self.credit,
            self.unsubscribe,
            self.probe,
            self.probe,
            self.check_up,
            self.reword,
        ]

    # -- events -------------------------------------------------------------------------------------------------------

    def submit(self) -> list[Any]:
        r = self.random
        task_id = f"t{r.randrange(40)}" if r.random() < 0.3 else f"t{len(self.tasks) + 100}"
        task = self.shell.task(task_id, requirement=r.choice(REQUIREMENTS), cost=r.choice((1, 1, 1, 2, 5)))
        task.volatile, task.priority = r.random() < 0.2, r.randrange(10)
        task.session = r.choice(("", "", "s1", "s2"))
        task.policy = r.choice(("", "", "capability", "least_connections", "round_robin", "consistent_hash"))
        task.start_delay_ms = r.choice((0, 0, 0, 2_000))
        task.schedule_to_start_ms = r.choice((None, None, 3_000))
        task.start_to_close_ms = r.choice((None, 1_000, 20_000))
        task.schedule_to_close_ms = r.choice((None, None, 10_000))
        task.silence_ms = r.choice((None, None, 2_000))
        task.spec = r.choice((b"do it", b"DO IT", b"other"))
        return [ev.Submitted(task, self.reader(r.choice(list(Interest)), 0))]

    def reader(self, interest: Interest, after: int) -> Reader:
        reader = self.shell.reader(interest, after)
        reader.credit = self.random.choice((1, 200, 1 << 20))
        self.readers.append((reader, after))
        return reader

    def join(self) -> list[Any]:
        r = self.random
        name = r.choice(NAMES)
        known = self.shell.pool.instances.get(name)
        boots = [known.boot_id, known.boot_id, *known.stale_boots] if known is not None else []
        self.boots += 1
        boot = r.choice([*boots, f"boot {self.boots}"])
        parts = {
            "heartbeat_ms": r.choice((None, 1_000, 5_000)),
            "ready": r.choice((True, True, None, False)),
            "dialled": r.random() < 0.3,
            **r.choice((EVERYTHING, {})),
        }
        event = self.shell.joined(name, boot, r.choice(("", "", "", None)), r.choice((None, 1, 2, 4)), **parts)
        ours = list(known.running.values()) if known is not None else []
        lies = r.sample(self.tasks, min(len(self.tasks), 2))
        for task in [task for task in ours if r.random() < 0.8] + (lies if r.random() < 0.3 else []):
            event.running.append((task.tenant, task.task_id, r.choice((task.attempt, task.attempt, 1)), r.randrange(3)))
        return [event]

    def end_link(self) -> list[Any]:
        if not self.links:
            return []
        instance, link = self.random.choice(self.links[-6:])
        return [ev.LinkEnded(instance, link, self.random.random() < 0.4)]

    def someone(self) -> Instance | None:
        return self.random.choice(self.everyone[-8:]) if self.everyone else None

    def beat(self) -> list[Any]:
        one, r = self.someone(), self.random
        status: dict[str, Any] = {}
        if r.random() < 0.3:
            status["ready"] = r.random() < 0.7
        if r.random() < 0.3:
            status["availability"] = r.choice(list(Availability))
        if r.random() < 0.2:
            status["max_concurrency"] = r.randrange(0, 4)
        if r.random() < 0.2:
            status["consecutive_failure_count"] = r.randrange(5)
        if r.random() < 0.1:
            status["loop_stalled"] = r.choice((0, 1_500))
        if r.random() < 0.1:
            status["longest_task"] = 20_000
        frames = (r.randrange(9), r.randrange(9)) if r.random() < 0.3 else (0, 0)
        return [ev.Beat(one, status, *frames)] if one is not None else []

    def probe(self) -> list[Any]:
        one, ok = self.someone(), self.random.random() < 0.5
        return [ev.Probed(one, ok, 3.0, "" if ok else "no answer")] if one is not None else []

    def check_up(self) -> list[Any]:
        one, r = self.someone(), self.random
        status = {"ready": r.random() < 0.7}
        return [ev.Checked(one, r.random() < 0.7, status, 0.5, "it errs")] if one is not None else []

    def leave(self) -> list[Any]:
        one = self.someone()
        return [ev.Left(one)] if one is not None and self.random.random() < 0.4 else []

    def drain(self) -> list[Any]:
        one = self.someone()
        return (
            [ev.Drained(one, self.random.choice((0, 5_000)), self.random.random() < 0.6, None)]
            if one is not None
            else []
        )

    def reword(self) -> list[Any]:
        one = self.someone()
        return [ev.Reworded(one, one.profile._replace(version=self.random.choice("12")))] if one is not None else []

    def cancel(self) -> list[Any]:
        task_id = self.random.choice(self.tasks).task_id if self.tasks else "unknown"
        return [ev.Cancelled(TENANT, task_id, "", "reply")]

    def subscribe(self) -> list[Any]:
        if not self.tasks:
            return []
        task = self.random.choice(self.tasks[-10:])
        reader = self.reader(self.random.choice(list(Interest)), self.random.randrange(0, task.sequence + 2))
        return [ev.Subscribed(task.tenant, task.task_id, reader)]

    def credit(self) -> list[Any]:
        return [ev.Credited(self.random.choice(self.readers)[0], 500)] if self.readers else []

    def unsubscribe(self) -> list[Any]:
        return [ev.Unsubscribed(self.random.choice(self.readers)[0])] if self.readers else []

    def say(self) -> list[Any]:
        """An agent says something, mostly of what it runs, sometimes of anything."""
        r = self.random
        running = [task for one in self.shell.pool.instances.values() for task in one.running.values()]
        if running and r.random() < 0.8:
            task = r.choice(running)
            one, attempt = task.instance, task.attempt
        elif self.tasks and self.everyone:
            task, one = r.choice(self.tasks), self.someone()
            if r.random() < 0.5:
                one = self.shell.pool.instances.get(task.instance_id) or one
            attempt = r.choice((task.attempt, task.attempt, 1, task.attempt + 1))
        else:
            return []
        assert one is not None
        name = (one, task.tenant, task.task_id, attempt)
        kind = r.randrange(9)
        if kind == 0:
            return [ev.TakenUp(*name)]
        if kind in (1, 2):
            number = r.choice((task.attempt_sequence + 1, task.attempt_sequence + 1, 1, task.attempt_sequence + 3))
            piece = Delta(r.choice(("", "x")), r.choice(list(Mode)), "", r.choice(("ü" * 30, "y" * 3_000, b"z")))
            return [ev.DeltaCame(*name, number, piece)]
        if kind == 3:
            return [ev.Progressed(*name, 0.5, "", r.choice((None, b"half")))]
        if kind == 4 and r.random() < 0.3:
            return [ev.EffectAsked(*name, "pay")]
        if kind == 5:
            return [ev.LeaseExtended(*name, "reply")]
        report = ev.Reported(*name)
        how = r.randrange(8)
        if how < 3:
            report.content = "done"
        elif how < 6:
            report.fault = fault(*r.choice(FAULTS), retry_after_ms=r.choice((None, 1_000)))
        elif how == 6:
            report.released = "drain"
        else:
            report.folded = r.choice((0, task.attempt_sequence))
        return [report]

    # -- steps --------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for _ in range(steps):
            choice = self.random.random()
            if choice < 0.80:
                events = [
                    event for _ in range(self.random.choice((1, 1, 1, 3))) for event in self.random.choice(self.acts)()
                ]
                self.step(events + events[:1] if self.random.random() < 0.05 else events)
            elif choice < 0.97:
                self.let_pass(self.random.choice((1, 30, 300, 1_500, 4_000)))
            elif choice < 0.99:
                self.shell.now_ms += self.random.choice((2_000, 40_000, 400_000))  # nobody woke us in time
                self.step([])
            else:
                self.crash()

    def let_pass(self, ms: int) -> None:
        end = self.shell.now_ms + ms
        while (due := self.shell.pool.next_wake_ms()) is not None and due <= end:
            self.shell.now_ms = max(self.shell.now_ms, due)
            self.step([])
        self.shell.now_ms = end

    def step(self, events: list[Any]) -> None:
        taken, self.taken = self.taken, []
        before = self.shell.pool.next_wake_ms()
        late = (
            before is not None and before <= self.shell.now_ms
        )  # in such a step an instance may be judged after it was chosen
        sends = self.shell.step(*(ev.RowTaken(task) for task in taken), *events)
        due = self.shell.pool.next_wake_ms()
        if due is not None and due <= self.shell.now_ms:
            sends += self.shell.step()
            due = self.shell.pool.next_wake_ms()
            assert due is None or due > self.shell.now_ms, "it would spin"
        self.everyone += [one for one in self.shell.pool.instances.values() if one not in self.everyone]
        for one in self.shell.pool.instances.values():
            if one.link is not None and (one, one.link) not in self.links:
                self.links.append((one, one.link))
        self._accept(events)
        for send in sends:
            if isinstance(send, fx.Offer):
                self._offered(send, events, late or len(events) > 1)
        self.check()

    def _accept(self, events: list[Any]) -> None:
        """What the journal would say of new rows: an id that it has is taken."""
        rows = self.shell.journal.rows
        known = {(row.tenant, row.task_id): row.row for row in reversed(rows.tasks)}
        for event in events:
            if isinstance(event, ev.Submitted) and event.task.row:
                if known.get(event.task.key, event.task.row) != event.task.row:
                    self.taken.append(event.task)
                else:
                    self.tasks.append(event.task)
        if self.taken:
            gone = {task.row for task in self.taken}
            for kind in ("tasks", "attempts", "failures", "outcomes", "reserves", "effects", "checkpoints"):
                setattr(rows, kind, [row for row in getattr(rows, kind) if row.row not in gone])

    def _offered(self, offer: fx.Offer, events: list[Any], mixed: bool) -> None:
        assert offer.attempt > self.offered.get(offer.task.row, 0), "each attempt is offered once"
        self.offered[offer.task.row] = offer.attempt
        assert offer.link is not None
        one = offer.instance
        if not mixed:
            old = offer.task.session and drain.keeps_sessions(one, self.shell.now_ms)
            assert old or not one.blocked_by or one.suspected, one  # what ended a panic may have come after it
            if not events or not isinstance(events[0], ev.Joined | ev.Beat):
                limit = int(one.max_concurrency * self.shell.pool.router.overcommit)
                assert one.inflight <= max(limit, offer.task.cost), one

    def check(self) -> None:
        invariants.check(self.shell.pool, self.everyone)
        invariants.check_rows(self.shell.journal.rows)
        for task in self.tasks:
            if task.outcome is not None:
                first = self.ends.setdefault(task.row, (task.state, task.outcome))
                assert (task.state, task.outcome) == first, "the first outcome wins"
        for reader, after in self.readers:
            invariants.check_events(self.shell.seen.get(reader.reference, []), after)

    def crash(self) -> None:
        """All that was accepted and has not ended goes on; the rest of memory is gone."""
        before = {task.row for task in self.tasks if not task.volatile and task.outcome is None}
        self.step([])
        known = {task.row: task for task in self.tasks}
        before -= {row for row in before if known[row].outcome is not None}
        loaded = self.shell.crash_and_load() if self.random.random() < 0.5 else self.shell.hand_over()
        assert {task.row for task in loaded} == before
        written = {row.row for row in self.shell.journal.rows.tasks}  # other numbers may be given again
        self.ends = {row: end for row, end in self.ends.items() if row in written}
        self.offered = {row: number for row, number in self.offered.items() if row in written}
        self.tasks, self.readers, self.links, self.taken = loaded, [], [], []
        self.everyone = list(self.shell.pool.instances.values())

    # -- healing ------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Every instance comes back anew, able to do all, and answers: then every task ends (P1, liveness)."""
        for name in NAMES:
            self.boots += 1
            self.step([self.shell.joined(name, f"boot {self.boots}", slots=3, ready=True, **EVERYTHING)])
        for _ in range(120):
            self.let_pass(1_000)
            instances = self.shell.pool.instances.values()
            beats: list[Any] = [ev.Beat(one, {"ready": True}) for one in instances]
            self.step(beats + [self.shell.reported(task) for one in instances for task in one.running.values()])
            if all(task.outcome is not None for task in self.tasks):
                break
        assert [task for task in self.tasks if task.outcome is None] == []
        self.let_pass(10_000)
        assert not self.shell.pool.queue
        assert {one.inflight for one in self.shell.pool.instances.values()} == {0}
        durable = {row.row for row in self.shell.journal.rows.outcomes}
        assert durable == {row.row for row in self.shell.journal.rows.tasks}
