"""Calls wake hooks: a command, or a webhook (HLT-14). Both come from the configuration, so they are trusted.

A hook gets the id of the wake, the same for repeated tries, and should do nothing if it has seen it. At most 8 run at a
time, each with a time limit; others wait their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import NamedTuple

from reach.core.effects import Wake
from reach.core.events import WakeAnswered
from reach.core.model import PoolKey
from reach.runtime.outgoing import opener

log = logging.getLogger(__name__)

AT_ONCE = 8
ERROR_CHARACTERS = 200


class WakeHook(NamedTuple):
    """How to wake a pool: exactly one of command and URL."""

    command: tuple[str, ...] = ()
    url: str = ""
    timeout_s: float = 10.0


class WakeHooks:
    """The hooks of all pools. Owns the tasks in which they run."""

    def __init__(self, hooks: Mapping[PoolKey, WakeHook], answer: Callable[[PoolKey, WakeAnswered], None]) -> None:
        self._hooks = hooks
        self._answer = answer
        self._free = asyncio.Semaphore(AT_ONCE)
        self._running: set[asyncio.Task[None]] = set()

    def wake(self, effect: Wake) -> None:
        """Calls the hook of a pool; its outcome comes as an event."""
        task = asyncio.get_running_loop().create_task(self._run(effect), name=f"wake-{effect.pool.agent_type}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Ends the hooks that run."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, effect: Wake) -> None:
        hook = self._hooks[effect.pool]
        wake_id = f"{effect.pool.tenant}/{effect.pool.agent_type}/{effect.number}"
        facts = {
            "wake_id": wake_id,
            "tenant": effect.pool.tenant,
            "agent_type": effect.pool.agent_type,
            "waiting": effect.waiting,
        }
        async with self._free:
            try:
                async with asyncio.timeout(hook.timeout_s):
                    error = await (self._command(hook, facts) if hook.command else self._webhook(hook, facts))
            except TimeoutError:
                error = f"not done within {hook.timeout_s:g} s"
            except OSError as failure:
                error = str(failure)[:ERROR_CHARACTERS]
        log.info("a wake hook was called", extra={"wake_id": wake_id, "error": error})
        self._answer(effect.pool, WakeAnswered(effect.number, error))

    async def _command(self, hook: WakeHook, facts: Mapping[str, object]) -> str:
        environment = {f"AGENT_REACH_{name.upper()}": str(value) for name, value in facts.items()}
        nothing = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *hook.command, stdin=nothing, stdout=nothing, stderr=nothing, env={**os.environ, **environment}
        )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return f"the command ended with code {code}" if code else ""

    async def _webhook(self, hook: WakeHook, facts: Mapping[str, object]) -> str:
        return await asyncio.to_thread(_post, hook.url, json.dumps(facts).encode(), hook.timeout_s)


def _post(url: str, body: bytes, timeout_s: float) -> str:
    # The configuration allows http and https only.
    request = urllib.request.Request(url, body, {"content-type": "application/json"}, method="POST")  # noqa: S310
    try:
        with opener().open(request, timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as answer:
        return f"the webhook answered {answer.code}"
    except urllib.error.URLError as failure:
        return f"the webhook cannot be reached: {failure.reason}"[:ERROR_CHARACTERS]
