"""API keys in a file: its rights, and how a running server sees what another process changes (see contracts)."""

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import pytest

from reach.errors import Reason, Unavailable
from reach.store.keys import SqliteKeyStore

DAY = 86_400_000


class Clock:
    """A wall clock and a monotonic one, both moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.s = 100.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with closing(SqliteKeyStore(tmp_path / "data", now_ms=clock.now_ms, monotonic=clock.monotonic)) as made:
        yield made


def test_the_secret_is_not_in_the_file(store, tmp_path):
    _, token = store.create("acme", "billing", ["caller"])
    secret = token.rsplit("_", 1)[1]
    kept = b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir())
    assert secret.encode() not in kept
    assert hashlib.sha256(secret.encode()).digest() in kept


def test_a_running_server_sees_changes_of_another_process_within_a_second(store, clock, tmp_path):
    """`reach keys` writes beside it; here another interpreter does."""
    code = (
        "import sys, pathlib; from reach.store.keys import SqliteKeyStore;"
        "store = SqliteKeyStore(pathlib.Path(sys.argv[1]), now_ms=lambda: 1_700_000_000_000);"
        "print(store.create('acme', 'cli', ['agent'])[1])"
    )
    token = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], check=True, capture_output=True, text=True
    ).stdout.strip()
    clock.s += 1.0
    key = store.verify(token)
    assert key is not None
    with closing(SqliteKeyStore(tmp_path / "data", now_ms=clock.now_ms)) as other:
        other.revoke(key.key_id)
    clock.s += 1.0
    assert store.verify(token) is None


def test_an_unchanged_file_is_looked_at_twice_a_second_and_never_read_again(store, clock, tmp_path):
    _, token = store.create("acme", "billing", ["caller"])
    statements: list[str] = []
    store._reader.set_trace_callback(statements.append)
    for _ in range(100):
        clock.s += 0.02
        assert store.verify(token) is not None
    assert set(statements) == {"pragma data_version"}
    assert len(statements) <= 5


def test_a_file_that_cannot_be_read_leaves_the_known_keys_valid(store, clock, caplog):
    _, token = store.create("acme", "billing", ["caller"])
    store._reader.close()
    clock.s += 10
    assert store.verify(token) is not None
    assert "could not be read" in caplog.text


def test_files_belong_to_their_owner_alone(tmp_path):
    folder = tmp_path / "new" / "data"
    old = os.umask(0)
    try:
        with closing(SqliteKeyStore(folder)) as store:
            store.create("acme", "billing", ["caller"])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(old)
    assert modes == {"keys.db": 0o600, "keys.db-wal": 0o600, "keys.db-shm": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path):
    (tmp_path / "keys.db").touch(mode=0o644)
    with closing(SqliteKeyStore(tmp_path)):
        assert stat.S_IMODE((tmp_path / "keys.db").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"this is not a database, whatever its name says" * 50, None], ids=["text", "newer"]
)
def test_a_file_that_is_not_ours_is_refused_with_its_name(tmp_path, content):
    path = tmp_path / "keys.db"
    if content is None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("pragma user_version = 99")
    else:
        path.write_bytes(content)
    with pytest.raises(Unavailable, match=r"keys\.db") as raised:
        SqliteKeyStore(tmp_path)
    assert raised.value.reason is Reason.STORE_UNAVAILABLE
