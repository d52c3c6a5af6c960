"""What the checker must see of nodes: each violation planted once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import dispatch_pb2
from reach.core.placement import SHARDS
from reach.core.rows import FailureRow, Writes
from reach.core.stream import Interest
from reach.errors import ErrorClass, Reason
from reach.testing.sim.nodes.checks import NodesChecker
from reach.testing.sim.nodes.clients import _CallersEnd
from reach.testing.sim.nodes.ownership import LATE_S, OwnershipTruth
from tests.sim.history import KEY, task_row


class Nodes:
    """A checker, and what it hears of two nodes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.checker = NodesChecker(None, lambda: self.now)
        self.truth = OwnershipTruth(self.checker)
        self.agent = SimpleNamespace(
            process=SimpleNamespace(dead=False), leaving=False, troubled_at=-100.0, away_at=None,
            running={KEY: SimpleNamespace(attempt=1)}, unacknowledged={},
        )  # fmt: skip
        self.checker.agents = {"one": self.agent}  # type: ignore[dict-item]

    def claim(self, node: str, epoch: int, shard: int = 0) -> None:
        self.truth.claimed(node, f"{node}.1", {shard: epoch})

    def give_up(self, reason: Reason = Reason.INSTANCE_LOST) -> None:
        accepted, failed = Writes(), Writes()
        accepted.tasks = [task_row()]
        failed.failures = [FailureRow(1, 0, 1, 0, int(ErrorClass.UNAVAILABLE), int(reason), "", 1, 0, 0)]
        self.checker.durable(accepted, [])
        self.checker.durable(failed, [])

    def hears(self, *numbers: int, after: int = 0) -> None:
        """A caller reads events."""
        caller: Any = SimpleNamespace(world=SimpleNamespace(checker=self.checker), tenant=KEY[0], end=None)
        end = _CallersEnd(caller)
        end.subscribed(KEY[1], after, Interest.EVENTS)
        for number in numbers:
            frame = dispatch_pb2.DispatchStreamResponse()
            event = frame.events.add(task_id=KEY[1], sequence=number)
            event.delta.payload.text = "piece"
            event.delta.mode = 1  # type: ignore[assignment]
            end.tell(frame.SerializeToString())

    def serve(self, served: dict[tuple[str, str], frozenset[int]]) -> None:
        self.truth.converged(self.truth.unsettled(served))

    @property
    def found(self) -> list[str]:
        return [violation.name for violation in self.checker.violations]


def a_claim_goes_back(nodes: Nodes) -> None:
    nodes.claim("a", 2)
    nodes.claim("a", 1)


def two_owners_of_an_epoch(nodes: Nodes) -> None:
    nodes.claim("a", 1)
    nodes.claim("b", 1)


def a_former_owner_writes(nodes: Nodes) -> None:
    nodes.claim("a", 1)
    nodes.claim("b", 2)
    nodes.truth.writes("a", "a.1", [0])


def another_process_of_the_owner_writes(nodes: Nodes) -> None:
    nodes.claim("a", 1)
    nodes.truth.writes("a", "a.2", [0])


def a_former_owner_offers(nodes: Nodes) -> None:
    nodes.claim("a", 1)
    nodes.claim("b", 2)
    nodes.now = LATE_S + 0.1
    nodes.truth.speaks("a", "a.1", 0, KEY, "offers #1")


def a_shard_has_no_owner(nodes: Nodes) -> None:
    for shard in range(SHARDS):
        nodes.claim("a", 1, shard)
    nodes.serve({("a", "a.1"): frozenset(range(1, SHARDS))})


def a_shard_is_served_by_two(nodes: Nodes) -> None:
    for shard in range(SHARDS):
        nodes.claim("a", 1, shard)
    nodes.serve({("a", "a.1"): frozenset(range(SHARDS)), ("b", "b.1"): frozenset([7])})


def a_shard_is_served_by_a_former_owner(nodes: Nodes) -> None:
    for shard in range(SHARDS):
        nodes.claim("a", 1, shard)
    nodes.claim("b", 2, 7)
    nodes.serve({("a", "a.1"): frozenset(range(SHARDS))})


def one_node_has_more_than_its_share(nodes: Nodes) -> None:
    nodes.truth.spread({("a", "a.1"): frozenset(range(33)), ("b", "b.1"): frozenset(range(33, SHARDS))})


def a_running_attempt_is_given_up(nodes: Nodes) -> None:
    nodes.give_up()


def an_event_is_left_out(nodes: Nodes) -> None:
    nodes.hears(1, 3)


def an_event_comes_twice(nodes: Nodes) -> None:
    nodes.hears(1, 2, 2)


PLANTED: dict[str, list[Callable[[Nodes], None]]] = {
    "EPOCHS_GROW": [a_claim_goes_back],
    "ONE_OWNER_PER_EPOCH": [two_owners_of_an_epoch],
    "OWNERS_WRITE": [a_former_owner_writes, another_process_of_the_owner_writes],
    "WHO_DOUBTS_IS_SILENT": [a_former_owner_offers],
    "OWNERSHIP_CONVERGES": [a_shard_has_no_owner, a_shard_is_served_by_two, a_shard_is_served_by_a_former_owner],
    "SHARDS_ARE_SPREAD": [one_node_has_more_than_its_share],
    "RUNNING_IS_ADOPTED": [a_running_attempt_is_given_up],
    "NO_GAP_NO_DOUBLE": [an_event_is_left_out, an_event_comes_twice],
}


@pytest.mark.parametrize(("name", "act"), [(name, act) for name, acts in PLANTED.items() for act in acts], ids=str)
def test_a_planted_violation_of_nodes_is_found(name: str, act: Callable[[Nodes], None]) -> None:
    nodes = Nodes()
    act(nodes)
    assert name in nodes.found


def test_what_nodes_may_do_is_no_violation() -> None:
    nodes = Nodes()
    for shard in range(SHARDS):
        nodes.claim("a", 1, shard)
        nodes.claim("b", 2, shard)
        nodes.claim("b", 3, shard)
    nodes.truth.writes("b", "b.1", range(SHARDS))
    nodes.truth.speaks("b", "b.1", 0, KEY, "offers #1")
    nodes.now = LATE_S - 0.1
    nodes.truth.speaks("a", "a.1", 0, KEY, "offers #1")
    nodes.serve({("b", "b.1"): frozenset(range(SHARDS)), ("a", "a.1"): frozenset()})
    nodes.hears(4, 5, after=3)
    assert nodes.found == []


@pytest.mark.parametrize(
    "change",
    [
        {"troubled_at": -14.0},
        {"leaving": True},
        {"process": SimpleNamespace(dead=True)},
        {"running": {}},
        {"running": {KEY: SimpleNamespace(attempt=2)}},
        {"away_at": -20.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_attempt_may_be_given_up_whose_agent_is_away_or_does_not_work_on_it(change: dict[str, Any]) -> None:
    nodes = Nodes()
    for name, value in change.items():
        setattr(nodes.agent, name, value)
    nodes.give_up()
    assert nodes.found == []


def test_an_attempt_may_fail_for_other_reasons() -> None:
    nodes = Nodes()
    nodes.give_up(Reason.START_TO_CLOSE)
    assert nodes.found == []
