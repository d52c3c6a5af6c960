"""OpsService: keys, watching and explaining tasks, dead letters, failed webhooks, nodes."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator
from typing import Any

from agentreach.v1 import cluster_pb2, ops_pb2, ops_pb2_grpc
from reach.errors import InvalidRequest, Reason
from reach.rpc import decisions
from reach.rpc.audit import audit
from reach.rpc.dead_letters import DeadLetters
from reach.rpc.nodes import Nodes
from reach.rpc.principal import credentials_ended, principal_of
from reach.rpc.services import FEATURES, RECHECK_SECONDS, Services, error_of_fault
from reach.runtime.past import not_found
from reach.runtime.task_watch import TaskWatch
from reach.store.base import ApiKey, KeyStore
from reach.wire.answers import duration, fill_event, fill_task, timestamp
from reach.wire.pages import page_number, page_size
from reach.wire.requests import PROTOCOL_VERSIONS, check_id, session_name
from reach.wire.story import story_of
from reach.wire.webhooks import FAILED, fill_failed

PAGE = 100
FAILED_WEBHOOKS = 50
WATCHED_AT_ONCE = 100
"""Events in one message: with their errors far below what a client can receive."""


class OpsServicer(ops_pb2_grpc.OpsServiceServicer):
    """See the contract."""

    def __init__(self, services: Services, keys: KeyStore | None, version: str, store: str) -> None:
        self._services = services
        self._dead_letters = DeadLetters(services)
        self._nodes = Nodes(services, version, store)
        self._keys = keys
        self._version = version
        self._store = store

    async def GetServerInfo(self, request: ops_pb2.GetServerInfoRequest, context: Any) -> ops_pb2.GetServerInfoResponse:
        """See the contract."""
        principal, reach = principal_of(context), self._services.reach
        uptime = self._services.clock.now_ms() - reach.started_ms
        return ops_pb2.GetServerInfoResponse(
            node_id=reach.node_id,
            version=self._version,
            protocol_versions=PROTOCOL_VERSIONS,
            features=FEATURES,
            uptime=duration(uptime),
            agents=len(reach.instances(principal.tenant)),
            open_tasks=reach.tasks.open_of(principal.tenant),
            store=self._store,
            principal=ops_pb2.Principal(
                tenant=principal.tenant, app_id=principal.app_id, scopes=sorted(principal.scopes)
            ),
        )

    def _key_store(self) -> KeyStore:
        if self._keys is None:
            message = "this server runs without authentication and keeps no keys: start it with --auth keys"
            raise InvalidRequest(message)
        return self._keys

    async def CreateKey(self, request: ops_pb2.CreateKeyRequest, context: Any) -> ops_pb2.CreateKeyResponse:
        """See the contract."""
        # The store checks it: keys may live for longer than any task may wait.
        ttl_ms = request.ttl.seconds * 1_000 + request.ttl.nanos // 1_000_000 if request.HasField("ttl") else None
        principal = principal_of(context)
        if principal.agent_types:
            message = "these credentials are for some types of agents only, and keys are for all"
            raise InvalidRequest(message, Reason.PERMISSION_DENIED)
        store = self._key_store()

        def create() -> tuple[ApiKey, str]:
            key, token = store.create(principal.tenant, request.app_id, request.scopes, ttl_ms)
            audit(principal, "CreateKey", key_id=key.key_id, for_app=key.app_id, scopes=sorted(key.scopes))
            return key, token

        # In a thread, for the store of a cluster is on another machine; with its line for the audit, which it must have
        # even if the caller is gone by then.
        key, token = await to_thread(create)
        answer = ops_pb2.CreateKeyResponse(secret=token)
        _fill_key(answer.key, key)
        return answer

    async def ListKeys(self, request: ops_pb2.ListKeysRequest, context: Any) -> ops_pb2.ListKeysResponse:
        """See the contract."""
        size = page_size(request.page_size, PAGE)
        after = check_id("page_token", request.page_token)
        tenant = principal_of(context).tenant
        keys = await to_thread(self._key_store().list_keys, tenant, after=after, limit=size)
        answer = ops_pb2.ListKeysResponse()
        for key in keys:
            _fill_key(answer.keys.add(), key)
        if len(keys) == size:
            answer.next_page_token = keys[-1].key_id
        return answer

    async def RevokeKey(self, request: ops_pb2.RevokeKeyRequest, context: Any) -> ops_pb2.RevokeKeyResponse:
        """See the contract."""
        key_id = check_id("key_id", request.key_id, required=True)
        principal = principal_of(context)
        store = self._key_store()

        def revoke() -> ApiKey:
            key = store.revoke(key_id, principal.tenant)
            audit(principal, "RevokeKey", key_id=key_id)
            return key

        answer = ops_pb2.RevokeKeyResponse()
        _fill_key(answer.key, await to_thread(revoke))
        return answer

    async def WatchTasks(
        self, request: ops_pb2.WatchTasksRequest, context: Any
    ) -> AsyncIterator[ops_pb2.WatchTasksResponse]:
        """See the contract."""
        principal = principal_of(context)
        watch = TaskWatch(
            principal.tenant,
            check_id("agent_type", request.agent_type),
            session_name(request.session) if request.HasField("session") else "",
            check_id("root_task_id", request.root_task_id),
        )
        with self._services.host.task_watchers.watching(self._services.until_stopped(watch)):
            yield ops_pb2.WatchTasksResponse()
            while True:
                news, missed, fault = await watch.take(WATCHED_AT_ONCE, RECHECK_SECONDS)
                if not principal.still_valid():
                    raise credentials_ended()
                if news or missed:
                    answer = ops_pb2.WatchTasksResponse(missed=missed)
                    for task, event in news:
                        message = answer.events.add()
                        fill_event(message, task, event)
                        if message.HasField("complete"):
                            message.complete.ClearField("output")
                    yield answer
                if fault is not None:
                    raise error_of_fault(fault)

    async def ExplainTask(self, request: ops_pb2.ExplainTaskRequest, context: Any) -> ops_pb2.ExplainTaskResponse:
        """See the contract."""
        task_id = check_id("task_id", request.task_id, required=True)
        found = await self._services.reach.tasks.explained(principal_of(context).tenant, task_id)
        if found is None:
            raise error_of_fault(not_found(task_id))
        task, records = found
        answer = ops_pb2.ExplainTaskResponse(story=story_of(task, records))
        fill_task(answer.task, task, full=False, decisions=records)
        return answer

    async def ListDecisions(self, request: ops_pb2.ListDecisionsRequest, context: Any) -> ops_pb2.ListDecisionsResponse:
        """See the contract."""
        return await decisions.page(self._services, principal_of(context).tenant, request)

    async def ListDeadLetters(
        self, request: ops_pb2.ListDeadLettersRequest, context: Any
    ) -> ops_pb2.ListDeadLettersResponse:
        """See the contract."""
        return await self._dead_letters.page(principal_of(context).tenant, request)

    async def RequeueDeadLetters(
        self, request: ops_pb2.RequeueDeadLettersRequest, context: Any
    ) -> ops_pb2.RequeueDeadLettersResponse:
        """See the contract."""
        return await self._dead_letters.requeue(principal_of(context), request)

    async def PurgeDeadLetters(
        self, request: ops_pb2.PurgeDeadLettersRequest, context: Any
    ) -> ops_pb2.PurgeDeadLettersResponse:
        """See the contract."""
        return ops_pb2.PurgeDeadLettersResponse(purged=await self._dead_letters.purge(principal_of(context), request))

    async def ListFailedWebhooks(
        self, request: ops_pb2.ListFailedWebhooksRequest, context: Any
    ) -> ops_pb2.ListFailedWebhooksResponse:
        """See the contract."""
        size = page_size(request.page_size, FAILED_WEBHOOKS)
        after = page_number(request.page_token)
        facts = await self._services.reach.facts(FAILED, principal_of(context).tenant, after, size)
        answer = ops_pb2.ListFailedWebhooksResponse()
        for _, fact in facts:
            fill_failed(answer.webhooks.add(), fact)
        if len(facts) == size:
            answer.next_page_token = str(facts[-1].number)
        return answer

    async def GetNode(self, request: cluster_pb2.GetNodeRequest, context: Any) -> cluster_pb2.GetNodeResponse:
        """See the contract."""
        return await self._nodes.get_node(request)

    async def GetCluster(self, request: cluster_pb2.GetClusterRequest, context: Any) -> cluster_pb2.GetClusterResponse:
        """See the contract."""
        return await self._nodes.get_cluster(request, principal_of(context))

    async def DrainNode(self, request: cluster_pb2.DrainNodeRequest, context: Any) -> cluster_pb2.DrainNodeResponse:
        """See the contract."""
        return await self._nodes.drain(request, context)

    async def Rebalance(self, request: cluster_pb2.RebalanceRequest, context: Any) -> cluster_pb2.RebalanceResponse:
        """See the contract."""
        return await self._nodes.rebalance(context)


def _fill_key(message: ops_pb2.ApiKey, key: ApiKey) -> None:
    message.key_id, message.tenant, message.app_id = key.key_id, key.tenant, key.app_id
    message.scopes.extend(sorted(key.scopes))
    message.created_at.CopyFrom(timestamp(key.created_ms))
    if key.expires_ms is not None:
        message.expires_at.CopyFrom(timestamp(key.expires_ms))
    if key.revoked_ms is not None:
        message.revoked_at.CopyFrom(timestamp(key.revoked_ms))
