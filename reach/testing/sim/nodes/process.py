"""Processes whose coroutines belong to them: what stands still or dies takes its coroutines along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from random import Random
from typing import Any

from reach.testing.sim.loop import Callback, Due, Process, VirtualLoop

_set_running = asyncio._set_running_loop  # noqa: SLF001 - code of a process asks for the loop that it runs on


class NodesLoop(VirtualLoop):
    """The world's loop. What a process does, it does with itself as the running loop."""

    def _do(self, due: Due, callback: Callback) -> None:
        process = due.process
        if process is None:
            super()._do(due, callback)
            return
        _set_running(process)  # type: ignore[arg-type]
        try:
            super()._do(due, callback)
        finally:
            _set_running(self)

    def as_process(self, process: Process, act: Callable[[], None]) -> None:
        """Does something at once that a process does."""
        before = asyncio._get_running_loop()  # noqa: SLF001
        try:
            self._do(Due(self.now, act, (), process), act)
        finally:
            _set_running(before)


class NodeProcess(Process):
    """A process that is an event loop (`asyncio.AbstractEventLoop`), as far as asyncio itself and our code ask for."""

    def __init__(self, loop: NodesLoop, random: Random, name: str) -> None:
        super().__init__(loop, random)
        self.name = name
        self.random = random
        self._world = loop
        self._undone: list[Due] = []
        """What it had to do when it had died: for its burial."""
        self._buried = False

    def call_soon(self, callback: Callback, *arguments: Any, context: Context | None = None) -> Due:
        """See AbstractEventLoop."""
        return self._world.soon(Due(self._world.now, callback, arguments, self, context))

    def call_later(self, delay: float, callback: Callback, *arguments: Any, context: Context | None = None) -> Due:
        """See AbstractEventLoop."""
        return self._world.wait(Due(self._world.now + delay, callback, arguments, self, context))

    def call_at(self, when: float, callback: Callback, *arguments: Any, context: Context | None = None) -> Due:
        """See AbstractEventLoop."""
        return self._world.wait(Due(when, callback, arguments, self, context))

    def call_soon_threadsafe(self, callback: Callback, *arguments: Any, context: Context | None = None) -> Due:
        """See Process."""
        delay = self._random.choice((0.0, 0.0, 0.0005, 0.02))
        return self.call_later(delay, callback, *arguments, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """See AbstractEventLoop."""
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(
        self, work: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """See AbstractEventLoop."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=self, name=name, context=context)  # type: ignore[arg-type]
        self._coroutines[task] = None
        task.add_done_callback(lambda done: self._coroutines.pop(done, None))
        if self._buried:
            task.cancel()  # what ends may begin something new
        return task

    def run_in_executor(self, executor: Executor, function: Callback, *arguments: Any) -> asyncio.Future[Any]:
        """See AbstractEventLoop."""
        return asyncio.wrap_future(executor.submit(function, *arguments), loop=self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        """See AbstractEventLoop."""
        return False

    def is_closed(self) -> bool:
        """See AbstractEventLoop."""
        return False

    def is_running(self) -> bool:
        """See AbstractEventLoop."""
        return True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See AbstractEventLoop."""
        self._world.call_exception_handler(context)

    def die(self) -> None:
        """Ends at once. Its coroutines are left as they stand, and never go on."""
        self.dead = True
        self._undone, self._late = [*self._undone, *self._late], []

    def missed(self, due: Due) -> None:
        """See Process."""
        (self._undone if self.dead else self._late).append(due)

    def bury(self) -> None:
        """When nobody looks any more: lets all its coroutines end, so that none is torn off where it stands."""
        self._buried = True
        self.dead = False
        self.paused_until = 0.0
        undone, self._undone = [*self._undone, *self._late], []
        for due in undone:
            if due.callback is not None and not isinstance(due.callback, type(self.bury)):
                self.call_soon(due.callback, *due.arguments, context=due.context)
        for task in list(self._coroutines):
            task.cancel()

    def _go_on(self) -> None:
        if self._world.now < self.paused_until:
            return
        self.paused_until = 0.0
        late, self._late = self._late, []
        for due in late:
            if self.dead:
                self._undone.append(due)
            elif self._world.now < self.paused_until:
                self._late.append(due)
            elif due.callback is not None:
                self._world._do(due, due.callback)  # noqa: SLF001
