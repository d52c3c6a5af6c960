"""A server that does what a test says: it takes agents' and callers' streams, keeps what comes, and sends what it is
told.

It knows nothing of tasks. Each stream is an object of its own (`agent()`, `caller()` wait for the next one), so that a
test can tell the stream before a reconnect from the one after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from agentreach.v1 import (
    attach_pb2,
    attach_pb2_grpc,
    dispatch_pb2,
    dispatch_pb2_grpc,
    heartbeat_pb2,
    heartbeat_pb2_grpc,
)
from reach.errors import ReachError
from reach.wire.status import error_to_proto, status_of

UP = 1 << 20


class Stream:
    """One stream: what came, item by item, and the way down."""

    def __init__(self, response: type[Any]) -> None:
        self.frames: list[Any] = []
        self.came = asyncio.Event()
        self.closed = asyncio.Event()
        """The client has ended it, or it broke."""
        self.down: asyncio.Queue[Any] = asyncio.Queue()
        self._response = response
        self.metadata: dict[str, Any] = {}

    def items(self, name: str) -> list[Any]:
        """All items of a kind that came so far."""
        return [item for frame in self.frames for item in getattr(frame, name)]

    async def until(self, condition: Callable[[], Any], timeout: float = 15.0) -> Any:
        """Waits until the condition holds; returns what it gave."""
        end = asyncio.get_running_loop().time() + timeout
        while not (value := condition()):
            self.came.clear()
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                raise AssertionError(f"did not come: {self.frames[-5:]}")
            try:
                await asyncio.wait_for(self.came.wait(), left)
            except TimeoutError:
                continue
        return value

    async def wait(self, name: str, count: int = 1, timeout: float = 15.0) -> list[Any]:
        """Waits until so many items of a kind came; returns all of the kind."""
        return await self.until(lambda: len(found := self.items(name)) >= count and found, timeout)  # type: ignore[no-any-return]

    def send(self, **fields: Any) -> None:
        """Sends a frame."""
        self.down.put_nowait(self._response(**fields))

    def end(self, error: ReachError | None = None) -> None:
        """Ends the stream, well or with an error."""
        self.down.put_nowait(error)


class AgentStream(Stream):
    """An agent's stream. Unless told otherwise it welcomes each hello."""

    def __init__(self) -> None:
        super().__init__(attach_pb2.AttachResponse)
        self.sequence = 0
        self.hellos = 0

    def send(self, **fields: Any) -> None:
        self.sequence += 1
        super().send(sequence=self.sequence, **fields)

    def offer(self, task_id: str, payload: Any = "", attempt: int = 1, method: str = "", **fields: Any) -> None:
        """Offers a task."""
        content = {"text": payload} if isinstance(payload, str) else {"data": payload}
        task = {"task_id": task_id, "method": method, "payload": content, **fields.pop("task", {})}
        self.send(offers=[{"link": 1, "attempt": attempt, "fencing_token": attempt, "task": task, **fields}])

    async def settle(self) -> None:
        """Returns when the agent has handled all that was sent to it, and what it says to that has come."""
        nonce = len(self.items("pongs")) + 1
        self.send(pings=[{"link": 1, "nonce": nonce}])
        await self.wait("pongs", nonce)

    def acknowledge(self, *results: Any) -> None:
        """Outcomes are committed."""
        self.send(acknowledgements=[result.key for result in results])

    async def result(self, task_id: str, timeout: float = 15.0) -> Any:
        """Waits for the outcome of a task; acknowledges it."""
        results = await self.until(lambda: [r for r in self.items("results") if r.key.task_id == task_id], timeout)
        self.acknowledge(results[-1])
        return results[-1]


class CallerStream(Stream):
    """A caller's stream."""

    def __init__(self) -> None:
        super().__init__(dispatch_pb2.DispatchStreamResponse)

    def complete(self, task_id: str, output: Any = "", sequence: int = 3, **fields: Any) -> None:
        """The task ended."""
        content = {"text": output} if isinstance(output, str) else output
        result = {"task_id": task_id, "state": 5, "output": content, "attempts": 1, **fields}
        self.send(events=[{"task_id": task_id, "sequence": sequence, "attempt": 1, "complete": result}])

    def delta(self, task_id: str, sequence: int, text: str, attempt: int = 1, **fields: Any) -> None:
        """A piece of the answer."""
        delta = {"mode": 1, "payload": {"text": text}, **fields}
        self.send(events=[{"task_id": task_id, "sequence": sequence, "attempt": attempt, "delta": delta}])


class FakeServer:
    """The server. `refuse`: ends each new stream at once with this error. `welcome`: LinkWelcome fields for hellos;
    None: hellos are left to the test."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.refuse: ReachError | None = None
        self.link_welcome: Callable[[Any], dict[str, Any]] | None = lambda _hello: {"generation": 7}
        self.welcome: dict[str, Any] = {"payload_limit": 4 << 20, "protocol_version": "1"}
        self.beats: list[heartbeat_pb2.Beat] = []
        self.get_task: Callable[[str], Any] = lambda _task_id: None
        self.open = 0
        self.opened = 0
        self._agents: asyncio.Queue[AgentStream] = asyncio.Queue()
        self._callers: asyncio.Queue[CallerStream] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        options = [("grpc.so_reuseport", 0), ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000)]
        options.append(("grpc.max_receive_message_length", 5 << 20))
        self._server = grpc.aio.server(options=options)
        attach_pb2_grpc.add_AgentServiceServicer_to_server(_Agents(self), self._server)
        dispatch_pb2_grpc.add_DispatchServiceServicer_to_server(_Callers(self), self._server)
        heartbeat_pb2_grpc.add_HeartbeatServiceServicer_to_server(_Beats(self), self._server)
        self.port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Breaks all connections, as a crash does."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def agent(self, timeout: float = 15.0) -> AgentStream:
        """The next stream of an agent."""
        return await asyncio.wait_for(self._agents.get(), timeout)

    async def caller(self, timeout: float = 15.0) -> CallerStream:
        """The next stream of a caller."""
        return await asyncio.wait_for(self._callers.get(), timeout)

    async def serve(self, stream: Stream, frames: Any, context: Any) -> AsyncIterator[Any]:
        """Carries one stream until one side ends it."""
        self.opened += 1
        if self.refuse is not None:
            await context.abort_with_status(status_of(self.refuse))
        stream.metadata = dict(context.invocation_metadata())
        queue: asyncio.Queue[Any] = self._agents if isinstance(stream, AgentStream) else self._callers
        queue.put_nowait(stream)
        reader = asyncio.create_task(self._read(stream, frames))
        self.open += 1
        try:
            while (frame := await stream.down.get()) is not None:
                if isinstance(frame, ReachError):
                    await context.abort_with_status(status_of(frame))
                yield frame
        finally:
            self.open -= 1
            reader.cancel()
            stream.closed.set()

    async def _read(self, stream: Stream, frames: Any) -> None:
        async for frame in frames:
            stream.frames.append(frame)
            if isinstance(stream, AgentStream):
                self._answer_hellos(stream, frame)
            elif frame.HasField("opening"):
                stream.send(welcome=self.welcome)
            stream.came.set()
        stream.down.put_nowait(None)

    def _answer_hellos(self, stream: AgentStream, frame: Any) -> None:
        if frame.HasField("opening"):
            stream.send(welcome=self.welcome)
        for hello in frame.hellos:
            stream.hellos += 1
            if self.link_welcome is not None:
                stream.send(links=[{"link": hello.link, **self.link_welcome(hello)}])


class _Agents(attach_pb2_grpc.AgentServiceServicer):
    def __init__(self, server: FakeServer) -> None:
        self.server = server

    async def Attach(self, request_iterator: Any, context: Any) -> Any:
        async for frame in self.server.serve(AgentStream(), request_iterator, context):
            yield frame


class _Callers(dispatch_pb2_grpc.DispatchServiceServicer):
    def __init__(self, server: FakeServer) -> None:
        self.server = server

    async def DispatchStream(self, request_iterator: Any, context: Any) -> Any:
        async for frame in self.server.serve(CallerStream(), request_iterator, context):
            yield frame

    async def Dispatch(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    async def Run(self, request: Any, context: Any) -> Any:
        raise NotImplementedError
        yield

    ListTasks = WaitForResult = CancelTask = SendInput = PreviewRoute = Dispatch

    async def GetTask(self, request: Any, context: Any) -> Any:
        answer = self.server.get_task(request.task_id)
        if isinstance(answer, ReachError):
            await context.abort_with_status(status_of(answer))
        return dispatch_pb2.GetTaskResponse(task=answer)


class _Beats(heartbeat_pb2_grpc.HeartbeatServiceServicer):
    def __init__(self, server: FakeServer) -> None:
        self.server = server

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        self.server.beats.append(request.beat)
        return heartbeat_pb2.HeartbeatResponse()

    async def StreamHeartbeats(self, request_iterator: Any, context: Any) -> Any:
        raise NotImplementedError
        yield


def refusal(error: ReachError, **fields: Any) -> dict[str, Any]:
    """Fields of a refusal of an item."""
    return {"error": error_to_proto(error), **fields}
