"""Backup and restore of the PostgreSQL journal: each table by COPY, all in one snapshot, which locks nothing.

It needs no tools of PostgreSQL, and is restored into any version that the program runs on. A restore raises all epochs:
whoever owned anything before it is fenced, even if it never noticed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import asyncpg

from reach.store.base import StoreUnavailable
from reach.store.manifest import Counts, make_folder, read_manifest, write_manifest
from reach.store.migrations.postgres import NEWEST
from reach.store.postgres_link import CONNECT_SECONDS, Connection, translated
from reach.store.postgres_schema import migrate
from reach.store.postgres_sql import KINDS

KIND: Final = "postgres"
TABLES: Final = ("shard", "counter", "open_task", *KINDS, "api_key")
"""All tables but `migration`, and what is only for the next owner of a shard: `arrival`, `stream`."""
SEQUENCES: Final = ("row_block", "outbox_number")
RAISED: Final = 1_000_000
"""By so much epochs, and numbers that were given since the backup, are raised."""
_COUNTS: Final = """
with open as (
    select row, coalesce((select instance_id from attempt where attempt.row = open_task.row order by number desc
        limit 1), (select instance_id from task where task.row = open_task.row), '') as instance_id
    from open_task
)
select (select count(*) from task), (select count(*) from open where instance_id = ''),
    (select count(*) from open where instance_id <> ''),
    (select count(*) from open where row in (select row from effect where granted > 0)),
    (select count(*) from outbox)
"""


def back_up(address: str, target: Path) -> dict[str, Any]:
    """Copies the database; returns what the backup says of itself. Blocks.

    Raises:
        StoreError: It cannot be read, or the backup cannot be written.
    """
    make_folder(target)
    return _run(address, lambda db: _back_up(db, target))


async def _back_up(db: Connection, target: Path) -> dict[str, Any]:
    columns: dict[str, list[str]] = {}
    async with db.transaction(isolation="repeatable_read", readonly=True):
        if await db.fetchval("select to_regclass('migration') is null"):
            raise StoreUnavailable("the database has no journal")
        schema = await db.fetchval("select max(version) from migration")
        for table in TABLES:
            columns[table] = await _columns(db, table)
            if columns[table]:
                names = ", ".join(f'"{name}"' for name in columns[table])
                where = str(target / f"{table}.copy")
                await db.copy_from_query(f"select {names} from {table}", output=where, format="binary")
        counts = Counts(*await db.fetchrow(_COUNTS))
        # Last: numbers are given outside of transactions, and these must not be below those in the tables.
        sequences = {name: await db.fetchval(f"select last_value from {name}") for name in SEQUENCES}
    return write_manifest(target, KIND, schema, counts, {"columns": columns, "sequences": sequences})


def restore(backup: Path, address: str) -> dict[str, Any]:
    """Puts a backup into a database without tasks and agents; returns what it says of itself. Blocks.

    Raises:
        StoreError: It is no good backup, or something is there already.
    """
    said = read_manifest(backup, KIND, NEWEST)
    return _run(address, lambda db: _restore(db, backup, said))


async def _restore(db: Connection, backup: Path, said: dict[str, Any]) -> dict[str, Any]:
    await migrate(db)
    async with db.transaction():
        await db.execute(f"lock table {', '.join(TABLES)} in access exclusive mode")
        for table in ("task", "agent", "outbox", "api_key", "context"):
            if await db.fetchval(f"select exists (select 1 from {table})"):
                raise StoreUnavailable(f"the database is not empty (table {table}): restore into a new one")
        await db.execute(f"truncate {', '.join(TABLES)}")
        for table, columns in said["columns"].items():
            if columns:
                where = str(backup / f"{table}.copy")
                await db.copy_to_table(table, source=where, columns=columns, format="binary")
        await db.execute(f"update shard set epoch = epoch + {RAISED}")
        for name, value in said["sequences"].items():
            await db.execute("select setval($1::text::regclass, $2)", name, value + RAISED)
    return said


async def _columns(db: Connection, table: str) -> list[str]:
    found = await db.fetch(
        "select attname from pg_attribute where attrelid = to_regclass($1) and attnum > 0 and not attisdropped"
        " order by attnum",
        table,
    )
    return [name for (name,) in found]


def _run(address: str, work: Any) -> dict[str, Any]:
    async def connected() -> dict[str, Any]:
        try:
            db = await asyncpg.connect(
                address, timeout=CONNECT_SECONDS * 5, server_settings={"application_name": "agent-reach backup"}
            )
            try:
                done: dict[str, Any] = await work(db)
            finally:
                await db.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise translated(error, "PostgreSQL") from error
        return done

    return asyncio.run(connected())
