"""The wait queue: order with ageing, one queue per requirement, bounds (DLV-9, case C4)."""

from hypothesis import given
from hypothesis import strategies as st

from reach.core import effects as fx
from reach.core.fairness import AGEING_MS_PER_STEP
from reach.core.model import Requirement, Task
from reach.core.queue import WaitQueue
from reach.errors import Reason
from tests.core.harness import Shell, heads_of

ONE, OTHER = Requirement(capability="one"), Requirement(capability="other")


def waiting(row, accepted_ms=0, priority=3, requirement=ONE, size=10):
    task = Task("acme", f"t{row}", b"x" * size, requirement)
    task.row, task.accepted_ms, task.priority = row, accepted_ms, priority
    return task


def drained(queue, requirement=ONE):
    rows = []
    while (head := queue.head(requirement)) is not None:
        queue.pop(head)
        rows.append(head.row)
    return rows


def test_higher_priority_first_then_who_came_first():
    queue = WaitQueue()
    for row, priority in enumerate((3, 9, 3, 0, 9)):
        queue.push(waiting(row, 0, priority))
    assert drained(queue) == [1, 4, 0, 2, 3]


def test_a_step_of_priority_is_worth_a_second():
    queue = WaitQueue()
    queue.push(waiting(1, accepted_ms=0, priority=0))
    queue.push(waiting(2, accepted_ms=8_999, priority=9))
    queue.push(waiting(3, accepted_ms=9_001, priority=9))
    assert drained(queue) == [2, 1, 3]


def test_the_lowest_waits_no_longer_than_the_ageing_bound_under_a_constant_flood():
    """C4: one task of priority 0 against priority 9 at 100 % capacity, one start each 100 ms."""
    queue, low = WaitQueue(), waiting(0, 0, priority=0)
    queue.push(low)
    for number in range(1, 200):
        now = number * 100
        queue.push(waiting(number, now, priority=9))
        head = queue.head(ONE)
        assert head is not None
        queue.pop(head)
        if head is low:
            assert now <= 9 * AGEING_MS_PER_STEP + 100
            return
    raise AssertionError("it starved")


def test_who_was_set_aside_keeps_the_place_among_equals():
    queue = WaitQueue()
    tasks = [waiting(row) for row in range(3)]
    for task in tasks:
        queue.push(task)
    queue.pop(tasks[0])
    queue.push(tasks[0])
    assert drained(queue) == [0, 1, 2]


def test_a_busy_requirement_does_not_hide_another():
    queue = WaitQueue()
    queue.push(waiting(1, 0, 9, ONE))
    queue.push(waiting(2, 0, 1, OTHER))
    assert [task.row for task in heads_of(queue)] == [1, 2]
    assert queue.waits(ONE)
    assert queue.waits(OTHER)
    assert not queue.waits(Requirement())
    assert drained(queue, OTHER) == [2]
    assert not queue.waits(OTHER)


def test_bounds_count_tasks_and_bytes():
    queue = WaitQueue(max_tasks=2, max_bytes=100)
    assert queue.has_room(100)
    assert not queue.has_room(101)
    first, second = waiting(1, size=60), waiting(2, size=30)
    queue.push(first)
    assert queue.has_room(40)
    assert not queue.has_room(41)
    queue.push(second)
    assert not queue.has_room(0)
    assert queue.bytes == 90
    assert queue.remove(first)
    assert not queue.remove(first)
    assert queue.has_room(70)
    queue.pop(second)
    assert queue.bytes == 0
    assert len(queue) == 0


def test_pushing_twice_is_once():
    queue, task = WaitQueue(), waiting(1)
    queue.push(task)
    queue.push(task)
    assert len(queue) == 1
    assert queue.bytes == task.size
    assert drained(queue) == [1]


def test_removed_entries_do_not_pile_up():
    queue = WaitQueue()
    stays = waiting(0, priority=9)
    queue.push(stays)
    for row in range(1, 5_000):
        task = waiting(row)
        queue.push(task)
        queue.remove(task)
    assert queue._lines[ONE].entries() < 200
    assert drained(queue) == [0]


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 9), st.integers(0, 4_000), st.integers(0, 2)),
        st.tuples(st.just("pop"), st.integers(0, 2), st.just(0), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 40), st.just(0), st.just(0)),
        st.tuples(st.just("again"), st.integers(0, 40), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@given(ACTS)
def test_the_queue_equals_a_sorted_list(acts):
    kinds = (ONE, OTHER, Requirement())
    queue = WaitQueue()
    made: list[Task] = []
    plain: list[Task] = []

    def order(task):
        return (task.accepted_ms - AGEING_MS_PER_STEP * task.priority, task.row)

    for act, number, accepted_ms, kind in acts:
        if act == "push":
            task = waiting(len(made), accepted_ms, number, kinds[kind])
            made.append(task)
            queue.push(task)
            plain.append(task)
        elif act == "pop":
            mine = sorted((one for one in plain if one.requirement == kinds[number]), key=order)
            head = queue.head(kinds[number])
            assert head is (mine[0] if mine else None)
            if head is not None:
                queue.pop(head)
                plain.remove(head)
        elif made:
            task = made[number % len(made)]
            assert queue.remove(task) is (task in plain)
            if task in plain:
                plain.remove(task)
            if act == "again":
                queue.push(task)
                plain.append(task)
        firsts = [min((one for one in plain if one.requirement == one_kind), key=order, default=None)
                  for one_kind in kinds]  # fmt: skip
        assert heads_of(queue) == sorted((one for one in firsts if one is not None), key=order)
        assert set(queue) == set(plain)
        assert len(queue) == len(plain)
        assert bool(queue) is bool(plain)
        assert queue.bytes == sum(one.size for one in plain)
        assert all((one in queue) is (one in plain) for one in made)


def test_DLV_9_what_waits_for_its_time_takes_room_too():
    shell = Shell(queue=WaitQueue(max_tasks=2))
    shell.submit("delayed", start_delay_ms=1_000)
    shell.submit("waits")
    assert shell.pool.queue.count() == 2
    refused = shell.reader()
    shell.submit("too much", refused)
    assert [send.fault.reason for send in shell.sends if isinstance(send, fx.Refused)] == [Reason.QUEUE_FULL]
    shell.advance(1_500)
    assert (shell.pool.queue.count(), len(shell.pool.queue.delayed())) == (2, 0)


def test_who_was_taken_out_and_comes_back_elsewhere_is_not_found_where_it_was():
    """Its old entry, behind the head, must not come up."""
    for back in (lambda queue, task: queue.push(task, "an instance"), _with_other_requirement):
        queue, tasks = WaitQueue(), [waiting(row) for row in range(3)]
        for task in tasks:
            queue.push(task)
        queue.remove(tasks[1])
        back(queue, tasks[1])
        assert drained(queue) == [0, 2]
        assert list(queue) == [tasks[1]]
        (head,) = heads_of(queue)
        assert head is tasks[1]
        queue.pop(head)
        assert not heads_of(queue)


def _with_other_requirement(queue, task):
    task.requirement = OTHER
    queue.push(task)
