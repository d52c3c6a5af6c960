"""ResultService: readers follow tasks; agents without an Attach stream report."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agentreach.v1 import attempt_pb2, result_pb2, result_pb2_grpc
from reach.core import events as ev
from reach.core.model import Instance
from reach.core.pool import Pool
from reach.core.stream import Interest, Reader
from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.dispatch import read_events
from reach.rpc.principal import Principal, credentials_ended, principal_of
from reach.rpc.services import Services, context_frames
from reach.rpc.waiting import Answer, EventSink, StillMine
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.faults import fault_of
from reach.wire.agents import HANDLE_BYTES, read_delta, read_key, read_progress, read_result
from reach.wire.answers import duration, fill_error
from reach.wire.requests import ID_BYTES, check_id
from reach.wire.status import error_from_proto

SERVICE = "/agentreach.v1.ResultService/"


class ResultServicer(result_pb2_grpc.ResultServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reach = services.reach

    async def StreamResult(
        self, request: result_pb2.StreamResultRequest, context: Any
    ) -> AsyncIterator[result_pb2.StreamResultResponse]:
        """See the contract."""
        task_id = check_id("task_id", request.task_id, required=True)
        sink = self._services.until_stopped(EventSink())
        reader = Reader(sink, 0, Interest.EVENTS, request.after_sequence)
        tenant = principal_of(context).tenant
        self._reach.subscribe(tenant, task_id, reader)
        try:
            async for frame in read_events(self._reach, sink, reader, result_pb2.StreamResultResponse):
                yield frame
        finally:
            self._reach.unsubscribe(reader, tenant, task_id)

    def _reporter(self, principal: Principal, reporter: result_pb2.Reporter) -> tuple[Pool, Instance]:
        instance_id = check_id("reporter.instance_id", reporter.instance_id, required=True)
        boot_id = check_id("reporter.boot_id", reporter.boot_id, required=True)
        return self._reach.instance(principal.tenant, instance_id, boot_id)

    async def ReportResult(
        self, request: result_pb2.ReportResultRequest, context: Any
    ) -> result_pb2.ReportResultResponse:
        """See the contract."""
        await self._report(principal_of(context), request.reporter, request.result)
        return result_pb2.ReportResultResponse()

    async def _report(
        self, principal: Principal, reporter: result_pb2.Reporter, result: attempt_pb2.AttemptResult
    ) -> None:
        pool, instance = self._reporter(principal, reporter)
        key = read_key("result.key", result.key, principal.tenant)
        reply = Answer(principal.tenant)
        self._reach.post(pool, read_result(instance, key, result, self._services.tasks.limits.payload, reply))
        await reply.future

    async def ReportResultStream(self, request_iterator: Any, context: Any) -> result_pb2.ReportResultStreamResponse:
        """See the contract."""
        principal = principal_of(context)
        reporter: result_pb2.Reporter | None = None
        async for frame in context_frames(context):  # the iterator of gRPC is a ring that has the call
            if not principal.still_valid():
                raise credentials_ended()
            if reporter is None:
                reporter = frame.reporter
            try:
                for _, error in await self._events(principal, reporter, (), frame.deltas, frame.progress):
                    raise error
                if frame.HasField("result"):
                    await self._report(principal, reporter, frame.result)
            except Elsewhere as where:
                await self._bring(reporter, frame, where)
            if frame.HasField("result"):
                return result_pb2.ReportResultStreamResponse()
        raise InvalidRequest("the stream ended without a result", Reason.UNEXPECTED_FRAME)

    async def _bring(
        self, reporter: result_pb2.Reporter, frame: result_pb2.ReportResultStreamRequest, where: Elsewhere
    ) -> None:
        """Brings a frame of a report to the node that has the instance. Raises ReachError."""
        events = result_pb2.ReportEventsRequest(reporter=reporter, deltas=frame.deltas, progress=frame.progress)
        said = await self._services.bring(where, f"{SERVICE}ReportEvents", events)
        for refusal in result_pb2.ReportEventsResponse.FromString(said).refusals:
            raise error_from_proto(refusal.error)
        if frame.HasField("result"):
            result = result_pb2.ReportResultRequest(reporter=reporter, result=frame.result)
            await self._services.bring(where, f"{SERVICE}ReportResult", result)

    async def _events(
        self, principal: Principal, reporter: result_pb2.Reporter, accepts: Any, deltas: Any, progress: Any
    ) -> list[tuple[attempt_pb2.AttemptKey, ReachError]]:
        """Hands over what an agent says of its attempts; what was refused, and why, once that is certain."""
        pool, instance = self._reporter(principal, reporter)
        refused: list[tuple[attempt_pb2.AttemptKey, ReachError]] = []
        asked: dict[tuple[str, str, int], tuple[attempt_pb2.AttemptKey, Answer]] = {}
        for kind, items in ((self._accept, accepts), (self._delta, deltas), (self._progress, progress)):
            for item in items:
                try:
                    key = read_key("key", item.key, principal.tenant)
                    self._reach.post(pool, kind(instance, key, item))
                except ReachError as error:
                    refused.append((item.key, error))
                else:
                    asked[key] = item.key, StillMine(principal.tenant)
        for key, (_, reply) in asked.items():  # behind all that was said of it: is it still theirs?
            self._reach.post(pool, ev.LeaseExtended(instance, *key, reply))
        for message, reply in asked.values():
            try:
                await reply.future
            except ReachError as error:
                refused.append((message, error))
        return refused

    @staticmethod
    def _accept(instance: Instance, key: tuple[str, str, int], item: attempt_pb2.AttemptAccept) -> Any:
        check_id("accept.handle", item.handle, most=HANDLE_BYTES)
        return ev.TakenUp(instance, *key, handle=item.handle)

    @staticmethod
    def _delta(instance: Instance, key: tuple[str, str, int], item: attempt_pb2.AttemptDelta) -> Any:
        return ev.DeltaCame(instance, *key, item.attempt_sequence, read_delta(item))

    @staticmethod
    def _progress(instance: Instance, key: tuple[str, str, int], item: attempt_pb2.AttemptProgress) -> Any:
        return ev.Progressed(instance, *key, *read_progress(item))

    async def ReportEvents(
        self, request: result_pb2.ReportEventsRequest, context: Any
    ) -> result_pb2.ReportEventsResponse:
        """See the contract."""
        principal = principal_of(context)
        answer = result_pb2.ReportEventsResponse()
        refused = await self._events(principal, request.reporter, request.accepts, request.deltas, request.progress)
        for key, error in refused:
            refusal = answer.refusals.add()
            if len(key.task_id) <= ID_BYTES and len(key.tenant) <= ID_BYTES:
                refusal.key.CopyFrom(key)
            fill_error(refusal.error, fault_of(error))
        return answer

    async def BeginEffect(self, request: result_pb2.BeginEffectRequest, context: Any) -> result_pb2.BeginEffectResponse:
        """See the contract."""
        principal = principal_of(context)
        pool, instance = self._reporter(principal, request.reporter)
        key = read_key("key", request.key, principal.tenant)
        reply = StillMine(principal.tenant)
        self._reach.post(pool, ev.EffectAsked(instance, *key, check_id("effect", request.effect), reply))
        await reply.future
        return result_pb2.BeginEffectResponse()

    async def ExtendLease(self, request: result_pb2.ExtendLeaseRequest, context: Any) -> result_pb2.ExtendLeaseResponse:
        """See the contract."""
        principal = principal_of(context)
        pool, instance = self._reporter(principal, request.reporter)
        key = read_key("key", request.key, principal.tenant)
        reply = StillMine(principal.tenant)
        self._reach.post(pool, ev.LeaseExtended(instance, *key, reply))
        return result_pb2.ExtendLeaseResponse(lease=duration(max(0, await reply.future)))
