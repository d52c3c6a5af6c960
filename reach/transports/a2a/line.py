"""The connections for the work at one A2A agent (`seam.Line`): its calls, its remote tasks and contexts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agentreach.v1 import attempt_pb2, endpoint_pb2
from reach.transports.a2a.attempt import A2aCall
from reach.transports.a2a.calls import CallFailed, Calls
from reach.transports.a2a.contexts import Contexts
from reach.transports.a2a.handle import Handle, read_handle

if TYPE_CHECKING:
    from reach.transports.a2a.endpoint import A2aWay

HANDLES: Final = 10_000
"""Attempts whose remote task is remembered: those that run or wait for an answer."""
CANCEL_S: Final = 5.0

Name = tuple[str, str, int]
"""(tenant, task_id, attempt); the tenant is empty where it is the agent's own."""


class A2aLine:
    """See the module. It lives as long as the link does: with the agent's process go the contexts it remembered."""

    def __init__(self, way: A2aWay) -> None:
        self.way = way
        self.calls: Calls = way.calls()
        self.contexts = Contexts()
        self.streams = way.card.streaming
        """It streams, as its card says and as it has shown."""
        self.subscribes = True
        """It says what becomes of a task also to those who come later."""
        self._running: dict[Name, A2aCall] = {}
        self._handles: OrderedDict[Name, Handle] = OrderedDict()

    @property
    def held(self) -> int:
        """Attempts that run there."""
        return len(self._running)

    def execute(self, request: endpoint_pb2.ExecuteRequest, timeout_s: float | None, handle: str = "") -> A2aCall:
        """See Line."""
        offer = request.offer
        name = offer.tenant, offer.task.task_id, offer.attempt
        known = self._handles.get(name) or read_handle(handle)
        return self._begun(A2aCall(self, offer, known, timeout_s))

    def resume(self, request: endpoint_pb2.ExecuteRequest, handle: str, timeout_s: float | None) -> A2aCall | None:
        """See Line."""
        known = read_handle(handle)
        return self._begun(A2aCall(self, request.offer, known, timeout_s)) if known is not None else None

    def _begun(self, call: A2aCall) -> A2aCall:
        self._running[call.name] = call
        return call

    async def cancel(self, key: attempt_pb2.AttemptKey, handle: str) -> None:
        """See Line."""
        name = key.tenant, key.task_id, key.attempt
        known = read_handle(handle) or self._handles.get(name)
        if known is not None:
            with suppress(CallFailed, TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await self.calls.cancel(known.task)

    async def prepare_handoff(self, request: endpoint_pb2.PrepareHandoffRequest, timeout_s: float) -> bytes:
        """See Line. A2A has no word for it: a session goes elsewhere with its history."""
        return b""

    async def close(self) -> None:
        """See Line."""
        for call in list(self._running.values()):
            call.cancel()
        await self.calls.close()

    # -- what its attempts tell ---------------------------------------------------------------------------------------

    def keep(self, name: Name, handle: Handle) -> None:
        """An attempt is this remote task."""
        self._handles[name] = handle
        self._handles.move_to_end(name)
        while len(self._handles) > HANDLES:
            self._handles.popitem(last=False)

    def let_go(self, name: Name) -> None:
        """An attempt is over."""
        self._handles.pop(name, None)

    def forget(self, call: A2aCall) -> None:
        """A call is over; its attempt may wait for an answer."""
        if self._running.get(call.name) is call:
            del self._running[call.name]

    async def is_refused(self) -> bool:
        """Whether nobody listens at any of its addresses."""
        return await self.way.is_refused()
