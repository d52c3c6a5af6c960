"""The journal on PostgreSQL where others cannot follow: locks, lost connections, restarts (HAZARDS M8 to M11)."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager

import asyncpg
import pytest

from reach.core.handed import StreamRow
from reach.core.pieces import Kind
from reach.core.rows import MoveRow
from reach.store import postgres as postgres_journal
from reach.store import postgres_load, postgres_read, postgres_schema, postgres_sql
from reach.store.base import StoreBroken, StoreUnavailable
from reach.store.migrations.postgres import MIGRATIONS, NEWEST
from reach.store.postgres import PostgresJournal
from reach.store.postgres_link import Link
from tests import postgres
from tests.contracts.journal_rows import CLAIM_OF_BEFORE, attempt, failure, handle, move, outcome, task, writes


@pytest.fixture
def address():
    return postgres.server().database()


@pytest.fixture
def node(address):
    made = []

    def open_one() -> PostgresJournal:
        made.append(one := PostgresJournal(address))
        one.open()
        return one

    yield open_one
    for one in made:
        one.close()


@asynccontextmanager
async def connected(address):
    connection = await asyncpg.connect(address)
    try:
        yield connection
    finally:
        await connection.close()


def test_M9_a_node_that_stops_after_it_sent_a_commit_holds_up_no_claim(node):
    first, second = node(), node()
    first.claim([1])
    first.commit(writes(tasks=[task(1)]))
    # The connection stays as it is, as that of a stopped process does: no transaction may be open in it.
    began = time.monotonic()
    second.claim([1])
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.05])
def test_M9_a_process_that_is_stopped_in_the_middle_of_commits_holds_up_no_claim(node, address, delay):
    second = node()
    command = [sys.executable, "-m", "tests.store.postgres_child", address, "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().startswith("kept")
            time.sleep(delay)
            child.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            second.claim(range(64))
            assert time.monotonic() - began < 1.0
            seen = {one.task.row for one in second.load_shards(range(64)).tasks}
            assert seen
            child.send_signal(signal.SIGCONT)
            said, _ = child.communicate(timeout=20)
        finally:
            child.kill()
    assert said.endswith("lost\n")
    # Whatever it was told to be kept was kept before the claim, and nothing came after it.
    assert {int(line.split()[1]) + 1 for line in said.splitlines()[:-1]} <= seen
    assert {one.task.row for one in second.load_shards(range(64)).tasks} == seen


def test_M10_a_commit_that_comes_while_a_claim_is_uncommitted_waits_and_writes_nothing(node, address):
    first = node()
    first.claim([1])

    async def race():
        async with connected(address) as claiming:
            transaction = claiming.transaction()
            await transaction.start()
            await claiming.execute("update shard set epoch = epoch + 1 where shard = 1")
            commit = asyncio.create_task(asyncio.to_thread(first.commit, writes(tasks=[task(1)])))
            await asyncio.sleep(0.2)
            waited = not commit.done()
            await transaction.commit()
            return waited, await commit

    assert asyncio.run(race()) == (True, [])
    assert first.lost() == {1}
    assert first.find("acme", "task-1") is None


def test_M10_a_claim_that_is_rolled_back_takes_nothing(node, address):
    first = node()
    first.claim([1])

    async def race():
        async with connected(address) as claiming:
            transaction = claiming.transaction()
            await transaction.start()
            await claiming.execute("update shard set epoch = epoch + 1 where shard = 1")
            commit = asyncio.create_task(asyncio.to_thread(first.commit, writes(tasks=[task(1)])))
            await asyncio.sleep(0.1)
            await transaction.rollback()
            return await commit

    assert asyncio.run(race()) == []
    assert first.lost() == frozenset()
    assert first.find("acme", "task-1") is not None


def test_M11_one_taken_id_in_a_batch_of_fifty_takes_only_its_own_row(node):
    one = node()
    one.claim(range(64))
    one.commit(writes(tasks=[task(1, "same")]))
    batch = [task(row, "same" if row == 77 else "") for row in range(51, 101)]
    assert one.commit(writes(tasks=batch)) == [77]
    assert len(one.load_shards(range(64)).tasks) == 50


def test_HAZARDS_1_no_more_bytes_of_arrivals_are_read_at_a_time_than_so_and_one(node, monkeypatch):
    """They have the time of a commit; and the first one is read however large it is."""
    first, second = node(), node()
    first.claim([1])
    second.claim([2])
    first.commit(writes(tasks=[task(row, shard=1, spec=b"x" * 1_000) for row in range(1, 6)]))
    first.commit(writes(moves=[MoveRow(row, 1, 2, "owner", "translator", 1, 1) for row in range(1, 6)]))
    for bound, read in ((500, [1]), (1_500, [1, 2]), (2_000, [1, 2]), (1 << 20, [1, 2, 3, 4, 5])):
        monkeypatch.setattr(postgres_journal, "ARRIVED_BYTES", bound)
        assert [one.task.row for one in second.arrived(range(64), [], 100)] == read


def test_DLV_2_a_node_that_dies_within_a_batch_leaves_no_attempt_that_is_looked_for_in_another_pool(node, monkeypatch):
    """A task that goes on within its shard has its move before its attempt; one that leaves is kept whole before it."""
    first = node()
    first.claim([1, 2])
    first.commit(writes(tasks=[task(row, shard=1, attempt=0) for row in (1, 2)]))
    whole = first._write
    sent: list[object] = []

    def write(parts, shards, tasks):
        if sent:
            raise StoreUnavailable("the node is gone")
        sent.append(parts)
        return whole(parts, shards, tasks)

    batches = [
        writes(moves=[move(1)], attempts=[attempt(1, 1, shard=1)]),
        writes(moves=[move(2, shard=1, to_shard=2)], failures=[failure(2, shard=1)]),
    ]
    for batch in batches:
        sent.clear()
        with monkeypatch.context() as patch:
            patch.setattr(first, "_write", write)
            with pytest.raises(StoreUnavailable):
                first.commit(batch)
    stays, leaves = first.find("acme", "task-1"), first.find("acme", "task-2")
    assert (stays.task.agent_type, stays.attempts) == ("translator", [])
    assert (leaves.task.agent_type, len(leaves.failures)) == ("summarizer", 1)
    for batch in batches:
        first.commit(batch)
    stays, leaves = first.find("acme", "task-1"), first.find("acme", "task-2")
    assert (stays.hop, len(stays.attempts), leaves.hop, leaves.task.shard) == (1, 1, 1, 2)


def test_a_statement_that_waits_too_long_is_told_and_sent_again(node, address):
    first = node()
    first.claim([1])

    async def held():
        async with connected(address) as other:
            transaction = other.transaction()
            await transaction.start()
            await other.execute("update shard set epoch = epoch where shard = 1")
            with pytest.raises(StoreUnavailable):
                await asyncio.to_thread(first.commit, writes(tasks=[task(1)]))
            await transaction.rollback()

    asyncio.run(held())
    assert first.commit(writes(tasks=[task(1)])) == []
    assert first.find("acme", "task-1") is not None


def test_PRF_8_a_load_may_take_its_time_between_two_statements(node, monkeypatch):
    """A transaction that does nothing for a second is ended by the server, and 100,000 tasks become objects in about
    that: the node would have tried, and failed, again and again."""
    one = node()
    one.claim([1])
    one.commit(writes(tasks=[task(1)]))
    honest = postgres_read._whole

    def slow(*values):
        time.sleep(1.3)  # longer than the database lets a transaction idle
        return honest(*values)

    monkeypatch.setattr(postgres_read, "_whole", slow)
    assert [found.task.row for found in one.load_shards([1]).tasks] == [1]


def test_the_same_id_at_once_on_two_nodes_is_one_task(node):
    first, second = node(), node()
    first.claim([1])
    second.claim([2])
    taken: list[tuple[int, int]] = []

    def run(journal, shard):
        for number in range(60):
            row = (number << 8) + shard
            if journal.commit(writes(tasks=[task(row, f"n{number}", shard=shard)])):
                taken.append((number, shard))

    threads = [threading.Thread(target=run, args=args) for args in ((first, 1), (second, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in taken) == list(range(60))
    assert len(first.load().tasks) == 60


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_PostgreSQL_restarted_under_commits_loses_and_doubles_nothing(node, how):
    one = node()
    one.claim(range(64))
    kept: list[int] = []
    held = 0
    stop = threading.Event()

    def commits():
        nonlocal held
        row = 1
        while not stop.is_set():
            try:
                assert one.commit(writes(tasks=[task(row), task(row + 1)], outcomes=[outcome(row)])) == []
            except StoreUnavailable:
                held += 1
                stop.wait(0.02)
                continue
            kept.append(row)
            row += 2

    thread = threading.Thread(target=commits)
    thread.start()
    try:
        time.sleep(0.3)
        postgres.server().stop(how)
        time.sleep(0.2)
        postgres.server().start()
        time.sleep(0.5)
    finally:
        stop.set()
        thread.join()
    assert held > 0
    assert one.lost() == frozenset()
    loaded = one.load_shards(range(64))
    assert {row + 1 for row in kept} <= {found.task.row for found in loaded.tasks}
    assert len(loaded.tasks) - len(kept) in (0, 1)


def test_nodes_that_start_at_once_migrate_once(address):
    nodes = [PostgresJournal(address) for _ in range(4)]
    threads = [threading.Thread(target=one.open) for one in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    firsts = {one.load().next_row for one in nodes}
    for one in nodes:
        one.close()
    assert len(firsts) == 4


def test_HAZ4_a_database_of_before_handles_keeps_its_tasks_and_takes_handles(node, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "MIGRATIONS", MIGRATIONS[:3])
        patch.setattr(postgres_sql, "CLAIM", CLAIM_OF_BEFORE)
        former = node()
        former.claim(range(64))
        former.commit(writes(tasks=[task(1), task(2)], attempts=[attempt(1)]))
        former.close()
    one = node()
    one.claim(range(64))
    loaded = one.load_shards(range(64)).tasks
    assert [(found.task.row, len(found.attempts), found.handle) for found in loaded] == [(1, 1, None), (2, 0, None)]
    one.commit(writes(handles=[handle(1)]))
    assert [found.handle for found in one.load_shards(range(64)).tasks] == [handle(1), None]


def test_CLU_6_a_program_of_before_that_claims_a_shard_is_no_holder_that_others_wait_for(node, monkeypatch):
    now, former = node(), node()
    now.claim([1, 2], "of now")
    with monkeypatch.context() as patch:
        patch.setattr(postgres_sql, "CLAIM", CLAIM_OF_BEFORE)
        former.claim([1])
    assert now.holders([1, 2]) == {2: "of now"}


def test_STR_2_nothing_is_left_of_what_was_told_of_a_task_that_is_removed(node, address):
    one = node()
    one.claim([1])
    one.commit(writes(tasks=[task(1)], outcomes=[outcome(1)]))
    one.give_up([1], [StreamRow(1, 1, 7, 3, None)])
    link = Link(address)

    def left() -> int:
        count: int = link.ask(lambda db: db.fetchval("select count(*) from stream"))
        return count

    assert left() == 1
    one.remove([1])
    assert left() == 0
    link.close()


def test_STR_2_what_a_program_of_before_handed_over_is_taken_without_events(node, address):
    one, two = node(), node()
    one.claim([1])
    one.commit(writes(tasks=[task(1)]))
    told = StreamRow(1, 1, 7, 3, None, ((7, 1, 0, int(Kind.STARTED), ("one", "sql")),))
    one.give_up([1], [told])
    link = Link(address)
    link.ask(lambda db: db.execute("update stream set events = null"))
    link.close()
    two.claim([1])
    (stored,) = two.load_shards([1]).tasks
    assert stored.stream == told._replace(events=())


def test_what_is_wrong_with_an_address_is_said(address):
    one = PostgresJournal(address + "nowhere")
    with pytest.raises(StoreBroken, match="createdb"):
        one.open()
    one.close()
    one = PostgresJournal("postgres://reach@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable):
        one.open()
    one.close()


def test_a_later_schema_is_refused_but_the_next_one_is_not(node, address):
    node()

    async def write(version):
        async with connected(address) as db:
            await db.execute("insert into migration (version) values ($1)", version)

    asyncio.run(write(NEWEST + 1))
    node()
    asyncio.run(write(NEWEST + 2))
    with pytest.raises(StoreBroken, match=f"schema version {NEWEST + 2}"):
        node()


def test_a_commit_is_refused_on_the_thread_of_an_event_loop(node):
    one = node()
    one.claim([1])

    async def on_the_loop():
        one.commit(writes(tasks=[task(1)]))

    assert one.heavy()
    with pytest.raises(RuntimeError):
        asyncio.run(on_the_loop())


def test_a_closed_link_answers_nothing(address):
    link = Link(address)
    link.close()
    with pytest.raises(StoreUnavailable):
        link.ask(lambda db: db.fetchval("select 1"))


def test_CLU_3_a_step_of_a_long_load_looks_at_no_more_than_it_brings(node, address):
    """Found by measuring: of 200,000 tasks each step read all from the first one on."""
    one = node()
    one.claim([1])
    for first in range(1, 3_001, 1_000):
        one.commit(writes(tasks=[task(row, shard=1) for row in range(first, first + 1_000)]))

    async def looked_at():
        async with connected(address) as db:
            await db.execute("analyze")
            async with db.transaction():
                await db.execute(postgres_load._PATIENT + postgres_load._IN_ORDER)
                await db.execute(f"prepare step(int[], bigint, bigint) as {postgres_load._TASKS}")
                plan = await db.fetchval("explain (analyze, format json) execute step('{1}', 2500, 100)")
        return [int(rows) for rows in re.findall(r'"Actual Rows": (\d+)', plan)]

    assert 100 <= max(asyncio.run(looked_at())) <= 200
