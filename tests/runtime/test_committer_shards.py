"""Group commit where shards come and go: what is lost is not written, and told before what is sent (CLU-2, CLU-3)."""

from __future__ import annotations

import asyncio
import threading

from reach.core.effects import Turn
from reach.core.rows import ReserveRow
from reach.runtime import committer as committer_module
from reach.runtime.committer import Committer
from reach.store.base import StoreUnavailable
from tests.runtime.test_committer import Shell, SlowJournal


class SharedSlow(SlowJournal):
    """One that loses shards."""

    gone: frozenset[int] = frozenset()

    def lost(self) -> frozenset[int]:
        gone, self.gone = self.gone, frozenset()
        return gone


class Node(Shell):
    """A committer at a journal that nodes share."""

    def __init__(self) -> None:
        super().__init__()
        self.committer.stop()
        self.shared = SharedSlow()
        self.journal = self.shared
        self.events: list[object] = []
        self.committer = Committer(
            self.journal,  # type: ignore[arg-type]
            lambda turn, taken: (self.events.append(turn.sends[0]), self.performed.append((turn.sends, taken)))[1],  # type: ignore[func-returns-value]
            self.broken.append,
            self._committed,
        )
        self.committer.on_lost = self.events.append

    def writes(self, name: str, **rows: int) -> None:
        """Rows by name of their shard: `s1=7` is row 7 of shard 1."""
        turn = Turn(0, 0)
        turn.sends.append(name)
        turn.writes.reserves.extend(ReserveRow(row, int(shard[1:]), 1) for shard, row in rows.items())
        self.committer.submit(turn)


async def test_CLU_3_what_waits_for_a_shard_that_is_forgotten_is_not_written() -> None:
    node = Node()
    node.writes("one", s1=1)
    await node.until(lambda: node.journal.batches)
    node.writes("two", s1=2, s2=3)
    node.writes("three", s1=4)
    node.committer.forget({1})
    node.writes("after", s1=5)
    node.journal.go.release(2)
    await node.until(lambda: len(node.said) == 4)
    assert node.journal.batches == [[1], [3, 5]], "what was decided afterwards is written"
    node.stop()


async def test_CLU_3_a_batch_that_is_held_is_sent_again_without_what_was_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(committer_module, "RETRY_SECONDS", 0.01)
    node = Node()
    node.journal.outcomes = [StoreUnavailable("away")]
    node.writes("one", s1=1, s2=2)
    node.journal.go.release()
    await node.until(lambda: node.committer.held is not None)
    node.committer.forget({1})
    node.journal.go.release()
    await node.until(lambda: node.said == ["one"])
    assert node.journal.batches[0] == [1, 2]
    assert node.journal.batches[-1] == [2]
    node.stop()


async def test_CLU_3_the_writer_claims_between_commits() -> None:
    node = Node()
    node.writes("one", s1=1)
    await node.until(lambda: node.journal.batches)
    told: list[tuple[int, str]] = []

    def claim() -> None:
        told.append((len(node.journal.batches), threading.current_thread().name))

    node.committer.tend(claim)
    await asyncio.sleep(0.05)
    assert told == [], "a commit is open"
    node.journal.go.release()
    await node.until(lambda: told)
    assert told == [(1, node.journal.threads[0])]
    node.stop()


async def test_CLU_2_what_was_lost_is_told_before_anything_of_the_commit_is_sent() -> None:
    node = Node()
    node.writes("one", s1=1, s2=2)
    await node.until(lambda: node.journal.batches)
    node.writes("two", s1=3, s2=4)
    node.shared.gone = frozenset({1})
    node.journal.go.release(2)
    await node.until(lambda: len(node.said) == 2)
    assert node.events == [frozenset({1}), "one", "two"]
    assert node.journal.batches == [[1, 2], [4]], "nor is what waited for it written"
    node.stop()


async def test_CLU_2_nothing_is_told_where_nothing_was_lost() -> None:
    node = Node()
    node.writes("one", s1=1)
    node.journal.go.release()
    await node.until(lambda: node.said == ["one"])
    assert node.events == ["one"]
    node.stop()
