"""gRPC between nodes, and from nodes to etcd, as far as their code uses it: channels and calls over roads.

The code on both ends is the real one, and bytes travel. A connection is given up when pings are not answered, when the
process at the other end dies, or when somebody closes it; each end learns of it in its own time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import grpc

from reach.testing.sim.calls import failure_of
from reach.testing.sim.loop import Due
from reach.testing.sim.nodes.process import NodeProcess
from reach.testing.sim.nodes.roads import Lane

if TYPE_CHECKING:
    from reach.testing.sim.nodes.channels import Servers

_C = grpc.StatusCode
PINGS_S = 4.0
"""A node notices after so long that another one does not answer (2 s between pings, 2 s for the answer)."""
SERVER_PINGS_S = 15.0

Handler = Callable[["ServerCall"], Coroutine[Any, Any, None]]


class Line:
    """One connection between a client's process and a server's."""

    def __init__(
        self, servers: Servers, client: NodeProcess, server: NodeProcess, handlers: dict[str, Handler]
    ) -> None:
        self._servers = servers
        self._roads = servers.roads
        self.client = client
        self.server = server
        self._handlers = handlers
        self.up = Lane(self._roads, client.name, server, self._served)
        self.down = Lane(self._roads, server.name, client, self._answered)
        self.broken = False
        self._calls: dict[ClientCall, None] = {}
        self._served_calls: dict[ClientCall, ServerCall] = {}
        self._answered_at = self._asked_at = self._roads.loop.now
        servers.lines[self] = None
        self._roads.watched[self] = self._look

    def _look(self) -> None:
        """Pings, from both ends."""
        now = self._roads.loop.now
        both = self.up.open and self.down.open
        if both and not self.server.stands_still and not self.server.dead:
            self._answered_at = now
        if both and not self.client.stands_still and not self.client.dead:
            self._asked_at = now
        if now > self._answered_at + PINGS_S and not self.client.stands_still:
            self.lost_by_client("keepalive watchdog timeout")
        if now > self._asked_at + SERVER_PINGS_S and not self.server.stands_still:
            self._lost_by_server()

    def begin(self, call: ClientCall) -> None:
        """The client calls."""
        self._calls[call] = None
        self.up.put(("begin", call, call.request))

    def hang_up(self, call: ClientCall) -> None:
        """The client ends a call."""
        if self._calls.pop(call, self) is None:
            self.up.put(("end", call, None))

    def say(self, call: ClientCall, message: bytes) -> None:
        """The client says something."""
        self.up.put(("more", call, message))

    def _served(self, item: tuple[str, ClientCall, Any]) -> None:
        kind, call, message = item
        if kind == "begin":
            if call.over and self._roads.random.random() < 0.5:
                return  # it never left
            handler = self._handlers[call.method]
            served = self._served_calls[call] = ServerCall(self, call, message)
            served.task = self.server.create_task(served.run(handler), name=f"serve {call.method}")
        elif kind == "end":
            self._cancel(call)
        elif (known := self._served_calls.get(call)) is not None:
            known.heard(message)

    def _cancel(self, call: ClientCall) -> None:
        served = self._served_calls.pop(call, None)
        if served is not None and served.task is not None:
            served.task.cancel()

    def answer(self, call: ClientCall, message: bytes) -> None:
        """The server says something."""
        self.down.put((call, message))

    def finish(self, call: ClientCall, failure: grpc.aio.AioRpcError | None) -> None:
        """The server ends a call."""
        if self._served_calls.pop(call, None) is not None:
            self.down.put((call, failure))

    def _answered(self, item: tuple[ClientCall, Any]) -> None:
        call, said = item
        if isinstance(said, bytes):
            call.heard(said)
        else:
            self._calls.pop(call, None)
            call.ended(said)

    # -- its end ------------------------------------------------------------------------------------------------------

    def died(self, process: NodeProcess) -> None:
        """A process at one of its ends is gone; its machine says so."""
        later = self._roads.loop.call_later
        if process is self.server:
            self.up.cut = True
            if self.down.open:
                later(self._roads.delay(), self.client.call_soon, self.lost_by_client, "Connection reset by peer")
        elif process is self.client:
            self.down.cut = True
            self._forget()
            if self.up.open:
                later(self._roads.delay(), self.server.call_soon, self._lost_by_server)

    def lost_by_client(self, why: str) -> None:
        """The client gives it up, or learns that it is gone."""
        if self.broken:
            return
        self._forget()
        self.down.cut = True
        calls, self._calls = self._calls, {}
        for call in calls:
            call.ended(failure_of(_C.UNAVAILABLE, why))
        if self.up.open and not self.up.cut:
            self._roads.loop.call_later(self._roads.delay(), self.server.call_soon, self._lost_by_server)
        # Where the way is blocked, the server hears nothing of it until its own pings are not answered.

    def _lost_by_server(self) -> None:
        self.up.cut = True
        for call in list(self._served_calls):
            self._cancel(call)
        if self.broken:
            self._roads.watched.pop(self, None)
        elif self.client.dead:
            self._forget()
        else:
            self.down.put = lambda item: None  # type: ignore[method-assign]
            self._roads.loop.call_later(self._roads.delay(), self.client.call_soon, self.lost_by_client, "GOAWAY")

    def _forget(self) -> None:
        self.broken = True
        self._servers.lines.pop(self, None)
        if not self._served_calls:
            self._roads.watched.pop(self, None)


class ClientCall:
    """One call, as its client has it (`grpc.aio.Call`)."""

    def __init__(
        self, process: NodeProcess, method: str, request: bytes | None, parse: Any, timeout: float | None, metadata: Any
    ) -> None:
        self._process = process
        self.method = method
        self.request = request
        self.metadata = tuple(metadata)
        self._parse = parse
        self.line: Line | None = None
        self.over = False
        self._cancelled = False
        self._failure: grpc.aio.AioRpcError | None = None
        self._answers: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: Due | None = None
        if timeout is not None:
            self._timer = process.call_later(max(0.0, timeout), self._late)

    def _late(self) -> None:
        if not self.over:
            if self.line is not None:
                self.line.hang_up(self)
            self.ended(failure_of(_C.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    async def read(self) -> Any:
        """The next answer; EOF at a good end."""
        while True:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._answers:
                answer = self._answers.popleft()
                return self._parse(answer) if self._parse is not None else answer
            if self._failure is not None:
                raise self._failure
            if self.over:
                return grpc.aio.EOF
            waiter = self._waiter = self._process.create_future()
            await waiter

    async def write(self, message: Any) -> None:
        """Says something."""
        if self._cancelled:
            raise asyncio.CancelledError
        if self._failure is not None:
            raise self._failure
        if self.over or self.line is None:
            raise asyncio.InvalidStateError("the call is over")
        self.line.say(self, message if isinstance(message, bytes) else message.SerializeToString())

    def cancel(self) -> bool:
        """Hangs up."""
        if self.over:
            return False
        self._cancelled = True
        if self.line is not None:
            self.line.hang_up(self)
        self._end()
        return True

    def cancelled(self) -> bool:
        """Whether we hung up."""
        return self._cancelled

    def heard(self, answer: bytes) -> None:
        """An answer came."""
        if not self.over:
            self._answers.append(answer)
            self._wake()

    def ended(self, failure: grpc.aio.AioRpcError | None) -> None:
        """It is over."""
        if not self.over:
            self._failure = failure
            self._end()

    def _end(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def code(self) -> grpc.StatusCode:
        """See grpc.aio.Call."""
        return self._failure.code() if self._failure is not None else _C.OK

    async def details(self) -> str:
        """See grpc.aio.Call."""
        return (self._failure.details() or "") if self._failure is not None else ""

    async def initial_metadata(self) -> Any:
        """See grpc.aio.Call."""
        return grpc.aio.Metadata()

    async def trailing_metadata(self) -> Any:
        """See grpc.aio.Call."""
        return self._failure.trailing_metadata() if self._failure is not None else grpc.aio.Metadata()


class ServerCall:
    """One call, as its server has it (`grpc.aio.ServicerContext`)."""

    def __init__(self, line: Line, call: ClientCall, request: bytes | None) -> None:
        self._line = line
        self._call = call
        self.request = request or b""
        self.client = line.client.name
        self.parse: Any = None
        """Of what the client says."""
        self.task: asyncio.Task[None] | None = None
        self._heard: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.metadata = call.metadata

    async def run(self, handler: Handler) -> None:
        """Serves it to its end."""
        failure: grpc.aio.AioRpcError | None = None
        try:
            await handler(self)
        except grpc.aio.AioRpcError as error:
            failure = error
        self._line.finish(self._call, failure)

    def heard(self, message: bytes) -> None:
        """The client says something."""
        self._heard.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> Any:
        """The next message of the client."""
        while not self._heard:
            self._waiter = self._line.server.create_future()
            await self._waiter
        message = self._heard.popleft()
        return self.parse(message) if self.parse is not None else message

    async def write(self, message: Any) -> None:
        """Answers."""
        self._line.answer(self._call, message if isinstance(message, bytes) else message.SerializeToString())

    def invocation_metadata(self) -> Any:
        """See grpc.aio.ServicerContext."""
        return self.metadata

    def time_remaining(self) -> float | None:
        """See grpc.aio.ServicerContext."""
        return None
