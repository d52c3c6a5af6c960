"""`reach keys` on a data folder, and what a server with keys says to callers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reach.cli.exits import Exit
from reach.testing.server import LocalServer
from tests import postgres
from tests.cli.conftest import Command


def test_create_prints_the_secret_once(reach: Command, tmp_path: Path) -> None:
    ran = reach("keys", "create", "--app", "shop", "--scope", "caller", "--scope", "reader", "--data", str(tmp_path))
    assert ran.code == Exit.OK
    token = ran.out.strip()
    assert re.fullmatch(r"ar_[a-z2-7]{13}_[a-z2-7]{52}", token)
    assert token not in ran.err
    assert str(tmp_path / "keys.db") in ran.err
    listed = reach("keys", "list", "--data", str(tmp_path))
    assert token.split("_")[2] not in listed.out
    assert listed.out.splitlines()[1].split()[:4] == [token.split("_")[1], "default", "shop", "caller,"]
    assert (tmp_path / "keys.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kept", ["folder", "database"])
def test_a_whole_life(reach: Command, tmp_path: Path, kept: str) -> None:
    place = ("--data", str(tmp_path)) if kept == "folder" else ("--journal", postgres.server().database())
    at = (*place, "--json")
    made = reach("keys", "create", "--tenant", "t1", "--app", "a", "--scope", "operator", "--ttl", "30d", *at).data
    assert made["scopes"] == ["operator"]
    assert made["state"] == "valid"
    assert made["expires_at"] > made["created_at"]
    fresh = reach("keys", "rotate", made["key_id"], *at).data
    assert fresh["key_id"] != made["key_id"]
    assert fresh["secret"].startswith(f"ar_{fresh['key_id']}_")
    ended = reach("keys", "revoke", fresh["secret"], *at).data
    assert ended["state"] == "revoked"
    reach("keys", "create", "--tenant", "t2", "--app", "a", "--scope", "agent", *at)
    states = [(key["tenant"], key["state"]) for key in reach("keys", "list", *at).data["keys"]]
    assert states == [("t1", "revoked"), ("t1", "revoked"), ("t2", "valid")]
    assert len(reach("keys", "list", "--tenant", "t2", *at).data["keys"]) == 1


def test_mistakes(reach: Command, tmp_path: Path) -> None:
    at = ("--data", str(tmp_path))
    for arguments in (
        ("list",),
        ("revoke", "none"),
        ("create", "--app", "A B", "--scope", "caller"),
        ("create", "--app", "a", "--scope", "root"),
        ("create", "--app", "a", "--scope", "caller", "--ttl", "0"),
        ("create", "--app", "a", "--scope", "caller", "--config", str(tmp_path)),
        ("list", "--journal", "postgres://127.0.0.1:1/none"),
    ):
        ran = reach("keys", *arguments, *at)
        assert ran.code == Exit.WRONG_REQUEST, arguments
        assert ran.out == ""
        assert "Traceback" not in ran.err
    ran = reach("keys", "list", "--data", str(tmp_path / "none"))
    assert ran.code == Exit.WRONG_REQUEST
    assert not (tmp_path / "none").exists()


def test_the_database_of_the_servers_configuration(reach: Command, tmp_path: Path) -> None:
    address = postgres.server().database()
    (tmp_path / "reach.yaml").write_text(f"storage:\n  type: postgres\n  url: {address}\n")
    reach("keys", "create", "--app", "a", "--scope", "agent", "--config", str(tmp_path / "reach.yaml"))
    assert len(reach("keys", "list", "--journal", address, "--json").data["keys"]) == 1


def test_mistakes_with_a_database(reach: Command) -> None:
    ran = reach("keys", "list", "--journal", "/var/lib/agentreach")
    assert ran.code == Exit.WRONG_REQUEST
    assert "postgres://USER" in ran.err
    ran = reach("keys", "create", "--app", "a", "--scope", "caller", "--journal", "postgres://x:pw@127.0.0.1:1/none")
    assert ran.code == Exit.UNREACHABLE
    assert "pw" not in ran.err


def test_a_folder_that_cannot_be_used(reach: Command, tmp_path: Path) -> None:
    (tmp_path / "keys.db").write_text("this is no database, but it is long enough to look like one" * 20)
    ran = reach("keys", "create", "--app", "a", "--scope", "caller", "--data", str(tmp_path))
    assert ran.code == Exit.UNREACHABLE
    assert "keys.db cannot be used" in ran.err


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LocalServer]:
    """A server that wants keys."""
    with LocalServer(tmp_path, ["--auth", "keys"]) as made:
        yield made


@pytest.mark.e2e
def test_a_server_with_keys(reach: Command, guarded: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    at = ("--addr", guarded.address)
    for command in (("agents", "list"), ("dispatch", "--agent", "a", "x"), ("tasks", "list", "--api-key", "wrong")):
        ran = reach(*command, *at)
        assert ran.code == Exit.DENIED
        assert "`reach keys create` makes one" in ran.err
    folder = ("--data", str(guarded.folder))
    token = reach("keys", "create", "--app", "a", "--scope", "reader", *folder).out.strip()
    end = time.monotonic() + 3
    while reach("agents", "list", "--api-key", token, *at).code != Exit.OK:
        assert time.monotonic() < end, "the server does not take the new key"
    monkeypatch.setenv("AGENT_REACH_API_KEY", token)
    assert reach("tasks", "list", *at).code == Exit.OK
    ran = reach("dispatch", "--agent", "a", "x", *at)
    assert ran.code == Exit.DENIED
    assert "has not the scope" in ran.err
    assert token not in guarded.log_text()
