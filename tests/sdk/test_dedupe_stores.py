"""What every store of what was done promises (DLV-3): in one file, and in a database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from reach import InvalidRequest, PostgresDedupe, SqliteDedupe, Unavailable
from reach.sdk.dedupe import LEASE_S, SWEEP_EVERY, DedupeStore, Found, Standing
from reach.sdk.postgres_dedupe import _BEGIN
from tests import postgres

KEY = ("", "t")
YOURS = Found(Standing.YOURS)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Stores:
    """Makes stores that share what was done."""

    def __init__(self, path: Path, address: str) -> None:
        self.path = path / "done.db"
        self.address = address
        self.made: list[DedupeStore] = []

    def __call__(self, clock: Callable[[], float] | None = None, **limits: Any) -> DedupeStore:
        made: DedupeStore
        if self.address:
            made = PostgresDedupe(self.address, clock=clock, **limits)
        else:
            made = SqliteDedupe(self.path, clock=clock or Clock(), **limits)
        self.made.append(made)
        return made

    def count(self, where: str) -> int:
        """Tasks that are kept."""
        if not self.address:
            (found,) = sqlite3.connect(self.path).execute(f"select count(*) from task where {where}").fetchone()
            return int(found)

        async def ask() -> int:
            connection = await asyncpg.connect(self.address)
            try:
                return int(await connection.fetchval(f"select count(*) from reach_dedupe_task where {where}"))
            finally:
                await connection.close()

        return asyncio.run(ask())


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path, postgres.server().database() if request.param == "postgres" else "")
    yield stores
    for one in stores.made:
        one.close()


def test_DLV_3_what_is_done_is_told_and_what_is_being_done_is_not_begun_twice(store):
    one, two = store(), store()
    assert one.begin(KEY, 1, "one") == YOURS
    assert one.begin(KEY, 1, "one") == YOURS, "the same offer again"
    assert two.begin(KEY, 2, "two") == Found(Standing.ELSEWHERE, owner="one")
    assert one.done(KEY, 1, "one", b"42")
    assert two.begin(KEY, 2, "two") == Found(Standing.DONE, b"42", "one")
    assert two.begin(("other", "t"), 1, "two") == YOURS
    assert not two.done(KEY, 2, "two", b"43")


def test_DLV_3_what_was_not_done_may_be_done_by_another(store):
    shared = store()
    shared.begin(KEY, 1, "one")
    shared.release(KEY, 1, "two")  # it is not theirs
    assert shared.begin(KEY, 2, "two").standing is Standing.ELSEWHERE
    shared.release(KEY, 1, "one")
    assert shared.begin(KEY, 2, "two") == YOURS


def test_DLV_3_who_is_gone_is_followed_and_cannot_speak_any_more(store):
    clock = Clock()
    shared = store(clock)
    shared.begin(KEY, 1, "one")
    clock.now += LEASE_S - 1
    shared.renew("one")
    clock.now += LEASE_S - 1
    assert shared.begin(KEY, 2, "two").standing is Standing.ELSEWHERE
    clock.now += 2
    assert shared.begin(KEY, 2, "two") == YOURS
    assert not shared.done(KEY, 1, "one", b"late"), "its token is not the one"
    assert shared.begin(KEY, 1, "one") == Found(Standing.STALE, owner="two")
    assert shared.done(KEY, 2, "two", b"42")


def test_F9_an_owner_that_is_gone_does_not_live_on_because_the_clock_leapt_back(store):
    clock = Clock()
    shared = store(clock)
    shared.begin(KEY, 1, "one")
    clock.now -= 3_600
    assert shared.begin(KEY, 2, "two") == YOURS


def test_DLV_3_what_is_kept_is_bounded_by_age_number_and_bytes(store):
    clock = Clock()
    shared = store(clock, retention=100.0, most_tasks=300, most_bytes=20_000)
    for number in range(2 * SWEEP_EVERY):
        clock.now += 0.01
        shared.begin(("", f"t{number}"), 1, "one")
        shared.done(("", f"t{number}"), 1, "one", b"x" * 100)
    assert store.count("true") <= 201 + SWEEP_EVERY
    assert shared.begin(("", f"t{2 * SWEEP_EVERY - 1}"), 2, "two").standing is Standing.DONE
    clock.now += 101
    for number in range(SWEEP_EVERY):
        shared.begin(("", f"later {number}"), 1, "one")
    assert store.count("done") == 0


def test_DLV_3_of_many_that_begin_at_once_one_has_it(store):
    stores = [store() for _ in range(4)]
    found: list[Found] = []
    ready = threading.Barrier(4)

    def begin(number: int) -> None:
        ready.wait()
        found.extend(stores[number].begin(("", f"t{task}"), 1 + number, f"owner {number}") for task in range(50))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.standing is Standing.YOURS for one in found) == 50


def test_a_database_that_cannot_be_opened_is_named() -> None:
    address = postgres.server().address("nowhere")
    with pytest.raises(InvalidRequest, match="createdb"):
        PostgresDedupe(address)
    with pytest.raises(Unavailable, match="cannot be reached"):
        PostgresDedupe("postgres://reach@127.0.0.1:1/none")


def test_an_outcome_whose_confirmation_was_lost_is_kept_and_said_so() -> None:
    shared = PostgresDedupe(postgres.server().database())
    assert shared.begin(KEY, 1, "one") == YOURS
    assert shared.done(KEY, 1, "one", b"42")
    assert shared.done(KEY, 1, "one", b"42"), "sent again"
    assert not shared.done(KEY, 1, "one", b"43")
    shared.close()


def test_DLV_3_who_began_in_the_same_moment_is_seen_to_live() -> None:
    """The second statement starts before the first one ends, waits for it, and does not see what it wrote of its
    owner."""
    address = postgres.server().database()
    shared = PostgresDedupe(address)

    async def race() -> Found:
        first = await asyncpg.connect(address)
        try:
            transaction = first.transaction()
            await transaction.start()
            await first.execute(_BEGIN, None, "one", *KEY, 1)
            second = asyncio.create_task(asyncio.to_thread(shared.begin, KEY, 2, "two"))
            await asyncio.sleep(0.2)
            assert not second.done()
            await transaction.commit()
            return await second
        finally:
            await first.close()

    assert asyncio.run(race()) == Found(Standing.ELSEWHERE, owner="one")
    shared.close()
