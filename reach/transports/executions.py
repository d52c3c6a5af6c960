"""One attempt at an agent that is dialled: its call, what it says, and what its end means, whatever it speaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from agentreach.v1 import attempt_pb2, endpoint_pb2
from reach.core import events as ev
from reach.core.model import Fault, Instance
from reach.core.pieces import size_in_bytes
from reach.errors import ErrorClass, InvalidRequest, ReachError, Reason
from reach.transports.seam import Call, Failed
from reach.wire.agents import read_result
from reach.wire.attempts import delta_came, progressed, taken_up
from reach.wire.statuses import read_status

if TYPE_CHECKING:
    from reach.transports.dialled_link import DialledLink

log = logging.getLogger(__name__)

CREDIT_BYTES: Final = 256 << 10
"""Bytes of deltas that the core has not taken yet; more are left unread, so that the transport slows the agent down."""
GRACE_S: Final = 5.0
"""How long an attempt that was told to stop, or said its result, may take to end its call (DLV-11)."""


class Execution:
    """See the module. `run` belongs to the link's tasks; everything else is called on the loop."""

    __slots__ = (
        "_call", "_last", "_stopping", "_unread", "_waiter", "attempt", "handle", "heard", "link", "over", "task_id",
        "tenant",
    )  # fmt: skip

    def __init__(self, link: DialledLink, tenant: str, task_id: str, attempt: int, last: int) -> None:
        self.link = link
        self.tenant = tenant
        self.task_id = task_id
        self.attempt = attempt
        self.heard = False
        """The agent said something of it: it has begun."""
        self.handle = ""
        """Where the agent said that it can be asked about."""
        self.over = False
        """Its outcome is told, or is nobody's concern any more."""
        self._last = last
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False
        self._call: Call | None = None

    @property
    def name(self) -> tuple[str, str, int]:
        """(tenant, task_id, attempt)"""
        return self.tenant, self.task_id, self.attempt

    async def run(self, begin: Callable[[], Call | None]) -> None:
        """Calls, reads to the end, and tells the core what that was. What was given up before this began is not called:
        the agent would begin what nobody waits for any more, perhaps an effect."""
        if self._is_void():
            self.link.forget(self)
            return
        call = self._call = begin()
        if call is None:  # its outcome comes by a report, or not at all
            self.link.forget(self)
            return
        if self._stopping:
            self._end_within_grace()
        try:
            while await self._read(call):
                while self._unread > CREDIT_BYTES and not self.over and not self._stopping:
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
            self._ended(None)
        except Failed as failure:
            self._ended(failure)
        finally:
            call.cancel()
            self.link.forget(self)

    async def _read(self, call: Call) -> bool:
        """What comes next; whether there was something."""
        try:
            frame = await call.read()
            if frame is None:
                return False
            if not self.over:
                self._items(frame)
        except ReachError as error:
            self.reject(f"sent what cannot be taken: {error.message}")
        return True

    def _is_void(self) -> bool:
        """Whether it was given up before its call; tells the core, if that does not know."""
        if self._stopping and not self.heard and not self.over:
            stopped = Fault(ErrorClass.INVALID_REQUEST, Reason.CANCELLED, "it was given up before it was delivered")
            self._tell_unbegun(stopped, "")
        return self.over

    # -- what the core says -------------------------------------------------------------------------------------------

    def credit(self, count: int) -> None:
        """The core has taken so many bytes."""
        self._unread -= count
        self._wake()

    def stop(self) -> None:
        """The attempt is given up: the agent is told, and has a grace to end the call."""
        if self._stopping or self.over:
            return
        self._stopping = True
        if self._call is None and not self.heard:
            return  # `run` will see it
        self.link.cancel_there(self.name)
        self._end_within_grace()
        self._wake()

    def abandon(self) -> None:
        """The link is gone, and the core knows: nothing more is told."""
        self.over = True
        if self._call is not None:
            self._call.cancel()
        self._wake()

    def reject(self, message: str) -> None:
        """What it said cannot be taken: the attempt fails, and the agent is to stop."""
        if not self.over:
            self._tell(Fault(ErrorClass.INTERNAL, Reason.PROTOCOL_VIOLATION, f"the agent {message}"))
            self.link.cancel_there(self.name)
            self._end_within_grace()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end_within_grace(self) -> None:
        if self._call is not None:
            asyncio.get_running_loop().call_later(GRACE_S, self._call.cancel)

    # -- what the agent says ------------------------------------------------------------------------------------------

    def _items(self, frame: endpoint_pb2.ExecuteResponse) -> None:
        link = self.link
        instance = link.instance
        assert instance is not None
        self.heard = True
        if frame.HasField("accept"):
            link.post(taken_up(instance, self.tenant, self._ours(frame.accept)))
            self.handle = frame.accept.handle or self.handle
        for delta in frame.deltas:
            self._ours(delta)
            delta.attempt_sequence = delta.attempt_sequence or self._last + 1
            if delta.attempt_sequence <= self._last:
                continue
            event = delta_came(instance, self.tenant, delta, link)
            self._last = delta.attempt_sequence
            self._unread += size_in_bytes(event.delta.content)
            link.post(event)
        for progress in frame.progress:
            link.post(progressed(instance, self.tenant, self._ours(progress), link))
            if progress.HasField("status"):
                self._warm(instance, progress.status)
        if frame.HasField("result"):
            self._result(instance, self._ours(frame.result))

    def _result(self, instance: Instance, result: attempt_pb2.AttemptResult) -> None:
        if self._stopping:
            return  # its end frees the slot; what it came to is of no use
        if result.HasField("folded"):  # 0: of all that were counted here
            result.folded.last_attempt_sequence = result.folded.last_attempt_sequence or self._last
        key = (self.tenant, result.key.task_id, result.key.attempt)
        report = read_result(instance, key, result, self.link.payload_limit)
        self.over = True
        self.link.unkept.add(self.name)
        self.link.post(report)
        if result.HasField("status"):
            self._warm(instance, result.status)
        self._end_within_grace()

    def _warm(self, instance: Instance, status: Any) -> None:
        try:
            self.link.post(ev.Beat(instance, read_status(status)))
        except ReachError:
            log.debug("a status of %s cannot be read", instance.instance_id)  # no reason to fail the attempt

    def _ours(self, item: Any) -> Any:
        """The item with its key whole: on this call there is one attempt, and agents need not repeat its name."""
        key = item.key
        key.task_id = key.task_id or self.task_id
        key.attempt = key.attempt or self.attempt
        key.tenant = key.tenant or self.tenant
        if (key.tenant, key.task_id, key.attempt) != self.name:
            raise InvalidRequest("it names another attempt than the one of this call")
        return item

    # -- the end ------------------------------------------------------------------------------------------------------

    def _ended(self, failure: Failed | None) -> None:
        """The call is over."""
        if self.over:
            return
        if self._stopping:
            self._tell(Fault(ErrorClass.INVALID_REQUEST, Reason.CANCELLED, "the agent has stopped"))
        elif failure is None:
            message = "the agent ended the call without a result"
            self._tell(Fault(ErrorClass.INTERNAL, Reason.PROTOCOL_VIOLATION, message))
        elif failure.fault is None:
            unbegun = failure.unbegun and not self.heard
            self.link.lost(failure.lost)  # first: else it would be given to the same instance again
            if unbegun:
                self._tell_unbegun(None, failure.lost)
        else:
            if failure.unbegun and not self.heard:
                self._tell_unbegun(failure.fault, "")
            else:
                self._tell(failure.fault)
            if failure.doubtful:
                self.link.doubted()

    def _tell(self, fault: Fault) -> None:
        report = self._report()
        report.fault = fault
        self.link.post(report)

    def _tell_unbegun(self, fault: Fault | None, why: str) -> None:
        report = self._report()
        report.begun = False
        if fault is not None:
            report.fault = fault
        else:
            report.released = f"it was not delivered: {why}"
        self.link.post(report)

    def _report(self) -> ev.Reported:
        self.over = True
        instance = self.link.instance
        assert instance is not None
        return ev.Reported(instance, *self.name)
