"""What goes along with an attempt at an agent that is dialled."""

from __future__ import annotations

import pytest

from agentreach.v1 import task_pb2
from reach.wire.attempts import offer_of
from reach.wire.requests import TaskReader


@pytest.mark.parametrize("attempt", [1, 2])
def test_DLV_7_a_checkpoint_goes_along_whenever_an_attempt_is_called(attempt):
    """Of the first attempt too: it is called anew when what it asked is answered."""
    selector = task_pb2.Selector(agent_type="mail")
    task, _ = TaskReader().read("acme", task_pb2.TaskSpec(task_id="t", selector=selector))
    task.attempt, task.checkpoint = attempt, b"half"
    assert offer_of(task, "acme", "").checkpoint == b"half"
