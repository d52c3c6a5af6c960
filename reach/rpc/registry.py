"""RegistryService and HeartbeatService: which agents exist, and that they live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agentreach.v1 import (
    agent_pb2,
    heartbeat_pb2,
    heartbeat_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from reach.core import events as ev
from reach.core.model import Health, Instance
from reach.core.pool import Pool
from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.principal import Principal, credentials_ended, principal_of
from reach.rpc.services import Services
from reach.rpc.waiting import Answer
from reach.runtime.reach_api import fault_of
from reach.wire.agents import fill_agent, is_cut, read_registration, read_status
from reach.wire.answers import duration, fill_error
from reach.wire.requests import ID_BYTES, TAGS, check_enum, check_id, check_ids, duration_ms, invalid
from reach.wire.status import bounded_text

PAGE = 100
MAX_PAGE = 1_000
PAGE_BYTES = 512 << 10
"""A page, or a message of a watch, ends when it is over this: a client must be able to receive it."""
DRAIN_MS = 30_000
WATCH_SECONDS = 0.2
"""How often a watch looks for changes: dynamic state is latest-wins."""


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reach = services.reach

    async def Register(self, request: registry_pb2.RegisterRequest, context: Any) -> registry_pb2.RegisterResponse:
        """See the contract."""
        agent_type, joining = read_registration(request.registration)
        instance, found = await self._join(principal_of(context).tenant, agent_type, joining)
        return registry_pb2.RegisterResponse(
            generation=instance.generation,
            revision=instance.revision,
            instance_id=instance.instance_id,
            warnings=[*instance.warnings, *found],
            heartbeat_interval=duration(instance.heartbeat_ms),
            blocked_by=instance.blocked_by,
        )

    async def _join(self, tenant: str, agent_type: str, joining: ev.Joining) -> tuple[Instance, list[str]]:
        """The instance, and what a check of it found wrong."""
        dialler = self._services.dialler
        if joining.endpoint is not None and dialler is not None:
            return await dialler.register(tenant, agent_type, joining)
        reply = Answer()
        self._reach.register(tenant, agent_type, joining, reply)
        return await reply.future, []

    async def Deregister(
        self, request: registry_pb2.DeregisterRequest, context: Any
    ) -> registry_pb2.DeregisterResponse:
        """See the contract."""
        instance_id = check_id("instance_id", request.instance_id, required=True)
        boot_id = check_id("boot_id", request.boot_id)
        pool, instance = self._reach.instance(principal_of(context).tenant, instance_id, boot_id)
        link = instance.link
        reply = Answer()
        self._reach.post(pool, ev.Left(instance, reply))
        await reply.future
        if link is not None:
            message = f"instance {instance_id!r} was deregistered"
            link.close(fault_of(InvalidRequest(message, Reason.AGENT_NOT_FOUND, instance_id=instance_id)))
        return registry_pb2.DeregisterResponse()

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
        drained = []
        for pool, instance in rows:
            reply = Answer()
            self._reach.post(pool, ev.Drained(instance, deadline, request.undo, reply))
            drained.append(await reply.future)
        return registry_pb2.DrainResponse(instance_ids=drained)

    async def GetAgent(self, request: registry_pb2.GetAgentRequest, context: Any) -> registry_pb2.GetAgentResponse:
        """See the contract."""
        instance_id = check_id("instance_id", request.instance_id, required=True)
        pool, instance = self._reach.instance(principal_of(context).tenant, instance_id)
        answer = registry_pb2.GetAgentResponse()
        fill_agent(answer.agent, pool, instance, self._services.clock.now_ms(), history=True)
        return answer

    async def ListAgents(
        self, request: registry_pb2.ListAgentsRequest, context: Any
    ) -> registry_pb2.ListAgentsResponse:
        """See the contract."""
        size = request.page_size or PAGE
        if size > MAX_PAGE:
            raise invalid("page_size", f"must be 1 … {MAX_PAGE}")
        rows = self._matching(principal_of(context), request.filter)
        rows = [row for row in rows if row[1].instance_id > request.page_token]
        answer = registry_pb2.ListAgentsResponse()
        taken = taken_bytes = 0
        for taken, (pool, instance) in enumerate(rows, 1):
            message = answer.agents.add()
            fill_agent(message, pool, instance, self._services.clock.now_ms())
            taken_bytes += message.ByteSize()
            if taken == size or taken_bytes > PAGE_BYTES:
                break
        if len(rows) > taken:
            answer.next_page_token = rows[taken - 1][1].instance_id
        return answer

    def _matching(self, principal: Principal, wanted: registry_pb2.AgentFilter) -> list[tuple[Pool, Instance]]:
        for field in ("agent_id", "agent_type", "capability"):
            check_id(f"filter.{field}", getattr(wanted, field))
        check_ids("filter.tags", wanted.tags, TAGS)
        for one in wanted.health:
            if one:
                check_enum("filter.health", one, Health)
        health = set(wanted.health)
        capability = self._services.host.directory.vocabulary.canonical(wanted.capability)
        return [
            (pool, one)
            for pool, one in self._reach.instances(principal.tenant)
            if (not wanted.agent_id or one.agent_id == wanted.agent_id)
            and (not wanted.agent_type or pool.key.agent_type == wanted.agent_type)
            and (not capability or any(capability == name for name, _ in one.profile.capabilities))
            and set(wanted.tags) <= set(one.profile.tags)
            and (not health or int(one.health) in health)
        ]

    async def WatchAgents(
        self, request: registry_pb2.WatchAgentsRequest, context: Any
    ) -> AsyncIterator[registry_pb2.WatchAgentsResponse]:
        """See the contract. The cursor is not looked at yet: every watch begins with all there is, and says so."""
        principal = principal_of(context)
        known: dict[str, bytes] = {}
        first = True
        while True:
            if not principal.still_valid():
                raise credentials_ended()
            answer = registry_pb2.WatchAgentsResponse(reset=first)
            seen, size = set(), 0
            for pool, instance in self._matching(principal, request.filter):
                message = agent_pb2.Agent()
                fill_agent(message, pool, instance, self._services.clock.now_ms())
                for field in ("last_heartbeat_age", "reach_score", "availability_ttl"):
                    message.ClearField(field)
                for condition in message.conditions:
                    condition.ClearField("since")
                raw = message.SerializeToString(deterministic=True)
                seen.add(instance.instance_id)
                if known.get(instance.instance_id) != raw:
                    known[instance.instance_id] = raw
                    answer.agents.append(message)
                    size += len(raw)
                if size > PAGE_BYTES:
                    yield answer
                    answer, size = registry_pb2.WatchAgentsResponse(), 0
            for instance_id in known.keys() - seen:
                del known[instance_id]
                answer.removed.append(instance_id)
            answer.in_sync = first
            if first or answer.agents or answer.removed:
                answer.cursor = str(self._services.host.directory.revision)
                yield answer
            first = False
            await asyncio.sleep(WATCH_SECONDS)


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
        if is_cut(beat.status):
            self._services.metrics.status_cut()
        self._reach.post(pool, ev.Beat(instance, read_status(beat.status)))
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
        async for frame in request_iterator:
            if not principal.still_valid():
                raise credentials_ended()
            answer = heartbeat_pb2.StreamHeartbeatsResponse()
            for beat in frame.beats:
                try:
                    self._beat(principal, beat, "stream")
                except ReachError as error:
                    refusal = answer.refusals.add(instance_id=bounded_text(beat.instance_id, ID_BYTES))
                    fill_error(refusal.error, fault_of(error))
            if answer.refusals:
                yield answer
