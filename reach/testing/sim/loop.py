"""Virtual time: a loop that never sleeps, processes on it that can stand still or die, and the threads of a journal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any

from reach.runtime.clock import Clock
from reach.runtime.writer import T, Work, nothing

Callback = Callable[..., object]

WALL_EPOCH_MS = 1_800_000_000_000
"""What the wall clock shows when a simulation begins."""


class Due:
    """Something that is to be done, by a process or by the world (`asyncio.TimerHandle` as far as it is used). One
    object for both, for a history has thousands."""

    __slots__ = ("arguments", "at", "callback", "context", "process")

    def __init__(
        self,
        at: float,
        callback: Callback,
        arguments: tuple[Any, ...],
        process: Process | None = None,
        context: Context | None = None,
    ) -> None:
        self.at = at
        self.callback: Callback | None = callback
        self.arguments = arguments
        self.process = process
        """Whose it is; None: nobody's, and it is done whatever stands still."""
        self.context = context

    def cancel(self) -> None:
        """It is not to be done any more."""
        self.callback = None
        self.arguments = ()

    def cancelled(self) -> bool:
        """See Handle."""
        return self.callback is None

    def when(self) -> float:
        """See TimerHandle."""
        return self.at


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without I/O: where another one would sleep, its clock leaps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """Seconds since the simulation began."""
        self._turn: deque[Due] = deque()
        self._timers: list[tuple[float, int, Due]] = []
        self._number = 0
        self.refusal: Callable[[str], OSError] = lambda host: ConnectionRefusedError()
        """What opening a connection without a word comes to; nothing else is made with sockets here."""

    def time(self) -> float:
        """See `now`."""
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: Context | None = None
    ) -> Due:
        """See AbstractEventLoop."""
        due = Due(self.now, callback, args, None, context)
        self._turn.append(due)
        return due

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> Due:
        """See AbstractEventLoop."""
        return self.wait(Due(self.now + delay, callback, args, None, context))

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: Context | None = None
    ) -> Due:
        """See AbstractEventLoop."""
        return self.wait(Due(when, callback, args, None, context))

    def wait(self, due: Due) -> Due:
        """Does it when its time has come. Of two things for the same moment the one that came first is done first."""
        self._number += 1
        heappush(self._timers, (due.at, self._number, due))
        return due

    def soon(self, due: Due) -> Due:
        """Does it in the next turn."""
        self._turn.append(due)
        return due

    def run_until(self, at: float) -> None:
        """Runs until a time, or until `stop`."""
        timer = self.call_at(at, self.stop)
        self.run_forever()
        timer.cancel()

    def _run_once(self) -> None:
        """One turn: what is ready, with the timers that are due; if there is nothing, the next timer is."""
        timers, turn = self._timers, self._turn
        while timers and timers[0][2].callback is None:
            heappop(timers)
        if not turn:
            if not timers:
                raise RuntimeError("the simulation stands still: nothing is scheduled any more")
            if timers[0][0] > self.now:
                self.now = timers[0][0]
        now = self.now
        while timers and timers[0][0] <= now:
            turn.append(heappop(timers)[2])
        for _ in range(len(turn)):
            due = turn.popleft()
            process = due.process
            if process is not None and (process.dead or now < process.paused_until):
                process.missed(due)
            elif due.callback is not None:
                self._do(due, due.callback)

    def _do(self, due: Due, callback: Callback) -> None:
        try:
            if due.context is None:
                callback(*due.arguments)
            else:
                due.context.run(callback, *due.arguments)
        except Exception as error:  # noqa: BLE001 - as each loop does
            self.call_exception_handler({"message": f"{callback} failed", "exception": error})

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """See AbstractEventLoop, and `refusal`."""
        raise self.refusal(host)

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class Process:
    """The loop as one process has it. What it has to do waits while it stands still, and is lost when it dies."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self.dead = False
        self.paused_until = 0.0
        self._late: list[Due] = []
        self._coroutines: dict[asyncio.Task[Any], None] = {}

    def create_task(self, work: Coroutine[Any, Any, Any], *, name: str | None = None) -> asyncio.Task[Any]:
        """A coroutine that ends with the process."""
        task = self._loop.create_task(work, name=name)
        self.ends(task)
        return task

    def ends(self, task: asyncio.Task[Any]) -> None:
        """A coroutine, of another process too, ends with this one: who called is gone."""
        self._coroutines[task] = None
        task.add_done_callback(lambda done: self._coroutines.pop(done, None))
        if self.dead:
            task.cancel()

    def time(self) -> float:
        """See VirtualLoop."""
        return self._loop.now

    def create_future(self) -> asyncio.Future[Any]:
        """A future of the loop itself, so that its tasks can wait for it."""
        return self._loop.create_future()

    def call_soon(self, callback: Callback, *arguments: Any) -> Due:
        """In the next turn."""
        loop = self._loop
        return loop.soon(Due(loop.now, callback, arguments, self))

    def call_later(self, delay: float, callback: Callback, *arguments: Any) -> Due:
        """After `delay` seconds."""
        loop = self._loop
        return loop.wait(Due(loop.now + delay, callback, arguments, self))

    def call_soon_threadsafe(self, callback: Callback, *arguments: Any) -> Due:
        """From one of its threads: that takes a moment, in which the process can die."""
        return self.call_later(self._random.choice((0.0, 0.0, 0.0005, 0.02)), callback, *arguments)

    def run_in_executor(self, executor: Executor, function: Callback, *arguments: Any) -> asyncio.Future[Any]:
        """See `Reads`."""
        return asyncio.wrap_future(executor.submit(function, *arguments), loop=self._loop)

    def pause(self, seconds: float) -> None:
        """Stands still: a long collection of garbage, SIGSTOP, a machine that swaps."""
        until = self._loop.now + seconds
        if not self.dead and until > self.paused_until:
            self.paused_until = until
            self._loop.call_at(until, self._go_on)

    @property
    def stands_still(self) -> bool:
        """It is paused."""
        return self._loop.now < self.paused_until

    def if_still(self, act: Callback) -> None:
        """Does something that only befalls who stands still."""
        if self.stands_still:
            act()

    def wake(self) -> None:
        """Goes on at once, if it stands still."""
        if self.paused_until:
            self.paused_until = self._loop.now
            self._loop.call_soon(self._go_on)

    def die(self) -> None:
        """Ends at once, with all that it had to do."""
        self.dead = True
        self._late.clear()
        for task in list(self._coroutines):
            task.cancel()

    def missed(self, due: Due) -> None:
        """The time for something came while it stands still, or is dead."""
        if not self.dead:
            self._late.append(due)

    def _go_on(self) -> None:
        if self._loop.now < self.paused_until:
            return
        self.paused_until = 0.0
        late, self._late = self._late, []
        for due in late:
            if self.dead:
                return
            if self._loop.now < self.paused_until:
                self._late.append(due)
            elif due.callback is not None:
                due.callback(*due.arguments)


class VirtualClock(Clock):
    """The clocks of one process. The wall clock leaps when the world says so; the other one never does."""

    def __init__(self, loop: VirtualLoop, random: Random, wall: WallClock) -> None:
        self._loop = loop
        self._random = random
        self._wall = wall
        self._base_ms = random.randrange(1, 1 << 40)

    def now_ms(self) -> int:
        """See Clock."""
        return self._base_ms + int(self._loop.now * 1_000)

    def wall_ms(self) -> int:
        """See Clock."""
        return self._wall.now_ms()

    def seed(self) -> int:
        """See Clock."""
        return self._random.getrandbits(64)

    def new_id(self) -> str:
        """See Clock."""
        return f"{self._random.getrandbits(128):032x}"


class WallClock:
    """The wall clock of the machine: anybody may set it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as it is set now."""
        return WALL_EPOCH_MS + int(self._loop.now * 1_000) + self.ahead_ms


class VirtualWriter:
    """The writer thread of a process (`runtime.writer.Writer`): it does not wait for the loop of its process, and what
    it has not begun when the process dies is never done."""

    def __init__(
        self, loop: VirtualLoop, process: Process, latency: Callable[[], float], on_loop: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._process = process
        self._latency = latency
        self._on_loop = on_loop
        self._work: list[Work] = []

    def now(self) -> float:
        """See Writer."""
        return self._loop.now

    def here(self, rows: int, size_bytes: Callable[[], int]) -> bool:
        """See Writer."""
        return not self._work and self._on_loop()

    def took(self, ms: float, rows: int, *, here: bool) -> None:
        """See Writer."""

    def put(self, work: Callable[[], T], then: Callable[[T], None] = nothing) -> None:
        """See Writer."""
        self._work.append(lambda: then(work()))
        if len(self._work) == 1:
            self._begin()

    def _begin(self) -> None:
        self._loop.call_later(self._latency(), self._do)

    def _do(self) -> None:
        if self._process.dead:
            return
        self._work[0]()
        del self._work[0]
        if self._work:
            self._begin()

    def stop(self) -> None:
        """See Writer. Does at once what is left."""
        while self._work:
            self._work.pop(0)()

    def flush(self) -> None:
        """The process dies in the middle: what was on its way to the disk arrives there, and nobody hears of it."""
        if self._work:
            self._work[0]()


class VirtualReads(Executor):
    """The thread in which a process reads its journal: one read after the other, each takes a while."""

    def __init__(self, loop: VirtualLoop, process: Process, latency: Callable[[], float]) -> None:
        self._loop = loop
        self._process = process
        self._latency = latency
        self._free_at = 0.0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **names: Any) -> Future[Any]:
        """See Executor."""
        future: Future[Any] = Future()
        self._free_at = max(self._free_at, self._loop.now) + self._latency()
        self._loop.call_at(self._free_at, self._read, future, function, arguments)
        return future

    def _read(self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if self._process.dead:
            return
        try:
            result, error = function(*arguments), None
        except Exception as failure:  # noqa: BLE001 - the future carries it, as those of other executors do
            result, error = None, failure
        self._process.call_later(self._latency(), self._tell, future, result, error)

    def _tell(self, future: Future[Any], result: Any, error: Exception | None) -> None:
        if future.cancelled():
            return  # whoever asked has left
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
