"""What every journal promises that several nodes share (HAZARDS 3, 9)."""

import pytest

from reach.core.rows import AgentGone, MoveRow
from reach.store.base import Place
from tests.contracts.journal_rows import agent, attempt, context, done, fact, move, outcome, pin, task, writes
from tests.contracts.shared_journals import by_parts


def rows(found) -> list[int]:
    return [one.task.row for one in found]


def test_CLU_3_what_was_never_claimed_is_not_written(cluster):
    node = cluster()
    assert node.commit(writes(tasks=[task(1)])) == []
    assert node.lost() == {1}
    assert node.lost() == frozenset()
    assert node.find("acme", "task-1") is None


def test_CLU_3_each_claim_has_an_epoch_of_its_own_and_the_former_owner_writes_nothing_more(cluster):
    first, second = cluster(), cluster()
    before = first.claim([1, 2])
    assert first.commit(writes(tasks=[task(1), task(2)])) == []
    after = second.claim([1])
    assert after[1] > before[1]
    assert rows(second.load_shards([1]).tasks) == [1]
    # One shard of a batch that is another's takes nothing from the rest.
    assert first.commit(writes(outcomes=[outcome(1), outcome(2)], attempts=[attempt(1)])) == []
    assert first.lost() == {1}
    assert first.find("acme", "task-1").outcome is None
    assert first.find("acme", "task-1").attempts == []
    assert first.find("acme", "task-2").outcome is not None
    assert first.epochs() == {2: before[2]}
    assert first.confirm() == {2}
    assert second.confirm() == {1}


def test_CLU_3_a_confirmation_finds_what_was_lost(cluster):
    first, second = cluster(), cluster()
    first.claim([1, 2])
    second.claim([2])
    assert first.confirm() == {1}
    assert first.lost() == {2}
    assert first.confirm() == {1}
    assert first.lost() == frozenset()


def test_what_is_given_up_is_not_written_and_not_told(cluster):
    node = cluster()
    node.claim([1, 2])
    node.give_up([1])
    assert node.epochs().keys() == {2}
    assert node.confirm() == {2}
    assert node.lost() == frozenset()
    node.commit(writes(tasks=[task(1), task(2)]))
    assert rows(node.load_shards(range(64)).tasks) == [2]


def test_a_node_that_claims_again_goes_on(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([1])
    first.commit(writes(tasks=[task(1)]))
    first.claim([1])
    assert first.lost() == frozenset()
    first.commit(writes(tasks=[task(1)]))
    assert first.lost() == frozenset()
    assert rows(first.load_shards([1]).tasks) == [1]
    assert second.confirm() == frozenset()


def test_every_kind_of_row_is_fenced(cluster):
    first, second = cluster(), cluster()
    first.claim(range(64))
    held = fact("kept")
    first.commit(writes(pins=[pin()], contexts=[context()], outbox=[held]))
    second.claim(range(64))
    before = second.load_shards(range(64))
    first.commit(
        writes(
            pins=[pin(instance_id="")],
            contexts=[context(state=None)],
            outbox=[fact("new")],
            outbox_done=[done(held)],
        )
    )
    assert first.lost() == {9, 5, 3}
    after = second.load_shards(range(64))
    assert [pin[:] for pin in after.pins] == before.pins
    assert [one.revision for one in after.contexts] == [one.revision for one in before.contexts] == [3]
    assert [one.fact for one in second.facts("turn", "a", 0, 10)] == [held]


def test_a_load_is_about_its_shards(cluster):
    node = cluster()
    node.claim(range(64))
    node.commit(writes(tasks=[task(1), task(2)], pins=[pin(), pin("s2", shard=1)], contexts=[context()]))
    loaded = node.load_shards([1, 5])
    assert rows(loaded.tasks) == [1]
    assert [one.session for one in loaded.pins] == ["s2"]
    assert [one.session for one in loaded.contexts] == ["s1"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_CLU_3_what_is_loaded_some_at_a_time_is_what_is_loaded_at_once(cluster, limit):
    node = cluster()
    node.claim(range(64))
    node.commit(
        writes(
            tasks=[task(row, shard=row % 3) for row in range(1, 11)],
            attempts=[attempt(3, shard=0)],
            outcomes=[outcome(6, shard=0)],
            pins=[pin(f"s{n}", shard=n % 2) for n in range(5)] + [pin("s9", shard=0, agent_type="b")],
            contexts=[context(f"s{n}", shard=n % 2) for n in range(5)],
            agents=[agent(f"inst-{n}", n) for n in range(1, 5)],
        )
    )
    of_agents = agent().shard
    for shards in ([0], [1, of_agents], [0, 1, 2, of_agents], [63]):
        whole, (parts, steps) = node.load_shards(shards), by_parts(node, shards, limit)
        ours = [one for one in whole.agents if one.shard in shards]
        assert sorted(rows(whole.tasks)) == rows(parts.tasks)
        assert {one.task.row: one for one in whole.tasks} == {one.task.row: one for one in parts.tasks}
        assert sorted(ours) == sorted(parts.agents)
        assert sorted(whole.pins) == sorted(parts.pins)
        assert [one[:3] for one in whole.contexts] == [one[:3] for one in parts.contexts]
        assert parts.next_revision == whole.next_revision
        assert steps >= 4
    assert node.backlog([0, 1, 5]) == {0: 2, 1: 4}


def test_CLU_3_large_requests_are_loaded_a_few_at_a_time(cluster, monkeypatch):
    monkeypatch.setattr("reach.store.postgres_load.LOAD_BYTES", 1_000)
    monkeypatch.setattr("reach.store.memory_shared.LOAD_BYTES", 1_000)
    node = cluster()
    node.claim([1])
    node.commit(writes(tasks=[task(row, shard=1, spec=b"x" * 400) for row in range(1, 8)]))
    place, loaded = Place(3), list[list[int]]()
    while place is not None:
        found, place = node.load_some([1], place, 100)
        loaded.append(rows(found.tasks))
    assert [len(one) for one in loaded] == [3, 3, 1], "one more than there is room for"
    assert [row for some_rows in loaded for row in some_rows] == list(range(1, 8))


def test_tasks_are_found_by_their_rows(cluster):
    node = cluster()
    node.claim([1])
    node.commit(writes(tasks=[task(row, shard=1) for row in (1, 2, 3)], outcomes=[outcome(2, shard=1)]))
    found = node.stored([3, 9, 2])
    assert rows(found) == [3, 2]
    assert [one.outcome is not None for one in found] == [False, True]
    assert node.stored([]) == []


def test_facts_are_those_of_the_shards_one_holds(cluster):
    first, second = cluster(), cluster()
    first.claim([3])
    second.claim([4])
    first.commit(writes(outbox=[fact("a"), fact("old", kind="other")]))
    second.commit(writes(outbox=[fact("b", shard=4), fact("c", "lane", shard=4)]))
    assert [one.fact.key for one in first.facts("turn", "a", 0, 10)] == ["a"]
    assert [one.fact.key for one in second.facts("turn", "a", 0, 10)] == ["b"]
    assert (first.fact_lanes("turn", None, 10), second.fact_lanes("turn", None, 10)) == (["a"], ["a", "lane"])
    assert (second.drop_facts("other", 1 << 40, 10), first.drop_facts("other", 1 << 40, 10)) == (0, 1)


def test_SES_3_a_fact_is_forgotten_under_the_shard_of_what_it_has_changed(cluster):
    """The context of a session is kept together with the end of the fact, by the owner of the one: both or none."""
    first, second = cluster(), cluster()
    first.claim([3])
    second.claim([5])
    held = fact("a")
    first.commit(writes(outbox=[held]))
    second.commit(writes(outbox_done=[done(held)]))
    assert [one.fact for one in first.facts("turn", "a", 0, 10)] == [held], "it is not the second one's to forget"
    third = cluster()
    third.claim([5])
    told = done(held)._replace(under=5)
    second.commit(writes(contexts=[context()], outbox_done=[told]))
    assert second.lost() == {3, 5}
    assert [one.fact for one in first.facts("turn", "a", 0, 10)] == [held]
    assert third.load_shards([5]).contexts == []
    third.commit(writes(contexts=[context()], outbox_done=[told]))
    assert first.facts("turn", "a", 0, 10) == []
    assert [one.session for one in third.load_shards([5]).contexts] == ["s1"]


def test_facts_of_all_shards_are_found_whoever_has_them(cluster):
    first, second = cluster(), cluster()
    first.claim([3])
    second.claim([4])
    first.commit(writes(outbox=[fact("a"), fact("old", kind="other")]))
    second.commit(writes(outbox=[fact("b", "lane", shard=4)]))
    assert [one.fact.key for one in second.every_fact("turn", 0, 10)] == ["a", "b"]
    assert [one.fact.key for one in second.every_fact("turn", 0, 1)] == ["a"]
    (last,) = second.every_fact("turn", 0, 10)[1:]
    assert first.every_fact("turn", last.number, 10) == []


def test_results_are_purged_and_counted_by_who_holds_their_shards(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([2])
    first.commit(writes(tasks=[task(1)], outcomes=[outcome(1, 9)]))
    assert (first.dead_letters(), second.dead_letters()) == (1, 0)
    assert second.purge(1 << 40, 10, dead_letters=True) == 0
    assert first.purge(1 << 40, 10, dead_letters=True) == 1


def test_CLU_2_an_overtaken_owner_removes_nothing_that_is_old(cluster):
    first, second = cluster(), cluster()
    first.claim([1, 3])
    first.commit(writes(tasks=[task(1)], outcomes=[outcome(1)], outbox=[fact("old")]))
    second.claim([1, 3])
    assert first.purge(1 << 40, 10) == 0
    assert first.drop_facts("turn", 1 << 40, 10) == 0
    assert (second.purge(1 << 40, 10), second.drop_facts("turn", 1 << 40, 10)) == (1, 1)


def test_nodes_number_their_rows_apart(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([2])
    one, two = first.load().next_row, second.load().next_row
    assert abs(one - two) > 1 << 32
    first.commit(writes(tasks=[task(one, shard=1)]))
    assert first.load_shards([1]).next_row == one + 1
    assert second.load_shards([1]).next_row == two


def test_HAZARDS_1a_the_same_id_at_two_nodes_is_one_task(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([2])
    assert first.commit(writes(tasks=[task(1, "same", shard=1)])) == []
    assert second.commit(writes(tasks=[task(2, "same", shard=2)], outcomes=[outcome(2)])) == [2]
    assert second.lost() == frozenset()
    assert second.find("acme", "same").task.row == 1
    assert second.find("acme", "same").outcome is None


def test_HAZARDS_1_a_task_goes_to_another_shard_by_its_owner_and_by_nobody_else(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([2])
    first.commit(writes(tasks=[task(1)], attempts=[attempt(1)]))
    move = MoveRow(1, 1, 2, "owner-2", "translator", 1, 3)
    second.commit(writes(moves=[move]))
    assert second.lost() == {1}
    assert first.find("acme", "task-1").task.shard == 1
    first.commit(writes(moves=[move]))
    first.commit(writes(moves=[move._replace(to_shard=7)]))
    first.claim([7])
    assert first.arrived(range(64), [], 10) == [], "what was no move brings nothing"
    assert first.load_shards([1]).tasks == []
    (moved,) = second.load_shards([2]).tasks
    assert (moved.task.shard, moved.task.pool_tenant, moved.task.agent_type, moved.hop) == (
        2,
        "owner-2",
        "translator",
        1,
    )
    second.commit(writes(outcomes=[outcome(1, shard=2)]))
    assert first.find("acme", "task-1").outcome is not None


def test_HAZARDS_1_who_owns_where_a_task_went_hears_of_it_until_it_says_so(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([2])
    first.commit(writes(tasks=[task(1), task(2, shard=1)]))
    moves = [MoveRow(row, 1, 2, "owner-2", "translator", 1, 3) for row in (1, 2)]
    first.commit(writes(moves=moves))
    assert first.arrived(range(64), [], 10) == []
    assert [(one.task.row, one.hop) for one in second.arrived(range(64), [], 10)] == [(1, 1), (2, 1)]
    assert len(second.arrived(range(64), [], 1)) == 1
    first.arrived(range(64), [(1, 1)], 10)
    second.arrived(range(64), [(1, 0)], 10)
    assert len(second.arrived(range(64), [], 10)) == 2, "another node, or an earlier move"
    assert second.arrived([1], [(1, 1)], 10) == [], "nobody asked for that shard, and nothing of it is heard"
    assert len(second.arrived(range(64), [], 10)) == 2
    assert [one.task.row for one in second.arrived(range(64), [(1, 1)], 10)] == [2]


def test_REG_5_a_task_goes_to_another_pool_of_its_shard_by_its_owner_alone_and_comes_to_nobody(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    first.commit(writes(tasks=[task(1)]))
    first.commit(writes(moves=[move(1)], attempts=[attempt(1)]))
    assert first.arrived(range(64), [], 10) == [], "it is where it was"
    (kept,) = first.load_shards([1]).tasks
    assert (kept.task.agent_type, kept.hop, len(kept.attempts)) == ("translator", 1, 1)
    second.claim([1])
    first.commit(writes(moves=[move(1, "late", 2)]))
    assert first.lost() == {1}
    assert second.find("acme", "task-1").task.agent_type == "translator"


def test_HAZARDS_1_a_task_that_came_and_went_on_within_its_shard_is_heard_of(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([2])
    first.commit(writes(tasks=[task(1)]))
    first.commit(writes(moves=[move(1, to_shard=2)]))
    second.commit(writes(moves=[move(1, "late", 2, shard=2, to_shard=2)]))
    assert [(one.task.row, one.hop) for one in second.arrived(range(64), [], 10)] == [(1, 2)]
    assert second.arrived(range(64), [(1, 2)], 10) == []


def test_HAZARDS_1_a_task_that_goes_on_within_its_shard_and_leaves_it_in_one_batch_comes_to_the_other(cluster):
    first, second = cluster(), cluster()
    first.claim([1])
    second.claim([2])
    first.commit(writes(tasks=[task(1)], moves=[move(1), move(1, "late", 2, to_shard=2, sequence=1)]))
    (came,) = second.arrived(range(64), [], 10)
    assert (came.task.shard, came.task.agent_type, came.task.reserved, came.hop) == (2, "late", 1, 2)
    assert first.load_shards([1]).tasks == []


def test_HAZARDS_1_what_an_overtaken_owner_has_heard_of_nobody_has(cluster):
    first, second, third = cluster(), cluster(), cluster()
    first.claim([1])
    second.claim([2])
    first.commit(writes(tasks=[task(1)]))
    first.commit(writes(moves=[MoveRow(1, 1, 2, "owner-2", "translator", 1, 3)]))
    third.claim([2])
    assert second.arrived(range(64), [], 10) == [], "it is not the second one's any more"
    assert second.arrived(range(64), [(1, 1)], 10) == []
    assert [one.task.row for one in third.arrived(range(64), [], 10)] == [1]


def test_CLU_2_an_overtaken_owner_changes_no_agent(cluster):
    """What it registers late would come back with the next restart; what it removes would be forgotten."""
    first, second = cluster(), cluster()
    ours = agent("a", 1)
    first.claim([ours.shard])
    first.commit(writes(agents=[ours]))
    second.claim([ours.shard])
    second.commit(writes(agents=[agent("a", 2), agent("b", 2)]))
    late = agent("a", 9, registration=b"late")
    assert first.commit(writes(agents=[late], agents_gone=[AgentGone("acme", "b", "summarizer")])) == []
    assert first.lost() == {ours.shard}
    assert second.load_shards([]).agents == [agent("a", 2), agent("b", 2)]
    assert second.commit(writes(agents_gone=[AgentGone("acme", "b", "summarizer")])) == []
    assert second.load_shards([]).agents == [agent("a", 2)]


def test_CLU_2_agents_of_a_pool_that_was_never_claimed_are_not_this_nodes_to_change(cluster):
    first, second = cluster(), cluster()
    ours, other = agent("a", 1), agent("b", 1, agent_type="translator")
    assert ours.shard != other.shard
    first.claim([ours.shard, other.shard])
    first.commit(writes(agents=[ours, other]))
    second.claim([ours.shard])
    changed = [agent("a", 2), agent("b", 2, agent_type="translator")]
    assert second.commit(writes(agents=changed, agents_gone=[AgentGone("acme", "b", "translator")])) == []
    assert second.lost() == {other.shard}
    kept = sorted(second.load_shards([]).agents, key=lambda one: one.instance_id)
    assert kept == [agent("a", 2), other], "and the rest of the batch is kept"


def test_CLU_2_an_agent_that_is_in_another_pool_by_now_is_not_removed_with_the_old_one(cluster):
    first, second = cluster(), cluster()
    before, after = agent("a", 1), agent("a", 2, agent_type="translator")
    assert before.shard != after.shard
    first.claim([before.shard])
    second.claim([after.shard])
    first.commit(writes(agents=[before]))
    second.commit(writes(agents=[after]))
    first.commit(writes(agents_gone=[AgentGone("acme", "a", "summarizer")]))
    assert first.load_shards([]).agents == [after]
    assert first.lost() == frozenset()
