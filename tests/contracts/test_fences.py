"""Two nodes at one journal, in any order of claims and commits: what is kept is what the owner of that moment wrote
(HAZARDS 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from reach.store.base import SharedJournal
from reach.store.memory_shared import MemoryNode, MemoryShared
from reach.store.postgres import PostgresJournal
from tests import postgres
from tests.contracts.effort import EXAMPLES
from tests.contracts.journal_rows import outcome, task, writes

SHARDS = st.sets(st.integers(0, 3), min_size=1, max_size=3)
NODES = st.integers(0, 1)


class Fences(RuleBasedStateMachine):
    """The model: who claimed a shard last owns it. A node knows what it claimed until it hears otherwise."""

    def __init__(self, opened: Callable[[], SharedJournal]) -> None:
        super().__init__()
        self.opened = opened
        self.nodes = [opened(), opened()]
        self.owner: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.held: list[dict[int, int]] = [{}, {}]
        self.lost: list[set[int]] = [set(), set()]
        self.open_rows: dict[int, int] = {}
        self.next_row = 1

    def teardown(self) -> None:
        for node in self.nodes:
            node.close()

    def loses(self, node: int, shards: set[int]) -> None:
        self.lost[node] |= shards
        for shard in shards:
            self.held[node].pop(shard, None)

    def owned(self, node: int) -> set[int]:
        return {shard for shard in self.held[node] if self.owner[shard] == node}

    @rule(node=NODES, shards=SHARDS)
    def claims(self, node: int, shards: set[int]) -> None:
        claimed = self.nodes[node].claim(shards)
        assert claimed.keys() == shards
        for shard, epoch in claimed.items():
            assert epoch > self.epochs.get(shard, 0)
            self.epochs[shard] = epoch
            self.owner[shard] = node
        self.held[node] |= claimed
        self.lost[node] -= shards

    @rule(node=NODES, shards=SHARDS)
    def gives_up(self, node: int, shards: set[int]) -> None:
        self.nodes[node].give_up(shards)
        for shard in shards:
            self.held[node].pop(shard, None)
        self.lost[node] -= shards

    @rule(node=NODES, shards=SHARDS, data=st.data())
    def commits(self, node: int, shards: set[int], data: Any) -> None:
        fresh = {}
        for shard in shards:
            fresh[self.next_row] = shard
            self.next_row += 1
        ended = data.draw(st.sets(st.sampled_from(sorted(self.open_rows)))) if self.open_rows else set()
        batch = writes(
            tasks=[task(row, shard=shard) for row, shard in fresh.items()],
            outcomes=[outcome(row, shard=self.open_rows[row]) for row in ended],
        )
        touched = shards | {self.open_rows[row] for row in ended}
        kept = touched & self.owned(node)
        assert self.nodes[node].commit(batch) == []
        self.loses(node, touched - kept)
        for row in ended:
            if self.open_rows[row] in kept:
                del self.open_rows[row]
        self.open_rows |= {row: shard for row, shard in fresh.items() if shard in kept}

    @rule(node=NODES, shards=SHARDS, data=st.data())
    def is_overtaken(self, node: int, shards: set[int], data: Any) -> None:
        """What fences are for, which chance alone brings too seldom."""
        self.claims(node, shards)
        self.commits(node, shards, data)
        self.claims(1 - node, {min(shards)})
        self.commits(node, shards, data)

    @rule(node=NODES)
    def confirms(self, node: int) -> None:
        owned = self.owned(node)
        assert self.nodes[node].confirm() == owned
        self.loses(node, self.held[node].keys() - owned)

    @rule(node=NODES)
    def hears(self, node: int) -> None:
        assert self.nodes[node].lost() == self.lost[node]
        self.lost[node] = set()

    @rule(node=NODES)
    def restarts(self, node: int) -> None:
        self.nodes[node].close()
        self.nodes[node] = self.opened()
        self.held[node], self.lost[node] = {}, set()

    @invariant()
    def agrees(self) -> None:
        for node, held in zip(self.nodes, self.held, strict=True):
            assert node.epochs() == held
        found = {one.task.row: one.task.shard for one in self.nodes[0].load_shards(range(4)).tasks}
        assert found == self.open_rows


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "examples"), [("memory", 60), ("postgres", 8)])
def test_CLU_3_any_sequence_of_claims_and_commits(kind: str, examples: int) -> None:
    def machine() -> Fences:
        shared = MemoryShared()
        address = postgres.server().database() if kind == "postgres" else ""

        def opened() -> SharedJournal:
            node: SharedJournal = PostgresJournal(address) if address else MemoryNode(shared)
            node.open()
            return node

        return Fences(opened)

    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]
        settings=settings(
            max_examples=examples * EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Each step of a database is slow: what it finds is not made shorter; memory is there for that.
            phases=list(Phase) if kind == "memory" else [Phase.reuse, Phase.generate],
        ),
    )
