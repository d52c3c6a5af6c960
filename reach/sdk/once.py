"""Attempts of an agent that shares a store of what was done: it is asked before a handler runs, and told before an
outcome leaves."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reach.errors import InvalidRequest, Reason, Unavailable
from reach.sdk.connection import log
from reach.sdk.dedupe import LEASE_S, DedupeStore, Standing
from reach.sdk.outcomes import Key, outcome_content
from reach.sdk.payloads import Fields, Progress
from reach.wire.repeats import content_of

if TYPE_CHECKING:
    from reach.sdk.attempt import Attempt
    from reach.sdk.attempts import Attempts
    from reach.sdk.starts import Start
    from reach.sdk.task import Task

R = TypeVar("R")

LOOK_S: Final = 0.25
"""How often it is looked whether who has a task has done it, or is gone."""
RENEW_S: Final = LEASE_S / 3


class Once:
    """One store and the attempts of one agent. The store is asked in a thread of its own."""

    def __init__(self, attempts: Attempts, store: DedupeStore, owner: str) -> None:
        self._attempts = attempts
        self._store = store
        self._owner = owner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reach-dedupe")
        self._held: dict[Attempt, Key] = {}
        """Attempts that are ours in the store, and their names there."""
        self._works: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    def admits(self, start: Start) -> bool:
        """Whether a handler may run now. False: the store is asked, and the attempt begins later, or is answered."""
        if start[0] in self._held:
            return True
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="reach-dedupe")
        self._own(self._ask(start))
        return False

    def concludes(self, attempt: Attempt, content: bytes, failed: bool | None, is_error: bool,
                  whole: Fields | None) -> bool:  # fmt: skip
        """An attempt came to an end. True: the store hears of it first, and then the server."""
        if attempt not in self._held:
            return False
        name = self._held.pop(attempt)
        attempt.ended = True
        self._own(self._keep(attempt, name, content, failed, is_error, whole))
        return True

    async def close(self) -> None:
        """Lets go of what is not done. The store is its owner's to close."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        if self._works:
            await asyncio.wait(self._works, timeout=LEASE_S)
        for attempt in list(self._held):
            await self._release(attempt)
        self._thread.shutdown(wait=False)

    async def _ask(self, start: Start) -> None:
        attempts, attempt, told = self._attempts, start[0], False
        name = name_of(start[2])
        while not attempt.cancelled and not attempt.ended:
            try:
                found = await self._in_thread(self._store.begin, name, attempt.number, self._owner)
            except Exception as error:  # noqa: BLE001 - whatever a store raises; told and logged
                log.exception("the store of tasks that were done cannot be asked")
                text = f"the store of tasks that were done cannot be asked: {type(error).__name__}"
                attempts.fail(attempt, Unavailable(text))
                return
            if found.standing is Standing.YOURS:
                self._held[attempt] = name
                break
            if found.standing is Standing.DONE:
                attempts.conclude(attempt, found.outcome)
                return
            if found.standing is Standing.STALE:
                attempts.fail(attempt, InvalidRequest("a later attempt has this task", Reason.STALE_ATTEMPT))
                return
            if not told:
                told = True
                attempts.notes.progress(attempt, Progress(note=f"waits for {found.owner}, who has the task"))
            await asyncio.sleep(LOOK_S)
        attempts.begin_late(start)

    async def _keep(self, attempt: Attempt, name: Key, content: bytes, failed: bool | None, is_error: bool,
                    whole: Fields | None) -> None:  # fmt: skip
        try:
            if failed is False and not is_error:
                kept = outcome_content(whole) if whole is not None else content
                await self._in_thread(self._store.done, name, attempt.number, self._owner, kept)
            else:
                await self._in_thread(self._store.release, name, attempt.number, self._owner)
        except Exception:  # noqa: BLE001 - whatever a store raises; the outcome goes out all the same
            log.exception("the store of tasks that were done does not hear of %s", attempt.map_key[1])
        self._attempts.conclude(attempt, content, failed, is_error, whole)

    async def _release(self, attempt: Attempt) -> None:
        name = self._held.pop(attempt)
        await self._in_thread(self._store.release, name, attempt.number, self._owner)

    async def _renew(self) -> None:
        """Says that we live, and lets go of what was cancelled and has ended."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                for attempt in [one for one in self._held if one.ended]:
                    await self._release(attempt)
                if self._held and loop.time() >= due:
                    due = loop.time() + RENEW_S
                    await self._in_thread(self._store.renew, self._owner)
            except Exception:  # noqa: BLE001 - whatever a store raises; tried again
                log.exception("the store of tasks that were done does not hear that we live")

    async def _in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="reach-dedupe")
        self._works.add(task)
        task.add_done_callback(self._works.discard)


def name_of(task: Task) -> Key:
    """The name of a task in the store: its id, and what it asks for. A server that has forgotten a task gives its id to
    another one, which must not get the answer of the first."""
    asked = content_of(task._offer.task.SerializeToString())  # noqa: SLF001 - no business of handlers
    digest = hashlib.sha256(asked).hexdigest()[:16]
    return task.tenant, f"{task.task_id} {digest}"


def once_of(attempts: Attempts, store: DedupeStore, registration: Fields) -> Once:
    """For the attempts of an instance that shares a store."""
    return Once(attempts, store, f"{registration['instance_id']} {registration['boot_id']}")
