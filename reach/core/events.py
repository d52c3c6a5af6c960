"""Everything that can happen to a pool: past tense, plain data.

`instance` is the pool's own object, which the shell got from it when the link opened; `reader` and `reply` come back
in the answering effect and mean nothing to the core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from reach.core.joining import Joining
from reach.core.model import Content, Fault, Instance, Profile, Requirement, Task
from reach.core.pieces import Delta
from reach.core.spread import Placing
from reach.core.stream import Reader


class Submitted:
    """A caller brought a task."""

    __slots__ = ("reader", "task")

    def __init__(self, task: Task, reader: Reader) -> None:
        self.task = task
        self.reader = reader


class Placed(Submitted):
    """The same, of a task that has a history of level 1: it was brought by another node, or another pool was full."""

    __slots__ = ("placing",)

    def __init__(self, task: Task, reader: Reader, placing: Placing) -> None:
        super().__init__(task, reader)
        self.placing = placing


class Repeated(Submitted):
    """A caller brought a task whose id is here, or is just coming: it is answered for that one. `again` brings it to
    the door once more, where all that is asked of a new task is asked, if that one was refused in the meantime."""

    __slots__ = ("again",)

    def __init__(self, task: Task, reader: Reader, again: Callable[[], object]) -> None:
        super().__init__(task, reader)
        self.again = again


class RowTaken:
    """The journal has another task of this id: undo the acceptance. The shell answers those who asked."""

    __slots__ = ("task",)

    def __init__(self, task: Task) -> None:
        self.task = task


class Arrived:
    """A waiting task came from another pool: an agent that can take it has registered here.

    Args:
        task: The task.
        left: The shard that its row is to leave; None: the row says already that it is here.
    """

    __slots__ = ("left", "task")

    def __init__(self, task: Task, left: int | None = None) -> None:
        self.task = task
        self.left = left


class Refuted:
    """A waiting task turned out to be one that nobody may take."""

    __slots__ = ("fault", "task")

    def __init__(self, task: Task, fault: Fault) -> None:
        self.task = task
        self.fault = fault


class SessionForgotten(NamedTuple):
    """A session was deleted."""

    name: tuple[str, str]


class SnapshotCame(NamedTuple):
    """An instance says what it knows of a session; empty: nothing that the context does not say."""

    instance: Instance
    name: tuple[str, str]
    snapshot: bytes


class Respecified:
    """A waiting task asks for something else now, since the rules have changed."""

    __slots__ = ("requirement", "task")

    def __init__(self, task: Task, requirement: Requirement) -> None:
        self.task = task
        self.requirement = requirement


class Reworded:
    """The profile of an instance reads differently, since the vocabulary has changed."""

    __slots__ = ("instance", "profile")

    def __init__(self, instance: Instance, profile: Profile) -> None:
        self.instance = instance
        self.profile = profile


class Joined:
    """An instance registered (`link` None) or said hello on a link, with all that it runs."""

    __slots__ = ("joining", "link", "reply", "revision", "running", "status")

    def __init__(
        self,
        joining: Joining,
        revision: int,
        link: Any = None,
        running: list[tuple[str, str, int, int]] | None = None,
        status: dict[str, Any] | None = None,
        reply: Any = None,
    ) -> None:
        self.joining = joining
        self.revision = revision
        self.link = link
        self.running = running or []
        """(tenant, task_id, attempt, last attempt_sequence)"""
        self.status = status
        self.reply = reply


class LinkEnded:
    """The link of an instance is gone. `ours`: we closed it (drain, max age), so its work waits for it; `unheard`: for
    longer, as the node it came by is gone. A dialled one (`link` None) that refuses connections is lost, too."""

    __slots__ = ("instance", "link", "ours", "unheard", "why")

    def __init__(
        self, instance: Instance, link: Any, ours: bool, why: str = "its stream ended", unheard: bool = False
    ) -> None:
        self.unheard = unheard
        self.instance = instance
        self.link = link
        self.ours = ours
        self.why = why


class Left:
    """An instance deregistered, or said goodbye."""

    __slots__ = ("generation", "instance", "reply")

    def __init__(self, instance: Instance, reply: Any = None) -> None:
        self.instance = instance
        self.generation = instance.generation
        """Of the process that goes: one that comes in the same turn stays."""
        self.reply = reply


class Beat:
    """A sign of life with a status; on a stream, with the frames that went down it and the last one that arrived."""

    __slots__ = ("echoed", "generation", "instance", "sent", "status")

    def __init__(self, instance: Instance, status: dict[str, Any], sent: int = 0, echoed: int = 0) -> None:
        self.instance = instance
        self.generation = instance.generation
        """Of the process that says so: one that comes in the same turn has not said it."""
        self.status = status
        self.sent = sent
        """Number of the last frame that we sent; 0 where frames are not counted."""
        self.echoed = echoed
        """Number of the last frame that the agent has received; 0 if it does not say."""


class Probed:
    """The outcome of one probe (HLT-3)."""

    __slots__ = ("error", "instance", "ok", "rtt_ms")

    def __init__(self, instance: Instance, ok: bool, rtt_ms: float, error: str) -> None:
        self.instance = instance
        self.ok = ok
        self.rtt_ms = rtt_ms
        self.error = error
        """Why it failed, for people; empty if it did not."""


class Checked:
    """The outcome of one application check (HLT-4)."""

    __slots__ = ("error", "instance", "ok", "status", "worker_idle_share")

    def __init__(
        self, instance: Instance, ok: bool, status: dict[str, Any] | None, worker_idle_share: float | None, error: str
    ) -> None:
        self.instance = instance
        self.ok = ok
        """The agent answered; whether it is ready is in its status."""
        self.status = status
        """As on a beat."""
        self.worker_idle_share = worker_idle_share
        self.error = error


class WakeAnswered:
    """A wake hook is done (HLT-14)."""

    __slots__ = ("error", "number")

    def __init__(self, number: int, error: str) -> None:
        self.number = number
        self.error = error
        """Why it failed, for people; empty if it did not."""


class Drained:
    """An operator asked an instance to finish (or, with `undo`, to go on)."""

    __slots__ = ("deadline_ms", "instance", "reply", "undo")

    def __init__(self, instance: Instance, deadline_ms: int, undo: bool, reply: Any) -> None:
        self.instance = instance
        self.deadline_ms = deadline_ms
        self.undo = undo
        self.reply = reply


class AttemptEvent:
    """Base of what an instance says about an attempt."""

    __slots__ = ("attempt", "instance", "reply", "task_id", "tenant")

    def __init__(self, instance: Instance, tenant: str, task_id: str, attempt: int, reply: Any = None) -> None:
        self.instance = instance
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.reply = reply

    @property
    def asker(self) -> Any:
        """Who is told what became of it."""
        return self.reply if self.reply is not None else self.instance.link


class TakenUp(AttemptEvent):
    """The instance works on it. `handle`: where it can be asked about; empty: nothing new."""

    __slots__ = ("handle",)

    def __init__(
        self, instance: Instance, tenant: str, task_id: str, attempt: int, reply: Any = None, *, handle: str = ""
    ) -> None:
        super().__init__(instance, tenant, task_id, attempt, reply)
        self.handle = handle


class DeltaCame(AttemptEvent):
    """A piece of the answer."""

    __slots__ = ("attempt_sequence", "delta")

    def __init__(
        self, instance: Instance, tenant: str, task_id: str, attempt: int, attempt_sequence: int, delta: Delta
    ) -> None:
        super().__init__(instance, tenant, task_id, attempt)
        self.attempt_sequence = attempt_sequence
        self.delta = delta


class Progressed(AttemptEvent):
    """A sign of life of the attempt."""

    __slots__ = ("checkpoint", "fraction", "note")

    def __init__(
        self,
        instance: Instance,
        tenant: str,
        task_id: str,
        attempt: int,
        fraction: float | None = None,
        note: str = "",
        checkpoint: bytes | None = None,
    ) -> None:
        super().__init__(instance, tenant, task_id, attempt)
        self.fraction = fraction
        self.note = note
        self.checkpoint = checkpoint


class EffectAsked(AttemptEvent):
    """The agent asks for permission to begin an irreversible effect."""

    __slots__ = ("effect",)

    def __init__(
        self, instance: Instance, tenant: str, task_id: str, attempt: int, effect: str, reply: Any = None
    ) -> None:
        super().__init__(instance, tenant, task_id, attempt, reply)
        self.effect = effect


class LeaseExtended(AttemptEvent):
    """The agent still works on it."""

    __slots__ = ()


class Reported(AttemptEvent):
    """The outcome of an attempt, as the agent says: exactly one of answer, fault, folded, waiting, released."""

    __slots__ = ("begun", "content", "extra", "fault", "folded", "media_type", "released", "waiting")

    def __init__(self, instance: Instance, tenant: str, task_id: str, attempt: int, reply: Any = None) -> None:
        # As the base does: each task has one of these.
        self.instance = instance
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.reply = reply
        self.media_type = ""
        self.content: Content | None = None
        self.fault: Fault | None = None
        self.folded: int | None = None
        """Last attempt_sequence: the answer is what the deltas made."""
        self.waiting: Any = None
        """What it asks (a `questions.Ask`)."""
        self.released: str | None = None
        self.extra: dict[str, Any] | None = None
        self.begun = True
        """False: it is certain that the agent never began, so that a grant by sending was of no effect."""


class Cancelled:
    """A caller cancels a task."""

    __slots__ = ("reason", "reply", "task_id", "tenant")

    def __init__(self, tenant: str, task_id: str, reason: str, reply: Any) -> None:
        self.tenant = tenant
        self.task_id = task_id
        self.reason = reason
        self.reply = reply


class InputCame:
    """A caller answers what a waiting task asked."""

    __slots__ = ("input", "question", "reply", "task_id", "tenant")

    def __init__(self, tenant: str, task_id: str, given: Any, question: str, reply: Any) -> None:
        self.tenant = tenant
        self.task_id = task_id
        self.input = given
        """The answer (a `questions.Input`)."""
        self.question = question
        """Which question is meant; empty: the one that is open."""
        self.reply = reply


class Subscribed:
    """Somebody wants to read a task that is in memory."""

    __slots__ = ("reader", "task_id", "tenant")

    def __init__(self, tenant: str, task_id: str, reader: Reader) -> None:
        self.tenant = tenant
        self.task_id = task_id
        self.reader = reader


class Unsubscribed:
    """A reader left."""

    __slots__ = ("reader",)

    def __init__(self, reader: Reader) -> None:
        self.reader = reader


class Credited:
    """A reader can take more bytes."""

    __slots__ = ("bytes", "reader")

    def __init__(self, reader: Reader, bytes_: int) -> None:
        self.reader = reader
        self.bytes = bytes_
