"""Bringing a node back: what the journal holds becomes pools again."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence

from reach.collector import made_to_stay
from reach.core.effects import Turn
from reach.core.model import PoolKey, Task
from reach.core.placement import shard_of_session
from reach.core.restore import restore_instance, restore_pin, restore_task, restore_trials, restore_waiting
from reach.core.rows import AgentRow, AttemptRow
from reach.core.session import TURN
from reach.runtime.host import Host
from reach.runtime.sessions import Ended
from reach.store.base import Journal, Loaded, SharedJournal, StoredFact, StoredTask

LANES = 1_000
FACTS = 1_000


def unapplied_turns(journal: Journal) -> list[Ended]:
    """Tasks of sessions that ended, and whose turns the contexts lack, in order of their end. Blocks."""
    found: list[Ended] = []
    lanes = journal.fact_lanes(TURN, None, LANES)
    while lanes:
        for lane in lanes:
            facts = journal.facts(TURN, lane, 0, FACTS)
            while facts:
                found += _ends(journal, facts)
                facts = journal.facts(TURN, lane, facts[-1].number, FACTS)
        lanes = journal.fact_lanes(TURN, lanes[-1], LANES)
    return found


def turns_of(journal: SharedJournal, shards: Collection[int]) -> list[Ended]:
    """The same for sessions that live in these shards, wherever their tasks ran. Blocks."""
    found: list[Ended] = []
    facts = journal.every_fact(TURN, 0, FACTS)
    while facts:
        ours = [one for one in facts if shard_of_session((one.fact.tenant, one.fact.lane)) in shards]
        found += _ends(journal, ours)
        facts = journal.every_fact(TURN, facts[-1].number, FACTS)
    return found


def _ends(journal: Journal, facts: Sequence[StoredFact]) -> Iterator[Ended]:
    for stored in facts:
        task = journal.find(stored.fact.tenant, stored.fact.task_id)
        if task is not None and task.outcome is not None and task.task.row == stored.fact.row:
            yield stored.fact, task


def restore(host: Host, loaded: Loaded, turns: Sequence[Ended] = ()) -> int:
    """Brings back what the journal holds; returns how many tasks go on. Called once, before anything is served.

    The tasks are taken out of `loaded`: what they become needs their memory.
    """
    turn = Turn(host.clock.now_ms(), host.clock.wall_ms())
    host.begin(loaded.next_row, loaded.next_revision)
    count = bring(host, loaded, turns, turn)
    host.committer.submit(turn)
    host.arm_all()
    host.outbox.start()
    host.sessions.start()
    return count


def bring(host: Host, loaded: Loaded, turns: Sequence[Ended], turn: Turn) -> int:
    """Makes pools, sessions and tasks of what was loaded; `turn` gets what that asks for. The tasks are taken out of
    `loaded` on the way."""
    with made_to_stay():
        _restore_agents(host, loaded.agents, turn)
        for pin in loaded.pins:
            restore_pin(host.pool(PoolKey(pin.pool_tenant, pin.agent_type)), pin, turn)
        host.sessions.restore(loaded.contexts, turns)
        tasks = _Return(host, turn)
        count = len(loaded.tasks)
        loaded.tasks.reverse()
        while loaded.tasks:
            tasks.add(loaded.tasks.pop())
        tasks.end()
    return count


def _restore_agents(host: Host, agents: Sequence[AgentRow], turn: Turn) -> None:
    by_pool: dict[PoolKey, list[AgentRow]] = {}
    for agent in agents:
        by_pool.setdefault(_restore_agent(host, agent, turn), []).append(agent)
    for key, rows in by_pool.items():
        restore_trials(host.pool(key), rows)


def _restore_agent(host: Host, agent: AgentRow, turn: Turn) -> PoolKey:
    key = PoolKey(agent.tenant, agent.agent_type)
    joining = host.codec.joining_of(agent.registration, agent.boot_id)
    joining.instance_id = agent.instance_id
    joining.profile = host.directory.add(key, agent.instance_id, joining.profile)
    restore_instance(host.pool(key), agent, joining, turn)
    return key


class _Return:
    """Tasks on their way back into their pools. Those that merely wait go there together."""

    def __init__(self, host: Host, turn: Turn) -> None:
        self._host = host
        self._turn = turn
        self._waiting: dict[PoolKey, list[Task]] = {}
        self._asked_for: list[Task] = []
        """Those that other tasks asked for."""

    def add(self, stored: StoredTask) -> None:
        """Brings a task back, now or with the others."""
        host = self._host
        row = stored.task
        task, selector = host.codec.restored(sys.intern(row.tenant), row.spec)
        task.row, task.accepted_wall_ms, task.reserved = row.row, row.accepted_wall_ms, stored.reserved
        task.hop = stored.hop
        task.effect_granted, task.checkpoint = stored.effect_granted, stored.checkpoint
        key = host.level_1.restore(task, selector, PoolKey(row.pool_tenant, row.agent_type))
        if task.root_task_id:
            self._asked_for.append(task)
        if not (row.attempt or stored.attempts or stored.failures or task.session or task.start_delay_ms):
            self._waiting.setdefault(key, []).append(task)
            return
        attempts = list(stored.attempts)
        if row.attempt:
            first = AttemptRow(row.row, row.shard, row.attempt, row.instance_id, row.agent_id, row.generation,
                               row.accepted_wall_ms, row.reserved)  # fmt: skip
            attempts.insert(0, first)
        restore_task(host.pool(key), task, attempts, stored.failures, self._turn, stored.questions, stored.inputs)

    def end(self) -> None:
        """All are there."""
        for key, tasks in self._waiting.items():
            restore_waiting(self._host.pool(key), tasks, self._turn)
        for task in self._asked_for:  # now that all are there whom they may belong to
            self._host.trees.joined(task)
