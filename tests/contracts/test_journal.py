"""What every journal promises, whatever engine keeps it."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from reach.core.decision import Verdict
from reach.core.decision_record import record_of
from reach.core.model import Requirement
from reach.core.routing import Router
from reach.core.row_numbers import BLOCK_BITS
from reach.core.rows import AgentGone, OutboxRow, Writes
from reach.store import base
from reach.store.base import Journal, StoreBroken, StoredTask, StoreUnavailable, TaskQuery
from reach.store.memory import MemoryJournal
from reach.store.postgres import PostgresJournal
from reach.store.sqlite import SqliteJournal
from reach.store.sqlite_keys import KeyIndex
from tests import postgres
from tests.contracts.effort import EXAMPLES
from tests.contracts.journal_model import ModelJournal
from tests.contracts.journal_rows import (
    FAILED,
    PENDING,
    SUCCEEDED,
    agent,
    attempt,
    checkpoint,
    context,
    done,
    effect,
    fact,
    failure,
    given,
    handle,
    move,
    outcome,
    pin,
    question,
    reserve,
    task,
    writes,
)
from tests.core.harness import instance_of


class Kept:
    """A journal that can be closed and opened again: a new object where it is on disk."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.folder = folder
        self.address = ""
        self.journal: Journal = MemoryJournal()
        self.reopen()

    def reopen(self) -> Journal:
        self.journal.close()
        if self.kind == "sqlite":
            self.journal = SqliteJournal(self.folder)
        if self.kind == "postgres":
            self.address = self.address or postgres.server().database()
            self.journal = PostgresJournal(self.address)
        self.journal.open()
        if isinstance(self.journal, PostgresJournal):
            self.journal.claim(range(64))
        return self.journal

    def is_next(self, row: int) -> bool:
        """Whether `row` is the next one; where a node has a block of its own for each opening, one of the next block
        is as good."""
        found = self.journal.load().next_row
        return found == row or (self.kind == "postgres" and found > 1 << BLOCK_BITS)

    def before_and_after(self):
        """The journal as it is, then opened again."""
        yield self.journal
        yield self.reopen()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def kept(request, tmp_path):
    kept = Kept(request.param, tmp_path / "data")
    yield kept
    kept.journal.close()


@pytest.fixture
def journal(kept):
    kept.journal.load()
    return kept.journal


def stored(journal: Journal, row: int) -> StoredTask:
    found = journal.find("acme", f"task-{row}")
    assert found is not None
    return found


def rows(found) -> list[int]:
    return [item.task.row for item in found]


# What is kept


def test_a_new_journal_is_empty(journal):
    assert journal.load() == ([], [], [], 1, 1, [])
    assert journal.find("acme", "task-1") is None
    assert journal.list_tasks(TaskQuery("acme")) == []
    assert journal.purge(1 << 62, 10) == 0
    assert journal.commit(Writes()) == []


def test_a_task_comes_back_as_it_was(journal):
    row = task(7, session="s", root_task_id="task-1")
    assert journal.commit(writes(tasks=[row])) == []
    assert journal.find("acme", "task-7") == StoredTask(row, [], [], 1_000, 0, None, None)


@pytest.mark.parametrize(("numbers", "granted"), [((1, -1), 0), ((1, -1, 2), 2), ((1, -1, 2, -2), 0), ((2,), 2)])
def test_DLV_7_a_grant_can_come_back(kept, numbers, granted):
    kept.journal.commit(writes(tasks=[task(1)], effects=[effect(1, number) for number in numbers]))
    for journal in kept.before_and_after():
        assert stored(journal, 1).effect_granted == granted


def test_everything_about_a_task_comes_back(kept):
    all_kinds = writes(
        tasks=[task(1), task(2, attempt=0, instance_id="", agent_id="", generation=0)],
        attempts=[attempt(1, 2), attempt(1, 3, reserved=2_500), attempt(2, 1)],
        failures=[failure(1, 1), failure(1, 2, message="again")],
        reserves=[reserve(2, 3_000)],
        effects=[effect(1, 2), effect(1, 3)],
        checkpoints=[checkpoint(1, 1, b"\x00one"), checkpoint(1, 2, b"\xfftwo")],
        outcomes=[
            outcome(2, metadata={"k": "ü"}, extra={"confidence": 0.5, "usage": {"tokens": [1, 2]}, "none": None})
        ],
    )
    kept.journal.commit(all_kinds)
    for journal in kept.before_and_after():
        first, second = stored(journal, 1), stored(journal, 2)
        assert first.task == task(1)
        assert first.attempts == all_kinds.attempts[:2]
        assert first.failures == all_kinds.failures
        assert (first.reserved, first.effect_granted, first.checkpoint) == (2_500, 3, b"\xfftwo")
        assert first.outcome is None
        assert second.attempts == [attempt(2, 1)]
        assert (second.reserved, second.effect_granted, second.checkpoint) == (3_000, 0, None)
        assert second.outcome == all_kinds.outcomes[0]


def test_DLV_1_questions_and_answers_come_back_and_the_first_answer_counts(kept):
    asked = [question(1), question(1, 1, 2, content=b"\x00?"), question(1, 2, 2, name="")]
    answers = [given(1, 1), given(1, 2, content="no", media_type="text/plain")]
    kept.journal.commit(writes(tasks=[task(1), task(2)], questions=asked, inputs=answers[:1]))
    kept.journal.commit(writes(questions=asked[:1], inputs=[given(1, 1, input_id="late"), answers[1]]))
    for journal in kept.before_and_after():
        first = stored(journal, 1)
        assert first.questions == tuple(asked)
        assert first.inputs == tuple(answers)
        assert stored(journal, 2).questions == ()
        assert [one.questions for one in journal.load().tasks] == [tuple(asked), ()]


@pytest.mark.parametrize("content", [None, "", b"", "text ü \x00 end", b"\x00\xff", "123", b"123", "🙂" * 1_000])
def test_content_keeps_its_type(kept, content):
    kept.journal.commit(writes(tasks=[task(1)], outcomes=[outcome(1, content=content)]))
    found = stored(kept.reopen(), 1).outcome
    assert found is not None
    assert found.content == content
    assert type(found.content) is type(content)


@pytest.mark.parametrize("value", [None, {}, {"a": "b", "": ""}])
def test_metadata_and_extra_keep_the_difference_of_none_and_empty(journal, value):
    journal.commit(writes(tasks=[task(1)], outcomes=[outcome(1, metadata=value, extra=value)]))
    found = stored(journal, 1).outcome
    assert found is not None
    assert (found.metadata, found.extra) == (value, value)


def test_the_attempt_of_the_acceptance_is_not_repeated(journal):
    journal.commit(writes(tasks=[task(1)], attempts=[attempt(1, 1), attempt(1, 2)]))
    assert stored(journal, 1).attempts == [attempt(1, 2)]


def test_attempts_and_failures_are_in_order_of_their_numbers(journal):
    journal.commit(writes(tasks=[task(1)], attempts=[attempt(1, 3)], failures=[failure(1, 2)]))
    journal.commit(writes(attempts=[attempt(1, 2)], failures=[failure(1, 1)]))
    assert [item.number for item in stored(journal, 1).attempts] == [2, 3]
    assert [item.number for item in stored(journal, 1).failures] == [1, 2]


def test_the_first_outcome_wins(journal):
    journal.commit(writes(tasks=[task(1)], outcomes=[outcome(1, SUCCEEDED), outcome(1, FAILED)]))
    journal.commit(writes(outcomes=[outcome(1, FAILED)]))
    assert stored(journal, 1).outcome == outcome(1, SUCCEEDED)


def test_a_handle_comes_back_and_goes_forward_only(kept):
    kept.journal.commit(writes(tasks=[task(1), task(2)], handles=[handle(1, 2, "two"), handle(1, 1, "one")]))
    kept.journal.commit(writes(handles=[handle(1, 1, "one"), handle(1, 2, "two, later")]))
    for journal in kept.before_and_after():
        assert (stored(journal, 1).handle, stored(journal, 2).handle) == (handle(1, 2, "two, later"), None)


def test_reserves_and_checkpoints_go_forward_only(journal):
    journal.commit(writes(tasks=[task(1)], reserves=[reserve(1, 3_000)], checkpoints=[checkpoint(1, 2, b"two")]))
    journal.commit(writes(reserves=[reserve(1, 2_000)], checkpoints=[checkpoint(1, 1, b"one")]))
    assert (stored(journal, 1).reserved, stored(journal, 1).checkpoint) == (3_000, b"two")
    journal.commit(writes(checkpoints=[checkpoint(1, 2, b"two, later")]))
    assert stored(journal, 1).checkpoint == b"two, later"


def test_large_batches_are_kept_whole(kept):
    """More rows than one statement takes, and every count around the sizes statements come in."""
    row = 0
    for size in (1, 5, 31, 33, 255, 257, 700):
        batch = [task(row + number) for number in range(1, size + 1)]
        kept.journal.commit(writes(tasks=batch, outcomes=[outcome(item.row) for item in batch if item.row % 2]))
        row += size
    loaded = kept.reopen().load()
    assert rows(loaded.tasks) == list(range(2, row + 1, 2))
    assert kept.is_next(row + 1)
    assert len(kept.journal.list_tasks(TaskQuery("acme", limit=10_000))) == row


def test_nothing_is_readable_in_a_closed_journal(journal):
    journal.close()
    for call in (
        journal.load,
        lambda: journal.commit(writes(tasks=[task(1)])),
        lambda: journal.find("acme", "task-1"),
        lambda: journal.list_tasks(TaskQuery("acme")),
        lambda: journal.purge(1, 1),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    journal.close()


def test_its_size_grows_with_what_it_keeps(journal):
    before = journal.size_bytes()
    journal.commit(writes(tasks=[task(1, spec=random.Random(1).randbytes(1_000_000))]))
    assert journal.size_bytes() - before >= 1_000_000


# Who has a task id


def test_a_taken_task_id_is_told_and_nothing_of_its_row_is_kept(kept):
    kept.journal.commit(writes(tasks=[task(1, "same")]))
    answer = kept.journal.commit(
        writes(
            tasks=[task(2, "same"), task(3)],
            attempts=[attempt(2), attempt(3)],
            failures=[failure(2), failure(3)],
            outcomes=[outcome(2), outcome(3)],
            reserves=[reserve(2, 9_000), reserve(3, 9_000)],
            effects=[effect(2), effect(3)],
            checkpoints=[checkpoint(2), checkpoint(3)],
            handles=[handle(2)],
            questions=[question(2)],
            inputs=[given(2)],
            pins=[pin()],
        )
    )
    assert answer == [2]
    for journal in kept.before_and_after():
        assert journal.find("acme", "same") == StoredTask(task(1, "same"), [], [], 1_000, 0, None, None)
        third = stored(journal, 3)
        assert third == StoredTask(task(3), [attempt(3)], [failure(3)], 9_000, 1, b"half way", outcome(3))
        assert rows(journal.list_tasks(TaskQuery("acme"))) == [3, 1]
        assert journal.load().pins == [pin()]


def test_a_taken_row_is_never_used_again_and_takes_nothing_over(kept):
    """What a step still writes about a taken row in a later batch must not become another task's."""
    kept.journal.commit(writes(tasks=[task(1, "same")]))
    assert kept.journal.commit(writes(tasks=[task(2, "same")])) == [2]
    assert kept.is_next(3)
    kept.journal.commit(writes(outcomes=[outcome(2)], reserves=[reserve(5, 2_000)]))
    kept.reopen()
    assert kept.is_next(6)
    assert rows(kept.journal.load().tasks) == [1]


def test_within_a_batch_the_first_has_the_id(journal):
    batch = writes(tasks=[task(1, "same"), task(2, "same"), task(3, "same")], outcomes=[outcome(2)])
    assert journal.commit(batch) == [2, 3]
    assert journal.commit(batch) == [2, 3]
    assert journal.find("acme", "same") == StoredTask(task(1, "same"), [], [], 1_000, 0, None, None)


def test_another_tenant_has_ids_of_its_own(journal):
    assert journal.commit(writes(tasks=[task(1, "same"), task(2, "same", tenant="globex")])) == []
    assert [journal.find(tenant, "same").task.row for tenant in ("acme", "globex")] == [1, 2]
    assert journal.find("initech", "same") is None


def test_names_are_not_confused_by_what_stands_between_them(journal):
    assert journal.commit(writes(tasks=[task(1, "b\0c", tenant="a"), task(2, "c", tenant="a\0b")])) == []
    assert journal.find("a", "b\0c").task.row == 1
    assert journal.find("a\0b", "c").task.row == 2


def test_an_id_stays_taken_after_a_restart(kept):
    kept.journal.commit(writes(tasks=[task(1, "open"), task(2, "ended")], outcomes=[outcome(2)]))
    journal = kept.reopen()
    assert journal.commit(writes(tasks=[task(3, "open"), task(4, "ended"), task(5, "new")])) == [3, 4]


def test_a_purged_id_may_be_used_again(kept):
    kept.journal.commit(writes(tasks=[task(1, "same")], outcomes=[outcome(1)]))
    assert kept.journal.purge(1 << 62, 10) == 1
    assert kept.journal.commit(writes(tasks=[task(2, "same")])) == []
    assert kept.reopen().commit(writes(tasks=[task(3, "same")])) == [3]


def test_a_row_that_is_given_to_two_tasks_is_a_broken_promise(journal):
    journal.commit(writes(tasks=[task(1, "one")]))
    with pytest.raises(StoreBroken):
        journal.commit(writes(tasks=[task(2), task(1, "other")]))
    assert journal.find("acme", "other") is None
    assert journal.find("acme", "task-2") is None


def test_two_tasks_with_one_row_in_a_batch_are_a_broken_promise(journal):
    with pytest.raises(StoreBroken):
        journal.commit(writes(tasks=[task(1, "one"), task(1, "other")]))
    assert journal.find("acme", "one") is None


# Sending again


def test_the_same_batch_again_changes_nothing(kept):
    kept.journal.commit(writes(tasks=[task(1), task(2)]))
    batch = writes(
        tasks=[task(3), task(4, "task-1")],
        attempts=[attempt(1), attempt(3), attempt(4)],
        failures=[failure(1)],
        outcomes=[outcome(2)],
        reserves=[reserve(1, 2_000)],
        effects=[effect(1)],
        checkpoints=[checkpoint(1)],
        handles=[handle(1)],
        moves=[move(1), move(1, "writer", 2), move(3), move(4)],
        agents=[agent("a", 1), agent("b", 2)],
        agents_gone=[AgentGone("acme", "a", "summarizer")],
        pins=[pin("s1"), pin("s2"), pin("s1", "")],
        contexts=[context("s1"), context("s2"), context("s1", None)],
        outbox=[fact("task-2"), fact("gone")],
        outbox_done=[done(fact("gone"))],
    )
    assert kept.journal.commit(batch) == [4]
    once = kept.journal.load(), kept.journal.list_tasks(TaskQuery("acme"))
    assert kept.journal.commit(batch) == [4]
    assert (kept.journal.load(), kept.journal.list_tasks(TaskQuery("acme"))) == once
    journal = kept.reopen()
    assert journal.commit(batch) == [4]
    assert kept.is_next(once[0].next_row)
    assert (journal.load()._replace(next_row=once[0].next_row), journal.list_tasks(TaskQuery("acme"))) == once


# Moves


def test_REG_5_a_task_that_waited_for_anybody_is_of_the_pool_it_went_to(kept):
    """It is found there, and so is what became of it: before its end and after it."""
    kept.journal.commit(writes(tasks=[task(1, agent_type="~", attempt=0), task(2, agent_type="~", attempt=0)]))
    kept.journal.commit(writes(moves=[move(1, to_shard=5)], attempts=[attempt(1, 1, shard=5)]))
    for batch in (writes(), writes(outcomes=[outcome(1, FAILED, reason=7)])):
        kept.journal.commit(batch)
        journal = kept.reopen()
        (found,) = journal.list_tasks(TaskQuery("acme", agent_type="translator"))
        assert (found.task.row, found.task.shard, found.task.pool_tenant, found.hop) == (1, 5, "owner-2", 1)
        assert [one.number for one in found.attempts] == [1]
        assert [one.task.row for one in journal.list_tasks(TaskQuery("acme", agent_type="~"))] == [2]
        failed = journal.list_tasks(TaskQuery("acme", agent_type="translator", reason=7))
        assert [one.task.row for one in failed] == [1] * len(batch.outcomes)


def test_a_task_may_move_within_the_batch_that_accepts_it_and_more_than_once(kept):
    kept.journal.commit(
        writes(
            tasks=[task(1), task(2)],
            moves=[move(1, "a", to_shard=3), move(2), move(1, "b", 2, shard=3, to_shard=9, sequence=5)],
        )
    )
    (second, first) = kept.reopen().list_tasks(TaskQuery("acme"))
    assert (first.task.agent_type, first.task.shard, first.task.reserved, first.hop) == ("b", 9, 5, 2)
    assert (second.task.agent_type, second.task.shard, second.hop) == ("translator", 2, 1)


def test_many_tasks_move_in_one_batch(kept):
    kept.journal.commit(writes(tasks=[task(row) for row in range(1, 701)]))
    kept.journal.commit(writes(moves=[move(row, f"type-{row}") for row in range(1, 701)]))
    found = kept.reopen().list_tasks(TaskQuery("acme", limit=1_000))
    assert [(one.task.row, one.task.agent_type) for one in found] == [(n, f"type-{n}") for n in range(700, 0, -1)]


@pytest.mark.parametrize("none", [move(1, "b", 1), move(1, "b", 2, shard=9), move(4_000, "b", 2)])
def test_what_is_no_move_changes_nothing(journal, none):
    """It is no later one than the last, or leaves where the task is not."""
    journal.commit(writes(tasks=[task(1)], moves=[move(1, "a")]))
    before = journal.list_tasks(TaskQuery("acme"))
    journal.commit(writes(moves=[none]))
    assert journal.list_tasks(TaskQuery("acme")) == before


def test_a_task_whose_id_is_taken_does_not_move(journal):
    journal.commit(writes(tasks=[task(1, "one")]))
    assert journal.commit(writes(tasks=[task(2, "one")], moves=[move(2)])) == [2]
    (found,) = journal.list_tasks(TaskQuery("acme"))
    assert (found.task.row, found.task.agent_type, found.hop) == (1, "summarizer", 0)


# Facts to be delivered


def facts_of(journal, kind="turn", page=2):
    """All facts of a kind by lane, read page by page."""
    lanes: list[str] = []
    while some := journal.fact_lanes(kind, lanes[-1] if lanes else None, page):
        lanes += some
    found: dict[str, list[OutboxRow]] = {}
    for lane in lanes:
        after, found[lane] = 0, []
        while some := journal.facts(kind, lane, after, page):
            assert [one.number for one in some] == sorted({one.number for one in some} - {after})
            after = some[-1].number
            found[lane] += [one.fact for one in some]
    return found


def test_facts_are_kept_in_order_by_lane_until_they_are_done(kept):
    kept.journal.commit(writes(outbox=[fact("k3"), fact("k1", "b"), fact("k2", row=7), fact("k4", "")]))
    kept.journal.commit(writes(outbox=[fact("k0"), fact("other", kind="webhook")], outbox_done=[done(fact("k2"))]))
    journal = kept.reopen()
    assert facts_of(journal) == {"": [fact("k4", "")], "a": [fact("k3"), fact("k0")], "b": [fact("k1", "b")]}
    assert facts_of(journal, "webhook") == {"a": [fact("other", kind="webhook")]}
    journal.commit(writes(outbox_done=[done(fact("k3")), done(fact("never")), done(fact("k0")), done(fact("k4", ""))]))
    assert facts_of(journal) == {"b": [fact("k1", "b")]}


def test_facts_of_a_kind_are_told_in_the_order_in_which_they_came_whatever_their_lane(kept):
    kept.journal.commit(writes(outbox=[fact("k3"), fact("k1", "b"), fact("other", kind="webhook"), fact("k2")]))
    journal = kept.reopen()
    every = journal.every_fact("turn", 0, 10)
    assert [one.fact.key for one in every] == ["k3", "k1", "k2"]
    assert journal.every_fact("turn", every[0].number, 1) == every[1:2]
    assert [one.fact.key for one in journal.every_fact("turn", 0, 10, "a")] == ["k3", "k2"]
    assert journal.every_fact("turn", every[-1].number, 10) == []


def test_a_fact_has_one_name_and_the_first_of_a_name_counts(kept):
    kept.journal.commit(writes(outbox=[fact("k", body=b"1"), fact("k", body=b"2")]))
    kept.journal.commit(writes(outbox=[fact("k", body=b"3"), fact("k", kind="webhook"), fact("k", shard=4)]))
    assert facts_of(kept.reopen()) == {"a": [fact("k", body=b"1"), fact("k", shard=4)]}


def test_a_fact_that_is_done_in_its_own_batch_is_not_there(journal):
    journal.commit(writes(outbox=[fact("k")], outbox_done=[done(fact("k"))]))
    assert facts_of(journal) == {}


def test_a_number_of_a_fact_is_never_used_again(kept):
    """Who has read up to a number misses nothing that comes later, also when the last ones were done meanwhile."""
    kept.journal.commit(writes(outbox=[fact("k1"), fact("k2")]))
    (_, last) = kept.journal.facts("turn", "a", 0, 10)
    kept.journal.commit(writes(outbox_done=[done(fact("k1")), done(fact("k2"))]))
    journal = kept.reopen()
    journal.commit(writes(outbox=[fact("k3")]))
    assert [one.fact for one in journal.facts("turn", "a", last.number, 10)] == [fact("k3")]


def test_a_fact_about_a_task_whose_id_is_taken_is_dropped_with_it(journal):
    journal.commit(writes(tasks=[task(1, "one")]))
    batch = writes(tasks=[task(2, "one"), task(3)], outcomes=[outcome(2)], outbox=[fact("a", row=2), fact("b", row=3)])
    assert journal.commit(batch) == [2]
    assert facts_of(journal) == {"a": [fact("b", row=3)]}


# Agents and pins


def test_the_latest_of_an_agent_counts(kept):
    kept.journal.commit(writes(agents=[agent("a", 1), agent("b", 2), agent("a", 3, stale_boots=("x", "y"))]))
    kept.journal.commit(writes(agents=[agent("b", 1), agent("a", 4, tenant="globex")]))
    loaded = kept.reopen().load()
    assert loaded.agents == [agent("b", 2), agent("a", 3, stale_boots=("x", "y")), agent("a", 4, tenant="globex")]
    assert loaded.next_revision == 5


def test_an_agent_that_is_gone_is_gone_but_its_revision_stays_used(kept):
    kept.journal.commit(writes(agents=[agent("a", 1), agent("b", 2)]))
    kept.journal.commit(
        writes(agents_gone=[AgentGone(*one, "summarizer") for one in (("acme", "b"), ("acme", "never"), ("x", "a"))])
    )
    loaded = kept.reopen().load()
    assert loaded.agents == [agent("a", 1)]
    assert loaded.next_revision == 3


def test_an_agent_that_goes_and_comes_in_one_batch_is_there(journal):
    journal.commit(writes(agents=[agent("a", 1)]))
    journal.commit(writes(agents=[agent("a", 2)], agents_gone=[AgentGone("acme", "a", "summarizer")]))
    assert journal.load().agents == [agent("a", 2)]


def test_the_latest_of_a_pin_counts(kept):
    kept.journal.commit(
        writes(pins=[pin("s1"), pin("s2"), pin("s3"), pin("s2", ""), pin("s3", ""), pin("s3", "inst-9")])
    )
    kept.journal.commit(writes(pins=[pin("s1", "inst-2", handoffs=1), pin("s1", tenant="globex"), pin("none", "")]))
    assert kept.reopen().load().pins == [
        pin("s1", "inst-2", handoffs=1),
        pin("s3", "inst-9"),
        pin("s1", tenant="globex"),
    ]


def test_SES_3_the_latest_of_a_context_counts(kept):
    kept.journal.commit(writes(contexts=[context("s1"), context("s2"), context("s3"), context("s3", None)]))
    again = context("s1", ("anew", {"a": "ä"}), revision=0)  # it went and came: revisions begin again
    other = context("s1", tenant="globex")
    kept.journal.commit(writes(contexts=[context("s1", None), again, other, context("none", None)]))
    loaded = kept.reopen().load().contexts
    assert [row._replace(state=plain(row.state), size=0) for row in loaded] == [again, context("s2"), other]


def plain(state):
    """A state, also one that a store has packed."""
    return state.unpack() if hasattr(state, "unpack") else state


# Reading


def test_load_gives_open_tasks_in_order_of_acceptance(kept):
    batch = [task(number) for number in range(1, 11)]
    kept.journal.commit(writes(tasks=batch, outcomes=[outcome(2), outcome(10)]))
    loaded = kept.reopen().load()
    assert rows(loaded.tasks) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert kept.is_next(11)
    assert all(item.outcome is None for item in loaded.tasks)


def test_rows_stay_used_after_a_purge(kept):
    kept.journal.commit(writes(tasks=[task(1), task(9)], outcomes=[outcome(9)]))
    assert kept.journal.purge(1 << 62, 10) == 1
    for _ in kept.before_and_after():
        assert kept.is_next(10)


def test_list_by_each_part_of_the_query(journal):
    batch = [
        task(1, session="s1", root_task_id="r1"),
        task(2, session="s1", agent_type="reviewer"),
        task(3, session="s2", root_task_id="r1"),
        task(4),
        task(5, tenant="globex", session="s1", root_task_id="r1"),
        task(6),
    ]
    journal.commit(writes(tasks=batch, outcomes=[outcome(2), outcome(4, FAILED)]))
    for query, expected in (
        (TaskQuery("acme"), [6, 4, 3, 2, 1]),
        (TaskQuery("globex"), [5]),
        (TaskQuery("initech"), []),
        (TaskQuery(""), [6, 5, 4, 3, 2, 1]),
        (TaskQuery("acme", states=(SUCCEEDED,)), [2]),
        (TaskQuery("acme", states=(SUCCEEDED, FAILED)), [4, 2]),
        (TaskQuery("acme", states=(FAILED,)), [4]),
        (TaskQuery("acme", states=(FAILED, 9)), [4]),
        (TaskQuery("acme", states=(FAILED,), before_row=4), []),
        (TaskQuery("globex", states=(FAILED,)), []),
        (TaskQuery("acme", states=(PENDING,)), [6, 3, 1]),
        (TaskQuery("acme", states=(PENDING, FAILED)), [6, 4, 3, 1]),
        (TaskQuery("acme", states=(3,)), []),
        (TaskQuery("acme", session="s1"), [2, 1]),
        (TaskQuery("", session="s1"), [5, 2, 1]),
        (TaskQuery("acme", session="none"), []),
        (TaskQuery("acme", agent_type="reviewer"), [2]),
        (TaskQuery("acme", root_task_id="r1"), [3, 1]),
        (TaskQuery("acme", session="s1", root_task_id="r1"), [1]),
        (TaskQuery("acme", session="s1", states=(PENDING,)), [1]),
        (TaskQuery("acme", accepted_after_ms=1_000_003), [6, 4, 3]),
        (TaskQuery("acme", accepted_before_ms=1_000_003), [2, 1]),
        (TaskQuery("acme", accepted_after_ms=1_000_002, accepted_before_ms=1_000_004), [3, 2]),
        (TaskQuery("acme", before_row=4), [3, 2, 1]),
        (TaskQuery("acme", before_row=1), []),
        (TaskQuery("acme", before_row=1 << 70), [6, 4, 3, 2, 1]),
        (TaskQuery("acme", limit=2), [6, 4]),
        (TaskQuery("acme", limit=0), []),
        (TaskQuery("acme", session="s1", before_row=2), [1]),
        (TaskQuery("acme", states=(PENDING,), before_row=6, limit=1), [3]),
    ):
        assert rows(journal.list_tasks(query)) == expected, query


def test_pages_of_a_list_make_the_list(journal):
    """Also over a hole in the numbers, and where most tasks do not match."""
    batch = [task(number * (1 if number < 300 else 1_000), tenant=f"t{number % 7}") for number in range(1, 600)]
    journal.commit(writes(tasks=batch))
    journal.commit(writes(outcomes=[outcome(item.row, 5 + item.row % 5) for item in batch if item.row % 3]))
    for query in (
        TaskQuery("t3"),
        TaskQuery("t3", states=(PENDING,)),
        TaskQuery("", states=(9,)),
        TaskQuery("t3", states=(6, 7, 8)),
        TaskQuery("t3", states=(5, 9)),
    ):
        whole = rows(journal.list_tasks(query._replace(limit=1_000)))
        assert len(whole) > 10
        assert whole == [
            item.row
            for item in reversed(batch)
            if query.tenant in ("", item.tenant)
            and (not query.states or (5 + item.row % 5 if item.row % 3 else PENDING) in query.states)
        ]
        pages = []
        before = 0
        while page := journal.list_tasks(query._replace(before_row=before, limit=10)):
            assert len(page) <= 10
            pages += rows(page)
            before = page[-1].task.row
        assert pages == whole


def test_a_list_reaches_down_over_any_number_of_rows(journal):
    """4,095 and 4,096 are the edges of what one step of the walk reads."""
    for row in (1, 4_095, 4_096, 4_097, 8_192, 20_000):
        journal.commit(writes(tasks=[task(row)]))
        assert rows(journal.list_tasks(TaskQuery("acme", agent_type="none"))) == []
        assert rows(journal.list_tasks(TaskQuery("acme")))[-1] == 1


# Purging


def test_purge_takes_the_first_to_end_and_no_open_ones(kept):
    batch = [task(number, session="s", root_task_id="r") for number in range(1, 8)]
    kept.journal.commit(
        writes(
            tasks=batch,
            attempts=[attempt(1)],
            failures=[failure(1)],
            effects=[effect(1)],
            reserves=[reserve(1, 5_000)],
            checkpoints=[checkpoint(1)],
            outcomes=[outcome(row, ended_wall_ms=9_000 - row) for row in (1, 2, 3, 4)],
        )
    )
    assert kept.journal.purge(8_996, 10) == 0
    assert kept.journal.purge(9_000, 2) == 2
    assert rows(kept.journal.list_tasks(TaskQuery("acme"))) == [7, 6, 5, 2, 1]
    assert rows(kept.journal.list_tasks(TaskQuery("acme", session="s"))) == [7, 6, 5, 2, 1]
    assert kept.journal.purge(9_000, 0) == 0
    assert kept.journal.purge(9_000, 2) == 2
    assert kept.journal.purge(9_000, 2) == 0
    journal = kept.reopen()
    assert journal.find("acme", "task-1") is None
    assert rows(journal.load().tasks) == [5, 6, 7]
    assert rows(journal.list_tasks(TaskQuery("acme", root_task_id="r"))) == [7, 6, 5]


def test_DLV_10_dead_letters_and_other_results_are_purged_apart(kept):
    ends = [outcome(row, 9 if row % 2 else 5 + row % 4, ended_wall_ms=1_000 + row) for row in range(1, 11)]
    kept.journal.commit(writes(tasks=[task(row) for row in range(1, 12)], outcomes=ends))
    assert kept.journal.dead_letters() == 5
    assert kept.journal.purge(1_007, 10) == 3
    assert kept.journal.purge(1_004, 10, dead_letters=True) == 2
    journal = kept.reopen()
    assert (rows(journal.list_tasks(TaskQuery("acme"))), journal.dead_letters()) == ([11, 10, 9, 8, 7, 5], 3)


def test_tasks_are_removed_by_their_rows_if_they_have_ended(kept):
    kept.journal.commit(writes(tasks=[task(row) for row in range(1, 6)], outcomes=[outcome(2), outcome(4, 9)]))
    assert kept.journal.remove([1, 2, 4, 4_000]) == 2
    assert kept.journal.remove([]) == 0
    journal = kept.reopen()
    assert rows(journal.list_tasks(TaskQuery("acme"))) == [5, 3, 1]
    assert journal.commit(writes(tasks=[task(9, "task-2")])) == []


def test_old_facts_of_a_kind_are_dropped(kept):
    kept.journal.commit(writes(outbox=[fact(f"k{row}", row=row) for row in (3, 1, 2)] + [fact("o", kind="webhook")]))
    assert kept.journal.drop_facts("turn", 8_000_003, 1) == 1
    assert kept.journal.drop_facts("turn", 8_000_003, 5) == 1
    journal = kept.reopen()
    assert facts_of(journal) == {"a": [fact("k3", row=3)]}
    assert facts_of(journal, "webhook") == {"a": [fact("o", kind="webhook")]}


def test_a_list_brings_no_more_than_fits_and_says_that_there_is_more(journal, monkeypatch):
    monkeypatch.setattr(base, "LIST_BYTES", 100_000)
    large = [task(row, spec=bytes(30_000)) for row in range(1, 101)]
    journal.commit(writes(tasks=large, outcomes=[outcome(row, content="x" * 30_000) for row in range(1, 101)]))
    before, found, pages = 0, [], 0
    while True:
        query = TaskQuery("acme", before_row=before, limit=1_000)
        page = journal.list_tasks(query)
        found += rows(page)
        pages += 1
        assert len(page) <= 32
        if not base.may_go_on(query, page):
            break
        before = page[-1].task.row
    assert found == list(range(100, 0, -1))
    assert pages > 3


def test_tasks_are_listed_by_the_reason_of_their_end(journal):
    ends = [outcome(row, 9, reason=row % 2 + 1) for row in range(1, 6)]
    journal.commit(writes(tasks=[task(row) for row in range(1, 8)], outcomes=ends))
    assert rows(journal.list_tasks(TaskQuery("acme", (9,), reason=1))) == [4, 2]
    assert rows(journal.list_tasks(TaskQuery("acme", reason=2))) == [5, 3, 1]


def test_purge_leaves_nothing_of_a_task(kept):
    all_kinds = writes(
        attempts=[attempt(1)],
        failures=[failure(1)],
        effects=[effect(1)],
        reserves=[reserve(1, 5_000)],
        checkpoints=[checkpoint(1)],
        questions=[question(1)],
        inputs=[given(1)],
    )
    kept.journal.commit(writes(tasks=[task(1)]))
    kept.journal.commit(all_kinds)
    kept.journal.commit(writes(outcomes=[outcome(1)]))
    assert kept.journal.purge(1 << 62, 10) == 1
    # The row is never used again; were it, nothing of the old task would show.
    kept.journal.commit(writes(tasks=[task(1)]))
    assert stored(kept.journal, 1) == StoredTask(task(1), [], [], 1_000, 0, None, None)


# Threads


def test_readers_beside_the_writer(journal):
    """S1: nobody ever finds it locked, and each task is seen whole from the moment it is acknowledged."""
    acknowledged = 0
    ended = threading.Event()

    def read() -> int:
        reads = 0
        while not ended.is_set():
            top = acknowledged
            if not top:
                continue
            stored(journal, top)
            found = stored(journal, max(1, top - 40))
            assert found.outcome is None or found.attempts == [attempt(found.task.row)]
            listed = rows(journal.list_tasks(TaskQuery("acme", session="s1", limit=20)))
            assert listed == sorted(listed, reverse=True)
            assert listed[0] >= top - top % 7
            assert all(item.outcome is None for item in journal.list_tasks(TaskQuery("acme", states=(PENDING,))))
            reads += 1
        return reads

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for batch in range(150):
                first = batch * 20 + 1
                new = [task(row, session="" if row % 7 else "s1") for row in range(first, first + 20)]
                old = [row - 20 for row in range(first, first + 20) if row > 20]
                journal.commit(
                    writes(tasks=new, attempts=[attempt(row) for row in old], outcomes=[outcome(row) for row in old])
                )
                acknowledged = first + 19
        finally:
            ended.set()
        assert min(reader.result() for reader in readers) > 0


# Any sequence of batches

NUMBERS = st.integers(0, 3)


def one_of_three_hashes(tenant, name):
    return bytes([len(tenant + name) % 3 * 100]) * 16


class Machine(RuleBasedStateMachine):
    """Random batches about few names, against the model. The index is so small that it goes round many times; with
    `few_hashes` different names have equal hashes."""

    def __init__(self, kind, folder):
        super().__init__()
        self.model = ModelJournal()
        self.next_row = 1
        self.next_revision = 1
        self.last = Writes()
        self.patches = ExitStack()
        self.patches.enter_context(mock.patch("reach.store.sqlite.KeyIndex", partial(KeyIndex, 4, 3)))
        if "few hashes" in kind:
            for module in ("sqlite", "sqlite_keys"):
                self.patches.enter_context(mock.patch(f"reach.store.{module}.hash_of", one_of_three_hashes))
        self.made = Kept(kind.split(",")[0], folder)

    def teardown(self):
        self.made.journal.close()
        self.patches.close()

    @initialize()
    def loads(self):
        assert self.loaded() == self.model.load()

    def loaded(self):
        """What is open. Nodes that share a journal count rows in blocks; then the next row is not the model's."""
        found, wanted = self.made.journal.load(), self.model.load()
        if self.made.kind != "postgres":
            return found
        assert found.next_row > max((one.row for one in self.model.told["tasks"]), default=0)
        return found._replace(next_row=wanted.next_row)

    @rule(data=st.data(), size=st.integers(1, 6))
    def commits(self, data, size):
        batch = Writes()
        for _ in range(size):
            row = self.next_row
            if data.draw(st.booleans(), label="late"):
                # Rows may arrive a little out of order, and leave holes.
                row += data.draw(st.integers(1, 4))
                self.next_row, skipped = row + 1, self.next_row
                if data.draw(st.booleans(), label="fills the hole"):
                    batch.tasks.append(self.a_task(data, row))
                    row = skipped
            else:
                self.next_row += 1
            batch.tasks.append(self.a_task(data, row))
        old = st.integers(max(1, self.next_row - 12), self.next_row)
        numbers = st.integers(1, 3)
        for _ in range(data.draw(NUMBERS)):
            batch.attempts.append(attempt(data.draw(old), data.draw(numbers), reserved=data.draw(NUMBERS) * 1_000))
        for _ in range(data.draw(NUMBERS)):
            batch.failures.append(failure(data.draw(old), data.draw(numbers), reason=data.draw(NUMBERS)))
        for _ in range(data.draw(st.integers(0, 8))):
            ended = data.draw(st.integers(1, 50))
            reason = data.draw(st.sampled_from([0, 7]))
            batch.outcomes.append(
                outcome(data.draw(old), data.draw(st.integers(5, 9)), ended_wall_ms=ended, reason=reason)
            )
        for _ in range(data.draw(NUMBERS)):
            batch.reserves.append(reserve(data.draw(old), data.draw(NUMBERS) * 1_000))
        for _ in range(data.draw(NUMBERS)):
            batch.checkpoints.append(checkpoint(data.draw(old), data.draw(numbers), data.draw(st.binary(max_size=2))))
            batch.handles.append(handle(data.draw(old), data.draw(numbers), data.draw(st.sampled_from("ab"))))
        for _ in range(data.draw(NUMBERS)):
            batch.effects.append(effect(data.draw(old), data.draw(numbers)))
        for _ in range(data.draw(NUMBERS)):
            batch.questions.append(question(data.draw(old), data.draw(numbers), data.draw(numbers)))
        for _ in range(data.draw(NUMBERS)):
            batch.inputs.append(given(data.draw(old), data.draw(numbers), input_id=data.draw(st.sampled_from("ab"))))
        self.move_some(data, batch)
        self.send(batch)

    def move_some(self, data, batch):
        """Each move leaves where the one before led."""
        known = {one.row: one.shard for one in (*batch.tasks, *self.model.told["tasks"])}
        for row in data.draw(st.lists(st.sampled_from([*known]), max_size=2, unique=True), label="moves"):
            shard, hop = known[row], self.model.hops.get(row, 0)
            for _ in range(data.draw(st.integers(1, 2))):
                to, kind = data.draw(st.sampled_from([shard, 7])), data.draw(st.sampled_from(["summarizer", "none"]))
                hop += 1
                batch.moves.append(
                    move(row, kind, hop, shard=shard, to_shard=to, sequence=data.draw(st.sampled_from([1, 1_000])))
                )
                shard = to

    @rule(data=st.data())
    def commits_agents_and_pins(self, data):
        names = st.sampled_from("ab")
        batch = Writes()
        for _ in range(data.draw(NUMBERS)):
            batch.agents.append(agent(data.draw(names), max(1, self.next_revision + data.draw(st.integers(-2, 2)))))
            self.next_revision += 1
        batch.agents_gone = [AgentGone("acme", name, "summarizer") for name in data.draw(st.sets(names))]
        for _ in range(data.draw(NUMBERS)):
            batch.pins.append(pin(data.draw(names), data.draw(st.sampled_from(["", "x", "y"]))))
        self.send(batch)

    @rule(data=st.data())
    def commits_facts(self, data):
        keys = st.sampled_from("klm")
        batch = Writes()
        for _ in range(data.draw(NUMBERS)):
            batch.outbox.append(fact(data.draw(keys), data.draw(st.sampled_from(["", "a", "b"]))))
        batch.outbox_done = [done(fact(key)) for key in data.draw(st.lists(keys, max_size=2))]
        self.send(batch)

    @rule()
    def sends_again(self):
        # What a purge took is not sent again: it had ended long before.
        self.send(self.last)

    @rule(data=st.data())
    def purges(self, data):
        before, limit = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 6))
        dead = data.draw(st.booleans())
        purged = self.made.journal.purge(before, limit, dead_letters=dead)
        assert purged == self.model.purge(before, limit, dead_letters=dead)
        self.last = Writes()

    @rule(data=st.data())
    def removes(self, data):
        rows = data.draw(st.lists(st.integers(0, self.next_row), max_size=4, unique=True))
        assert self.made.journal.remove(rows) == self.model.remove(rows)
        self.last = Writes()

    @rule(data=st.data())
    def drops_facts(self, data):
        kind, limit = data.draw(st.sampled_from(["turn", "none"])), data.draw(st.integers(0, 3))
        before = data.draw(st.sampled_from([0, 8_000_000, 8_000_001]))
        assert self.made.journal.drop_facts(kind, before, limit) == self.model.drop_facts(kind, before, limit)
        self.last = Writes()

    @rule()
    def reopens(self):
        self.made.reopen()

    @rule(data=st.data())
    def lists(self, data):
        query = TaskQuery(
            tenant=data.draw(st.sampled_from(["", "acme", "globex"])),
            states=data.draw(st.sampled_from([(), (1,), (5,), (6, 7, 8, 9), (1, 6, 7), (2,)])),
            session=data.draw(st.sampled_from(["", "", "s1", "s2"])),
            agent_type=data.draw(st.sampled_from(["", "", "summarizer", "none"])),
            root_task_id=data.draw(st.sampled_from(["", "", "r1", "id-1"])),
            accepted_after_ms=data.draw(st.sampled_from([0, 0, 1_000_010])),
            accepted_before_ms=data.draw(st.sampled_from([0, 0, 1_000_020])),
            before_row=data.draw(st.integers(0, self.next_row)),
            limit=data.draw(st.integers(0, 10)),
            reason=data.draw(st.sampled_from([0, 0, 7])),
        )
        assert self.made.journal.list_tasks(query) == self.model.list_tasks(query)

    @invariant()
    def agrees(self):
        for tenant in ("acme", "globex"):
            for number in range(12):
                name = f"id-{number}"
                assert self.made.journal.find(tenant, name) == self.model.find(tenant, name)
        assert self.loaded() == self.model.load()
        assert self.made.journal.dead_letters() == self.model.dead_letters()
        lanes: dict[str, list[Any]] = {}
        for one in self.model.facts:
            lanes.setdefault(one.lane, []).append(one)
        assert facts_of(self.made.journal) == lanes

    def a_task(self, data, row):
        return task(
            row,
            f"id-{data.draw(st.integers(0, 11))}",
            data.draw(st.sampled_from(["acme", "acme", "globex"])),
            session=data.draw(st.sampled_from(["", "s1", "s2"])),
            root_task_id=data.draw(st.sampled_from(["", "r1", "id-1"])),
            attempt=data.draw(st.integers(0, 1)),
        )

    def send(self, batch):
        self.last = batch
        assert self.made.journal.commit(batch) == self.model.commit(batch)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "examples"), [("memory", 25), ("sqlite", 16), ("sqlite, few hashes", 16), ("postgres", 6)]
)
def test_any_sequence_of_batches(kind, examples, tmp_path):
    numbers = count()
    run_state_machine_as_test(
        lambda: Machine(kind, tmp_path / str(next(numbers))),  # type: ignore[arg-type]
        settings=settings(
            max_examples=examples * EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def verdict(name: str) -> Verdict:
    """A decision for an instance of that name."""
    router = Router()
    router.add(one := instance_of(name, 4))
    router.place(one)
    return router.pick(Requirement(), (), 1, 7)


def test_RTE_13_why_each_attempt_is_where_it_is_comes_back(kept):
    first, second, other = verdict("inst-1"), verdict("inst-2"), verdict("other")
    later = [attempt(1, 2, decision=second), attempt(2, 1, decision=second)]
    rows = writes(tasks=[task(1, decision=first), task(2, attempt=0)], attempts=later)
    for _ in range(2):
        kept.journal.commit(rows)
    kept.journal.commit(writes(attempts=[attempt(1, 2, decision=other)]))
    for journal in kept.before_and_after():
        told = journal.decisions("acme", "task-1")
        assert {number: record[1:] for number, record in told.items()} == {
            1: record_of(first)[1:],
            2: record_of(second)[1:],
        }
        assert list(journal.decisions("acme", "task-2")) == [1]
        assert journal.decisions("acme", "nobody") == journal.decisions("other", "task-1") == {}
        assert (stored(journal, 1).task, stored(journal, 1).attempts) == (task(1), [attempt(1, 2)])


def test_RTE_13_what_is_purged_has_no_reasons_any_more(journal):
    tasks, attempts = [task(1, decision=verdict("inst-1"))], [attempt(1, 2, decision=verdict("x"))]
    journal.commit(writes(tasks=tasks, attempts=attempts, outcomes=[outcome(1)]))
    journal.purge(1 << 60, 10)
    assert journal.decisions("acme", "task-1") == {}
