"""What a caller holds of a task that was accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentreach.v1 import dispatch_pb2
from reach.core.model import TaskState
from reach.sdk.answers import Result

if TYPE_CHECKING:
    from reach.sdk.client import Client


class TaskHandle:
    """A task that was accepted."""

    __slots__ = ("_client", "deduplicated", "state", "task_id", "warnings")

    def __init__(self, client: Client, answer: dispatch_pb2.SubmitAcknowledgement) -> None:
        self._client = client
        self.task_id = answer.task_id
        self.state = TaskState(answer.state)
        """Where it stood when it was accepted."""
        self.deduplicated = answer.deduplicated
        """An earlier call brought it; its first answer comes again."""
        self.warnings = tuple(answer.warnings)

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r}, {self.state.name})"

    async def result(self, timeout: float | None = None) -> Result:
        """Waits until it ends. Raises Timeout; the task goes on then."""
        return await self._client.wait_for_result(self.task_id, timeout)

    async def cancel(self, reason: str = "") -> TaskState:
        """Cancels it."""
        return await self._client.cancel(self.task_id, reason)
