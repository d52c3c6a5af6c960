"""The client for programs without asyncio.

>>> with SyncClient() as client:
...     print(client.call("task.process", "some text", agent_type="summarizer"))
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Self, TypeVar, Unpack

from reach.core.model import TaskState
from reach.sdk.answers import Event, Result, TaskInfo, TextPiece
from reach.sdk.channel import AddressLike, ForkGuard, TlsLike
from reach.sdk.client import Client
from reach.sdk.handle import TaskHandle
from reach.sdk.showing import KeyLike
from reach.sdk.specs import TaskOptions

T = TypeVar("T")


class SyncTaskHandle:
    """A task that was accepted. As `TaskHandle`."""

    __slots__ = ("_client", "_handle", "deduplicated", "state", "task_id", "warnings")

    def __init__(self, client: SyncClient, handle: TaskHandle) -> None:
        self._client = client
        self._handle = handle
        self.task_id = handle.task_id
        self.state = handle.state
        self.deduplicated = handle.deduplicated
        self.warnings = handle.warnings

    def __repr__(self) -> str:
        return repr(self._handle)

    def result(self, timeout: float | None = None) -> Result:
        """Waits until it ends."""
        return self._client.wait_for_result(self.task_id, timeout)

    def cancel(self, reason: str = "") -> TaskState:
        """Cancels it."""
        return self._client.cancel(self.task_id, reason)


class SyncClient:
    """`Client` without asyncio: the same arguments and methods, but they block. Any number of threads may share one.

    It runs a loop in a thread of its own, from the first call until `close`.
    """

    def __init__(
        self,
        addr: AddressLike = None,
        *,
        api_key: KeyLike = None,
        tls: TlsLike = None,
        app_id: str = "",
        source: str = "",
        connect_timeout: float = 10.0,
        reconnect_timeout: float | None = 60.0,
    ) -> None:
        self._client = Client(
            addr,
            api_key=api_key,
            tls=tls,
            app_id=app_id,
            source=source,
            connect_timeout=connect_timeout,
            reconnect_timeout=reconnect_timeout,
        )
        self._fork = ForkGuard()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The server."""
        return self._client.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream and the thread. What waits gets Unavailable."""
        self._fork.check("SyncClient")
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._client.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def send(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_timeout: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Result:
        """As `Client.send`."""
        return self._run(
            self._client.send(method, payload, timeout=timeout, cancel_on_timeout=cancel_on_timeout, **options)
        )

    def call(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_timeout: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """As `Client.call`."""
        return self._run(
            self._client.call(method, payload, timeout=timeout, cancel_on_timeout=cancel_on_timeout, **options)
        )

    def submit(
        self, method: str = "", payload: Any = None, *, timeout: float | None = None, **options: Unpack[TaskOptions]
    ) -> SyncTaskHandle:
        """As `Client.submit`."""
        return SyncTaskHandle(self, self._run(self._client.submit(method, payload, timeout=timeout, **options)))

    def stream(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_exit: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Iterator[Event]:
        """As `Client.stream`."""
        return self._iterate(
            self._client.stream(method, payload, timeout=timeout, cancel_on_exit=cancel_on_exit, **options)
        )

    def stream_text(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_exit: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Iterator[TextPiece]:
        """As `Client.stream_text`."""
        return self._iterate(
            self._client.stream_text(method, payload, timeout=timeout, cancel_on_exit=cancel_on_exit, **options)
        )

    def follow(self, task_id: str, *, after_sequence: int = 0, timeout: float | None = None) -> Iterator[Event]:
        """As `Client.follow`."""
        return self._iterate(self._client.follow(task_id, after_sequence=after_sequence, timeout=timeout))

    def wait_for_result(self, task_id: str, timeout: float | None = None) -> Result:
        """As `Client.wait_for_result`."""
        return self._run(self._client.wait_for_result(task_id, timeout))

    def cancel(self, task_id: str, reason: str = "", *, timeout: float | None = None) -> TaskState:
        """As `Client.cancel`."""
        return self._run(self._client.cancel(task_id, reason, timeout=timeout))

    def get_task(self, task_id: str, *, timeout: float = 10.0) -> TaskInfo:
        """As `Client.get_task`."""
        return self._run(self._client.get_task(task_id, timeout=timeout))

    def send_input(
        self, task_id: str, value: Any = None, *, question: str = "", input_id: str = "", timeout: float = 10.0
    ) -> TaskState:
        """As `Client.send_input`."""
        return self._run(self._client.send_input(task_id, value, question=question, input_id=input_id, timeout=timeout))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._ready_loop())
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while we wait: nobody waits for the answer any more
            raise

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        try:
            while True:
                try:
                    yield self._run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                self._run(close())

    def _ready_loop(self) -> asyncio.AbstractEventLoop:
        self._fork.check("SyncClient")
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="reach-sdk-sync-client", daemon=True
                )
                self._thread.start()
            return self._loop


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
