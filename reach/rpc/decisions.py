"""Decisions as a list: why attempts went where they went, of one task or of many (RTE-13)."""

from __future__ import annotations

from typing import Final

from agentreach.v1 import ops_pb2, task_pb2
from reach.core.model import Task
from reach.rpc.services import Services, error_of_fault
from reach.runtime.past import not_found
from reach.store.base import TaskQuery
from reach.wire.answers import fill_attempts, fill_decision
from reach.wire.pages import PAGE_BYTES, page_number, page_size
from reach.wire.requests import check_id, invalid, session_name

PAGE: Final = 50
"""Tasks that are looked at, where nothing else is said."""


async def page(services: Services, tenant: str, request: ops_pb2.ListDecisionsRequest) -> ops_pb2.ListDecisionsResponse:
    """A page of them. Raises InvalidRequest, or Elsewhere for one task that goes on at another node."""
    task_id = check_id("task_id", request.task_id)
    if task_id:
        return await _of_one(services, tenant, task_id, request)
    query = TaskQuery(
        tenant,
        session=session_name(request.session) if request.HasField("session") else "",
        agent_type=check_id("agent_type", request.agent_type),
        before_row=page_number(request.page_token),
        limit=page_size(request.page_size, PAGE),
    )
    views, answer, last, size = services.reach.tasks, ops_pb2.ListDecisionsResponse(), 0, 0
    found = await views.page(query)
    far = {name for names in found.elsewhere.values() for name in names}
    for task in found.tasks:
        if size > PAGE_BYTES:
            answer.next_page_token = str(last)
            return answer
        last = task.row
        size += await _add(services, answer, task, far=task.task_id in far)
    if found.more:
        answer.next_page_token = str(found.tasks[-1].row)
    return answer


async def _of_one(
    services: Services, tenant: str, task_id: str, request: ops_pb2.ListDecisionsRequest
) -> ops_pb2.ListDecisionsResponse:
    """All of one task."""
    if request.page_token or request.agent_type or request.HasField("session"):
        raise invalid("task_id", "names one task: no other part is needed")
    page_size(request.page_size, PAGE)
    task = await services.reach.tasks.get(tenant, task_id)
    if task is None:
        raise error_of_fault(not_found(task_id))
    answer = ops_pb2.ListDecisionsResponse()
    await _add(services, answer, task)
    return answer


async def _add(services: Services, answer: ops_pb2.ListDecisionsResponse, task: Task, *, far: bool = False) -> int:
    """Adds those of a task; returns their bytes."""
    records = await services.reach.tasks.decisions(task, far=far)
    told = task_pb2.Task()
    fill_attempts(told, task, records)
    known = {one.number: one.decision for one in told.attempts}
    size = 0
    for number in sorted(records if far else known.keys() & records.keys()):  # what lets a task wait is no attempt
        row = answer.decisions.add(task_id=task.task_id, attempt=number)
        if number in known:
            row.decision.CopyFrom(known[number])
        else:
            fill_decision(row.decision, records[number])
        size += row.ByteSize()
    return size
