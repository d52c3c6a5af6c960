"""Bringing back what the journal holds: it becomes pools again, all at once or a little at a time."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from reach.collector import made_to_stay
from reach.core.effects import Turn
from reach.core.model import PoolKey, Task
from reach.core.placement import shard_of_session
from reach.core.pool import Pool
from reach.core.restore import restore_instance, restore_pin, restore_task, restore_trials, restore_waiting
from reach.core.rows import AgentRow, AttemptRow, PinRow
from reach.core.session import TURN
from reach.runtime.sessions import Ended
from reach.store.base import Journal, Loaded, SharedJournal, StoredFact, StoredTask

if TYPE_CHECKING:
    from reach.runtime.host import Host

LANES = 1_000
FACTS = 1_000


class Ground(Protocol):
    """Where pools come to life."""

    def pool(self, key: PoolKey) -> Pool:
        """The pool of a key, made when it is first needed."""


class ShardTurns:
    """What all that is brought back asks for: a turn for each shard, for one that is lost is void, and no other one.

    Args:
        now_ms: The time.
        wall_ms: The same for people.
    """

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self._turns: dict[int, Turn] = {}
        self.now_ms = now_ms
        self.wall_ms = wall_ms

    def of(self, pool: Pool) -> Turn:
        """That of a pool, as of now."""
        turn = self._turns.get(pool.shard)
        if turn is None:
            turn = self._turns[pool.shard] = Turn(self.now_ms, self.wall_ms)
        turn.now_ms, turn.wall_ms = self.now_ms, self.wall_ms
        return turn

    def submit(self, host: Host) -> None:
        """It is to be kept and sent, now that its pools are found."""
        for number, turn in self._turns.items():
            turn.shard = host.shards[number] if host.by_shard else None
            host.committer.submit(turn)


class Turns(NamedTuple):
    """Some turns that contexts lack."""

    ended: list[Ended]
    """In order of their ends."""
    after: int | None
    """Where to go on; None: that was all."""


def unapplied_turns(journal: Journal) -> list[Ended]:
    """Tasks of sessions that ended, and whose turns the contexts lack, in order of their end. Blocks."""
    found: list[Ended] = []
    lanes = journal.fact_lanes(TURN, None, LANES)
    while lanes:
        for lane in lanes:
            facts = journal.facts(TURN, lane, 0, FACTS)
            while facts:
                tasks = (journal.find(stored.fact.tenant, stored.fact.task_id) for stored in facts)
                found += _ended(facts, tasks)
                facts = journal.facts(TURN, lane, facts[-1].number, FACTS)
        lanes = journal.fact_lanes(TURN, lanes[-1], LANES)
    return found


def some_turns(journal: SharedJournal, shards: Collection[int], after: int, limit: int) -> Turns:
    """The same for sessions that live in these shards, wherever their tasks ran: up to `limit`, behind that number.
    Blocks."""
    facts = journal.every_fact(TURN, after, limit)
    ours = [one for one in facts if shard_of_session((one.fact.tenant, one.fact.lane)) in shards]
    rows = {stored.task.row: stored for stored in journal.stored([one.fact.row for one in ours])} if ours else {}
    ended = list(_ended(ours, (rows.get(one.fact.row) for one in ours)))
    return Turns(ended, facts[-1].number if len(facts) == limit else None)


def _ended(facts: Sequence[StoredFact], tasks: Iterator[StoredTask | None]) -> Iterator[Ended]:
    for stored, task in zip(facts, tasks, strict=True):
        if task is not None and task.outcome is not None and task.task.row == stored.fact.row:
            yield stored.fact, task


def restore(host: Host, loaded: Loaded, turns: Sequence[Ended] = ()) -> int:
    """Brings back what the journal holds; returns how many tasks go on. Called once, before anything is served.

    The tasks are taken out of `loaded`: what they become needs their memory.
    """
    host.begin(loaded.next_row, loaded.next_revision)
    count = bring(host, loaded, turns)
    host.arm_all()
    host.outbox.start()
    host.sessions.start()
    host.resettling.look_again_soon()
    return count


def bring(host: Host, loaded: Loaded, turns: Sequence[Ended]) -> int:
    """Makes pools, sessions and tasks of what was loaded, and has done what that asks for. The tasks are taken out of
    `loaded` on the way."""
    asked = ShardTurns(host.clock.now_ms(), host.clock.wall_ms())
    with made_to_stay():
        returning = Returning(host, host, asked)
        returning.agents(loaded.agents)
        returning.trials()
        for pin in loaded.pins:
            returning.pin(pin)
        host.sessions.restore(loaded.contexts, turns)
        count = len(loaded.tasks)
        returning.tasks(loaded.tasks)
        for task in returning.asked_for:  # now that all are there whom they may belong to
            host.trees.joined(task)
    asked.submit(host)
    return count


class Returning:
    """What was kept on its way back into pools.

    Args:
        host: Of this node.
        ground: Where its pools are.
        turns: Get what that asks for.
    """

    def __init__(self, host: Host, ground: Ground, turns: ShardTurns) -> None:
        self._host = host
        self._ground = ground
        self._turns = turns
        self._agents: dict[PoolKey, list[AgentRow]] = {}
        self._waiting: dict[PoolKey, list[Task]] = {}
        self.asked_for: list[Task] = []
        """Those that other tasks asked for."""

    def agents(self, agents: Sequence[AgentRow]) -> None:
        """Brings instances back."""
        for agent in agents:
            self._agents.setdefault(self._agent(agent), []).append(agent)

    def _agent(self, agent: AgentRow) -> PoolKey:
        host, key = self._host, PoolKey(agent.tenant, agent.agent_type)
        joining = host.codec.joining_of(agent.registration, agent.boot_id)
        joining.instance_id = agent.instance_id
        joining.profile = host.directory.add(key, agent.instance_id, joining.profile)
        pool = self._ground.pool(key)
        restore_instance(pool, agent, joining, self._turns.of(pool))
        return key

    def trials(self) -> None:
        """All instances are there."""
        agents, self._agents = self._agents, {}
        for key, rows in agents.items():
            restore_trials(self._ground.pool(key), rows)

    def pin(self, pin: PinRow) -> None:
        """Brings the pin of a session back, once the instances of its pool are there."""
        pool = self._ground.pool(PoolKey(pin.pool_tenant, pin.agent_type))
        restore_pin(pool, pin, self._turns.of(pool))

    def tasks(self, stored: list[StoredTask]) -> None:
        """Brings tasks back, once their instances, pins and contexts are there; they are taken out of `stored`. Those
        that merely wait come to their pools together."""
        stored.reverse()
        while stored:
            self._task(stored.pop())
        waiting, self._waiting = self._waiting, {}
        for key, tasks in waiting.items():
            pool = self._ground.pool(key)
            restore_waiting(pool, tasks, self._turns.of(pool))

    def _task(self, stored: StoredTask) -> None:
        host = self._host
        row = stored.task
        task, selector = host.codec.restored(sys.intern(row.tenant), row.spec)
        task.row, task.accepted_wall_ms, task.reserved = row.row, row.accepted_wall_ms, stored.reserved
        task.hop = stored.hop
        task.effect_granted, task.checkpoint = stored.effect_granted, stored.checkpoint
        key = PoolKey(row.pool_tenant, row.agent_type)
        host.level_1.restore(task, selector, key)
        if task.root_task_id:
            self.asked_for.append(task)
        had = row.attempt or stored.attempts or stored.failures or stored.stream
        if not (had or task.session or task.start_delay_ms):
            self._waiting.setdefault(key, []).append(task)
            return
        attempts = list(stored.attempts)
        if row.attempt:
            first = AttemptRow(row.row, row.shard, row.attempt, row.instance_id, row.agent_id, row.generation,
                               row.accepted_wall_ms, row.reserved)  # fmt: skip
            attempts.insert(0, first)
        if stored.handle is not None and attempts and stored.handle.number == attempts[-1].number:
            task.handle = stored.handle.handle
        pool = self._ground.pool(key)
        turn = self._turns.of(pool)
        restore_task(pool, task, attempts, stored.failures, turn, stored.questions, stored.inputs, stored.stream)
