"""What `reach doctor` finds at PostgreSQL and etcd: judged on made-up answers, and asked of real ones."""

import time

import pytest

from reach.cluster.etcd_api import Access
from reach.cluster.etcd_api.members import Member
from reach.doctor import coordination, database
from reach.doctor.findings import Level, worst_of
from reach.store.postgres import PostgresJournal
from tests import postgres
from tests.contracts.etcd_servers import EtcdServers, need_etcd

GOOD = {
    "server_version_num": "150004", "in_recovery": "false", "default_transaction_read_only": "off", "fsync": "on",
    "full_page_writes": "on", "synchronous_commit": "on", "max_connections": "100",
    "superuser_reserved_connections": "3", "connections": "10", "idle_session_timeout": "0", "may_create": "true",
    "now": "1000",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({}, Level.OK, "version 15.4"),
        ({"synchronous_commit": "local"}, Level.OK, ""),
        ({"fsync": "off"}, Level.ERROR, "fsync is off"),
        ({"synchronous_commit": "off"}, Level.ERROR, "synchronous_commit is off"),
        ({"server_version_num": "140009"}, Level.ERROR, "is version 14"),
        ({"in_recovery": "true"}, Level.ERROR, "standby"),
        ({"idle_session_timeout": "60000"}, Level.WARNING, "idle_session_timeout"),
        ({"connections": "95"}, Level.WARNING, "2 of 100 connections"),
        ({"may_create": "false"}, Level.ERROR, "may not create"),
        ({"now": "1007.5"}, Level.WARNING, "7.5 s ahead"),
    ],
)
def test_CLU_1_what_settings_of_postgres_mean(changed, level, text):
    found = list(database.judged({**GOOD, **changed}, 3, 1000.0))
    assert worst_of(found) is level
    assert any(text in one.what for one in found)
    assert all(one.why and one.todo for one in found if one.level is not Level.OK)


def test_CLU_1_a_real_postgres_is_asked():
    address = postgres.server().database()
    found = database.database(address)
    assert [one.what for one in found if one.level is Level.ERROR] == ["fsync is off"], "as the tests start it"
    assert "brings it to" in found[-1].what or "brings it to" in found[-2].what
    journal = PostgresJournal(address)
    journal.open()
    journal.close()
    assert not any("brings it to" in one.what for one in database.database(address))
    (gone,) = database.database(address.replace("/t", "/gone"))
    assert (gone.level, "createdb" in gone.what) == (Level.ERROR, True)


WELL = Member("h:1", version="3.4.23", db_bytes=1 << 20, used_bytes=1 << 19, leader=1, member=1, ahead_s=0.2)


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({}, Level.OK, "3 of 3 members answer"),
        ({"error": "connection refused"}, Level.ERROR, "cannot be asked: connection refused"),
        ({"leader": 0}, Level.ERROR, "knows no leader"),
        ({"leader": 7}, Level.ERROR, "follow different leaders"),
        ({"alarms": ("NOSPACE",)}, Level.ERROR, "is full"),
        ({"alarms": ("CORRUPT",)}, Level.ERROR, "says: CORRUPT"),
        ({"errors": ("memberID:1 alarm:NOSPACE ",)}, Level.OK, ""),
        ({"db_bytes": 1800 << 20}, Level.WARNING, "takes 1800 MiB"),
        ({"ahead_s": -12.0}, Level.WARNING, "-12 s off"),
    ],
)
def test_CLU_4_what_members_of_etcd_say(changed, level, text):
    found = list(coordination.judged([WELL._replace(**changed), WELL._replace(endpoint="h:2"), WELL]))
    assert worst_of(found) is level
    assert any(text in one.what for one in found)


async def test_CLU_4_a_real_etcd_is_asked_full_of_rights_and_gone(tmp_path):
    need_etcd()
    servers = EtcdServers(tmp_path)
    try:
        servers.start_all()
        await servers.ready()
        found = await coordination.coordination(Access(servers.endpoints), "main")
        assert [one.level for one in found] == [Level.WARNING, Level.OK], found
        assert "names 1 of its members" in found[0].what
        for step in (("user", "add", "root:r"), ("user", "grant-role", "root", "root"), ("user", "add", "few:f"),
                     ("auth", "enable")):  # fmt: skip
            await servers.ctl(*step)
        found = await coordination.coordination(Access(servers.endpoints, "few", "f"), "main")
        assert "cannot be written" in found[-1].what
        assert "grant-permission" in found[-1].todo
        (refused,) = [
            one for one in await coordination.coordination(Access(servers.endpoints, "few", "no"), "main")
            if one.level is Level.ERROR
        ]  # fmt: skip
        assert "cluster.user" in refused.todo
    finally:
        servers.kill_all()
    began = time.monotonic()
    found = await coordination.coordination(Access(servers.endpoints), "main")
    assert found[0].level is Level.ERROR
    assert time.monotonic() - began < 10
