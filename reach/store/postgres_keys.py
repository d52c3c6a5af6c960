"""API keys in the PostgreSQL database of a cluster; what keys are is in `key_rules`.

A thread looks twice a second whether a counter has grown, which each change makes grow, and reads all keys if so: what
is made or revoked at one node, or by hand, counts everywhere within 1 s. Callers are answered from memory, also while
the database cannot be reached; then keys that were known go on being honoured, and none can be made or revoked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from reach.errors import ReachError, Reason, ResourceExhausted, Unavailable
from reach.store.base import StoreError, StoreFull
from reach.store.key_rules import COLUMNS, Change, HashedKeys, Keys, keys_of, wall_ms
from reach.store.postgres_link import Link
from reach.store.postgres_schema import LOAD_SECONDS, migrate

LOOK_EVERY_S: Final = 0.5
TRIES: Final = 100
"""How often a change is decided anew because another one was faster."""

_VERSION: Final = "select value from counter where name = 'api_keys'"
_READ: Final = (
    f"select c.value, {COLUMNS} from counter c left join api_key on true where c.name = 'api_keys'"  # one snapshot
)
_CHANGE: Final = (
    "with seen as (update counter set value = value + 1 where name = 'api_keys' and value = $1 returning value),"
    " dropped as (delete from api_key using seen where revoked_ms < $2 or expires_ms < $2),"
    " ended as (update api_key set revoked_ms = $4 from seen where key_id = $3),"
    f" made as (insert into api_key ({COLUMNS}) select $5::text, $6::bytea, $7::text, $8::text, $9::text, $10::bigint,"
    " $11::bigint, $12::bigint from seen where $5::text is not null)"
    " select value from seen"
)
"""One statement, so that no lock is held while a node is stopped. The counter is locked first: changes come one after
the other, and one that was decided from keys that are no more does nothing."""

_log = logging.getLogger(__name__)


class PostgresKeyStore(HashedKeys):
    """The KeyStore in the database at `address`.

    Making, ending and listing keys blocks, and is to be called where no event loop runs.

    Args:
        address: postgres://user:password@host:port/database.
        now_ms: The wall clock.

    Raises:
        Unavailable: It cannot be reached, or is not fit; the message says why.
    """

    def __init__(self, address: str, *, now_ms: Callable[[], int] = wall_ms) -> None:
        super().__init__(now_ms)
        self._link = Link(address)
        self._version = -1
        self._looking = threading.Lock()
        self._closing = threading.Event()
        self._opened = threading.Event()
        self._failure: StoreError | None = None
        # In the thread, for an event loop may run here.
        self._thread = threading.Thread(target=self._run, name="reach-keys", daemon=True)
        self._thread.start()
        self._wait_opened()

    def _wait_opened(self) -> None:
        self._opened.wait()
        if self._failure is not None:
            self._thread.join()
            raise _told(self._failure) from self._failure

    def close(self) -> None:
        """See KeyStore."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._link.ask(migrate, LOAD_SECONDS)
            self._look()
        except StoreError as error:
            self._failure = error
            self._closing.set()
        finally:
            self._opened.set()
        reached = True
        while not self._closing.wait(LOOK_EVERY_S):
            try:
                self._look()
                reached = True
            except StoreError as error:
                if reached:
                    _log.warning("API keys could not be read again; the ones known before hold",
                                 extra={"error": str(error)})  # fmt: skip
                reached = False
        self._link.close()

    def _look(self) -> None:
        """Reads all keys again if the counter has grown."""
        with self._looking:
            if self._link.ask(lambda db: db.fetchval(_VERSION)) != self._version:
                self._read()

    def _read(self) -> None:
        rows = self._link.ask(lambda db: db.fetch(_READ))
        self._keys = keys_of(row[1:] for row in rows if row[1] is not None)
        self._version = rows[0][0]

    def _refresh(self) -> None:
        try:
            self._look()
        except StoreError as error:
            raise _told(error) from error

    def _refresh_if_due(self) -> None:
        """The thread does it."""

    def _change(self, decide: Callable[[Keys], Change]) -> None:
        try:
            with self._looking:
                for _ in range(TRIES):
                    self._read()
                    change = decide(self._keys)
                    if change == Change():
                        return
                    ends, at = change.end or (None, None)
                    make = change.make or (None,) * 8
                    values = (self._version, change.drop_ended_before, ends, at, *make)
                    if self._link.ask(lambda db, values=values: db.fetchval(_CHANGE, *values)) is not None:  # type: ignore[misc]
                        self._read()
                        return
        except StoreError as error:
            raise _told(error) from error
        raise Unavailable("API keys change all the time; try again", Reason.STORE_UNAVAILABLE)


def _told(error: StoreError) -> ReachError:
    if isinstance(error, StoreFull):
        return ResourceExhausted("no space for API keys", Reason.STORE_FULL)
    return Unavailable(f"API keys cannot be read or written: {error}", Reason.STORE_UNAVAILABLE)
