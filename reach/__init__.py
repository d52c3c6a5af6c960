"""Agent-Reach: finds the right agent for a task, gets the task there, and brings the answer back.

    from reach import Agent, Client, Task

`Agent` takes tasks, `Client` gives them (`SyncClient` for programs without asyncio). The errors are a tree, drawn at
the top of `reach.errors`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reach.errors import (
    AgentError,
    ErrorClass,
    Internal,
    InvalidRequest,
    ReachError,
    Reason,
    ResourceExhausted,
    Timeout,
    Unavailable,
)

if TYPE_CHECKING:
    from reach.core.model import TaskState
    from reach.sdk.agent import Agent
    from reach.sdk.answers import Event, Result, TaskInfo, TextPiece
    from reach.sdk.capabilities import Capability
    from reach.sdk.channel import Tls
    from reach.sdk.client import Client
    from reach.sdk.dedupe import SqliteDedupe
    from reach.sdk.endpoint import Listen
    from reach.sdk.handle import TaskHandle
    from reach.sdk.handoffs import Handoff
    from reach.sdk.inheritance import Budget
    from reach.sdk.payloads import Answer, Delta, Progress
    from reach.sdk.postgres_dedupe import PostgresDedupe
    from reach.sdk.questions import Input
    from reach.sdk.sync import SyncClient, SyncTaskHandle
    from reach.sdk.task import Attachment, SessionKey, Task

__all__ = [
    "Agent",
    "AgentError",
    "Answer",
    "Attachment",
    "Budget",
    "Capability",
    "Client",
    "Delta",
    "ErrorClass",
    "Event",
    "Handoff",
    "Input",
    "Internal",
    "InvalidRequest",
    "Listen",
    "PostgresDedupe",
    "Progress",
    "ReachError",
    "Reason",
    "ResourceExhausted",
    "Result",
    "SessionKey",
    "SqliteDedupe",
    "SyncClient",
    "SyncTaskHandle",
    "Task",
    "TaskHandle",
    "TaskInfo",
    "TaskState",
    "TextPiece",
    "Timeout",
    "Tls",
    "Unavailable",
]

# The SDK brings gRPC along. It is loaded when a name of it is first used, so that `reach.errors` and the core, which
# import this package too, stay free of it.
_HOMES = {
    "Agent": "sdk.agent",
    "Answer": "sdk.payloads",
    "Attachment": "sdk.task",
    "Budget": "sdk.inheritance",
    "Capability": "sdk.capabilities",
    "Client": "sdk.client",
    "Delta": "sdk.payloads",
    "Event": "sdk.answers",
    "Input": "sdk.questions",
    "Handoff": "sdk.handoffs",
    "Listen": "sdk.endpoint",
    "PostgresDedupe": "sdk.postgres_dedupe",
    "Progress": "sdk.payloads",
    "Result": "sdk.answers",
    "SessionKey": "sdk.task",
    "SqliteDedupe": "sdk.dedupe",
    "SyncClient": "sdk.sync",
    "SyncTaskHandle": "sdk.sync",
    "Task": "sdk.task",
    "TaskHandle": "sdk.handle",
    "TaskInfo": "sdk.answers",
    "TaskState": "core.model",
    "TextPiece": "sdk.answers",
    "Tls": "sdk.channel",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'reach' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"reach.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
