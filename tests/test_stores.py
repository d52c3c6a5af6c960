"""Where the database of a node is."""

from __future__ import annotations

from pathlib import Path

import pytest

from reach.config import Config, load
from reach.errors import InvalidRequest
from reach.stores import database_of

URL = "postgres://reach@db:5432/reach?sslmode=require"


def config_of(file: Path | None) -> Config:
    environ = {"AGENT_REACH_STORAGE_TYPE": "postgres", "AGENT_REACH_STORAGE_URL": URL}
    if file is not None:
        environ["AGENT_REACH_STORAGE_PASSWORD_FILE"] = str(file)
    return load(None, environ)


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
