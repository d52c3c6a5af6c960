"""Brings the schema of a PostgreSQL database up to date, for the journal and for the API keys."""

from __future__ import annotations

import asyncio
from typing import Final

from reach.store.base import StoreBroken, StoreUnavailable
from reach.store.migrations.postgres import ADJACENT, MIGRATIONS, NEWEST
from reach.store.postgres_link import Connection

LOAD_SECONDS: Final = 60.0
"""How long a migration, or reading all that is open, may take."""
_PATIENT: Final = "set local idle_in_transaction_session_timeout = 30000; set local statement_timeout = 30000"
"""With the bounds of all other transactions, nodes on a busy machine did not start."""
_MIGRATING: Final = 0x52454143
"""Number of the advisory lock: nodes may start at once."""


async def migrate(db: Connection) -> None:
    """Makes tables and changes them. Of nodes that start at once, one does it and the others wait.

    Raises:
        StoreBroken: the schema is of a later version.
        StoreUnavailable: another node is at it for too long.
    """
    for _ in range(100):
        async with db.transaction():
            await db.execute(_PATIENT)
            if await db.fetchval("select pg_try_advisory_xact_lock($1)", _MIGRATING):
                await db.execute(
                    "create table if not exists migration (version integer primary key,"
                    " applied timestamptz not null default now())"
                )
                version = await db.fetchval("select coalesce(max(version), 0) from migration")
                if version > NEWEST + ADJACENT:
                    raise StoreBroken(
                        f"the database has schema version {version}, this program knows up to {NEWEST}: start an"
                        f" Agent-Reach that knows version {version}, or name another database"
                    )
                for number, statements in MIGRATIONS:
                    if number > version:
                        await db.execute("set local statement_timeout = 0")
                        await db.execute(statements)
                        await db.execute("insert into migration (version) values ($1)", number)
                return
        await asyncio.sleep(0.1)
    raise StoreUnavailable("another node has been migrating the database for too long")
