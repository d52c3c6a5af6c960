"""What ends while the store takes nothing is kept from when somebody can be told of it. Found by the simulation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from reach.core.stream import KEEP_MS, Interest
from reach.runtime import committer
from reach.runtime.host import TICK_MS
from reach.store.base import StoreUnavailable
from tests.runtime.hosts import TENANT, Shell


async def _until(shell: Shell, held: bool) -> None:
    while (shell.host.committer.held is not None) is not held:
        await shell.settle(1)


async def test_STR_2_the_time_that_the_store_was_held_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.0)
    shell = Shell()
    late_ms = 0
    now_ms, commit = shell.host.clock.now_ms, shell.journal.commit
    monkeypatch.setattr(shell.host.clock, "now_ms", lambda: now_ms() + late_ms)

    def refuse(_: Any) -> list[int]:
        raise StoreUnavailable("not now")

    shell.submit("t", Interest.EVENTS)
    await shell.settle()
    monkeypatch.setattr(shell.journal, "commit", refuse)
    shell.cancel("t", "changed my mind")
    await asyncio.sleep(0)
    await _until(shell, held=True)
    late_ms = KEEP_MS - 1_000
    await asyncio.sleep(1.5 * TICK_MS / 1_000)  # the host ticks
    monkeypatch.setattr(shell.journal, "commit", commit)
    await _until(shell, held=False)
    assert (0, "cancelled", "cancelled: changed my mind") in shell.said

    async def known() -> bool:
        shell.submit("another", Interest.ACCEPTANCE)  # a step of the pool
        await shell.settle()
        return (TENANT, "t") in shell.host.tasks

    assert await known()
    late_ms += KEEP_MS - 1_000
    assert await known(), "it was told a moment ago"
    late_ms += 3_000
    assert not await known()
    await shell.stop()


async def test_STR_1_who_was_let_go_while_the_journal_was_asked_is_told_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by the simulation: it became a reader after it had left, and each event came to its stream twice."""
    monkeypatch.setattr(committer, "RETRY_SECONDS", 0.0)
    shell = Shell()
    commit = shell.journal.commit

    def refuse(_: Any) -> list[int]:
        raise StoreUnavailable("not now")

    monkeypatch.setattr(shell.journal, "commit", refuse)
    first = shell.submit("t", Interest.EVENTS)
    await _until(shell, held=True)
    shell.reads.held = True
    again = shell.submit("t", Interest.EVENTS)
    reading = shell.subscribe("t", Interest.EVENTS)
    for reader in (again, reading):
        shell.reach.unsubscribe(reader, TENANT, "t")
    shell.reads.held = False
    shell.reads.go()
    monkeypatch.setattr(shell.journal, "commit", commit)
    await _until(shell, held=False)
    await shell.settle()
    assert shell.heard(first)
    assert (shell.heard(again), shell.heard(reading)) == ([], [])
    assert shell.host.tasks[TENANT, "t"].log.readers == [first]
    await shell.stop()
