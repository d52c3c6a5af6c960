"""What stays in memory of finished tasks, and for how long (STR-2, P6)."""

import pytest

from reach.core.effects import Forget
from reach.core.finished import KEEP_BYTES, KEEP_PLAIN, KEEP_VOLATILE
from reach.core.pieces import Kind
from tests.core.harness import Shell, of


@pytest.mark.parametrize(("volatile", "most"), [(False, KEEP_PLAIN), (True, KEEP_VOLATILE)])
def test_finished_tasks_are_kept_in_bounds(volatile, most):
    shell = Shell()
    shell.join()
    for _ in range(most + 20):
        shell.report(shell.submit(volatile=volatile))
    assert len(shell.pool.tasks) == most
    assert sum(len(forget.tasks) for forget in of(shell.sends, Forget)) == 20


def test_large_finished_tasks_are_kept_by_their_bytes():
    shell = Shell()
    shell.join()
    for _ in range(40):
        shell.report(shell.submit(spec=b"x" * (2 << 20)), "y" * (2 << 20))
    assert len(shell.pool.tasks) * (4 << 20) <= KEEP_BYTES


def test_streamed_tasks_stay_for_ten_seconds():
    shell = Shell()
    shell.join()
    task = shell.submit()
    shell.delta(task, 1, "x")
    shell.report(task, folded=1)
    shell.now_ms += 9_990
    assert Kind.DELTA in shell.kinds(shell.read(task))
    shell.now_ms += 20
    shell.step()
    assert shell.pool.tasks == {}
