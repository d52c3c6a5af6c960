"""One connection to PostgreSQL for callers that block: with an event loop of its own, which runs only while somebody
waits for an answer, in the thread that waits. That saves the hand-over to another thread and back for each commit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import asyncpg

from reach.store.base import StoreBroken, StoreError, StoreFull, StoreUnavailable

T = TypeVar("T")
Connection = Any
"""asyncpg.Connection, or its proxy; the library has no types."""

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 3.0
"""Three times what the server gives a statement: after that the connection is dead."""
STATEMENTS: Final = 256
"""Prepared ones that are kept."""
SETTINGS: Final = {
    "application_name": "agent-reach",
    "statement_timeout": "1000",
    "idle_in_transaction_session_timeout": "1000",
    "jit": "off",
    # Tables are empty when statements are planned first, and plans are kept.
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "read committed",
}


def translated(error: BaseException, what: str) -> StoreError:
    """What an error of asyncpg means to a journal."""
    state = getattr(error, "sqlstate", None) or ""
    text = f"{what}: {type(error).__name__}: {error}"
    if state == "53100":
        return StoreFull(text)
    if state in ("28P01", "28000"):
        return StoreBroken(f"{what}: {error}. Give user and password in the address, or let the server's pg_hba.conf"
                           " admit this machine")  # fmt: skip
    if state == "3D000":
        return StoreBroken(f"{what}: {error}. Create it (createdb), or name another one at the end of the address")
    if state == "42501":
        return StoreBroken(f"{what}: {error}. The user needs the right to create tables in its schema")
    if not state or state[:2] in ("08", "25", "40", "53", "55", "57", "58") or state == "XX000":
        return StoreUnavailable(text)
    return StoreBroken(text)


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Link:
    """A connection that is made when it is needed, and again when it is lost. From any thread, one at a time, but never
    from a thread whose event loop runs.

    Args:
        address: postgres://user:password@host:port/database.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._closed = False

    def ask(self, work: Callable[[Connection], Awaitable[T]], seconds: float = ANSWER_SECONDS) -> T:
        """What `work` comes to. It is done twice if the connection turns out to be dead, so it must bear that.

        Raises:
            StoreError: the outcome is unknown, or refused. What PostgreSQL refuses in the rows themselves
                (`asyncpg.DataError`, `asyncpg.UniqueViolationError`) comes as it is.
        """
        if _on_a_loop():
            raise RuntimeError("the journal blocks: it is not to be called where an event loop runs")
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the journal is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(self._twice(work, seconds))

    async def _twice(self, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        fresh = self._connection is None
        try:
            return await self._once(work, seconds)
        except StoreUnavailable:
            if fresh or self._connection is not None:
                raise
            return await self._once(work, seconds)

    async def _once(self, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        try:
            connection = self._connection
            if connection is None or connection.is_closed():
                self._connection = None
                connection = self._connection = await asyncpg.connect(
                    self._address, timeout=CONNECT_SECONDS, statement_cache_size=STATEMENTS, server_settings=SETTINGS,
                    max_cached_statement_lifetime=0,
                )  # fmt: skip
            async with asyncio.timeout(seconds):
                return await work(connection)
        except (asyncpg.DataError, asyncpg.UniqueViolationError, asyncpg.UntranslatableCharacterError):
            raise
        # The internal error is what asyncpg says if a server goes away between two messages: found by the restart test.
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError,
                TimeoutError) as error:  # fmt: skip
            failure = translated(error, "PostgreSQL")
            state = getattr(error, "sqlstate", None) or ""
            # A statement that took too long (57014) costs no connection.
            if not state or (state[:2] in ("08", "57", "25") and state != "57014"):
                self._drop()
            raise failure from error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.terminate()

    def close(self) -> None:
        """Ends the connection. The link may be opened again."""
        with self._lock:
            self._closed = True
            self._drop()
            if self._loop is not None:
                self._loop.run_until_complete(asyncio.sleep(0))
                self._loop.close()
                self._loop = None

    def reopen(self) -> None:
        """It may be used again."""
        with self._lock:
            self._closed = False
