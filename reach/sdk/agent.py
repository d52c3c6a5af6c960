"""Agents: functions that take tasks.

    >>> agent = Agent("greeter", capabilities=["greeting"])
    >>> @agent.route()
    ... async def greet(task):
    ...     return f"Hello, {task.text}!"

`agent.run()` then joins Agent-Reach and works until SIGTERM.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import signal
import socket
import string
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import uvloop

from agentreach.v1 import agent_pb2
from reach.core.instance_states import Availability
from reach.errors import InvalidRequest, Reason, Unavailable
from reach.sdk.attempt import Attempt
from reach.sdk.capabilities import CapabilityLike, capability_fields
from reach.sdk.channel import AddressLike, ForkGuard, Target, TlsLike
from reach.sdk.draining import AnyLink, drain
from reach.sdk.encoding import output_outcome
from reach.sdk.figures import Figures, duration
from reach.sdk.handlers import DEFAULT_METHOD, Function, Handler
from reach.sdk.handoffs import Handoffs, SessionHooks
from reach.sdk.link import Link
from reach.sdk.outcomes import Outcome
from reach.sdk.payloads import Fields
from reach.sdk.showing import KeyLike
from reach.version import VERSION

if TYPE_CHECKING:
    from reach.sdk.dedupe import DedupeStore
    from reach.sdk.endpoint import Listen

log = logging.getLogger("reach.sdk")

GRACE_S: Final = 30.0
"""How long handlers that run may take after the agent was told to stop."""
_SUFFIX: Final = string.ascii_lowercase + string.digits

F = TypeVar("F", bound=Callable[..., Any])


class Agent(SessionHooks):
    """An agent: a name, what it can do, and handlers.

    Args:
        agent_id: The logical agent; several instances may share it.
        agent_type: The pool it belongs to; empty: the agent_id.
        capabilities: What it can do: names, dicts or `Capability`.
        tags: Tags for selectors.
        addr: `host:port`, or several nodes, as `a:8900,b:8900` or a list; None: AGENT_REACH_ADDR, else 127.0.0.1:8900.
        api_key: A key or token, or a function that gives the one of now. None: AGENT_REACH_API_KEY, else what is in
            the file that AGENT_REACH_API_KEY_FILE names.
        tls: A `Tls`, the path of a CA file, or True for the authorities of the system.
        instance_id: None: `{agent_id}@{host}#{6 random}`, so that copies on one host are told apart.
        version: Its version; a grown one is a canary.
        heartbeat_interval: Seconds between beats, 1 to 60; the server may ask for another.
        max_concurrency: Tasks at once, and threads for handlers that block; None: twice the number of cores.
        heartbeat_status: Called before each beat, must not block: fields to add, such as `{"memory_watermark": 0.7}`.
        dedupe: What was done, shared by instances: `SqliteDedupe` or `PostgresDedupe`. None: each remembers its own.
        listen: `host:port`, or a `Listen`: serves there and is dialled, in place of dialling Agent-Reach.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        agent_type: str = "",
        capabilities: Iterable[CapabilityLike] = (),
        tags: Iterable[str] = (),
        addr: AddressLike = None,
        api_key: KeyLike = None,
        tls: TlsLike = None,
        instance_id: str | None = None,
        version: str = "",
        heartbeat_interval: float = 5.0,
        max_concurrency: int | None = None,
        max_sessions: int | None = None,
        weight: int | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        languages: Iterable[str] = (),
        input_media_types: Iterable[str] = (),
        output_media_types: Iterable[str] = (),
        region: str = "",
        heartbeat_status: Callable[[], dict[str, Any]] | None = None,
        listen: str | Listen | None = None,
        dedupe: DedupeStore | None = None,
    ) -> None:
        host = socket.gethostname()
        self.agent_id = agent_id
        self.instance_id = instance_id or f"{agent_id}@{host}#{''.join(random.choices(_SUFFIX, k=6))}"
        if max_concurrency is None:
            max_concurrency = 2 * (os.cpu_count() or 1)
        if max_concurrency < 1:
            raise InvalidRequest(f"max_concurrency must be 1 or more, not {max_concurrency}")
        self._target = Target(addr, api_key, tls)
        self._registration: Fields = {
            "agent_id": agent_id,
            "agent_type": agent_type,
            "instance_id": self.instance_id,
            "boot_id": os.urandom(16).hex(),
            "capabilities": [capability_fields(item) for item in capabilities],
            "tags": list(tags),
            "labels": dict(labels or {}),
            "max_concurrency": max_concurrency,
            "version": version,
            "languages": list(languages),
            "input_media_types": list(input_media_types),
            "output_media_types": list(output_media_types),
            "region": region,
            "heartbeat_interval": duration(heartbeat_interval),
            "host": host,
            "features": ["ping"],
            "sdk": f"python {VERSION}",
        }
        optional = {"weight": weight, "priority": priority, "max_sessions": max_sessions}
        self._registration.update({name: value for name, value in optional.items() if value is not None})
        try:
            agent_pb2.Registration(**self._registration)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"a part of the agent has a value that cannot be sent: {error}") from error
        self._heartbeat_interval = heartbeat_interval
        self._heartbeat_status = heartbeat_status
        self._listen = listen
        self._handlers: dict[str, Handler] = {}
        self._handoffs = Handoffs()
        self._dedupe = dedupe
        self._figures = Figures(max_concurrency)
        self._fork = ForkGuard()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: tuple[AnyLink, asyncio.Task[None], asyncio.Event] | None = None
        self._grace_s = GRACE_S

    def route(
        self, method: str = DEFAULT_METHOD, *, expected_latency: float | None = None, concurrency: int | None = None
    ) -> Callable[[F], F]:
        """A decorator: the function handles tasks of this method. The handler `default` takes all that no other takes.

        The function gets a `Task`. It may be `def` (runs in a thread), `async def`, or either with `yield` (each piece
        is streamed). It returns or yields text, bytes, what JSON can say, `Answer`, `Delta`, `Progress`, or None; or
        raises an error of `reach`, above all `AgentError` for "cannot be done".
        """

        def add(function: F) -> F:
            self.add_handler(function, method, expected_latency=expected_latency, concurrency=concurrency)
            return function

        return add

    def add_handler(
        self,
        function: Function,
        method: str = DEFAULT_METHOD,
        *,
        expected_latency: float | None = None,
        concurrency: int | None = None,
    ) -> None:
        """`route` without a decorator. Raises TypeError if the function does not take exactly one task."""
        try:
            inspect.signature(function).bind(None)
        except ValueError:
            pass  # built in: it has no signature to look at
        except TypeError as error:
            raise TypeError(f"a handler takes one argument, the task; {function!r} does not: {error}") from error
        self._handlers[method] = Handler(method, function, expected_latency, concurrency)

    @property
    def ready(self) -> bool:
        """Whether it can take work. Set it to False while it cannot: it gets no tasks, but stays."""
        return self._figures.ready

    @ready.setter
    def ready(self, value: bool) -> None:
        self._figures.ready = bool(value)
        self._changed()

    def busy(self, longest_task: float | None = None) -> None:
        """Says that long work is at hand, and how many seconds its longest task may take: silence is borne longer."""
        self._figures.availability = Availability.BUSY
        self._figures.longest_task = longest_task
        self._changed()

    def available(self) -> None:
        """Takes `busy` back."""
        self._figures.availability = Availability.READY
        self._figures.longest_task = None
        self._changed()

    @property
    def generation(self) -> int:
        """The number that the server gave this process; 0 before it has taken us in."""
        return self._running[0].generation if self._running is not None else 0

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains: takes nothing new, finishes what runs (30 s), gives back the
        rest, says goodbye. A second signal ends that at once. Raises the error of a server that does not take us in."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def serve(self) -> None:
        """Works until it is cancelled (what runs is given back at once) or `stop` is called (drains first)."""
        _, runner, stop = await self._start(beating=True)
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({stopped, runner}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._grace_s = 0.0
            raise
        finally:
            stopped.cancel()
            await self._shut_down()

    def stop(self, grace: float | None = None) -> None:
        """Ends `serve` or `run`, soon, after the handlers that run; those that take longer than `grace` seconds (30)
        are cancelled and their tasks given back. From any thread."""
        if grace is not None:
            self._grace_s = grace
        loop, running = self._loop, self._running
        if loop is not None and running is not None and not loop.is_closed():
            loop.call_soon_threadsafe(running[2].set)

    async def __aenter__(self) -> Self:
        await self._start(beating=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._shut_down()

    async def register(self, timeout: float | None = None) -> int:
        """Joins, and returns when the server has taken us in: with our generation. Tasks may come from then on. Raises
        the refusal, or Unavailable if `timeout` seconds pass without an answer."""
        link, runner, _ = await self._start(beating=False)
        welcomed = asyncio.ensure_future(link.welcomed.wait())
        try:
            await asyncio.wait({welcomed, runner}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            welcomed.cancel()
        if runner.done():
            await self._shut_down()
        if not link.welcomed.is_set():
            raise Unavailable(f"Agent-Reach at {self._target.address} did not answer", Reason.OWNER_UNAVAILABLE)
        return link.generation

    def start_heartbeat(self) -> None:
        """Beats from now on. Only after `register`; `run`, `serve` and `async with` do it by themselves."""
        self._running_link().start_beating()

    async def report_result(self, task_id: str, attempt: int, output: Any, *, tenant: str = "") -> None:
        """Says what an attempt came to before its handler returns, or without one, and returns when the server has it
        for certain. What the handler returns later is not heard."""
        link = self._running_link()
        running = link.attempts.running.get((tenant, task_id))
        if running is not None and running.number == attempt:
            link.attempts.finish_early(running, output)
        else:
            content, _ = output_outcome(output)
            link.outcomes.add(Outcome((tenant, task_id), attempt, content), time.monotonic())
        await link.outcomes.committed((tenant, task_id), attempt)

    async def begin_effect(self, task_id: str, attempt: int, effect: str, *, tenant: str = "") -> None:
        """`Task.begin_effect` from outside of the handler."""
        await self._running_link().attempts.effects.begin(self._attempt(task_id, attempt, tenant), effect)

    async def checkpoint(self, task_id: str, attempt: int, data: bytes, *, tenant: str = "") -> None:
        """`Task.save_checkpoint` from outside of the handler."""
        notes = self._running_link().attempts.notes
        notes.check_checkpoint(data)
        notes.save_checkpoint(self._attempt(task_id, attempt, tenant), data)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        asked = 0

        def on_signal() -> None:
            nonlocal asked
            asked += 1
            if asked == 1:
                log.info("%s finishes what it has", self.instance_id)
                self.stop()
            else:
                self.stop(grace=0.0)
                if self._running is not None:
                    self._running[0].attempts.idle.set()

        signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        for number in signals:
            loop.add_signal_handler(number, on_signal)
        try:
            await self.serve()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def _start(self, beating: bool) -> tuple[AnyLink, asyncio.Task[None], asyncio.Event]:
        self._fork.check("Agent")
        self._target.check_unforked()
        loop = asyncio.get_running_loop()
        if self._running is None:
            if not self._handlers:
                raise InvalidRequest(f"agent {self.agent_id!r} has no handler: decorate a function with @agent.route()")
            link = self._make_link()
            runner = loop.create_task(link.run(), name="reach-sdk-agent")
            self._loop = loop
            self._running = (link, runner, asyncio.Event())
        elif self._loop is not loop:
            raise RuntimeError("this agent runs on another loop already")
        if beating:
            self._running[0].start_beating()
        return self._running

    def _make_link(self) -> AnyLink:
        parts = (self._target, self._registration, self._handlers, self._figures)
        own = self._heartbeat_interval, self._heartbeat_status
        link: AnyLink
        if self._listen is None:
            link = Link(*parts, *own)
        else:
            from reach.sdk.endpoint import EndpointLink, Listen  # most agents dial, and start sooner without it

            link = EndpointLink(*parts, Listen(self._listen) if isinstance(self._listen, str) else self._listen)
        link.attempts.handoffs = self._handoffs if self._handoffs.are_wanted else None
        if self._dedupe is not None:
            from reach.sdk.once import once_of  # as above

            link.attempts.once = once_of(link.attempts, self._dedupe, self._registration)
        return link

    async def _shut_down(self) -> None:
        """Drains and ends. Raises what ended the link, if it ended by itself."""
        if self._running is None:
            return
        link, runner, _ = self._running
        try:
            if not runner.done():
                await drain(link, runner, lambda: self._grace_s)
        finally:
            runner.cancel()
            await asyncio.wait({runner})
            link.attempts.release("the agent ended")
            if link.attempts.once is not None:
                await link.attempts.once.close()
            self._running = self._loop = None
            self._grace_s = GRACE_S
        if not runner.cancelled() and (error := runner.exception()) is not None:
            raise error

    def _changed(self) -> None:
        if self._running is not None:
            link = self._running[0]
            link.attempts.call(link.beat)

    def _running_link(self) -> AnyLink:
        self._fork.check("Agent")
        if self._running is None:
            raise RuntimeError("the agent does not run; await agent.register() first")
        return self._running[0]

    def _attempt(self, task_id: str, attempt: int, tenant: str) -> Attempt:
        running = self._running_link().attempts.running.get((tenant, task_id))
        if running is None or running.number != attempt:
            raise InvalidRequest(f"attempt {attempt} of task {task_id!r} does not run here", Reason.UNKNOWN_ATTEMPT)
        return running
