"""What every store of API keys does: in a file, and in the database of a cluster."""

import hashlib
import hmac
import threading
import time
from contextlib import closing

import pytest

from reach.errors import InvalidRequest, Reason, ResourceExhausted
from reach.store import key_rules
from reach.store.base import ApiKey, KeyStore
from reach.store.keys import SqliteKeyStore
from reach.store.postgres_keys import PostgresKeyStore
from tests import postgres
from tests.store.test_keys import DAY, Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request, tmp_path, clock):
    """Makes stores that share their keys, as nodes and `reach keys` do."""
    if request.param == "sqlite":
        return lambda: SqliteKeyStore(tmp_path, now_ms=clock.now_ms, monotonic=time.monotonic)
    address = postgres.server().database()
    return lambda: PostgresKeyStore(address, now_ms=clock.now_ms)


@pytest.fixture
def store(opened):
    with closing(opened()) as made:
        yield made


def within_a_second(condition):
    """Whether it comes to be true in time, with half a second for a slow machine."""
    end = time.monotonic() + 1.5
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_key_opens_what_it_was_made_for(store, clock):
    key, token = store.create("acme", "billing", ["caller", "reader"])
    assert key == ApiKey(key.key_id, "acme", "billing", frozenset({"caller", "reader"}), clock.ms)
    assert token.startswith(f"ar_{key.key_id}_")
    assert store.verify(token) == key
    assert store.is_valid(key.key_id)


def test_a_token_that_is_not_exactly_right_opens_nothing(store):
    key, token = store.create("acme", "billing", ["caller"])
    _, other = store.create("acme", "billing", ["caller"])
    mixed = f"ar_{key.key_id}_{other.rsplit('_', 1)[1]}"
    last = "a" if token[-1] != "a" else "b"
    wrong = [
        "", "ar_", "ar__", mixed, token[:-1], token + "a", token[:-1] + last, token.upper(), " " + token, token + "\n",
        token.replace("ar_", "AR_"), f"ar_{'a' * 13}_{token.rsplit('_', 1)[1]}", "\ud800", "\x00", token + "\ud800",
    ]  # fmt: skip
    assert [text for text in wrong if store.verify(text) is not None] == []
    assert not store.is_valid("aaaaaaaaaaaaa")


def test_secrets_are_compared_in_constant_time(store, monkeypatch):
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    _, token = store.create("acme", "billing", ["caller"])
    assert store.verify(token) is not None
    assert store.verify(f"ar_{'a' * 13}_{'a' * 52}") is None
    assert len(compared) == 2, "an unknown key_id is compared too"
    assert all(len(a) == len(b) == 32 for a, b in compared)


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "ä", "a" * 65, "a\n", "\ud800", "~", "a:b"])
@pytest.mark.parametrize("field", ["tenant", "app_id"])
def test_names_follow_the_grammar(store, field, name):
    arguments = {"tenant": "acme", "app_id": "billing"} | {field: name}
    with pytest.raises(InvalidRequest) as raised:
        store.create(arguments["tenant"], arguments["app_id"], ["caller"])
    assert raised.value.metadata == {"field": field}


def test_the_longest_and_oddest_names_are_taken(store):
    key, _ = store.create("a" * 64, "0.z_9-", ["agent"])
    assert (key.tenant, key.app_id) == ("a" * 64, "0.z_9-")


@pytest.mark.parametrize("scopes", [[], ["admin"], ["caller", ""], ["Caller"]])
def test_scopes_are_a_closed_set(store, scopes):
    with pytest.raises(InvalidRequest, match="agent, caller, operator, reader"):
        store.create("acme", "billing", scopes)


@pytest.mark.parametrize("ttl_ms", [0, -1, 10**15])
def test_lifetimes_have_a_range(store, ttl_ms):
    with pytest.raises(InvalidRequest):
        store.create("acme", "billing", ["caller"], ttl_ms)


def test_a_key_expires(store, clock):
    key, token = store.create("acme", "billing", ["caller"], DAY)
    clock.ms += DAY - 1
    assert store.verify(token) == key
    clock.ms += 1
    assert store.verify(token) is None
    assert not store.is_valid(key.key_id)


def test_a_revoked_key_ends_at_once_and_stays_in_the_list(store, clock):
    key, token = store.create("acme", "billing", ["caller"])
    clock.ms += 5
    assert store.revoke(key.key_id).revoked_ms == clock.ms
    assert store.verify(token) is None
    clock.ms += 5
    assert store.revoke(key.key_id).revoked_ms == clock.ms - 5, "revoking again changes nothing"
    assert [item.revoked_ms for item in store.list_keys()] == [clock.ms - 5]


def test_rotating_gives_a_new_key_and_lets_the_old_one_overlap(store, clock):
    old, old_token = store.create("acme", "billing", ["caller"], 30 * DAY)
    clock.ms += 10 * DAY
    new, new_token = store.rotate(old.key_id, overlap_ms=DAY)
    assert (new.tenant, new.app_id, new.scopes) == (old.tenant, old.app_id, old.scopes)
    assert new.expires_ms == clock.ms + 30 * DAY
    assert store.verify(old_token) is not None
    assert store.verify(new_token) == new
    clock.ms += DAY
    assert store.verify(old_token) is None
    assert store.verify(new_token) == new
    with pytest.raises(InvalidRequest) as raised:
        store.rotate(old.key_id)
    assert raised.value.reason is Reason.WRONG_STATE


def test_an_overlap_is_never_longer_than_what_was_left(store, clock):
    old, token = store.create("acme", "billing", ["caller"])
    store.rotate(old.key_id, overlap_ms=DAY)
    store.rotate(old.key_id, overlap_ms=10 * DAY)
    clock.ms += DAY
    assert store.verify(token) is None


def test_gov_1_a_key_of_another_tenant_is_not_there(store):
    key, _ = store.create("acme", "billing", ["caller"])
    refusals = []
    for key_id, tenant in ((key.key_id, "other"), ("a" * 13, "other"), ("a" * 13, None)):
        for act in (store.revoke, store.rotate):
            with pytest.raises(InvalidRequest) as raised:
                act(key_id, tenant)
            refusals.append((raised.value.reason, raised.value.message, raised.value.metadata))
    assert len({str(refusal) for refusal in refusals}) == 1
    assert store.list_keys("other") == []
    assert store.list_keys("acme") == [key]


def test_lists_come_in_pages(store, clock):
    made = []
    for _ in range(5):
        clock.ms += 1
        made.append(store.create("acme", "billing", ["caller"])[0])
    first = store.list_keys("acme", limit=2)
    rest = store.list_keys("acme", after=first[-1].key_id)
    assert first + rest == made


def test_s1_many_writers_at_once_lose_nothing(opened):
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with closing(opened()) as store:
                for _ in range(10):
                    key, token = store.create("acme", "billing", ["caller"])
                    assert store.verify(token) == key
                    store.revoke(key.key_id)
                    assert store.verify(token) is None
        except BaseException as failure:  # noqa: BLE001 - handed to the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with closing(opened()) as store:
        assert len(store.list_keys(limit=100)) == 40


def test_the_number_of_keys_is_bounded_and_old_ended_ones_make_room(store, clock, monkeypatch):
    monkeypatch.setattr(key_rules, "MAX_KEYS", 2)
    first, _ = store.create("acme", "billing", ["caller"])
    store.create("acme", "billing", ["caller"])
    store.revoke(first.key_id)
    with pytest.raises(ResourceExhausted) as raised:
        store.create("acme", "billing", ["caller"])
    assert raised.value.reason is Reason.STORE_FULL
    clock.ms += 31 * DAY
    store.create("acme", "billing", ["caller"])
    assert first.key_id not in {key.key_id for key in store.list_keys()}


def test_keys_outlive_the_process(opened):
    with closing(opened()) as store:
        key, token = store.create("acme", "billing", ["caller"])
    with closing(opened()) as store:
        assert store.verify(token) == key


def test_it_is_a_key_store(store):
    protocol: KeyStore = store
    assert protocol is store


def test_what_one_node_makes_and_ends_counts_at_the_others_within_a_second(store, opened):
    with closing(opened()) as other:
        key, token = other.create("acme", "billing", ["caller"])
        assert within_a_second(lambda: store.verify(token) == key)
        other.revoke(key.key_id)
        assert within_a_second(lambda: not store.is_valid(key.key_id))
        assert store.verify(token) is None


def test_of_two_that_renew_a_key_at_once_one_does(opened):
    with closing(opened()) as one, closing(opened()) as two:
        key, _ = one.create("acme", "billing", ["caller"])
        made, refused = [], []

        def turn(store):
            try:
                made.append(store.rotate(key.key_id))
            except InvalidRequest as error:
                refused.append(error.reason)

        threads = [threading.Thread(target=turn, args=(store,)) for store in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(made), refused) == (1, [Reason.WRONG_STATE])
        assert len(one.list_keys()) == 2


def test_a_secret_is_kept_as_its_hash(store):
    key, token = store.create("acme", "billing", ["caller"])
    store.list_keys()
    assert store._keys[key.key_id][1] == hashlib.sha256(token.rsplit("_", 1)[1].encode()).digest()
