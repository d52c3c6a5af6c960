"""PostgreSQL: whether it can be reached and used, and whether it keeps what it has promised."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from reach.doctor.findings import Finding, error, ok, warning
from reach.doctor.machine import schema_finding
from reach.store.base import StoreError
from reach.store.migrations.postgres import ADJACENT, NEWEST
from reach.store.postgres_link import Link

OLDEST: Final = 150_000
"""Version of PostgreSQL, as it says it itself."""
PER_NODE: Final = 6
"""Connections of one node: one writes, three read, one for API keys, one to spare."""
SKEW_SECONDS: Final = 2.0
SLOW_SECONDS: Final = 0.05
_ASK: Final = """
select name, setting from pg_settings where name in ('fsync', 'synchronous_commit', 'full_page_writes',
    'max_connections', 'superuser_reserved_connections', 'server_version_num', 'idle_session_timeout',
    'transaction_timeout', 'default_transaction_read_only')
union all select 'in_recovery', pg_is_in_recovery()::text
union all select 'connections', count(*)::text from pg_stat_activity where backend_type = 'client backend'
union all select 'now', (extract(epoch from clock_timestamp()))::text
union all select 'may_create', has_schema_privilege(current_schema(), 'CREATE')::text
"""


def database(address: str, nodes: int = 1) -> list[Finding]:
    """Looks at the database. Blocks, for some seconds at most.

    Args:
        address: postgres://user@host:port/database.
        nodes: How many nodes use it.
    """
    link = Link(address)
    try:
        said = dict(link.ask(lambda db: db.fetch(_ASK)))
        began = time.perf_counter()
        (there,) = link.ask(lambda db: db.fetchrow("select to_regclass('migration') is not null"))
        took = time.perf_counter() - began
        asked = "select coalesce(max(version), 0) from migration"
        version = int(link.ask(lambda db: db.fetchval(asked))) if there else 0
    except StoreError as failure:
        return [
            error(
                "postgres",
                f"cannot be used: {failure}",
                "nodes keep all tasks there",
                "is it running, does it let this machine in (pg_hba.conf), are user and database right?",
            )
        ]
    finally:
        link.close()
    found = list(judged(said, nodes, time.time()))
    found.append(schema_finding("postgres", "the database", version, NEWEST, NEWEST + ADJACENT))
    if took > SLOW_SECONDS:
        found.append(
            warning(
                "postgres",
                f"a look at it takes {took * 1_000:.0f} ms",
                "each task waits for two commits",
                "put it nearer to the nodes, or give it more",
            )
        )
    return found


def judged(said: Mapping[str, Any], nodes: int, now: float) -> Iterator[Finding]:
    """What the settings of a server mean.

    Args:
        said: Settings by name, as text.
        nodes: How many nodes use it.
        now: This machine's clock, in seconds.
    """
    version = int(said["server_version_num"])
    if version < OLDEST:
        yield error("postgres", f"is version {version // 10_000}", "15 or newer is needed", "upgrade it")
    else:
        yield ok("postgres", f"can be reached, version {version // 10_000}.{version % 10_000}")
    if said["in_recovery"] == "true" or said["default_transaction_read_only"] == "on":
        yield error(
            "postgres", "takes no writes: it is a standby, or read-only", "no task can be accepted",
            "name the primary in storage.url",
        )  # fmt: skip
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if said[name] == "off":
            yield error(
                "postgres", f"{name} is off", "what was acknowledged may be lost when its machine fails",
                f"set {name} = on",
            )  # fmt: skip
    for name in ("idle_session_timeout", "transaction_timeout"):
        if said.get(name, "0") != "0":
            yield warning(
                "postgres", f"{name} is {said[name]} ms", "it ends connections that nodes keep open, or their reads",
                f"set {name} = 0, or for the user of the nodes: alter role … set {name} = 0",
            )  # fmt: skip
    room = int(said["max_connections"]) - int(said["superuser_reserved_connections"]) - int(said["connections"])
    if room < PER_NODE:
        yield warning(
            "postgres", f"{room} of {said['max_connections']} connections are free",
            f"a node needs {PER_NODE}, and comes back with new ones before the old ones are gone",
            f"raise max_connections: {PER_NODE} per node and what others need (nodes: {nodes})",
        )  # fmt: skip
    if said["may_create"] != "true":
        yield error(
            "postgres", "the user may not create tables", "a new version of the program adds some",
            "grant create on schema public to it",
        )  # fmt: skip
    ahead = float(said["now"]) - now
    if abs(ahead) > SKEW_SECONDS:
        yield warning(
            "postgres", f"its clock is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}",
            "times of tasks are its clock's", "let both machines follow a time server (NTP)",
        )  # fmt: skip
