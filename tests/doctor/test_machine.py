"""What `reach doctor` finds on this machine."""

import socket

import pytest

from reach.config import load
from reach.doctor.findings import Level, worst_of
from reach.doctor.machine import files, folder, keys, machine, ports, schema, secrets
from reach.store.keys import SqliteKeyStore
from reach.store.migrations import NEWEST
from reach.store.sqlite import SqliteJournal


def config(tmp_path, **fields):
    given = {"storage.path": str(tmp_path / "data"), "server.port": 0, "server.admin_port": 0}
    return load(None, {}, {**given, **{name.replace("__", "."): value for name, value in fields.items()}})


def test_CFG_1_a_machine_that_is_well_has_nothing_to_tell(tmp_path):
    (tmp_path / "data").mkdir(mode=0o700)
    assert worst_of(one for one in machine(config(tmp_path)) if one.check != "limits") is Level.OK


def test_API_6_a_port_that_nobody_answers_at_is_an_error_and_one_that_a_server_has_is_not(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (one,) = ports(config(tmp_path, server__port=taken.getsockname()[1]))
        assert one.level is Level.OK
        assert "in use: by the server" in one.what
    (one,) = ports(config(tmp_path, server__host="192.0.2.1", server__insecure=True, server__port=8900))
    assert one.level is Level.ERROR
    assert "cannot be listened on" in one.what


def test_API_6_a_folder_that_others_read_a_schema_of_later_and_a_broken_file_are_told(tmp_path):
    data = tmp_path / "data"
    journal = SqliteJournal(data)
    journal.open()
    (fine,) = folder(data)
    assert (fine.level, f"version {NEWEST}" in fine.what) == (Level.OK, True), "the server that has it is not disturbed"
    assert journal._writer is not None
    journal._writer.execute(f"insert into migration values ({NEWEST + 1}, 0)")
    assert (schema(data / "journal.db").level, "start the version" in schema(data / "journal.db").todo) == (
        Level.ERROR, True,
    )  # fmt: skip
    journal.close()
    data.chmod(0o755)
    assert any("chmod 700" in one.todo for one in folder(data))
    (data / "journal.db").write_bytes(b"nothing of the kind" * 1000)
    assert "cannot be read" in schema(data / "journal.db").what


@pytest.mark.parametrize(("limit", "level"), [(1_024, Level.WARNING), (65_536, Level.OK), (-1, Level.OK)])
def test_API_6_few_open_files_are_a_warning(limit, level):
    assert files(limit, "here").level is level


def test_GOV_2_secrets_that_others_read_or_that_are_too_short_are_told(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("short")
    secret.chmod(0o644)
    shared = config(
        tmp_path, cluster__endpoints=["127.0.0.1:1"], cluster__secret_file=str(secret), storage__type="postgres",
        storage__url="postgres://u@h/d", storage__path=None,
    )  # fmt: skip
    assert [one.level for one in secrets(shared)] == [Level.WARNING, Level.ERROR]
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    assert list(secrets(shared)) == []


def test_GOV_2_a_server_that_asks_for_keys_that_nobody_has_is_told(tmp_path):
    asking = config(tmp_path, server__auth="keys")
    assert [one.what for one in keys(asking)] == ["there are no API keys"]
    assert not (tmp_path / "data").exists(), "looking makes nothing"
    store = SqliteKeyStore(tmp_path / "data")
    key, _ = store.create("acme", "app", ["caller"])
    assert [one.what for one in keys(asking)] == ["no API key has the scope operator"]
    store.create("acme", "ops", ["operator"])
    store.revoke(key.key_id)
    assert [(one.level, one.what) for one in keys(asking)] == [(Level.OK, "1 of 2 API keys are valid")]
    store.close()
    assert list(keys(config(tmp_path))) == []
