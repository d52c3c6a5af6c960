"""Bugs planted on purpose: each is one that was thought of as likely, and each has to be found by the simulation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from reach.core import events as ev
from reach.core.canary import Canaries
from reach.core.context import Context, Exchange, Facts
from reach.core.delivery import Delivery
from reach.core.effects import Turn
from reach.core.fleet import Fleet
from reach.core.handoff import Handoffs
from reach.core.model import Instance, Task
from reach.core.reports import Reports
from reach.core.rows import OutboxRow
from reach.core.stream import Interest, Reader
from reach.rpc import dead_letters
from reach.runtime.committer import Committer
from reach.runtime.homeward import Homeward
from reach.runtime.outbox import Outbox
from reach.runtime.retention import END_OF_TIME, Retention
from reach.runtime.sessions import Sessions
from reach.runtime.trees import Trees
from reach.transports.dialled import Dialled
from reach.transports.executions import Execution
from reach.transports.seam import Failed
from reach.transports.webhooks import Webhooks
from reach.wire.webhooks import KIND


def ack_before_commit(patch: pytest.MonkeyPatch) -> None:
    """What a turn says leaves at once, and its rows follow."""
    honest = Committer.submit

    def submit(self: Committer, turn: Turn) -> None:
        self._perform(turn, [])
        turn.sends = []
        honest(self, turn)

    patch.setattr(Committer, "submit", submit)


def retry_without_fencing(patch: pytest.MonkeyPatch) -> None:
    """Whatever any attempt of a task says is taken for what the current one says."""
    honest = Reports._current

    def current(self: Reports, event: ev.AttemptEvent, turn: Turn) -> Task | None:
        task = self.pool.find(event.tenant, event.task_id)
        if task is not None and task.attempt:
            return task
        return honest(self, event, turn)

    patch.setattr(Reports, "_current", current)


def replay_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Who resumes after event n gets on with n + 2."""
    honest = Delivery.subscribe

    def subscribe(self: Delivery, task: Task, reader: Reader, turn: Turn) -> None:
        if reader.interest == Interest.EVENTS and 0 < reader.after < task.sequence:
            reader.after += 1
        honest(self, task, reader, turn)

    patch.setattr(Delivery, "subscribe", subscribe)


def turns_without_an_outbox(patch: pytest.MonkeyPatch) -> None:
    """A turn is only in memory until its session is written: who dies before that has lost it."""

    def forget(self: Homeward, fact: OutboxRow) -> None:
        self._sessions.keep(self._done_of((fact.tenant, fact.lane), fact))

    patch.setattr(Homeward, "take", forget)
    patch.setattr("reach.testing.sim.server.unapplied_turns", lambda journal: [])


def turns_told_twice(patch: pytest.MonkeyPatch) -> None:
    """A turn that is told again is added again."""
    patch.setattr(Context, "has", lambda self, task_id: False)
    honest = Context.add

    def add(self: Context, turn: Exchange, facts: Facts, most: int) -> bool:
        self.applied.pop(turn.task_id, None)
        return honest(self, turn, facts, most)

    patch.setattr(Context, "add", add)


def sessions_that_meet(patch: pytest.MonkeyPatch) -> None:
    """The context of an offer is that of another conversation of the user."""
    honest = Sessions.offered

    def offered(self: Sessions, task: Task) -> bytes:
        session, task.session = task.session, f"{task.session[:-1]}1"
        try:
            return honest(self, task)
        finally:
            task.session = session

    patch.setattr(Sessions, "offered", offered)


def webhooks_without_an_outbox(patch: pytest.MonkeyPatch) -> None:
    """Who is to be told is in memory only: what was not told before a crash is never told."""
    honest = Outbox._hand_over

    def hand_over(self: Outbox, kind: Any, lane: Any, fact: OutboxRow) -> None:
        if fact.kind != KIND or not lane.reading:
            honest(self, kind, lane, fact)

    patch.setattr(Outbox, "_hand_over", hand_over)


def webhooks_with_a_name_for_each_process(patch: pytest.MonkeyPatch) -> None:
    """A delivery is named by the process that makes it."""
    honest = Webhooks.__init__

    def made(self: Webhooks, *arguments: Any) -> None:
        honest(self, *arguments)
        patch.setattr("reach.transports.webhooks.delivery_id", lambda fact: f"{fact.key} of {self._seed}")

    patch.setattr(Webhooks, "__init__", made)


def webhooks_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Facts are handed over when they are made."""
    honest = Committer.submit

    def submit(self: Committer, turn: Turn) -> None:
        host = self._perform.__self__._host  # type: ignore[attr-defined]
        if turn.writes.outbox:
            host.outbox.committed(turn.writes, [])
        honest(self, turn)

    patch.setattr(Committer, "submit", submit)


def snapshots_that_meet(patch: pytest.MonkeyPatch) -> None:
    """Who gets a session is given what was said of another one of the pool."""

    def given(self: Handoffs, task: Task) -> tuple[bytes, int]:
        for moving in self._moving.values():
            if moving.snapshot:
                return moving.snapshot, 1
        return b"", 0

    patch.setattr(Handoffs, "given", given)


def a_broken_call_has_not_begun(patch: pytest.MonkeyPatch) -> None:
    """An attempt whose connection broke counts as refused, so that its effect is another attempt's."""
    honest = Execution._ended

    def ended(self: Execution, failure: Failed | None) -> None:
        if failure is not None and failure.lost and not self.over:
            self._tell_unbegun(None, "its connection broke")
        honest(self, failure)

    patch.setattr(Execution, "_ended", ended)


def checks_that_say_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a check says of attempts counts for nothing."""
    patch.setattr(Dialled, "_give_up_unnamed", lambda self, instance, named: None)
    patch.setattr(Dialled, "_named", lambda self, answer: self._believed())


def other_content_is_the_same(patch: pytest.MonkeyPatch) -> None:
    """Who gives a taken id to another request is taken for one that comes again."""
    patch.setattr("reach.wire.codec.same_content", lambda one, other: True)


def requeued_under_any_id(patch: pytest.MonkeyPatch) -> None:
    """The id of the task that tries a dead letter again does not come from the request alone."""
    honest = dead_letters.new_id

    def new_id(dead: Task, request_id: str) -> str:
        return honest(dead, f"{request_id} {asyncio.get_running_loop().time()}")

    patch.setattr(dead_letters, "new_id", new_id)


def results_that_go_before_their_time(patch: pytest.MonkeyPatch) -> None:
    """What is removed by age is removed however young it is."""
    honest = Retention._purge

    async def purge(self: Retention, before_ms: int, **rest: Any) -> int:
        return await honest(self, END_OF_TIME, **rest)

    patch.setattr(Retention, "_purge", purge)


def purged_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """A dead letter that is removed is back after the next restart."""
    patch.setattr("reach.runtime.past.Past.remove", lambda self, rows: len(rows))


def cancels_that_stay_at_the_top(patch: pytest.MonkeyPatch) -> None:
    """What a cancelled task asked for goes on."""
    patch.setattr(Trees, "_look", lambda self, key: None)


def parents_that_only_memory_knows(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks the journal whether the one that asks for a task was cancelled."""
    patch.setattr(Trees, "ask_parent", lambda self, task, then: False)


def budgets_that_nobody_bounds(patch: pytest.MonkeyPatch) -> None:
    """A child spends what it says it may."""
    patch.setattr("reach.wire.codec.bounded", lambda spec, parent: spec)


def drains_that_a_restart_undoes(patch: pytest.MonkeyPatch) -> None:
    """Nobody writes down that an operator drains an instance."""
    honest = Fleet.keep

    def keep(self: Fleet, instance: Instance, turn: Turn) -> None:
        until, instance.drain_until_ms = instance.drain_until_ms, 0
        honest(self, instance, turn)
        instance.drain_until_ms = until

    patch.setattr(Fleet, "keep", keep)


def trials_that_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """What was found out of a version is in memory only."""
    patch.setattr(Canaries, "take_changed", lambda self: self.changed.clear() or set())


def pools_that_only_memory_knows(patch: pytest.MonkeyPatch) -> None:
    """A task that waited for anybody goes to the pool of an agent, and its row does not say so."""
    honest = ev.Arrived.__init__
    patch.setattr(ev.Arrived, "__init__", lambda self, task, left=None: honest(self, task))


PLANTED: dict[str, Any] = {
    "ack before commit": ack_before_commit,
    "retry without fencing": retry_without_fencing,
    "replay off by one": replay_off_by_one,
    "turns without an outbox": turns_without_an_outbox,
    "turns told twice": turns_told_twice,
    "sessions that meet": sessions_that_meet,
    "snapshots that meet": snapshots_that_meet,
    "webhooks without an outbox": webhooks_without_an_outbox,
    "webhooks with a name for each process": webhooks_with_a_name_for_each_process,
    "webhooks before the commit": webhooks_before_the_commit,
    "a broken call has not begun": a_broken_call_has_not_begun,
    "checks that say nothing": checks_that_say_nothing,
    "requeued under any id": requeued_under_any_id,
    "other content is the same": other_content_is_the_same,
    "results that go before their time": results_that_go_before_their_time,
    "purged in memory only": purged_in_memory_only,
    "drains that a restart undoes": drains_that_a_restart_undoes,
    "trials that begin anew": trials_that_begin_anew,
    "pools that only memory knows": pools_that_only_memory_knows,
    "cancels that stay at the top": cancels_that_stay_at_the_top,
    "parents that only memory knows": parents_that_only_memory_knows,
    "budgets that nobody bounds": budgets_that_nobody_bounds,
}
