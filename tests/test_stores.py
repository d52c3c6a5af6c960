"""Where the database of a node is, and what a node says that cannot open its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from reach.config import Config, load
from reach.errors import InvalidRequest, Unavailable
from reach.store.base import Journal
from reach.store.keys import SqliteKeyStore
from reach.store.memory import MemoryJournal
from reach.store.postgres import PostgresJournal
from reach.store.postgres_keys import PostgresKeyStore
from reach.store.sqlite import SqliteJournal
from reach.stores import _journal, database_of, open_journal, open_keys

URL = "postgres://reach@db:5432/reach?sslmode=require"


def config_of(file: Path | None) -> Config:
    environ = {"AGENT_REACH_STORAGE_TYPE": "postgres", "AGENT_REACH_STORAGE_URL": URL}
    if file is not None:
        environ["AGENT_REACH_STORAGE_PASSWORD_FILE"] = str(file)
    return load(None, environ)


def config_with(folder: Path, kind: str, auth: str = "none") -> Config:
    url = URL if kind == "postgres" else None
    fields = {"storage.type": kind, "storage.path": str(folder), "storage.url": url, "server.auth": auth}
    return load(None, {}, fields)


def test_without_a_file_the_address_is_as_it_was_given() -> None:
    assert database_of(config_of(None)) == URL


def test_the_password_of_a_file_is_part_of_the_address_and_nothing_in_it_means_anything(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("a@b:c/d?e f%\n")
    wanted = "postgres://reach:a%40b%3Ac%2Fd%3Fe%20f%25@db:5432/reach?sslmode=require"
    assert database_of(config_of(file)) == wanted


def test_an_empty_file_is_said(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\n")
    with pytest.raises(InvalidRequest, match=r"storage\.password_file is empty"):
        database_of(config_of(file))


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xff\xfe")
    config = config_of(file)
    with pytest.raises(InvalidRequest, match=r"storage\.password_file cannot be read"):
        database_of(config)
    file.unlink()
    with pytest.raises(InvalidRequest, match=r"storage\.password_file cannot be read"):
        database_of(config)


@pytest.mark.parametrize(
    ("kind", "made"), [("memory", MemoryJournal), ("sqlite", SqliteJournal), ("postgres", PostgresJournal)]
)
def test_each_kind_of_storage_has_its_journal(tmp_path: Path, kind: str, made: type[Journal]) -> None:
    assert type(_journal(config_with(tmp_path, kind))) is made


def test_a_store_that_another_process_has_is_said_with_what_to_do(tmp_path: Path) -> None:
    config = load(None, {"AGENT_REACH_STORAGE_PATH": str(tmp_path)})
    journal = open_journal(config)
    with pytest.raises(Unavailable, match=r"is in use by process [0-9]+ .* name another folder with --data"):
        open_journal(config)
    journal.close()
    open_journal(config).close()


def test_a_store_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"cannot open the store: the data folder .* cannot be used"):
        open_journal(load(None, {"AGENT_REACH_STORAGE_PATH": str(tmp_path / "file")}))


@pytest.mark.parametrize(("kind", "made"), [("sqlite", SqliteKeyStore), ("postgres", PostgresKeyStore)])
def test_GOV_2_keys_are_beside_the_journal_and_only_where_callers_need_one(
    tmp_path: Path, kind: str, made: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(made, "__init__", lambda self, where: opened.append(where))
    assert open_keys(config_with(tmp_path, kind)) is None
    assert type(open_keys(config_with(tmp_path, kind, auth="keys"))) is made
    assert opened == [tmp_path if kind == "sqlite" else URL]
