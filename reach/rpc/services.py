"""What all servicers share: the door, the readers of requests, and the pump of a bidirectional stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from agentreach.v1 import dispatch_pb2
from reach.core.model import Fault, Task, TaskKey
from reach.errors import ErrorClass, ReachError, Reason, ResourceExhausted, error_of
from reach.rpc.known_nodes import KnownNodes
from reach.rpc.principal import credentials_ended, principal_of
from reach.runtime.clock import Clock
from reach.runtime.reach_api import Reach
from reach.runtime.standing import NodeStanding
from reach.telemetry.metrics import Metrics
from reach.telemetry.tracing import Tracing, parse_traceparent
from reach.transports.dialler import Dialler
from reach.wire.batcher import FRAME_BYTES, Batcher
from reach.wire.requests import PROTOCOL_VERSIONS, TaskReader
from reach.wire.streamed import StreamedReader

if TYPE_CHECKING:
    from reach.rpc.peers import Peers
    from reach.runtime.elsewhere import Elsewhere

S = TypeVar("S")

NO_TRACE = ""
FEATURES = ("replay", "folded", "credits", "ping")
"""Optional parts of the protocol that this server understands."""
CLOSE_SECONDS = 5.0
"""How long a stream that ends may take to say what is left to say."""
RECHECK_SECONDS = 30.0
"""How often calls that stay open ask whether their key still opens them."""


def error_of_fault(fault: Fault) -> ReachError:
    """A fault as an exception, for the end of a call."""
    return error_of(
        fault.error_class,
        fault.reason,
        fault.message,
        retry_after_ms=fault.retry_after_ms,
        metadata=fault.metadata,
    )


class Services:
    """See the module."""

    def __init__(
        self, reach: Reach, tasks: TaskReader, tracing: Tracing, metrics: Metrics, standing: NodeStanding | None = None
    ) -> None:
        self.reach = reach
        self.standing = standing or NodeStanding(reach.host, reach)
        self.host = reach.host
        self.tasks = tasks
        self.streamed = StreamedReader(tasks)
        self.tracing = tracing
        self.metrics = metrics
        self.clock: Clock = reach.host.clock
        self.node_id = reach.node_id
        self.dialler: Dialler | None = None
        """Dials agents that want that."""
        self.peers: Peers | None = None
        """The other nodes; None on a node that is alone."""
        self.nodes = KnownNodes()
        self._streams: set[tuple[Batcher, Callable[[Batcher], None]]] = set()
        self._waiting: WeakSet[Any] = WeakSet()

    def welcome(self) -> dispatch_pb2.StreamWelcome:
        """The first of a stream, down: what the server is and allows."""
        return dispatch_pb2.StreamWelcome(
            protocol_version=PROTOCOL_VERSIONS[-1],
            features=FEATURES,
            node_id=self.node_id,
            payload_limit=self.tasks.limits.payload,
            frame_limit=FRAME_BYTES,
        )

    def too_many(self, limit: int) -> ResourceExhausted:
        """A stream holds as much as it may."""
        message = f"this stream holds {limit} open items, which is the limit"
        return ResourceExhausted(message, Reason.RATE_LIMITED, retry_after_ms=1_000)

    def begin_trace(self, task: Task, traceparent: str) -> None:
        """Gives a task its trace if that is recorded; unsampled tasks cost a comparison, repeats keep the first."""
        if not self.tracing.records:
            return
        trace = parse_traceparent(traceparent) if traceparent else self.tracing.root()
        if trace is None or not trace.sampled:
            return
        if task.key in self.host.tasks:
            return
        durability = "volatile" if task.volatile else "durable"
        task.trace = self.tracing.dispatch_started(task.key, trace, durability=durability)

    def end_trace(self, key: TaskKey) -> None:
        """A task is brought to another node, which gives it a trace of its own."""
        if self.tracing.records:
            self.tracing.dispatch_ended(key, "superseded")

    async def pump(
        self,
        context: Any,
        out: Batcher,
        handle: Callable[[Any], None],
        close: Callable[[], None],
        closing: Callable[[Batcher], None],
        finish: Callable[[], bytes] | None = None,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Reads frames and writes frames until the peer leaves, the stream errs, or the server stops.

        Args:
            context: The call.
            out: What is to be written.
            handle: Takes a frame of the peer; an error ends the stream with its status.
            close: Called once, however it ends.
            closing: Adds to `out` what tells the peer that the server is about to end the stream.
            finish: Called for each frame just before it is written; what it returns is added.
            settle: Awaited when the peer half-closes: returns when all that it still waits for is in `out`.
        """
        let_go = self.hold(out, closing)
        principal = principal_of(context)
        writer = asyncio.create_task(self._write(context, out, finish), name="stream-writer")
        reader = asyncio.create_task(self._read(context, out, handle, settle), name="stream-reader")
        both = {writer, reader}
        unread = 0
        try:
            while not (await asyncio.wait(both, timeout=RECHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
                if not principal.still_valid():
                    raise credentials_ended()
                if out.overrun and out.queued_bytes == unread:
                    break  # it does not read at all
                unread = out.queued_bytes
            if reader.done():
                reader.result()  # raises what ends the stream
            close()
            await asyncio.wait({writer}, timeout=CLOSE_SECONDS)  # then the peer does not read: the rest is lost with it
            if writer.done():
                writer.result()
        finally:
            let_go()
            close()
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if out.overrun:
            raise ResourceExhausted("the peer left too much unread", Reason.RATE_LIMITED, retry_after_ms=1_000)

    async def _read(
        self,
        context: Any,
        out: Batcher,
        handle: Callable[[Any], None],
        settle: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """Ends when the peer has said all, or nothing can be answered any more."""
        async for frame in context_frames(context):
            handle(frame)
            if out.closed:
                return
        if settle is not None:
            await settle()

    async def _write(self, context: Any, out: Batcher, finish: Callable[[], bytes] | None) -> None:
        """Ends when the stream is closed and everything is said."""
        while (frame := await out.take()) is not None:
            await context.write(frame + finish() if finish is not None else frame)

    def hold(self, out: Batcher, closing: Callable[[Batcher], None]) -> Callable[[], None]:
        """Says `closing` on a stream when the server stops, unless what is returned was called before."""
        entry = (out, closing)
        self._streams.add(entry)
        return lambda: self._streams.discard(entry)

    async def bring(self, where: Elsewhere, method: str, request: Any) -> bytes:
        """Makes a short call at the node that has to do it, for whoever is being served. Raises ReachError."""
        assert self.peers is not None
        return await self.peers.bring(where, method, request, principal_of(None))

    def until_stopped(self, sink: S) -> S:
        """The sink of a call that waits: when the server stops first, it is refused."""
        self._waiting.add(sink)
        return sink

    def close_streams(self) -> int:
        """Tells all peers that the server stops; returns how many there were."""
        for out, closing in list(self._streams):
            closing(out)
            out.close()
        stopping = Fault(ErrorClass.UNAVAILABLE, Reason.SHUTTING_DOWN, "the server is shutting down", None, 1_000)
        for sink in list(self._waiting):
            sink.refused(None, stopping)
        return len(self._streams)


async def context_frames(context: Any) -> Any:
    """The frames of a bidirectional call, until the peer half-closes."""
    import grpc

    while True:
        frame = await context.read()
        if frame is grpc.aio.EOF:
            return
        yield frame
