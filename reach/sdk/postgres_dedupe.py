"""What agents of several hosts share of what was done: a PostgreSQL database (see `dedupe`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from reach.errors import InvalidRequest, Reason, Unavailable
from reach.sdk.dedupe import LEASE_S, SWEEP_EVERY, Found, Standing
from reach.store.base import StoreBroken, StoreError, StoreUnavailable
from reach.store.postgres_link import Link

TRIES: Final = 10
"""How often a task is looked at again that changes hands just then."""
OPEN_S: Final = 30.0
_MAKING: Final = 0x52454144
"""Number of the advisory lock: agents may start at once."""

_SCHEMA: Final = """
create table if not exists reach_dedupe_task (
    tenant text,
    task_id text,
    token bigint not null,
    owner text not null,
    done boolean not null,
    changed double precision not null,   -- seconds since the epoch
    outcome bytea,
    primary key (tenant, task_id)
);
create index if not exists reach_dedupe_task_by_change on reach_dedupe_task (done, changed);
create table if not exists reach_dedupe_owner (owner text primary key, alive_until double precision not null);
"""

# The clock of the database, which all hosts share; tests have their own. One statement may look at it a little later
# than another that comes after it, hence a lease is believed for up to twice its length.
_NOW: Final = "coalesce($1::double precision, extract(epoch from clock_timestamp())::double precision)"
_LIVES: Final = (
    # Who began is seen by the row itself: the statement may not see yet what was written of its owner with it.
    f"(abs(t.changed - {_NOW}) < {LEASE_S} or exists (select 1 from reach_dedupe_owner o where o.owner = t.owner"
    f" and {_NOW} < o.alive_until and o.alive_until <= {_NOW} + {2 * LEASE_S}))"
)
_RENEW: Final = (
    f"insert into reach_dedupe_owner (owner, alive_until) values ($2, {_NOW} + {LEASE_S})"
    " on conflict (owner) do update set alive_until = excluded.alive_until"
)
_BEGIN: Final = (
    f"with alive as ({_RENEW})"
    " insert into reach_dedupe_task as t (tenant, task_id, token, owner, done, changed)"
    f" values ($3, $4, $5, $2, false, {_NOW}) on conflict (tenant, task_id) do update"
    " set token = excluded.token, owner = excluded.owner, changed = excluded.changed"
    " where not t.done and excluded.token >= t.token"
    f" and ((t.token, t.owner) = (excluded.token, excluded.owner) or not {_LIVES}) returning 1"
)
_LOOK: Final = "select token, owner, done, outcome from reach_dedupe_task where tenant = $1 and task_id = $2"
# Sent again over a new connection, it finds its own outcome.
_DONE: Final = (
    f"update reach_dedupe_task set done = true, changed = {_NOW}, outcome = $6"
    " where tenant = $2 and task_id = $3 and token = $4 and owner = $5 and (not done or outcome = $6) returning 1"
)
_RELEASE: Final = (
    "delete from reach_dedupe_task where tenant = $1 and task_id = $2 and token = $3 and owner = $4 and not done"
)
_SWEEP: Final = (
    f"with old as (delete from reach_dedupe_owner where alive_until < {_NOW} - $2::double precision),"
    " kept as (select tenant, task_id, row_number() over latest as place,"
    " sum(coalesce(octet_length(outcome), 0)) over latest as size from reach_dedupe_task where done"
    " window latest as (order by changed desc, tenant, task_id rows unbounded preceding))"
    f" delete from reach_dedupe_task t where t.changed < {_NOW} - $2::double precision or (t.done and exists"
    " (select 1 from kept k where k.tenant = t.tenant and k.task_id = t.task_id and (k.place > $3 or k.size > $4)))"
)


class PostgresDedupe:
    """A store in a PostgreSQL database (15 or newer), for the instances of several hosts. It makes its tables, whose
    names begin with `reach_dedupe_`. Ages and leases go by the clock of the database.

    Args:
        address: postgres://user:password@host:port/database.
        retention: Seconds that outcomes are kept.
        most_tasks: Outcomes that are kept, the latest ones.
        most_bytes: What they may take.
        clock: Seconds since the epoch, instead of the clock of the database.

    Raises:
        InvalidRequest: The address, the password or the rights are not right; the message says what.
        Unavailable: The database cannot be reached, now or at any later call.
    """

    def __init__(
        self,
        address: str,
        *,
        retention: float = 86_400.0,
        most_tasks: int = 100_000,
        most_bytes: int = 1 << 30,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._bounds = (retention, most_tasks, most_bytes)
        self._clock = clock
        self._begun = 0
        self._link = Link(address)
        try:
            self._link.ask(_make, OPEN_S)
        except (StoreError, ValueError) as error:
            self._link.close()
            if isinstance(error, StoreUnavailable):
                raise _told(error) from error
            raise InvalidRequest(f"the database cannot be the store of what was done: {error}") from error

    def _now(self) -> float | None:
        return self._clock() if self._clock is not None else None

    def _ask(self, text: str, *values: Any) -> Any:
        try:
            return self._link.ask(lambda db: db.fetchrow(text, *values))
        except StoreError as error:
            raise _told(error) from error

    def begin(self, key: tuple[str, str], token: int, owner: str) -> Found:
        """See `DedupeStore`."""
        self._begun += 1
        if self._begun % SWEEP_EVERY == 0:
            with contextlib.suppress(Unavailable):
                self._ask(_SWEEP, self._now(), *self._bounds)
        for _ in range(TRIES):
            if self._ask(_BEGIN, self._now(), owner, *key, token) is not None:
                return Found(Standing.YOURS)
            row = self._ask(_LOOK, *key)
            if row is None:
                continue
            had, holder, done, outcome = row
            if done:
                return Found(Standing.DONE, outcome, holder)
            return Found(Standing.STALE if token < had else Standing.ELSEWHERE, owner=holder)
        raise Unavailable("the task keeps changing hands", Reason.STORE_UNAVAILABLE)

    def renew(self, owner: str) -> None:
        """See `DedupeStore`."""
        self._ask(_RENEW, self._now(), owner)

    def done(self, key: tuple[str, str], token: int, owner: str, outcome: bytes) -> bool:
        """See `DedupeStore`."""
        return self._ask(_DONE, self._now(), *key, token, owner, outcome) is not None

    def release(self, key: tuple[str, str], token: int, owner: str) -> None:
        """See `DedupeStore`."""
        self._ask(_RELEASE, *key, token, owner)

    def close(self) -> None:
        """See `DedupeStore`."""
        self._link.close()


async def _make(db: Any) -> None:
    async with db.transaction():
        await db.execute("select pg_advisory_xact_lock($1)", _MAKING)
        await db.execute(_SCHEMA)


def _told(error: StoreError) -> Unavailable | InvalidRequest:
    if isinstance(error, StoreBroken):
        return InvalidRequest(f"the store of what was done cannot be used: {error}")
    return Unavailable(f"the store of what was done cannot be reached: {error}", Reason.STORE_UNAVAILABLE)
