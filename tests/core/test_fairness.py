"""Weighted fair turns over (tenant, fairness key), within a priority that grows with waiting (DLV-9, C3, C4, P7)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core import backlog
from reach.core import effects as fx
from reach.core.fairness import TOP, Shares, step_of
from reach.core.model import Requirement, Task, TaskState
from reach.core.queue import WaitQueue
from reach.errors import Reason
from tests.core.harness import LONG, Shell, of

ONE = Requirement(capability="one")


def waiting(row: int, accepted_ms: int, tenant: str = "a", key: str = "", priority: int = 3, cost: int = 1,
            requirement: Requirement = ONE) -> Task:  # fmt: skip
    task = Task(tenant, f"t{row}", b"x", requirement)
    task.row, task.accepted_ms, task.priority, task.fairness_key, task.cost = row, accepted_ms, priority, key, cost
    return task


def turns(queue: WaitQueue, count: int, now_ms: int) -> list[Task]:
    served = []
    for _ in range(count):
        kind = min(queue.kinds(now_ms))[2]
        head = queue.head(kind, now_ms)
        assert head is not None
        queue.serve(head, now_ms)
        served.append(head)
    return served


@pytest.mark.parametrize("apart", [False, True], ids=["one line", "a line for each tenant"])
def test_P7_a_tenant_that_floods_takes_no_more_than_its_share(apart):
    queue = WaitQueue()
    for row in range(1_000):
        queue.push(waiting(row, 0, "flood", requirement=ONE._replace(tenant="flood" if apart else "")))
    for row in range(1_000, 1_020):
        queue.push(waiting(row, 200, "small", requirement=ONE))
    served = Counter(task.tenant for task in turns(queue, 40, 500))
    assert served == {"flood": 20, "small": 20}
    assert {task.tenant for task in turns(queue, 100, 600)} == {"flood"}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9_999), st.sampled_from(("", "k"))), min_size=60, max_size=90),
    st.sampled_from((1, 3, 50)),
)
def test_DLV_9_who_comes_in_many_small_groups_stands_where_each_would_stand_alone(drawn, together):
    tasks = [waiting(row, age, key=key, priority=priority) for row, (priority, age, key) in enumerate(drawn, 1)]
    alone, grouped = WaitQueue(), WaitQueue()
    for task in tasks:
        alone.push(task)
    for start in range(0, len(tasks), together):
        grouped.push_all(tasks[start : start + together])
    assert turns(grouped, len(tasks), 30_000) == turns(alone, len(tasks), 30_000)


def test_P7_who_comes_late_waits_for_the_top_priority_at_most_and_then_gets_its_share():
    queue = WaitQueue()
    for row in range(1_000):
        queue.push(waiting(row, 0, "flood"))
    late_ms = 60_000
    for row in range(1_000, 1_010):
        queue.push(waiting(row, late_ms, "late"))
    assert {task.tenant for task in turns(queue, 20, late_ms + 5_000)} == {"flood"}
    served = turns(queue, 20, late_ms + 6_000)
    assert Counter(task.tenant for task in served) == {"flood": 10, "late": 10}


def test_DLV_9_weights_count_and_so_does_what_a_task_costs():
    queue = WaitQueue(weights={"big": 3.0})
    for row in range(400):
        queue.push(waiting(row, 0, ("big", "small")[row % 2]))
    assert Counter(task.tenant for task in turns(queue, 40, 0)) == {"big": 30, "small": 10}
    queue = WaitQueue()
    for row in range(400):
        queue.push(waiting(row, 0, ("dear", "cheap")[row % 2], cost=(4, 1)[row % 2]))
    assert Counter(task.tenant for task in turns(queue, 50, 0)) == {"dear": 10, "cheap": 40}


def test_DLV_9_the_keys_of_a_tenant_share_its_turns_and_no_more():
    queue = WaitQueue(weights={"many/vip": 2.0})
    for row in range(600):
        key = ("", "x", "vip")[row % 3]
        queue.push(waiting(row, 0, "many", key))
    for row in range(600, 900):
        queue.push(waiting(row, 0, "one"))
    served = Counter((task.tenant, task.fairness_key) for task in turns(queue, 80, 0))
    assert served == {("one", ""): 40, ("many", "vip"): 20, ("many", "x"): 10, ("many", ""): 10}


def test_DLV_9_nobody_saves_up_turns_by_being_away():
    queue = WaitQueue()
    for row in range(100):
        queue.push(waiting(row, 0, "a"))
    turns(queue, 50, 0)
    for row in range(100, 200):
        queue.push(waiting(row, 0, "b"))
    assert Counter(task.tenant for task in turns(queue, 20, 0)) == {"a": 9, "b": 11}, "the one turn that a just had"


def test_C4_priority_before_fairness_and_nobody_starves():
    queue = WaitQueue()
    low = waiting(0, 0, "low", priority=0)
    queue.push(low)
    for number in range(1, 200):
        now = number * 100
        queue.push(waiting(number, now, "high", priority=9))
        (head,) = turns(queue, 1, now)
        if head is low:
            assert now <= TOP * 1_000 + 100
            return
    raise AssertionError("it starved")


def test_C3_short_tasks_do_not_wait_behind_a_long_one():
    shell = Shell()
    one, two = shell.join("one"), shell.join("two")
    long = shell.submit(**LONG)
    short = [shell.submit(**LONG) for _ in range(9)]
    began = shell.now_ms
    while any(task.state < TaskState.SUCCEEDED for task in short):
        shell.advance_beating(100, one, two, every_ms=100)
        running = next(task for task in short if task.instance is not None)
        shell.report(running)
    assert shell.now_ms - began < 2_000
    assert long.state < TaskState.SUCCEEDED


class Plain:
    """The slow obvious twin: all tasks in a list, all times in dicts."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights
        self.tasks: list[Task] = []
        self.times: dict[Any, float] = {}
        self.clock: dict[Any, float] = {}

    def _waits(self, name: Any) -> bool:
        return any(name in ((task.tenant,), (task.tenant, task.fairness_key)) for task in self.tasks)

    def push(self, task: Task) -> None:
        for name, above in (((task.tenant,), ()), ((task.tenant, task.fairness_key), (task.tenant,))):
            if not self._waits(name):
                self.times[name] = max(self.times.get(name, 0.0), self.clock.get(above, 0.0))
        self.tasks.append(task)

    def rank(self, task: Task, now_ms: int) -> tuple[Any, ...]:
        order = task.accepted_ms - 1_000 * task.priority
        times = self.times[task.tenant,], self.times[task.tenant, task.fairness_key]
        return (-step_of(order, now_ms), *times, order, task.row)

    def serve(self, now_ms: int) -> Task | None:
        if not self.tasks:
            return None
        best = min((min(mine, key=lambda one: (one.accepted_ms - 1_000 * one.priority, one.row))
                    for mine in self._flows()), key=lambda one: self.rank(one, now_ms))  # fmt: skip
        for name, above in (((best.tenant,), ()), ((best.tenant, best.fairness_key), (best.tenant,))):
            self.clock[above] = max(self.clock.get(above, 0.0), self.times[name])
            self.times[name] += best.cost / self.weights.get("/".join(name), 1.0)
        self.tasks.remove(best)
        return best

    def _flows(self) -> list[list[Task]]:
        names = {(task.tenant, task.fairness_key) for task in self.tasks}
        return [[task for task in self.tasks if (task.tenant, task.fairness_key) == name] for name in names]


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 9), st.sampled_from("abc"), st.sampled_from(["", "k"])),
        st.tuples(st.just("push"), st.integers(3, 3), st.sampled_from("ab"), st.just("")),
        st.tuples(st.just("serve"), st.just(0), st.just(""), st.just("")),
        st.tuples(st.just("pass"), st.sampled_from([10, 900, 4_000]), st.just(""), st.just("")),
        st.tuples(st.just("remove"), st.integers(0, 60), st.just(""), st.just("")),
    ),
    max_size=60,
)


@given(ACTS)
def test_turns_equal_those_of_the_plain_list(acts):
    weights = {"a": 2.0, "b/k": 3.0}
    queue, plain = WaitQueue(weights=weights), Plain(weights)
    made: list[Task] = []
    now = 1_000
    for act, number, tenant, key in acts:
        if act == "push":
            task = waiting(len(made), now, tenant, key, number, cost=1 + len(made) % 2)
            made.append(task)
            queue.push(task)
            plain.push(task)
        elif act == "pass":
            now += number
        elif act == "serve":
            head = queue.head(ONE, now)
            assert head is plain.serve(now)
            if head is not None:
                queue.serve(head, now)
        elif made:
            task = made[number % len(made)]
            assert queue.remove(task) is (task in plain.tasks)
            if task in plain.tasks:
                plain.tasks.remove(task)
        assert len(queue) == len(plain.tasks)


def test_who_is_owed_nothing_is_forgotten():
    queue = WaitQueue()
    for row in range(5_000):
        queue.push(waiting(row, 0, f"tenant {row % 500}", f"key {row}"))
    turns(queue, 5_000, 0)
    for row in range(9_000, 9_040):
        queue.push(waiting(row, 0, "last"))
        turns(queue, 1, 0)
    for row in range(10_000, 11_100):  # more come: then those before, who are behind nobody, are forgotten
        queue.push(waiting(row, 0, f"another {row}"))
    turns(queue, 1_100, 0)
    assert not any(name.startswith("tenant") for name in queue.shares._tenants)
    shares = Shares()
    for number in range(30_000):
        flow = shares.enter("t", f"key {number}")
        shares.served(flow, 1)
        shares.leave(flow)
    assert sum(len(tenant.flows) for tenant in shares._tenants.values()) <= 20_002


def test_DLV_9_many_keys_are_as_quick_as_few():
    """Bounded look, whatever the number of keys: 20,000 keys of one line, served in turns."""
    queue = WaitQueue()
    for row in range(20_000):
        queue.push(waiting(row, row // 100, "a", f"user {row}"))
    assert len({task.fairness_key for task in turns(queue, 2_000, 20_000)}) == 2_000


def test_DLV_9_who_finds_it_full_is_told_when_to_come_back():
    shell = Shell(queue=WaitQueue(max_tasks=50))
    one = shell.join("one", slots=1)
    for _ in range(51):
        shell.submit(**LONG)
    refused = shell.submit(**LONG)
    faults = [send.fault for send in of(shell.sends, fx.Full)]
    assert [fault.reason for fault in faults] == [Reason.QUEUE_FULL]
    assert faults[0].retry_after_ms == 1_000
    assert refused.key not in shell.pool.tasks
    for _ in range(20):  # five in a second
        shell.advance_beating(200, one, every_ms=200)
        shell.report(next(iter(one.running.values())))
        shell.submit(**LONG)
    shell.sends.clear()
    shell.submit(**LONG)
    (fault,) = [send.fault for send in of(shell.sends, fx.Full)]
    assert fault.retry_after_ms is not None
    assert 400 <= fault.retry_after_ms <= 1_500
    assert "come back in" in fault.message


def test_DLV_9_a_backlog_is_told_once_and_so_is_its_end():
    shell = Shell()
    for _ in range(backlog.ALERT + 20):
        shell.submit(**LONG)
    told = [note.kind for note in of(shell.sends, fx.Noted) if note.kind.startswith("backlog")]
    assert told == ["backlog"]
    shell.join("one", slots=2_000)
    shell.step()
    told = [note.kind for note in of(shell.sends, fx.Noted) if note.kind.startswith("backlog")]
    assert told == ["backlog", "backlog_over"]
