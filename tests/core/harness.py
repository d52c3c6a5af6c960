"""A small fake shell around one pool: a clock by hand, sends sorted by kind, and the rows a journal would hold."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from reach.core import effects as fx
from reach.core import events as ev
from reach.core.dialogue import Ask, Input
from reach.core.handed import StreamRow, handed
from reach.core.joining import Joining
from reach.core.model import Fault, Instance, PoolKey, Profile, Requirement, Task, TaskState
from reach.core.pieces import Delta, Mode
from reach.core.pool import Pool
from reach.core.queue import WaitQueue
from reach.core.restore import restore_instance, restore_pin, restore_task, restore_trials
from reach.core.retry import POLICIES
from reach.core.routing import Router
from reach.core.row_numbers import RowNumbers
from reach.core.rows import AttemptRow, Writes, granted_of
from reach.core.session import Pins
from reach.core.stream import Interest, Reader
from reach.errors import ErrorClass, Reason

TENANT = "acme"
START_MS = 1_000_000
WALL_OFFSET = 1_700_000_000_000


def profile(agent_id: str = "echo", **parts: Any) -> Profile:
    empty: dict[str, Any] = {
        "version": "1",
        "capabilities": (("echo", "1"),),
        "methods": (),
        "tags": (),
        "languages": (),
        "input_media_types": (),
        "output_media_types": (),
        "region": "",
        "allowed_tenants": (),
    }
    return Profile(agent_id=agent_id, **{**empty, **parts})


def instance_of(name: str, slots: int = 1, inflight: int = 0, **parts: Any) -> Instance:
    """An instance outside of any pool, admitted."""
    made = Instance(name, profile(**parts), PoolKey(TENANT, "echo"))
    made.max_concurrency, made.inflight, made.blocked_by = slots, inflight, ""
    return made


def fault(error_class: ErrorClass, reason: Reason = Reason.AGENT_FAILED, retry_after_ms: int | None = None) -> Fault:
    return Fault(error_class, reason, "told so", None, retry_after_ms)


ASKED = ("requirement", "priority", "cost", "session", "effects", "retry", "schedule_to_start_ms", "start_to_close_ms",
         "schedule_to_close_ms", "silence_ms", "start_delay_ms")  # fmt: skip
LONG: dict[str, Any] = {"start_to_close_ms": 300_000}
UNAVAILABLE = (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE)


class Journal:
    """Rows as they were committed, by kind."""

    def __init__(self) -> None:
        self.rows = Writes()

    def commit(self, writes: Writes) -> None:
        self.rows.merge(writes)

    def of(self, kind: str, task: Task) -> list[Any]:
        return [row for row in getattr(self.rows, kind) if row.row == task.row]

    def reserved(self, row: int) -> int:
        kinds = (self.rows.tasks, self.rows.attempts, self.rows.reserves)
        return max(one.reserved for rows in kinds for one in rows if one.row == row)


class Shell:
    """One pool and what it asked for. Each act is a step of its own."""

    def __init__(self, seed: int = 7, queue: WaitQueue | None = None, overcommit: float = 1.0, ttl_ms: int = 720_000):
        self.now_ms = START_MS
        self.journal = Journal()
        self.sends: list[Any] = []
        self.joinings: dict[str, Joining] = {}
        self.asked: dict[int, Task] = {}
        """What is in the `spec` of each row, which the core never looks into."""
        self.seen: dict[int, list[tuple[int, int, int, int, Any]]] = {}
        self._names = 0
        self._seed, self._overcommit, self._ttl = seed, overcommit, ttl_ms
        self.pool = self._new_pool(RowNumbers(1), queue)

    def _new_pool(self, rows: RowNumbers, queue: WaitQueue | None = None) -> Pool:
        router, pins = Router(overcommit=self._overcommit), Pins(self._ttl)
        key = PoolKey(TENANT, "echo")
        return Pool(key, 5, rows, self._seed, lambda one, two: one.lower() == two.lower(), queue, router, pins)

    # -- stepping -----------------------------------------------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        return WALL_OFFSET + self.now_ms

    def step(self, *events: Any) -> list[Any]:
        turn = fx.Turn(self.now_ms, self.wall_ms)
        self.pool.step(events, turn)
        return self._perform(turn)

    def _perform(self, turn: fx.Turn) -> list[Any]:
        self.journal.commit(turn.writes)
        self.sends.extend(turn.sends)
        self.asked.update({task.row: task for task in turn.accepted})
        for send in turn.sends:
            if isinstance(send, fx.Events):
                self.seen.setdefault(send.reader.reference, []).extend(send.events)
            elif isinstance(send, fx.Forget):
                for task in send.tasks:
                    if self.pool.tasks.get(task.key) is task:
                        del self.pool.tasks[task.key]
        return turn.sends

    def advance(self, ms: int) -> list[Any]:
        """Lets time pass, waking the pool exactly when it asked to be woken; instances stay silent."""
        end, sends = self.now_ms + ms, []
        while (due := self.pool.next_wake_ms()) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            sends += self.step()
        self.now_ms = end
        return sends

    def advance_beating(self, ms: int, *instances: Instance, every_ms: int = 1_000) -> list[Any]:
        """Lets time pass while these instances beat."""
        sends = []
        for _ in range(0, ms, every_ms):
            sends += self.advance(min(every_ms, ms))
            sends += self.step(*(ev.Beat(one, {}) for one in instances))
        return sends

    def hand_over(self) -> list[Any]:
        """As `crash_and_load`, by an owner that said how far it had told its tasks."""
        return self.crash_and_load({row.row: row for row in handed(self.pool.tasks.values())})

    def crash_and_load(self, streams: Mapping[int, StreamRow] = MappingProxyType({})) -> list[Any]:
        """The process ends; a new one loads what was committed: instances without links, pins, tasks that go on."""
        rows = self.journal.rows
        ended = {row.row for row in rows.outcomes}
        self.pool = self._new_pool(RowNumbers(1 + max((row.row for row in rows.tasks), default=0)))
        turn = fx.Turn(self.now_ms, self.wall_ms)
        gone = {row.instance_id for row in rows.agents_gone}
        agents = [row for row in {row.instance_id: row for row in rows.agents}.values() if row.instance_id not in gone]
        for agent in sorted(agents, key=lambda row: row.revision):
            restore_instance(self.pool, agent, self.joinings[agent.instance_id], turn)
        restore_trials(self.pool, agents)
        for pin in rows.pins:
            restore_pin(self.pool, pin, turn)
        loaded = []
        for row in rows.tasks:
            if row.row in ended:
                continue
            task = Task(row.tenant, row.task_id, row.spec, Requirement())
            for field in ASKED:
                setattr(task, field, getattr(self.asked[row.row], field))
            task.row, task.accepted_wall_ms = row.row, row.accepted_wall_ms
            task.reserved = self.journal.reserved(row.row)
            task.effect_granted = granted_of([one.number for one in rows.effects if one.row == row.row])
            attempts = [one for one in rows.attempts if one.row == row.row]
            if row.attempt:
                first = AttemptRow(row.row, row.shard, row.attempt, row.instance_id, row.agent_id, row.generation,
                                   row.accepted_wall_ms, row.reserved)  # fmt: skip
                attempts.insert(0, first)
            failures = [one for one in rows.failures if one.row == row.row]
            questions = [one for one in rows.questions if one.row == row.row]
            inputs = [one for one in rows.inputs if one.row == row.row]
            restore_task(self.pool, task, attempts, failures, turn, questions, inputs, streams.get(row.row))
            loaded.append(task)
        self._perform(turn)
        return loaded

    # -- instances ----------------------------------------------------------------------------------------------------

    def joined(self, name: str, boot: str = "b1", link: str | None = "", slots: int | None = None, **parts: Any):
        """The event of an instance that says hello; `link` None: it registers by a plain call."""
        running = parts.pop("running", None)
        reply = parts.pop("reply", None)
        status = parts.pop("status", None)
        described = {key: parts.pop(key) for key in list(parts) if key in Profile._fields}
        joining = Joining(name, boot, profile(**described), parts.pop("registration", b"reg"))
        joining.max_concurrency, joining.ready = slots, True
        for key, value in parts.items():
            setattr(joining, key, value)
        if link == "":
            self._names += 1
            link = f"link {self._names} to {name}"
        self.joinings[name] = joining
        return ev.Joined(joining, 1 + len(self.journal.rows.agents), link, running, status, reply)

    def join(self, name: str = "one", boot: str = "b1", **parts: Any) -> Any:
        self.step(self.joined(name, boot, **parts))
        return self.pool.instances[name]

    def lose(self, instance: Instance, ours: bool = False, unheard: bool = False) -> list[Any]:
        return self.step(ev.LinkEnded(instance, instance.link, ours, unheard=unheard))

    # -- tasks --------------------------------------------------------------------------------------------------------

    def task(self, task_id: str = "", **fields: Any) -> Task:
        self._names += 1
        made = Task(fields.pop("tenant", TENANT), task_id or f"t{self._names}", fields.pop("spec", b"do it"),
                    fields.pop("requirement", Requirement()))  # fmt: skip
        if isinstance(fields.get("retry"), str):
            fields["retry"] = POLICIES[fields["retry"]]
        for key, value in fields.items():
            setattr(made, key, value)
        return made

    def reader(self, interest: Interest = Interest.EVENTS, after: int = 0) -> Reader:
        self._names += 1
        return Reader(None, self._names, interest, after)

    def submit(self, task_id: str = "", reader: Reader | None = None, **fields: Any) -> Any:
        made = self.task(task_id, **fields)
        self.step(ev.Submitted(made, reader or self.reader(Interest.ACCEPTANCE)))
        return made

    # -- what agents say of the current attempt, or of another one ----------------------------------------------------

    def _name(self, task: Task, instance: Instance | None, attempt: int | None) -> tuple[Instance, str, str, int]:
        speaker = instance or task.instance
        assert speaker is not None, "say which instance"
        return speaker, task.tenant, task.task_id, task.attempt if attempt is None else attempt

    def take_up(self, task: Task, instance: Instance | None = None, attempt: int | None = None) -> list[Any]:
        return self.step(ev.TakenUp(*self._name(task, instance, attempt)))

    def progress(self, task: Task, checkpoint: bytes | None = None, instance: Instance | None = None) -> list[Any]:
        return self.step(ev.Progressed(*self._name(task, instance, None), None, "", checkpoint))

    def delta(self, task: Task, number: int, text: str | bytes = "x", *, channel: str = "", replace: bool = False,
              instance: Instance | None = None, attempt: int | None = None) -> list[Any]:  # fmt: skip
        piece = Delta(channel, Mode.REPLACE if replace else Mode.APPEND, "text/plain", text)
        return self.step(ev.DeltaCame(*self._name(task, instance, attempt), number, piece))

    def reported(self, task: Task, content: Any = "done", *, instance: Instance | None = None,
                 attempt: int | None = None, error: Any = None, **fields: Any) -> ev.Reported:  # fmt: skip
        event = ev.Reported(*self._name(task, instance, attempt))
        if error is not None:
            event.fault = error if isinstance(error, Fault) else fault(*error)
        elif not fields:
            event.content = content
        for key, value in fields.items():
            setattr(event, key, value)
        return event

    def report(self, task: Task, content: Any = "done", **fields: Any) -> list[Any]:
        return self.step(self.reported(task, content, **fields))

    def ask_effect(self, task: Task, instance: Instance | None = None, attempt: int | None = None) -> list[Any]:
        return self.step(ev.EffectAsked(*self._name(task, instance, attempt), "pay"))

    def ask(self, task: Task, text: str = "May I?", name: str = "", **fields: Any) -> list[Any]:
        asked = Ask(1, "text/plain", text, name, fields.pop("timeout_ms", None))
        return self.step(self.reported(task, waiting=asked, **fields))

    def answer(self, task: Task, text: str = "yes", input_id: str = "", question: str = "") -> list[Any]:
        self._names += 1
        given = Input(input_id or f"i{self._names}", "", "text/plain", text)
        return self.step(ev.InputCame(task.tenant, task.task_id, given, question, "reply"))

    def cancel(self, task: Task, reason: str = "") -> list[Any]:
        return self.step(ev.Cancelled(task.tenant, task.task_id, reason, "reply"))

    # -- looking ------------------------------------------------------------------------------------------------------

    def read(self, task: Task, after: int = 0, credit: int | None = None) -> Reader:
        reader = self.reader(after=after)
        if credit is not None:
            reader.credit = credit
        self.step(ev.Subscribed(task.tenant, task.task_id, reader))
        return reader

    def kinds(self, reader: Reader) -> list[int]:
        return [event[3] for event in self.seen.get(reader.reference, [])]

    def numbers(self, reader: Reader) -> list[int]:
        return [event[0] for event in self.seen.get(reader.reference, [])]


def only(sends: Iterable[Any], kind: type) -> Any:
    """The one send of a kind."""
    found = of(sends, kind)
    assert len(found) == 1, found
    return found[0]


def of(sends: Iterable[Any], kind: type) -> list[Any]:
    return [send for send in sends if type(send) is kind]


def heads_of(queue: WaitQueue, now_ms: int = 0) -> list[Any]:
    """The first task of each line, the one whose turn it is first."""
    return [queue.head(kind, now_ms) for _, _, kind in sorted(queue.kinds(now_ms))]


def outcome_of(task: Task) -> Any:
    assert task.outcome is not None, task
    assert task.state is task.outcome.state
    return task.outcome


def ended(task: Task, state: TaskState, reason: Reason | None = None) -> None:
    """The task ended so."""
    outcome = outcome_of(task)
    assert outcome.state is state
    assert (outcome.fault.reason if outcome.fault else None) == reason


def running(*names: str, **fields: Any) -> tuple[Shell, Any, Any]:
    """A shell, a running task on the first of some instances, and that instance."""
    shell = Shell()
    first = shell.join(names[0])
    task = shell.submit(**{**LONG, **fields})
    shell.take_up(task)
    for name in names[1:]:
        shell.join(name)
    return shell, task, first


def named(task: Task, attempt: int | None = None, last: int = 0) -> list[tuple[str, str, int, int]]:
    """The task as a hello names it."""
    return [(task.tenant, task.task_id, task.attempt if attempt is None else attempt, last)]
