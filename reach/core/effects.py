"""Everything a pool may ask of the shell to send.

A step collects into one `Turn`: rows for the group commit (`core/rows.py`), and `sends` in order. **Journal, then
send**: the shell performs the sends only after the rows (and the commit that was open before) are durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reach.core.model import Fault, Instance, Outcome, PoolKey, Task
from reach.core.rows import Writes
from reach.core.spread import Placing
from reach.errors import Reason


class Offer:
    """Send the task's current attempt to its instance.

    The effect refers to the task; the shell sends it in the same turn as the commit ends and drops it if the attempt
    is no longer current by then.
    """

    __slots__ = ("attempt", "instance", "link", "task")

    def __init__(self, task: Task, instance: Instance) -> None:
        self.task = task
        self.attempt = task.attempt
        self.instance = instance
        self.link = instance.link


class StopAttempt:
    """Tell an instance to stop working on an attempt."""

    __slots__ = ("attempt", "link", "reason", "task_id", "tenant")

    def __init__(self, link: Any, tenant: str, task_id: str, attempt: int, reason: Reason) -> None:
        self.link = link
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.reason = reason


class Acknowledge:
    """Tell an instance that the outcome of an attempt is committed."""

    __slots__ = ("attempt", "link", "task_id", "tenant")

    def __init__(self, link: Any, tenant: str, task_id: str, attempt: int) -> None:
        self.link = link
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt


class RefuseItem:
    """Tell an instance that something about an attempt was refused."""

    __slots__ = ("attempt", "fault", "link", "task_id", "tenant")

    def __init__(self, link: Any, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        self.link = link
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.fault = fault


class GrantEffect:
    """Answer to a request to begin an effect; `fault` is None if it is granted."""

    __slots__ = ("attempt", "effect", "fault", "link", "task_id", "tenant")

    def __init__(self, link: Any, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        self.link = link
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.effect = effect
        self.fault = fault


class GiveInput:
    """Give an attempt that waited the answer to its question: it has a slot again.

    As an offer it is dropped if the attempt is no longer current when the commit ends.
    """

    __slots__ = ("attempt", "input", "instance", "link", "task")

    def __init__(self, task: Task, given: Any) -> None:
        self.task = task
        self.attempt = task.attempt
        self.instance: Instance = task.instance
        self.link = self.instance.link
        self.input = given
        """A `questions.Input`."""


class CreditAttempt:
    """Give an attempt room for more deltas."""

    __slots__ = ("attempt", "bytes", "link", "task_id", "tenant")

    def __init__(self, link: Any, tenant: str, task_id: str, attempt: int, count: int) -> None:
        self.link = link
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.bytes = count


class Welcome:
    """Answer to a hello: the link is open."""

    __slots__ = ("generation", "instance", "link", "replay", "unknown", "warnings")

    def __init__(
        self,
        link: Any,
        instance: Instance,
        warnings: tuple[str, ...],
        unknown: list[tuple[str, str, int]],
        replay: list[tuple[str, str, int]],
    ) -> None:
        self.link = link
        self.instance = instance
        self.generation = instance.generation
        self.warnings = warnings
        self.unknown = unknown
        """(tenant, task_id, attempt) that nobody waits for."""
        self.replay = replay
        """(tenant, task_id, attempt) whose deltas are wanted again."""


class CloseLink:
    """A link is refused or superseded."""

    __slots__ = ("fault", "link")

    def __init__(self, link: Any, fault: Fault) -> None:
        self.link = link
        self.fault = fault


class AskReopen:
    """Ask an instance to open its stream anew, for it does not receive what we send (HLT-9)."""

    __slots__ = ("link",)

    def __init__(self, link: Any) -> None:
        self.link = link


class DropLink:
    """End the stream of an instance that is deaf and did not open another: it will come back, or its work moves."""

    __slots__ = ("link",)

    def __init__(self, link: Any) -> None:
        self.link = link


class Wake:
    """Call the wake hook of a pool; the outcome comes back as `WakeAnswered` (HLT-14)."""

    __slots__ = ("number", "pool", "waiting")

    def __init__(self, pool: PoolKey, number: int, waiting: int) -> None:
        self.pool = pool
        self.number = number
        """Names the wake: the same in repeated tries."""
        self.waiting = waiting
        """Tasks that wait."""


class DrainLink:
    """Ask an instance to finish and take nothing new."""

    __slots__ = ("deadline_ms", "link")

    def __init__(self, link: Any, deadline_ms: int) -> None:
        self.link = link
        self.deadline_ms = deadline_ms


class AskSnapshot:
    """Ask an instance what it knows of a session that is about to leave it; the answer comes as `SnapshotCame`."""

    __slots__ = ("link", "session", "tenant", "timeout_ms")

    def __init__(self, link: Any, tenant: str, session: str, timeout_ms: int) -> None:
        self.link = link
        self.tenant = tenant
        self.session = session
        self.timeout_ms = timeout_ms


class Accepted:
    """Answer to a submit: the task is accepted (and committed)."""

    __slots__ = ("deduplicated", "reply", "state", "task", "warnings")

    def __init__(self, reply: Any, task: Task, deduplicated: bool) -> None:
        self.reply = reply
        self.task = task
        self.state = task.state
        self.deduplicated = deduplicated
        self.warnings: tuple[str, ...] = ()


class Refused:
    """Answer to any request: it is refused."""

    __slots__ = ("fault", "given", "reply", "spec", "task")

    def __init__(
        self, reply: Any, fault: Fault, task: Task | None = None, spec: bytes | None = None, given: Any = None
    ) -> None:
        self.reply = reply
        self.fault = fault
        self.task = task
        """The task that stands against it, if one does."""
        self.spec = spec
        """What was submitted, if that is what is refused because of `task`."""
        self.given = given
        """The answer to a question (a `questions.Input`), if it is refused because of `task`."""


class Full(Refused):
    """A task is not taken, for its pool takes no more; another pool may."""

    __slots__ = ("placing", "submitted")

    def __init__(self, reader: Any, fault: Fault, submitted: Task, placing: Placing | None) -> None:
        super().__init__(reader, fault)
        self.submitted = submitted
        self.placing = placing
        """How level 1 came here; None: this node has chosen the pool, as the first."""


class Done:
    """Answer to a request that has no more to say than that it is done; `value` where it has."""

    __slots__ = ("reply", "value")

    def __init__(self, reply: Any, value: Any = None) -> None:
        self.reply = reply
        self.value = value


class Events:
    """Events for one reader, in order: tuples (sequence, attempt, wall_ms, kind, data)."""

    __slots__ = ("events", "reader", "task")

    def __init__(self, reader: Any, task: Task, events: list[tuple[int, int, int, int, Any]]) -> None:
        self.reader = reader
        self.task = task
        self.events = events


class Ended:
    """A task ended: told to readers that wait for the outcome only; `first` when it ends, to whoever keeps figures."""

    __slots__ = ("first", "outcome", "readers", "task")

    def __init__(self, task: Task, outcome: Outcome, readers: list[Any], *, first: bool) -> None:
        self.first = first
        self.task = task
        self.outcome = outcome
        self.readers = readers


class AskJournal:
    """An agent speaks of an attempt that is not in memory: the journal knows whether it ended."""

    __slots__ = ("attempt", "input", "link", "reply", "task_id", "tenant", "works")

    def __init__(
        self, link: Any, tenant: str, task_id: str, attempt: int, reply: Any = None, given: Any = None
    ) -> None:
        self.link = link
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.reply = reply
        self.input = given
        """What a caller wants to answer (a `questions.Input`), if it is about that."""
        self.works = False
        """The agent goes on with it: if it has ended, the agent is to stop."""


class Forget:
    """Tasks that need not be in memory any longer: once their outcomes are durable, the journal has them."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks


class Noted:
    """Something for counters, logs, alerts and watchers: a retry, a dead letter, a change of health; an instance that
    registered, was drained or removed. Never per task otherwise."""

    __slots__ = ("instance", "kind", "reason", "task")

    def __init__(self, kind: str, reason: str, task: Task | None = None, instance: Instance | None = None) -> None:
        self.kind = kind
        self.reason = reason
        self.task = task
        self.instance = instance


class Unplaced:
    """A task that was taken earlier waits where nobody could ever take it: its agent is gone, has another name by now,
    or came to another pool."""

    __slots__ = ()


class Then:
    """Something of the shell's own that must wait for the commit like every send."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act


class Turn:
    """What one step of one or several pools asks for. One per turn of the shell; in a cluster, one per shard."""

    __slots__ = ("accepted", "now_ms", "sends", "shard", "wall_ms", "writes")

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.accepted: list[Task] = []
        """The new tasks of which it writes rows; the journal may have given the id of one to another."""
        self.writes = Writes()
        self.sends: list[Any] = []
        self.shard: Any = None
        """The shell's own, where a shard can be given up: nothing is sent for one that was."""


def then(act: Callable[[], Any]) -> Turn:
    """A turn that only waits: `act` is called once all that memory says now is durable."""
    turn = Turn(0, 0)
    turn.sends.append(Then(act))
    return turn
