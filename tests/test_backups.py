"""Which store `reach backup` and `reach restore` turn to; what they do there: tests/store/test_backup.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from reach.backups import back_up, restore
from reach.cli import doctor
from reach.config import Config, load
from reach.doctor.findings import ok
from reach.errors import InvalidRequest
from reach.store import postgres_backup

ADDRESS = "postgres://reach:secret@db:5432/reach"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A database whose password is in a file."""
    (tmp_path / "password").write_text("secret\n")
    storage = {"type": "postgres", "url": "postgres://reach@db:5432/reach", "password_file": str(tmp_path / "password")}
    return load(None, {}, {f"storage.{name}": value for name, value in storage.items()})


def test_a_backup_knows_the_password_that_is_in_a_file(config, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(postgres_backup, "back_up", lambda address, target: {"address": address, "target": target})
    monkeypatch.setattr(postgres_backup, "restore", lambda source, address: {"address": address, "source": source})
    assert back_up(config, tmp_path) == {"address": ADDRESS, "target": tmp_path}
    assert restore(config, tmp_path) == {"address": ADDRESS, "source": tmp_path}


def test_the_doctor_knows_it_too_and_says_what_is_wrong_with_the_file(config, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("reach.doctor.database.database", lambda address, nodes: [ok("postgres", address)])
    assert [one.what for one in doctor._stores(config)] == [ADDRESS]
    (tmp_path / "password").write_text("")
    assert "storage.password_file is empty" in next(doctor._stores(config)).what


def test_what_is_in_memory_cannot_be_copied(tmp_path) -> None:
    memory = load(None, {}, {"storage.type": "memory"})
    with pytest.raises(InvalidRequest, match=r"must be sqlite or postgres"):
        back_up(memory, tmp_path)
    with pytest.raises(InvalidRequest, match=r"must be sqlite or postgres"):
        restore(memory, tmp_path)
