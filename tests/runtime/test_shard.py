"""A shard steps its pools; one event that breaks the core does not take the others with it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from reach.core.effects import Turn
from reach.core.events import Submitted, Unsubscribed
from reach.core.model import PoolKey, Requirement, Task
from reach.core.pool import Pool
from reach.core.row_numbers import RowNumbers
from reach.core.stream import Interest, Reader
from reach.runtime.shard import Shard

KEY = PoolKey("acme", "echo")


def _shard() -> tuple[Shard, Pool]:
    shard = Shard(3)
    pool = shard.pools[KEY] = Pool(KEY, 3, RowNumbers(1), 7, lambda one, other: one == other)
    return shard, pool


def _submitted(task_id: str) -> Submitted:
    return Submitted(Task("acme", task_id, b"spec", Requirement()), Reader(None, 1, Interest.ACCEPTANCE))


class Nonsense:
    """No pool has a handler for it."""


def test_an_event_that_breaks_the_core_is_lost_alone(caplog: pytest.LogCaptureFixture) -> None:
    shard, pool = _shard()
    events: list[Any] = [_submitted("a"), Nonsense(), _submitted("b"), Nonsense(), _submitted("c")]
    shard.mail[pool] = events
    with caplog.at_level(logging.ERROR):
        shard.step(Turn(1_000, 5_000))
    assert sorted(task_id for _, task_id in pool.tasks) == ["a", "b", "c"]
    assert len([record for record in caplog.records if record.exc_info]) == 2
    assert shard.mail == {}


def test_only_pools_with_due_timers_are_woken() -> None:
    shard, pool = _shard()
    shard.mail[pool] = [_submitted("a"), Unsubscribed(Reader(None, 2, Interest.OUTCOME))]
    turn = Turn(1_000, 5_000)
    shard.step(turn)
    task = pool.tasks["acme", "a"]
    task.schedule_to_close_ms = 500
    pool.deadlines.arm(task, turn)
    assert shard.next_wake_ms() == 1_500
    early, late = Turn(1_400, 5_400), Turn(1_600, 5_600)
    shard.wake(early)
    assert not early.sends
    shard.wake(late)
    assert task.outcome is not None
    assert late.writes.outcomes
