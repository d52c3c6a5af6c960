"""API keys in a database where a file cannot follow: lost connections and answers, a database that is away."""

import asyncio
import logging
import signal
import time
from contextlib import closing

import asyncpg
import pytest

from reach.errors import Reason, ResourceExhausted, Unavailable
from reach.store import postgres_keys
from reach.store.base import StoreFull
from reach.store.postgres_keys import PostgresKeyStore
from tests import postgres


@pytest.fixture
def address():
    return postgres.server().database()


@pytest.fixture
def store(address):
    with closing(PostgresKeyStore(address)) as made:
        yield made


def test_keys_that_are_known_hold_while_the_database_is_away(store, caplog):
    key, token = store.create("acme", "billing", ["caller"])
    postgres.server().stop(signal.SIGQUIT)
    try:
        end = time.monotonic() + 5
        with caplog.at_level(logging.WARNING):
            while "could not be read" not in caplog.text:
                assert time.monotonic() < end
                time.sleep(0.05)
        assert store.verify(token) == key
        began = time.monotonic()
        for _ in range(1_000):
            assert store.is_valid(key.key_id)
        assert time.monotonic() - began < 0.5, "answered from memory"
        with pytest.raises(Unavailable) as raised:
            store.revoke(key.key_id)
        assert raised.value.reason is Reason.STORE_UNAVAILABLE
    finally:
        postgres.server().start()
    store.revoke(key.key_id)
    assert store.verify(token) is None


def test_a_change_whose_answer_was_lost_is_made_once(store, monkeypatch):
    """The connection ends after the statement: it is sent again, over a new one."""
    ask = store._link.ask
    lost: list[object] = []

    def twice(work, *seconds):
        if store._looking.locked() and not lost and "values" in (work.__kwdefaults__ or work.__code__.co_varnames):
            lost.append(ask(work, *seconds))
        return ask(work, *seconds)

    monkeypatch.setattr(store._link, "ask", twice)
    key, token = store.create("acme", "billing", ["caller"])
    assert lost
    assert store.verify(token) == key
    lost.clear()
    fresh, _ = store.rotate(key.key_id)
    assert lost
    assert [one.key_id for one in store.list_keys()] == [key.key_id, fresh.key_id]


def test_a_store_opens_where_an_event_loop_runs_and_says_what_is_wrong(address):
    async def opens():
        PostgresKeyStore(address).close()
        with pytest.raises(Unavailable, match="createdb") as raised:
            PostgresKeyStore(address + "nowhere")
        return raised.value.reason

    assert asyncio.run(opens()) is Reason.STORE_UNAVAILABLE


def test_no_space_is_said(store, monkeypatch):
    def full(*_):
        raise StoreFull("disk")

    monkeypatch.setattr(store._link, "ask", full)
    with pytest.raises(ResourceExhausted) as raised:
        store.create("acme", "billing", ["caller"])
    assert raised.value.reason is Reason.STORE_FULL


def test_who_always_comes_too_late_is_told(store, monkeypatch):
    monkeypatch.setattr(postgres_keys, "_CHANGE", postgres_keys._CHANGE.replace("value = $1", "value = $1 - 1"))
    with pytest.raises(Unavailable, match="change all the time"):
        store.create("acme", "billing", ["caller"])


def test_the_secret_is_not_in_the_database(store, address):
    _, token = store.create("acme", "billing", ["caller"])

    async def all_of_it():
        connection = await asyncpg.connect(address)
        try:
            return str(await connection.fetch("select * from api_key"))
        finally:
            await connection.close()

    kept = asyncio.run(all_of_it())
    assert token.split("_")[1] in kept
    assert token.split("_")[2] not in kept
