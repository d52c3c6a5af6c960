"""DispatchStream: one caller's stream of many tasks. The hot path: no coroutine, no log line, no span per task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Protocol

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import dispatch_pb2, event_pb2
from reach.core.at_hand import EVENTS, OUTCOME
from reach.core.model import Fault, Task
from reach.core.spread import Placing
from reach.core.stream import READER_CREDIT, Interest, Reader, ends_with
from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.branches import Branches
from reach.rpc.peer_messages import unavailable
from reach.rpc.principal import Principal, credentials_ended
from reach.rpc.services import NO_TRACE, Services
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.faults import fault_of
from reach.wire.answers import fill_error, fill_event
from reach.wire.batcher import Batcher
from reach.wire.encoding import complete_item, event_item
from reach.wire.peer_frames import submit_frame
from reach.wire.requests import check_id, check_version, invalid

CALLER: Final = int(peer_pb2.CHANNEL_KIND_CALLER)
OUTSTANDING = 100_000
"""Readers that one stream may hold."""
SETTLE_SECONDS = 0.02
"""How often a stream whose caller has half-closed looks whether all is said."""


class Hop(Protocol):
    """The way back to the node at which a stream came in."""

    def back(self, frame: bytes, where: Elsewhere) -> None:
        """An item is not at home here, or its pool is full; `where` tells what we know."""


class CallerStream:
    """What one DispatchStream has asked for. It is the `Sink` of all its readers."""

    def __init__(self, services: Services, principal: Principal, traceparent: str, hop: Hop | None = None) -> None:
        self._services = services
        self._reach = services.reach
        self._principal = principal
        self._tenant = principal.tenant
        self._trace = traceparent
        self.out = Batcher()
        self._readers: dict[str, Reader] = {}
        self._with_caller: dict[str, Reader] = {}
        self._before: dict[Reader, tuple[str, Reader, bool]] = {}
        """Of readers that were asked for in the place of another one, and may still be refused: their task, the other
        one, and whether that went with the caller."""
        self._hop = hop
        """It came in at another node, which says welcome and brings what is not at home here elsewhere."""
        self._opened = hop is not None
        self._ended_by_us = False
        self._branches: Branches | None = None
        """What other nodes do of it; made when there is something."""
        self.placing: Placing | None = None
        """Where the submits of the frame go that is handled, as far as level 1 is done."""

    # -- up -----------------------------------------------------------------------------------------------------------

    def handle(self, frame: dispatch_pb2.DispatchStreamRequest) -> None:
        """One frame of the caller.

        Raises:
            InvalidRequest: VERSION_NOT_SUPPORTED, UNEXPECTED_FRAME, or the key has ended: the stream ends.
        """
        if not self._principal.still_valid():
            raise credentials_ended()
        if frame.HasField("opening"):
            self._open(frame.opening)
        elif not self._opened:
            self._open(dispatch_pb2.StreamOpening())
        for submit in frame.submits:
            self._submit(submit)
        for subscribe in frame.subscribes:
            self._subscribe(subscribe)
        for unsubscribe in frame.unsubscribes:
            self._drop(unsubscribe.task_id)
        for cancel in frame.cancels:
            self._cancel(cancel)
        self._credit(frame.credits)
        if self._branches is not None and (frame.unsubscribes or frame.credits):
            said = dispatch_pb2.DispatchStreamRequest(unsubscribes=frame.unsubscribes, credits=frame.credits)
            self._branches.tell_all(said.SerializeToString())

    def _credit(self, given: Iterable[dispatch_pb2.ReaderCredit]) -> None:
        for credit in given:
            reader = self._readers.get(credit.task_id)
            if reader is not None:
                self._reach.credit(reader, min(credit.bytes, 1 << 40))

    def _open(self, opening: dispatch_pb2.StreamOpening) -> None:
        if self._opened:
            raise InvalidRequest("the stream is open already", Reason.UNEXPECTED_FRAME)
        if opening.protocol_version:
            check_version(opening.protocol_version)
        self._opened = True
        self._say(welcome=self._services.welcome())
        self._services.nodes.follow(self._say)

    def _submit(self, submit: dispatch_pb2.Submit) -> None:
        services, spec, interest = self._services, submit.task, submit.interest
        try:
            if self._principal.agent_types:  # to look at the selector costs more than that
                self._principal.check_type(spec.selector.agent_type)
            task, selector = services.streamed.read(self._tenant, spec, services.clock.new_id)
            if interest > EVENTS or interest < 0:
                raise invalid("submit.interest", f"has no value {interest}")
            if len(self._readers) >= OUTSTANDING:
                raise services.too_many(OUTSTANDING)
        except ReachError as error:
            self.refuse(submit.reference, fault_of(error), spec.task_id)
            return
        reader = Reader(self, submit.reference, interest or OUTCOME)
        if interest != dispatch_pb2.INTEREST_ACCEPTANCE:
            if task.task_id in self._readers:  # asked again: the latest reader is told, from the beginning
                self._replace(task.task_id, reader)
            self._readers[task.task_id] = reader
            if spec.cancel_with_caller:
                self._with_caller[task.task_id] = reader
        if services.tracing.records:
            services.begin_trace(task, spec.trace.traceparent or self._trace)
        self._reach.submit(task, selector, reader, self.placing)

    def _subscribe(self, subscribe: dispatch_pb2.Subscribe) -> None:
        try:
            check_id("subscribe.task_id", subscribe.task_id, required=True)
            if subscribe.interest not in (0, Interest.OUTCOME, Interest.EVENTS):
                raise invalid("subscribe.interest", "must be OUTCOME or EVENTS")
            if len(self._readers) >= OUTSTANDING:
                raise self._services.too_many(OUTSTANDING)
        except ReachError as error:
            self.refuse(subscribe.reference, fault_of(error), subscribe.task_id)
            return
        reader = Reader(self, subscribe.reference, subscribe.interest or Interest.OUTCOME, subscribe.after_sequence)
        if subscribe.task_id in self._readers:
            self._replace(subscribe.task_id, reader)
        self._readers[subscribe.task_id] = reader
        self._reach.subscribe(self._tenant, subscribe.task_id, reader)

    def _replace(self, task_id: str, reader: Reader) -> None:
        """Who is told of a task is told nothing more, for another one is asked for; unless that is refused."""
        before, flag = self._readers[task_id], task_id in self._with_caller
        self._before[reader] = self._before.pop(before, (task_id, before, flag))
        self._drop(task_id)

    def _put_back(self, reader: Reader) -> None:
        """A reader is refused: the one that it was to replace is told on."""
        task_id, before, with_caller = self._before.pop(reader)
        if self._readers.get(task_id) is reader:
            again = self._readers[task_id] = Reader(self, before.reference, before.interest, before.told)
            self._with_caller.pop(task_id, None)
            if with_caller:
                self._with_caller[task_id] = again
            self._reach.subscribe(self._tenant, task_id, again)

    def _drop(self, task_id: str) -> None:
        reader = self._readers.pop(task_id, None)
        self._with_caller.pop(task_id, None)
        if reader is not None:
            self._before.pop(reader, None)
            self._reach.unsubscribe(reader, self._tenant, task_id)

    def _cancel(self, cancel: dispatch_pb2.CancelItem) -> None:
        reply = _CancelReply(self, cancel)
        try:
            check_id("cancel.task_id", cancel.task_id, required=True)
            check_id("cancel.reason", cancel.reason)
        except ReachError as error:
            reply.refused(fault_of(error))
            return
        self._reach.cancel(self._tenant, cancel.task_id, cancel.reason, reply)

    async def settle(self) -> None:
        """The caller has half-closed: it still hears of all that it asked for."""
        await self._reach.host.settled()
        while not self.out.closed and (self._readers or self._goes_on_elsewhere()):  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_SECONDS)  # seldom; an event would cost each task

    def _goes_on_elsewhere(self) -> bool:
        """Whether other nodes may still say something, now that nothing more will be asked."""
        if self._branches is None:
            return False
        self._branches.half_close()
        return self._branches.busy

    def closing(self, out: Batcher) -> None:
        """We end the stream: the caller should open another."""
        self.keep()
        self._say(closing=True)

    def keep(self) -> None:
        """The stream ends, but not because the caller left: nothing goes with it."""
        self._ended_by_us = True
        self._with_caller.clear()

    def close(self) -> None:
        """The caller is gone: its readers are let go; its tasks go on unless it asked otherwise."""
        self._services.nodes.leave(self._say)
        self.out.close()
        for task_id, reader in list(self._with_caller.items()):
            if reader.task is None or reader.task.outcome is None:
                self._reach.cancel(self._tenant, task_id, "the caller is gone", None)
        readers, self._readers = self._readers, {}  # whose shard has moved is refused at once, and let go here
        for task_id, reader in readers.items():
            self._reach.unsubscribe(reader, self._tenant, task_id)
        if self._branches is not None:
            self._branches.close(ours=self._ended_by_us)

    # -- elsewhere ----------------------------------------------------------------------------------------------------

    def elsewhere(self, reader: Reader, task_id: str, spec: bytes, where: Elsewhere) -> None:
        """See `Sink`."""
        self._before.pop(reader, None)
        if self._readers.get(task_id) is reader:
            del self._readers[task_id]
            self._with_caller.pop(task_id, None)
        elif reader.reads or reader.interest != Interest.ACCEPTANCE:
            return  # the caller has let go of it meanwhile
        if spec:
            self._services.end_trace((self._tenant, task_id))
            frame = submit_frame(reader.reference, spec, reader.interest)
        else:
            subscribe = dispatch_pb2.Subscribe(reference=reader.reference, task_id=task_id)
            subscribe.after_sequence, subscribe.interest = reader.after, int(reader.interest)  # type: ignore[assignment]
            frame = dispatch_pb2.DispatchStreamRequest(subscribes=[subscribe]).SerializeToString()
        if reader.credit > READER_CREDIT:
            credit = dispatch_pb2.ReaderCredit(task_id=task_id, bytes=reader.credit - READER_CREDIT)
            frame += dispatch_pb2.DispatchStreamRequest(credits=[credit]).SerializeToString()
        self._bring(frame, where)

    def _bring(self, frame: bytes, where: Elsewhere) -> None:
        """Brings an item to its owner, or back to where it came in."""
        if self._hop is not None:
            self._hop.back(frame, where)
            return
        if self._branches is None:
            peers = self._services.peers
            assert peers is not None
            self._branches = Branches(peers, CALLER, self._principal, self._trace, self.out, self._again, self._anew)
        self._branches.send(where, frame)

    def bring_cancel(self, cancel: dispatch_pb2.CancelItem, where: Elsewhere) -> None:
        """Brings a cancel to its owner."""
        self._bring(dispatch_pb2.DispatchStreamRequest(cancels=[cancel]).SerializeToString(), where)

    def _again(self, frame: bytes, placing: Placing | None, refuse: bool) -> None:
        """An item came back: it goes where it belongs now, or is refused."""
        items = dispatch_pb2.DispatchStreamRequest.FromString(frame)
        if refuse:
            fault = fault_of(unavailable("it is changing hands"))
            for submit in items.submits:
                self.refuse(submit.reference, fault, submit.task.task_id)
            for subscribe in items.subscribes:
                self.refuse(subscribe.reference, fault, subscribe.task_id)
            for cancel in items.cancels:
                self.refuse(cancel.reference, fault, cancel.task_id)
            return
        self.placing = placing
        try:
            for submit in items.submits:
                self._submit(submit)
        finally:
            self.placing = None
        for subscribe in items.subscribes:
            self._subscribe(subscribe)
        for cancel in items.cancels:
            self._cancel(cancel)
        self._credit(items.credits)

    def _anew(self) -> None:
        """What other nodes did for this stream is lost: the caller is to open another, and ask again."""
        self.closing(self.out)
        self.out.close()

    # -- down ---------------------------------------------------------------------------------------------------------

    def _say(self, **fields: Any) -> None:
        self.out.put(dispatch_pb2.DispatchStreamResponse(**fields).SerializeToString())

    def cancelled(self, reference: int, task: Task) -> None:
        """A cancel is done."""
        self._say(cancelled=[{"reference": reference, "task_id": task.task_id, "state": int(task.state)}])

    # -- down (Sink) --------------------------------------------------------------------------------------------------

    def accepted(self, reader: Reader, task: Task, state: int, deduplicated: bool) -> None:
        """See `Sink`. Told unless the reader waits for the outcome only."""
        if self._before:
            self._before.pop(reader, None)
        if reader.interest == OUTCOME:
            return
        said = {"reference": reader.reference, "task_id": task.task_id, "deduplicated": deduplicated, "state": state}
        self._say(acknowledgements=[said])

    def refused(self, reader: Reader, fault: Fault) -> None:
        """See `Sink`."""
        task_id = reader.task.task_id if reader.task is not None else ""
        if self._readers.get(task_id) is not reader:
            task_id = next((name for name, one in self._readers.items() if one is reader), "")
        if reader in self._before:
            self._put_back(reader)
        else:
            self._forget(task_id)
        self.refuse(reader.reference, fault, task_id)

    def _forget(self, task_id: str) -> bool:
        """Nothing more is told of a task, nor does it go with the caller; whether anything was to be told."""
        self._with_caller.pop(task_id, None)
        return self._readers.pop(task_id, None) is not None

    def refuse(self, reference: int, fault: Fault, task_id: str) -> None:
        """An item of the caller has no meaning, or is not taken."""
        self._services.metrics.refused(fault.reason)
        refusal = dispatch_pb2.ItemRefusal(reference=reference, task_id=task_id if len(task_id) <= 256 else "")
        fill_error(refusal.error, fault)
        self._say(refusals=[refusal])

    def events(self, reader: Reader, task: Task, events: list[tuple[int, int, int, int, Any]]) -> None:
        """See `Sink`."""
        if reader.left:
            return  # another one reads the task on this stream by now, whose events these would come among
        if self._before:
            self._before.pop(reader, None)
        if events:
            reader.told = events[-1][0]
        for event in events:
            message = event_pb2.TaskEvent()
            fill_event(message, task, event)
            self.out.put(event_item(message))
        if ends_with(events) and self._readers.get(task.task_id) is reader:
            self._forget(task.task_id)

    def ended(self, reader: Reader, task: Task) -> None:
        """See `Sink`."""
        outcome = task.outcome
        assert outcome is not None
        if self._with_caller:
            self._with_caller.pop(task.task_id, None)
        if self._before:
            self._before.pop(reader, None)
        if self._readers.pop(task.task_id, None) is not None:  # as `_forget`, without a call for each task
            self.out.put(complete_item(task, outcome))


class _CancelReply:
    """Answers one cancel on a stream."""

    __slots__ = ("_item", "_stream")

    def __init__(self, stream: CallerStream, item: dispatch_pb2.CancelItem) -> None:
        self._stream = stream
        self._item = item

    def done(self, task: Task) -> None:
        self._stream.cancelled(self._item.reference, task)

    def refused(self, fault: Fault) -> None:
        self._stream.refuse(self._item.reference, fault, self._item.task_id)

    def elsewhere(self, where: Elsewhere) -> None:
        self._stream.bring_cancel(self._item, where)


async def serve(services: Services, principal: Principal, context: Any, trace: str = NO_TRACE) -> None:
    """Handles one DispatchStream until the caller leaves or the server stops."""
    stream = CallerStream(services, principal, trace)
    await services.pump(context, stream.out, stream.handle, stream.close, stream.closing, settle=stream.settle)
