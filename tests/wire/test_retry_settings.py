"""How tasks are retried where the server, the task or both say so (DLV-5)."""

from __future__ import annotations

from typing import Any

import pytest

from agentreach.v1 import task_pb2
from reach.core.retry import POLICIES, RETRIED
from reach.errors import ErrorClass
from reach.wire.requests import Limits, TaskReader

ONLY_GONE = frozenset({ErrorClass.UNAVAILABLE})


def retry_of(limits: Limits, **retry: Any) -> Any:
    fields: dict[str, Any] = {"task_id": "t", "selector": {"agent_id": "a"}, "retry": retry or None}
    spec = task_pb2.TaskSpec(**fields)
    return TaskReader(limits).read("acme", spec)[0].retry


def test_DLV_5_what_the_server_says_holds_where_the_task_does_not():
    limits = Limits(max_retry=3, retry_on=ONLY_GONE, full_jitter=True)
    for retry in (retry_of(limits), retry_of(limits, name="quick"), retry_of(limits, delays=[{"seconds": 1}])):
        assert (retry.retry_on, retry.full_jitter) == (ONLY_GONE, True)
    assert retry_of(limits, name="quick").delays_ms == POLICIES["quick"].delays_ms
    own = retry_of(limits, retry_on=[ErrorClass.TIMEOUT])
    assert own.retry_on == {ErrorClass.TIMEOUT}
    assert retry_of(limits, never=True).delays_ms == ()


@pytest.mark.parametrize("name", ["ladder", "quick", "patient", "exponential"])
def test_DLV_5_without_settings_a_named_policy_is_the_preset(name):
    assert retry_of(Limits(), name=name) is POLICIES[name]
    jittered = retry_of(Limits(), name=name, full_jitter=True)
    assert (jittered.retry_on, jittered.full_jitter) == (RETRIED, True)
