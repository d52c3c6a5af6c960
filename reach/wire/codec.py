"""What the runtime needs of the contract (`runtime.host.Codec`): stored requests become tasks again."""

from __future__ import annotations

from agentreach.v1 import agent_pb2, task_pb2
from reach.core.context import Context, Exchange, Facts
from reach.core.joining import Joining
from reach.core.model import Task
from reach.core.resolving import Selector
from reach.wire.agents import read_registration
from reach.wire.answers import content_of
from reach.wire.budget import bounded, budget_of
from reach.wire.repeats import same_content
from reach.wire.requests import TaskReader
from reach.wire.schemas import mismatches
from reach.wire.sessions import context_bytes, context_field, exchange_of, turn_bytes, turn_of
from reach.wire.shapes import Shapes, parts_of
from reach.wire.webhooks import announced


class ProtoCodec:
    """Reads back what was checked and stored by us."""

    def __init__(self, reader: TaskReader) -> None:
        self.reader = reader
        self._limits = reader.limits
        self._shapes = Shapes()

    def task_of(self, tenant: str, spec: bytes) -> Task:
        """The task of a request that was accepted once."""
        return self.restored(tenant, spec)[0]

    def restored(self, tenant: str, spec: bytes) -> tuple[Task, Selector]:
        """The task of a request that was accepted once, and what it named to choose a pool."""
        parts = parts_of(spec)
        if self._limits is not self.reader.limits:
            self._limits, self._shapes = self.reader.limits, Shapes()
        if parts is not None and (found := self._shapes.task(tenant, parts, spec)) is not None:
            return found
        message = task_pb2.TaskSpec.FromString(spec)
        hook: tuple[tuple[str, str], ...] = ()
        if message.HasField("webhook"):  # it was allowed when the task was taken
            hook = announced(tenant, message.webhook)
            message.ClearField("webhook")
        asked = self.reader.asked(message)
        task = Task(tenant, message.task_id, spec, asked.requirement)
        self.reader.fill(task, message)
        task.policy = message.policy  # it may have left the configuration; then the pool's holds
        if hook:
            task.announce = (*task.announce, *hook)
        if parts is not None:
            self._shapes.keep(parts, task, asked.selector)
        return task, asked.selector

    def selector_of(self, spec: bytes) -> Selector:
        """What the request named to choose a pool."""
        return self.reader.asked(task_pb2.TaskSpec.FromString(spec)).selector

    def names_cost(self, spec: bytes) -> bool:
        """See `Codec`."""
        return task_pb2.TaskSpec.FromString(spec).HasField("cost_slots")

    def bounded(self, spec: bytes, parent: bytes) -> bytes:
        """See `Codec`."""
        return bounded(spec, parent)

    def budget_of(self, spec: bytes) -> bytes:
        """See `Codec`."""
        return budget_of(spec)

    def joining_of(self, registration: bytes, boot_id: str) -> Joining:
        """The registration as it was taken."""
        message = agent_pb2.Registration.FromString(registration)
        message.boot_id = boot_id
        return read_registration(message, stored=True)[1]

    def mismatches(self, spec: bytes, schemas: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, str]]:
        """Which schemas the parameters of a request do not fit: schema_id -> (JSON Pointer, words)."""
        payload = task_pb2.TaskSpec.FromString(spec).payload
        return mismatches(payload.media_type, *content_of(payload)[1:], schemas)

    def exchange_of(self, task: Task) -> tuple[Exchange, Facts]:
        """The turn of a task that ended, and the names and values that it brings."""
        return exchange_of(task)

    def turn_bytes(self, task: Task) -> bytes:
        """The same for another node."""
        return turn_bytes(*exchange_of(task))

    def turn_of(self, content: bytes) -> tuple[Exchange, Facts]:
        """What another node has made so."""
        return turn_of(content)

    def context_bytes(self, context: Context) -> bytes:
        """What is known of a conversation, as agents get it."""
        return context_bytes(context)

    def offered_context(self, context: bytes, snapshot: bytes, number: int) -> bytes:
        """What an offer says of a conversation, as a field of it."""
        return context_field(context, snapshot, number)

    def same_content(self, one: bytes, other: bytes) -> bool:
        """Whether two requests ask for the same (DLV-3)."""
        return same_content(one, other)
