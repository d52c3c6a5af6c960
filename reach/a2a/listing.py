"""Lists of tasks as A2A wants them: what changed last comes first, and how many there are in all.

Our own lists go by when tasks were accepted, and count nothing. So the latest `LOOKED_AT` of them are looked at, and
older ones are in no list of A2A.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final

from a2a.types import a2a_pb2

from agentreach.v1 import dispatch_pb2, task_pb2
from reach.a2a.tasks import NOBODY, Asker, context_of, since, state_of, task_of
from reach.errors import InvalidRequest, ReachError, Reason
from reach.wire.a2a.states import OURS
from reach.wire.requests import check_id

LOOKED_AT: Final = 5_000
"""Tasks that one list looks at."""
_OUR_PAGE: Final = 1_000
_PAGE: Final = 50
_MOST: Final = 100

Call = Callable[[str, Any], Awaitable[Any]]
"""Calls a method of the DispatchService."""


async def listed(params: a2a_pb2.ListTasksRequest, asker: Asker, call: Call) -> a2a_pb2.ListTasksResponse:
    """One page.

    Raises:
        ReachError: a bad field, or what the calls behind it fail with.
    """
    size = params.page_size if params.HasField("page_size") else _PAGE
    if not 1 <= size <= _MOST:
        raise InvalidRequest(f"page_size: must be 1 to {_MOST}", Reason.INVALID_FIELD, field="page_size")
    if params.HasField("history_length") and params.history_length < 0:
        raise InvalidRequest("history_length: must not be negative", Reason.INVALID_FIELD, field="history_length")
    before = _read_token(params.page_token)
    found = await _all(params, asker, call)
    found.sort(key=_place, reverse=True)
    rest = [task for task in found if before is None or _place(task) < before]
    answer = a2a_pb2.ListTasksResponse(page_size=size, total_size=len(found))
    history = params.history_length if params.HasField("history_length") else 0
    for task in rest[:size]:
        if params.include_artifacts or history:
            try:
                request = dispatch_pb2.GetTaskRequest(task_id=task.spec.task_id, view=task_pb2.TASK_VIEW_FULL)
                task = (await call("GetTask", request)).task
            except ReachError as error:
                if error.reason is not Reason.TASK_NOT_FOUND:
                    raise  # it was removed meanwhile: what was listed of it is all there is
        answer.tasks.append(task_of(task, history, artifacts=params.include_artifacts))
    if len(rest) > size:
        answer.next_page_token = _token(_place(rest[size - 1]))
    return answer


async def _all(params: a2a_pb2.ListTasksRequest, asker: Asker, call: Call) -> list[task_pb2.Task]:
    """All that match, of those that are looked at."""
    request = dispatch_pb2.ListTasksRequest(page_size=_OUR_PAGE, view=task_pb2.TASK_VIEW_BASIC)
    if asker.route.kind == "t":
        request.filter.agent_type = asker.route.name
    if params.context_id:
        check_id("context_id", params.context_id)
        session = task_pb2.SessionKey(app_id=asker.app_id, user_id=NOBODY, session_id=params.context_id)
        request.filter.session.CopyFrom(session)
    if params.status:
        states = {ours for ours, theirs in OURS.items() if theirs == params.status}
        if params.status == a2a_pb2.TASK_STATE_WORKING:
            states |= {task_pb2.TASK_STATE_PENDING, task_pb2.TASK_STATE_DELIVERED}
        if params.status == a2a_pb2.TASK_STATE_AUTH_REQUIRED:
            states = {task_pb2.TASK_STATE_WAITING}
        request.filter.states.extend(sorted(states))  # type: ignore[arg-type]
    after = params.status_timestamp_after
    after_ns = after.seconds * 10**9 + after.nanos if params.HasField("status_timestamp_after") else None
    found: list[task_pb2.Task] = []
    looked_at = 0
    while True:
        page = await call("ListTasks", request)
        looked_at += len(page.tasks)
        for task in page.tasks:
            if params.status and state_of(task) != params.status:
                continue
            if params.context_id and context_of(task) != params.context_id:
                continue
            if after_ns is None or since(task).ToNanoseconds() >= after_ns:
                found.append(task)
        request.page_token = page.next_page_token
        if not page.next_page_token or looked_at >= LOOKED_AT:
            return found


def _place(task: task_pb2.Task) -> tuple[int, str]:
    """Where a task stands in the list."""
    return since(task).ToNanoseconds(), task.spec.task_id


def _token(place: tuple[int, str]) -> str:
    return base64.urlsafe_b64encode(f"{place[0]}:{place[1]}".encode()).decode()


def _read_token(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    try:
        at, colon, task_id = base64.b64decode(token, b"-_", validate=True).decode().partition(":")
        if colon and at.isascii() and at.isdigit() and len(at) < 20:
            return int(at), task_id
    except (binascii.Error, ValueError):
        pass  # refused below, as any other that is none of ours
    raise InvalidRequest("page_token: is none of ours", Reason.INVALID_FIELD, field="page_token")
