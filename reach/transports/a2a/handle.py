"""Where an attempt can be asked about: the remote task of an A2A agent, kept with the attempt over restarts of ours."""

from __future__ import annotations

import json
from typing import NamedTuple

from reach.wire.agents import HANDLE_BYTES

_KIND = "a2a/1"


class Handle(NamedTuple):
    """What an attempt at an instance is there: task and context ids are made by the agent."""

    task: str
    context: str
    inputs: int = 0
    """How many answers to its questions the remote task has been told, or is about to be."""

    def write(self) -> str:
        """As it is kept; empty if the agent's ids are too long to be kept, so that nothing can be resumed."""
        text = json.dumps([_KIND, *self], ensure_ascii=False, separators=(",", ":"))
        return text if len(text.encode()) <= HANDLE_BYTES else ""


def read_handle(text: str) -> Handle | None:
    """A handle as it was kept; None if it is none of ours."""
    try:
        kind, task, context, inputs = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    if kind != _KIND or not (isinstance(task, str) and isinstance(context, str) and isinstance(inputs, int)):
        return None
    return Handle(task, context, inputs)
