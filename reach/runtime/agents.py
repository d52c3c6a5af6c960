"""What the runtime needs of a transport: the seam between decisions and the ways tasks reach agents.

A link leads to one instance. Its methods never suspend and never raise: a link that is gone drops what it is given,
and says so by the event `LinkEnded`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, Final, Protocol

from reach.core.dialogue import Input
from reach.core.effects import Refused, Welcome
from reach.core.events import Credited, Joined, Unsubscribed
from reach.core.model import Fault, Instance, Task
from reach.core.stream import Reader, unsubscribe
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.runtime.elsewhere import Elsewhere


class AgentLink(Protocol):
    """One open link to one instance."""

    tenant: str
    """Who owns the instance."""

    def offer(self, task: Task, instance: Instance, traceparent: str, context: bytes = b"") -> None:
        """Sends the task's current attempt; `traceparent` is empty where the trace is not recorded, `context` where
        there is no session (see `Codec.offered_context`)."""

    def stop(self, tenant: str, task_id: str, attempt: int, reason: Reason) -> None:
        """Asks to stop an attempt."""

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """The outcome of an attempt is committed."""

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """What was said of an attempt is refused."""

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """Answers a request to begin an effect."""

    def give_input(self, task: Task, given: Input, context: bytes = b"") -> None:
        """Answers what the task's current attempt asked; may come again. `context`: as with an offer, for agents
        that are dialled."""

    def credit(self, tenant: str, task_id: str, attempt: int, count: int) -> None:
        """Gives room for more deltas, in bytes."""

    def welcome(self, effect: Welcome) -> None:
        """The hello is accepted."""

    def close(self, fault: Fault) -> None:
        """The link is refused or superseded."""

    def reopen(self) -> None:
        """Asks to open the link anew, for what we send does not arrive."""

    def drop(self) -> None:
        """Ends the connection, as our doing: the agent is expected to come back."""

    def drain(self, deadline_ms: int) -> None:
        """Asks to finish and take nothing new."""

    hands_over: bool
    """It answers when it is asked what it knows of a session."""

    def prepare_handoff(self, tenant: str, session: str, timeout_ms: int) -> None:
        """Asks what the instance knows of a session that is about to leave it (`SnapshotCame`)."""


class Sink(Protocol):
    """Where a caller's answers go. Methods never suspend and never raise."""

    def accepted(self, reader: Any, task: Task, state: int, deduplicated: bool) -> None:
        """The task is accepted and committed."""

    def refused(self, reader: Any, fault: Fault) -> None:
        """The request is refused."""

    def elsewhere(self, reader: Any, task_id: str, spec: bytes, where: Elsewhere) -> None:
        """Another node has to do it: nothing more comes from here. `spec` is empty if the reader only reads."""

    def events(self, reader: Any, task: Task, events: list[tuple[int, int, int, int, Any]]) -> None:
        """Events of a task, in order."""

    def ended(self, reader: Any, task: Task) -> None:
        """The task ended; its outcome is committed."""


class Reply(Protocol):
    """Where the answer to one request goes."""

    def done(self, value: Any) -> None:
        """It is done."""

    def refused(self, fault: Fault) -> None:
        """It is refused."""

    def elsewhere(self, where: Elsewhere) -> None:
        """Another node has to do it. Only for requests that name a task."""


MOVED: Final = Fault(
    ErrorClass.UNAVAILABLE, Reason.OWNER_UNAVAILABLE, "this has moved to another node: ask again", None, 200
)


class Deaf:
    """The sink of a reader that was let go."""

    def accepted(self, reader: Any, task: Task, state: int, deduplicated: bool) -> None:
        """See Sink."""

    def refused(self, reader: Any, fault: Fault) -> None:
        """See Sink."""

    def elsewhere(self, reader: Any, task_id: str, spec: bytes, where: Elsewhere) -> None:
        """See Sink."""

    def events(self, reader: Any, task: Task, events: list[tuple[int, int, int, int, Any]]) -> None:
        """See Sink."""

    def ended(self, reader: Any, task: Task) -> None:
        """See Sink."""


DEAF: Final = Deaf()


def moved(asked: Any) -> None:
    """An event, or an effect, of a pool that is another node's by now: tells whoever waits for an answer to it. What
    came by a link is answered by nobody: the agent opens another one, and says again what it runs. A reader that gives
    room asks for nothing: it is told when its task is left, behind what is still to be told."""
    if isinstance(asked, Credited):
        return
    if isinstance(asked, Unsubscribed):
        unsubscribe(asked.reader)
        return
    if isinstance(asked, Joined) and asked.link is not None:
        asked.link.reopen()
    for reader in getattr(asked, "readers", None) or ():
        let_go(reader)  # of an end that is void
    waiting: Any = getattr(asked, "reply", None) or getattr(asked, "reader", None)
    if isinstance(waiting, Reader):
        let_go(waiting)
    elif hasattr(waiting, "refused"):
        waiting.refused(MOVED)


def let_go(reader: Reader) -> None:
    """Tells a reader that its task has moved, once, and nothing more."""
    sink, reader.sink = reader.sink, DEAF
    sink.refused(reader, MOVED)


def refuse_if_here(shards: Container[int], refused: Refused) -> None:
    """Tells whoever asked of a task that it is refused, if the task is still this node's."""
    here = refused.task is not None and refused.task.pool.shard in shards
    refuse(refused.reply, refused.fault if here else MOVED)


def refuse(reply: Any, fault: Fault) -> None:
    """Tells whoever asked, in the way they listen."""
    if isinstance(reply, Reader):
        reply.sink.refused(reply, fault)
    elif reply is not None:
        reply.refused(fault)
