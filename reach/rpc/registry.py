"""RegistryService and HeartbeatService: which agents exist, and that they live."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from hashlib import blake2b
from heapq import nsmallest
from operator import itemgetter
from typing import Any

from agentreach.v1 import (
    heartbeat_pb2,
    heartbeat_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from reach.cancelling import finished
from reach.core import events as ev
from reach.core.instance_states import Health
from reach.core.joining import Joining
from reach.core.model import Instance, PoolKey
from reach.core.pool import Pool
from reach.core.vocabulary import Vocabulary
from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.principal import Principal, credentials_ended, principal_of
from reach.rpc.services import Services, context_frames
from reach.rpc.waiting import Answer
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.faults import fault_of
from reach.runtime.watching import Round, Watch
from reach.transports.adopting import adopt
from reach.wire.agent_rows import fill_agent
from reach.wire.agents import read_registration
from reach.wire.answers import duration, fill_error
from reach.wire.requests import ID_BYTES, TAGS, check_enum, check_id, check_ids, duration_ms, invalid
from reach.wire.status import bounded_text
from reach.wire.statuses import is_cut, read_status

PAGE = 100
"""Instances on a page, unless another number is asked for, and in a message of a watch at most."""
MAX_PAGE = 1_000
PAGE_BYTES = 512 << 10
"""A page, or a message of a watch, ends when it is over this: a client must be able to receive it."""
DRAIN_MS = 30_000
HEARTBEAT = "/agentreach.v1.HeartbeatService/Heartbeat"


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reach = services.reach

    async def Register(self, request: registry_pb2.RegisterRequest, context: Any) -> registry_pb2.RegisterResponse:
        """See the contract."""
        agent_type, joining = read_registration(request.registration)
        principal = principal_of(context)
        principal.check_type(agent_type)
        tenant = principal.tenant
        self._reach.check_here(PoolKey(tenant, agent_type))
        await self._reach.patience.over()
        instance, found = await self._join(tenant, agent_type, joining)
        return registry_pb2.RegisterResponse(
            generation=instance.generation,
            revision=instance.revision,
            instance_id=instance.instance_id,
            warnings=[*instance.warnings, *found],
            heartbeat_interval=duration(instance.heartbeat_ms),
            blocked_by=instance.blocked_by,
        )

    async def _join(self, tenant: str, agent_type: str, joining: Joining) -> tuple[Instance, list[str]]:
        """The instance, and what a check of it found wrong."""
        dialler = self._services.dialler
        if joining.endpoint is not None and dialler is not None:
            return await dialler.register(tenant, agent_type, joining)
        reply = Answer()
        self._reach.register(tenant, agent_type, joining, reply)
        return await reply.future, []

    async def Adopt(self, request: registry_pb2.AdoptRequest, context: Any) -> registry_pb2.AdoptResponse:
        """See the contract."""
        dialler = self._services.dialler
        assert dialler is not None
        principal = principal_of(context)
        principal.check_type(request.terms.agent_type)
        instance, registration, warnings = await adopt(dialler, principal.tenant, request.terms)
        return registry_pb2.AdoptResponse(
            registration=registration,
            warnings=warnings,
            blocked_by=instance.blocked_by,
            generation=instance.generation,
        )

    async def Deregister(
        self, request: registry_pb2.DeregisterRequest, context: Any
    ) -> registry_pb2.DeregisterResponse:
        """See the contract."""
        instance_id = check_id("instance_id", request.instance_id, required=True)
        boot_id = check_id("boot_id", request.boot_id)
        principal = principal_of(context)
        pool, instance = self._reach.instance(principal.tenant, instance_id, boot_id)
        principal.check_type(pool.key.agent_type)
        await finished(self._leave(pool, instance))
        return registry_pb2.DeregisterResponse()

    async def _leave(self, pool: Pool, instance: Instance) -> None:
        link = instance.link
        reply = Answer()
        self._reach.post(pool, ev.Left(instance, reply))
        await reply.future
        if link is not None:
            message = f"instance {instance.instance_id!r} was deregistered"
            link.close(fault_of(InvalidRequest(message, Reason.AGENT_NOT_FOUND, instance_id=instance.instance_id)))

    async def Drain(self, request: registry_pb2.DrainRequest, context: Any) -> registry_pb2.DrainResponse:
        """See the contract."""
        tenant = principal_of(context).tenant
        deadline = duration_ms("deadline", request.deadline) if request.HasField("deadline") else DRAIN_MS
        if request.instance_id:
            rows = [self._reach.instance(tenant, check_id("instance_id", request.instance_id))]
        else:
            agent_id = check_id("agent_id", request.agent_id, required=True)
            rows = [row for row in self._reach.instances(tenant) if row[1].agent_id == agent_id]
            if not rows:
                self._reach.instance(tenant, f"{agent_id}@*")  # raises AGENT_NOT_FOUND
        for pool, _ in rows:
            principal_of(context).check_type(pool.key.agent_type)
        drained = []
        for pool, instance in rows:
            reply = Answer()
            self._reach.post(pool, ev.Drained(instance, deadline, request.undo, reply))
            drained.append(await reply.future)
        return registry_pb2.DrainResponse(instance_ids=drained)

    async def GetAgent(self, request: registry_pb2.GetAgentRequest, context: Any) -> registry_pb2.GetAgentResponse:
        """See the contract."""
        instance_id = check_id("instance_id", request.instance_id, required=True)
        tenant = principal_of(context).tenant
        pool, instance = self._reach.visible_instance(tenant, instance_id)
        answer = registry_pb2.GetAgentResponse()
        foreign = pool.key.tenant != tenant
        fill_agent(answer.agent, pool, instance, self._services.clock.now_ms(), foreign=foreign, history=True)
        return answer

    async def ListAgents(
        self, request: registry_pb2.ListAgentsRequest, context: Any
    ) -> registry_pb2.ListAgentsResponse:
        """See the contract."""
        size = request.page_size or PAGE
        if size > MAX_PAGE:
            raise invalid("page_size", f"must be 1 … {MAX_PAGE}")
        tenant = principal_of(context).tenant
        wanted = read_filter(request.filter, self._services.host.directory.vocabulary)
        after = read_token(request.page_token)
        rows = ((place_of(one), pool, one) for pool, one in self._reach.visible(tenant) if wanted(one))
        behind = [row for row in rows if row[0] > after]
        page = nsmallest(size, behind, key=itemgetter(0))
        if page:  # those of one id are told together, or who joins the lists of several nodes would lose some
            name, owner = page[-1][0]
            page += sorted((row for row in behind if row[0][0] == name and row[0][1] > owner), key=itemgetter(0))
        answer = registry_pb2.ListAgentsResponse()
        now_ms = self._services.clock.now_ms()
        taken_bytes, last = 0, ("", "")
        for place, pool, instance in page:
            if taken_bytes > PAGE_BYTES and place[0] != last[0]:
                break
            message = answer.agents.add()
            fill_agent(message, pool, instance, now_ms, foreign=pool.key.tenant != tenant)
            taken_bytes += message.ByteSize()
            last = place
        if len(behind) > len(answer.agents):
            answer.next_page_token = token_of(last)
        return answer

    async def WatchAgents(
        self, request: registry_pb2.WatchAgentsRequest, context: Any
    ) -> AsyncIterator[registry_pb2.WatchAgentsResponse]:
        """See the contract."""
        principal = principal_of(context)
        cursor = check_id("cursor", request.cursor)
        scope = request.filter.SerializeToString(deterministic=True)
        async with Watch(
            self._reach.changes,
            principal.tenant,
            read_filter(request.filter, self._services.host.directory.vocabulary),
            scope,
            cursor,
        ) as watch:
            told, in_sync = watch.first(), True
            while True:
                if in_sync or told.whole or told.instances or told.removed:
                    for answer in self._answers(told, principal.tenant, in_sync=in_sync):
                        yield answer
                in_sync = False
                told = await watch.next()
                if not principal.still_valid():
                    raise credentials_ended()

    def _answers(self, told: Round, tenant: str, *, in_sync: bool) -> Iterator[registry_pb2.WatchAgentsResponse]:
        """One round as messages that a client can receive, and that are made while the loop goes on."""
        answer = registry_pb2.WatchAgentsResponse(reset=told.whole)
        size = 0
        for instance_id in told.removed:
            answer.removed.append(instance_id)
            size += len(instance_id) + 4
            if size > PAGE_BYTES:
                yield answer
                answer, size = registry_pb2.WatchAgentsResponse(), 0
        for instance in told.instances:
            if instance.bit < 0:
                continue  # it has left meanwhile: the next round says so
            key = instance.pool_key
            message = answer.agents.add()
            now_ms = self._services.clock.now_ms()
            fill_agent(message, self._reach.host.pool(key), instance, now_ms, foreign=key.tenant != tenant)
            size += message.ByteSize()
            if size > PAGE_BYTES or len(answer.agents) >= PAGE:
                yield answer
                answer, size = registry_pb2.WatchAgentsResponse(), 0
        answer.in_sync = in_sync
        answer.cursor = told.cursor
        yield answer


def read_filter(wanted: registry_pb2.AgentFilter, vocabulary: Vocabulary) -> Callable[[Instance], bool]:
    """Whether an instance matches.

    Raises:
        InvalidRequest: INVALID_FIELD with the name of the field.
    """
    for field in ("agent_id", "agent_type", "capability"):
        check_id(f"filter.{field}", getattr(wanted, field))
    tags = set(check_ids("filter.tags", wanted.tags, TAGS))
    health = {check_enum("filter.health", one, Health) for one in wanted.health if one}
    agent_id, agent_type, capability = wanted.agent_id, wanted.agent_type, vocabulary.canonical(wanted.capability)

    def matches(one: Instance) -> bool:
        profile = one.profile
        return (
            (not agent_id or profile.agent_id == agent_id)
            and (not agent_type or one.pool_key.agent_type == agent_type)
            and (not capability or any(capability == name for name, _ in profile.capabilities))
            and (not tags or tags.issubset(profile.tags))
            and (not health or one.health in health)
        )

    return matches


def place_of(instance: Instance) -> tuple[str, str]:
    """Where an instance stands in the order of lists; the second part tells those of several owners apart, and does
    not tell who they are."""
    return instance.instance_id, blake2b(instance.pool_key.tenant.encode(), digest_size=6).hexdigest()


def token_of(place: tuple[str, str]) -> str:
    """A page token: the last place that was told."""
    return urlsafe_b64encode("\0".join(place).encode()).decode()


def read_token(token: str) -> tuple[str, str]:
    """The place behind which a page begins.

    Raises:
        InvalidRequest: INVALID_FIELD: it is not one of ours.
    """
    if not token:
        return "", ""
    try:
        instance_id, separator, owner = urlsafe_b64decode(token).decode().partition("\0")
    except ValueError:
        separator = owner = instance_id = ""
    if not separator or len(owner) != 12 or len(token) > 2 * ID_BYTES:
        raise invalid("page_token", "is not from an answer of this call")
    return instance_id, owner


class HeartbeatServicer(heartbeat_pb2_grpc.HeartbeatServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reach = services.reach

    def _beat(self, principal: Principal, beat: heartbeat_pb2.Beat, kind: str) -> Instance:
        instance_id = check_id("beat.instance_id", beat.instance_id, required=True)
        boot_id = check_id("beat.boot_id", beat.boot_id, required=True)
        pool, instance = self._reach.instance(principal.tenant, instance_id, boot_id)
        self._services.metrics.beat(kind)
        said = read_status(beat.status)
        if is_cut(beat.status, said):
            self._services.metrics.status_cut()
        self._reach.post(pool, ev.Beat(instance, said))
        return instance

    async def Heartbeat(self, request: heartbeat_pb2.HeartbeatRequest, context: Any) -> heartbeat_pb2.HeartbeatResponse:
        """See the contract."""
        instance = self._beat(principal_of(context), request.beat, "unary")
        return heartbeat_pb2.HeartbeatResponse(next_in=duration(instance.heartbeat_ms))

    async def StreamHeartbeats(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[heartbeat_pb2.StreamHeartbeatsResponse]:
        """See the contract."""
        principal = principal_of(context)
        async for frame in context_frames(context):  # the iterator of gRPC is a ring that has the call
            if not principal.still_valid():
                raise credentials_ended()
            answer = heartbeat_pb2.StreamHeartbeatsResponse()
            brought: list[Coroutine[Any, Any, None]] = []
            for beat in frame.beats:
                try:
                    self._beat(principal, beat, "stream")
                except ReachError as error:
                    _refuse(answer, beat, error)
                except Elsewhere as where:
                    brought.append(self._bring(answer, beat, where))
            await asyncio.gather(*brought)
            if answer.refusals:
                yield answer

    async def _bring(
        self, answer: heartbeat_pb2.StreamHeartbeatsResponse, beat: heartbeat_pb2.Beat, where: Elsewhere
    ) -> None:
        """Brings a beat to the node that has the instance."""
        try:
            await self._services.bring(where, HEARTBEAT, heartbeat_pb2.HeartbeatRequest(beat=beat))
        except ReachError as error:
            _refuse(answer, beat, error)


def _refuse(answer: heartbeat_pb2.StreamHeartbeatsResponse, beat: heartbeat_pb2.Beat, error: ReachError) -> None:
    refusal = answer.refusals.add(instance_id=bounded_text(beat.instance_id, ID_BYTES))
    fill_error(refusal.error, fault_of(error))
