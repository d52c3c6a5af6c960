"""Dead letters (DLV-10): to be looked at, tried again as new tasks, and removed."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from agentreach.v1 import dispatch_pb2, ops_pb2, task_pb2
from reach.core.model import Task, TaskState
from reach.core.stream import Interest, Reader
from reach.errors import ReachError, Reason
from reach.rpc.audit import audit
from reach.rpc.principal import Principal
from reach.rpc.services import Services
from reach.rpc.waiting import WaitingSink
from reach.runtime.elsewhere import Elsewhere
from reach.store.base import TaskQuery
from reach.wire.answers import fill_task
from reach.wire.pages import MAX_PAGE, PAGE_BYTES, page_number, page_size
from reach.wire.requests import ID_BYTES, RELATED, check_id, check_ids, invalid

PAGE: Final = 50
CHUNK: Final = 64
"""Dead letters that are in memory at a time, with payloads of up to 4 MiB; also what one requeue by filter takes."""
AUDITED: Final = 10
"""Ids in a line of the audit log."""
READ_AT_ONCE: Final = 16
DISPATCH: Final = "/agentreach.v1.DispatchService/Dispatch"


_TAIL: Final = re.compile(r"~[0-9a-f]{12}\Z")
"""What the id of a task has that was tried again before."""


class DeadLetters:
    """See the module."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reach = services.reach

    async def page(self, tenant: str, request: ops_pb2.ListDeadLettersRequest) -> ops_pb2.ListDeadLettersResponse:
        """Dead letters, latest first."""
        size = page_size(request.page_size, PAGE)
        query = _query(tenant, request.agent_type, request.reason, page_number(request.page_token), size)
        tasks, more, _ = await self._reach.tasks.page(query)
        answer = ops_pb2.ListDeadLettersResponse()
        taken = 0
        for task in tasks:
            message = answer.tasks.add()
            fill_task(message, task, full=False)
            taken += message.ByteSize()
            if taken > PAGE_BYTES:
                answer.next_page_token = str(task.row)
                return answer
        if more:
            answer.next_page_token = str(tasks[-1].row)
        return answer

    async def requeue(
        self, principal: Principal, request: ops_pb2.RequeueDeadLettersRequest
    ) -> ops_pb2.RequeueDeadLettersResponse:
        """Makes new tasks of dead letters."""
        request_id = check_id("request_id", request.request_id)
        answer = ops_pb2.RequeueDeadLettersResponse()
        if self._named(request):
            if request.page_token:
                raise invalid("page_token", "goes with a filter, not with task_ids")
            async for some, found in self._found(principal.tenant, request.task_ids):
                for task_id in some:
                    if task_id not in found:
                        answer.refused[task_id] = f"{Reason.TASK_NOT_FOUND.name}: there is no dead letter {task_id!r}"
                await self._all_again(list(found.values()), request_id, answer)
        else:
            before = page_number(request.page_token)
            query = _query(principal.tenant, request.agent_type, request.reason, before, CHUNK)
            tasks, more, _ = await self._reach.tasks.page(query)
            if more:
                answer.next_page_token = str(tasks[-1].row)
            await self._all_again(tasks, request_id, answer)
        counts = {"requeued": len(answer.new_task_ids), "refused": len(answer.refused)}
        audit(principal, "RequeueDeadLetters", **counts, **_asked(request))
        return answer

    async def purge(self, principal: Principal, request: ops_pb2.PurgeDeadLettersRequest) -> int:
        """Removes dead letters; returns how many."""
        removed = 0
        if self._named(request):
            async for _, found in self._found(principal.tenant, request.task_ids):
                removed += await self._reach.tasks.remove(found.values())
        else:
            async for tasks in self._all(principal.tenant, request.agent_type, request.reason):
                removed += await self._reach.tasks.remove(tasks)
        audit(principal, "PurgeDeadLetters", purged=removed, **_asked(request))
        return removed

    def _named(self, request: Any) -> bool:
        """Whether ids are given rather than a filter; that nothing is given must not mean all."""
        check_ids("task_ids", request.task_ids, MAX_PAGE)
        filtered = bool(request.agent_type or request.reason or request.all)
        if bool(request.task_ids) is filtered:
            raise invalid("task_ids", "say which: task_ids, or agent_type or reason (or both), or all")
        return bool(request.task_ids)

    async def _found(
        self, tenant: str, task_ids: Sequence[str]
    ) -> AsyncIterator[tuple[Sequence[str], dict[str, Task]]]:
        """Some of these ids at a time, and the dead letters among them: all together may be more than fits."""
        named = list(dict.fromkeys(task_ids))
        for start in range(0, len(named), READ_AT_ONCE):
            some = named[start : start + READ_AT_ONCE]
            tasks = await asyncio.gather(*(self._reach.tasks.get(tenant, task_id) for task_id in some))
            yield (
                some,
                {
                    task.task_id: task
                    for task in tasks
                    if task is not None and task.state is TaskState.DEAD_LETTERED and not task.volatile
                },
            )

    async def _all(self, tenant: str, agent_type: str, reason: str) -> AsyncIterator[list[Task]]:
        before = 0
        while True:
            tasks, more, _ = await self._reach.tasks.page(_query(tenant, agent_type, reason, before, CHUNK))
            if tasks:
                before = tasks[-1].row
                yield tasks
            if not more:
                return

    async def _all_again(
        self, tasks: Sequence[Task], request_id: str, answer: ops_pb2.RequeueDeadLettersResponse
    ) -> None:
        outcomes = await asyncio.gather(*(self._again(task, request_id) for task in tasks))
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, ReachError):
                answer.refused[task.task_id] = f"{outcome.reason.name}: {outcome}"
            else:
                answer.new_task_ids[task.task_id] = outcome

    async def _again(self, dead: Task, request_id: str) -> str | ReachError:
        """The id of the new task, or why there is none."""
        spec = task_pb2.TaskSpec.FromString(dead.spec)
        spec.task_id = new_id(dead, request_id)
        del spec.related_task_ids[RELATED - 1 :]
        spec.related_task_ids.append(dead.task_id)
        spec.ClearField("trace")
        sink = self._services.until_stopped(WaitingSink())
        reader = Reader(sink, 0, Interest.ACCEPTANCE)
        try:
            task, selector = self._services.tasks.read(dead.tenant, spec)
            self._reach.submit(task, selector, reader)
            await sink.acceptance
        except Elsewhere as where:
            return await self._bring(dead.tenant, spec, where)
        except ReachError as error:
            return error
        return spec.task_id

    async def _bring(self, tenant: str, spec: task_pb2.TaskSpec, where: Elsewhere) -> str | ReachError:
        """Gives the new task to the node that has its pool, in the name of its tenant."""
        peers, giver = self._services.peers, Principal(tenant, "", frozenset({"caller"}))
        assert peers is not None
        try:
            await peers.bring(where, DISPATCH, dispatch_pb2.DispatchRequest(task=spec), giver)
        except ReachError as error:
            return error
        return spec.task_id


def new_id(dead: Task, request_id: str) -> str:
    """The id of the task that tries a dead letter again: for one request there is one, however often it comes."""
    made = hashlib.sha256(f"{dead.row}\0{dead.accepted_wall_ms}\0{request_id}".encode("utf-8", "surrogatepass"))
    tail = f"~{made.hexdigest()[:12]}"
    head = _TAIL.sub("", dead.task_id).encode("utf-8", "ignore")[: ID_BYTES - len(tail)].decode("utf-8", "ignore")
    return head + tail


def _asked(request: Any) -> dict[str, Any]:
    """What an operator named, for the audit log."""
    return {
        "agent_type": request.agent_type,
        "dead_reason": request.reason,
        "task_ids": list(request.task_ids[:AUDITED]),
    }


def _query(tenant: str, agent_type: str, reason: str, before: int, limit: int) -> TaskQuery:
    number = 0
    if reason:
        try:
            number = Reason[reason.upper()]
        except KeyError:
            raise invalid("reason", f"there is no reason {reason!r}; docs/protocol.md lists them") from None
    return TaskQuery(
        tenant,
        (TaskState.DEAD_LETTERED,),
        agent_type=check_id("agent_type", agent_type),
        before_row=before,
        limit=limit,
        reason=int(number),
    )
