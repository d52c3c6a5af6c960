"""What is kept of tasks that ended (DLV-10, DLV-12): by age, number and size; what is open is never touched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from reach.runtime import retention as module
from reach.runtime.retention import Keep, Retention
from reach.store.base import StoreUnavailable, TaskQuery
from reach.store.memory import MemoryJournal
from tests.contracts.journal_rows import fact, outcome, task, writes

HOUR = 3_600_000
NOW = 1_000 * HOUR
DEAD = 9


class Now:
    """Does it at once, in place of the writer."""

    def __init__(self) -> None:
        self.done = 0

    async def do(self, work: Any) -> Any:
        self.done += 1
        return work()

    remove = do


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)


def journal_of(*ends: tuple[int, int], spec: bytes = b"x") -> MemoryJournal:
    """Tasks 1, 2, …; each with its state and the age of its end in hours; one more is open."""
    journal = MemoryJournal()
    tasks = [task(row, spec=spec) for row in range(1, len(ends) + 2)]
    outcomes = [outcome(row, state, ended_wall_ms=NOW - age * HOUR) for row, (state, age) in enumerate(ends, 1)]
    journal.commit(writes(tasks=tasks, outcomes=outcomes))
    return journal


async def kept(journal: MemoryJournal, keep: Keep) -> list[int]:
    retention = Retention(journal, Now(), lambda: NOW, keep, "failed", lambda: 0)  # type: ignore[arg-type]
    await retention.once()
    assert retention.dead_letters == journal.dead_letters()
    return sorted(one.task.row for one in journal.list_tasks(TaskQuery("acme", limit=10_000)))


async def test_DLV_12_results_go_by_age_and_dead_letters_later() -> None:
    journal = journal_of((5, 30), (5, 25), (5, 23), (DEAD, 30), (DEAD, 200), (6, 48), (DEAD, 160))
    assert await kept(journal, Keep()) == [3, 4, 7, 8]


async def test_DLV_12_all_that_is_due_goes_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more than one batch: what ends in an hour must not outrun what is removed in it."""
    monkeypatch.setattr(module, "MOST_ROWS", 20)
    journal = journal_of(*[(5, 30)] * 505, *[(DEAD, 300)] * 45)
    assert await kept(journal, Keep()) == [551]


async def test_DLV_10_no_more_than_so_many_dead_letters() -> None:
    journal = journal_of((DEAD, 5), (DEAD, 4), (DEAD, 3), (5, 2), (DEAD, 1))
    assert await kept(journal, Keep(dead_letters=2)) == [3, 4, 5, 6]


async def test_DLV_10_dead_letters_that_an_operator_removes_meanwhile_are_not_waited_for() -> None:
    """It would have asked the journal for ever, and removed nothing more."""

    class Raced(MemoryJournal):
        def purge(self, ended_before_ms: int, limit: int, **rest: Any) -> int:
            if ended_before_ms == module.END_OF_TIME:
                self.remove([1, 2, 3])
            return super().purge(ended_before_ms, limit, **rest)

    journal = Raced()
    rows = range(1, 4)
    ends = [outcome(row, DEAD, ended_wall_ms=NOW) for row in rows]
    journal.commit(writes(tasks=[task(row) for row in rows], outcomes=ends))
    async with asyncio.timeout(2):
        assert await kept(journal, Keep(dead_letters=1)) == []


async def test_DLV_12_beyond_its_size_the_oldest_results_go_then_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHRINK_ROWS", 1)
    ends = [(DEAD, 9), (5, 8), (5, 7), (DEAD, 6), (5, 5)]
    journal = journal_of(*ends, spec=bytes(1_000))
    size = journal.size_bytes()
    assert await kept(journal, Keep(total_bytes=size)) == [1, 2, 3, 4, 5, 6]
    for limit, left in ((size - 1, [1, 3, 4, 5, 6]), (3_100, [1, 4, 6]), (2_100, [4, 6]), (1, [6])):
        assert await kept(journal, Keep(total_bytes=limit)) == left


async def test_DLV_3_nothing_is_too_old_within_two_minutes() -> None:
    assert await kept(journal_of((5, 0), (5, 1)), Keep(results_ms=1)) == [1, 3]


async def test_DLV_3_a_result_of_just_now_stays_however_little_space_there_is() -> None:
    """Its caller may be on its way back after a cut: without the result it would run again."""
    journal = journal_of((5, 2), (DEAD, 1), (5, 0), (DEAD, 0))
    assert await kept(journal, Keep(total_bytes=1)) == [3, 4, 5]


async def test_size_goes_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHRINK_ROWS", 2)
    journal = journal_of(*[(5, age) for age in range(20, 10, -1)], spec=bytes(1_000))
    assert await kept(journal, Keep(total_bytes=5_500)) == [7, 8, 9, 10, 11]


async def test_failed_webhooks_are_kept_as_long_as_dead_letters() -> None:
    journal = journal_of()
    old, new = (fact(str(age), "acme", kind="failed", wall_ms=NOW - age * HOUR) for age in (200, 100))
    journal.commit(writes(outbox=[old, new, fact("turn", wall_ms=0)]))
    await kept(journal, Keep())
    assert [one.fact for one in journal.facts("failed", "acme", 0, 9)] == [new]
    assert journal.facts("turn", "a", 0, 9)


async def test_batches_follow_the_time_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 10.0, 11.0, 20.0, 21.0, *(float(one // 2) for one in range(200, 400))])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    asked: list[int] = []

    class Counting(MemoryJournal):
        def purge(self, ended_before_ms: int, limit: int, *, dead_letters: bool = False, **_: Any) -> int:
            asked.append(limit)
            return limit if len(asked) < 8 else 0

    await Retention(Counting(), Now(), lambda: NOW, Keep(), "failed", lambda: 0).once()  # type: ignore[arg-type]
    assert asked[:8] == [1_000, 500, 250, 125, 250, 500, 1_000, 1_000]


async def test_a_store_that_cannot_now_is_asked_again(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    journal = journal_of((5, 30))
    retention = Retention(journal, Now(), lambda: NOW, Keep(), "failed", lambda: 0)  # type: ignore[arg-type]
    monkeypatch.setattr("reach.runtime.believed.LEAP_MS", 1 << 62)
    failures = [StoreUnavailable("busy")]
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    purge = journal.purge

    def failing(*arguments: Any, **names: Any) -> int:
        if failures:
            raise failures.pop()
        return purge(*arguments, **names)

    monkeypatch.setattr(journal, "purge", failing)
    work = asyncio.ensure_future(retention.run())
    for _ in range(20):
        await asyncio.sleep(0)
    work.cancel()
    assert "busy" in caplog.text
    assert [one.task.row for one in journal.list_tasks(TaskQuery("acme"))] == [2]


class Leaping:
    """A wall clock and a monotonic one."""

    def __init__(self) -> None:
        self.now = 1_000
        self.ahead = 0

    def wall_ms(self) -> int:
        return NOW + self.now + self.ahead

    def now_ms(self) -> int:
        return self.now


async def rows_after(retention: Retention, journal: MemoryJournal) -> list[int]:
    await retention.once()
    return sorted(one.task.row for one in journal.list_tasks(TaskQuery("acme", limit=10_000)))


async def test_F9_a_clock_that_leaps_ahead_makes_nothing_old() -> None:
    journal, clock = journal_of((5, 23), (5, 0), (DEAD, 0)), Leaping()
    retention = Retention(journal, Now(), clock.wall_ms, Keep(), "failed", clock.now_ms)  # type: ignore[arg-type]
    await retention.once()
    clock.ahead = 10 * 24 * HOUR
    assert await rows_after(retention, journal) == [1, 2, 3, 4]
    clock.now += HOUR // 2
    clock.ahead = 0
    assert await rows_after(retention, journal) == [1, 2, 3, 4]
    clock.now += 2 * HOUR
    assert await rows_after(retention, journal) == [2, 3, 4], "time goes on as ever"
    clock.ahead = 10 * 24 * HOUR
    await retention.once()
    clock.now += HOUR
    assert await rows_after(retention, journal) == [4], "who says so for an hour is believed"


async def test_F9_a_machine_that_starts_with_a_wrong_clock_throws_nothing_away() -> None:
    journal, clock = MemoryJournal(), Leaping()
    tasks = [task(row, accepted_wall_ms=NOW) for row in (1, 2)]
    ends = [outcome(row, state, ended_wall_ms=NOW + 10) for row, state in ((1, 5), (2, DEAD))]
    journal.commit(writes(tasks=tasks, outcomes=ends))
    clock.ahead = 10 * 24 * HOUR
    retention = Retention(journal, Now(), clock.wall_ms, Keep(), "failed", clock.now_ms)  # type: ignore[arg-type]
    await retention.begin()
    assert await rows_after(retention, journal) == [1, 2]
    clock.ahead = 0
    assert await rows_after(retention, journal) == [1, 2]
    journal.close()
