"""Peers by hand: agents and callers made of nothing but the generated stubs, as somebody without an SDK writes them."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentreach.v1 import (
    attach_pb2,
    attach_pb2_grpc,
    dispatch_pb2,
    dispatch_pb2_grpc,
    error_pb2,
    heartbeat_pb2_grpc,
    ops_pb2_grpc,
    registry_pb2_grpc,
    result_pb2_grpc,
    session_pb2_grpc,
)
from reach.config import load
from reach.node import Node
from tests import contract_text
from tests.rpc.outside import InTurn, addresses, heard

pb: Any = SimpleNamespace(
    **{
        name: value
        for module in contract_text.modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "DESCRIPTOR"
    }
)
"""All messages and values of the contract by name, without their types: here they are made of plain dicts."""
TIMEOUT = 20.0
"""Longest wait for anything; generous, because the machine may be busy."""
MIB = 1 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", 16 * MIB),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)
Metadata = Sequence[tuple[str, str]]
_numbers = itertools.count(1)


def unique(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_numbers)}"


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Node]:
    """A node in this process; `settings` are fields of the configuration, with `__` for the dot."""
    if addresses():
        pytest.skip("no public test: it has a node of its own")
    fields: dict[str, Any] = {
        "server.port": 0,
        "server.admin_port": 0,
        "server.drain_seconds": 1,
        "storage.type": "memory",
        "storage.path": str(folder),
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    made = Node(load(None, {"HOME": str(folder)}, fields))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


class Stubs:
    """The stubs of all services, on a channel for each address. They send `metadata` with nothing; calls bring their
    own."""

    def __init__(self, at: int | Sequence[str], options: Sequence[tuple[str, Any]] = ()) -> None:
        addresses = [f"127.0.0.1:{at}"] if isinstance(at, int) else at
        options = [*OPTIONS, *options]
        self.channels = [grpc.aio.insecure_channel(address, options=options) for address in addresses]
        self.agent = self._in_turn(attach_pb2_grpc.AgentServiceStub)
        self.dispatch = self._in_turn(dispatch_pb2_grpc.DispatchServiceStub)
        self.heartbeat = self._in_turn(heartbeat_pb2_grpc.HeartbeatServiceStub)
        self.ops = self._in_turn(ops_pb2_grpc.OpsServiceStub)
        self.registry = self._in_turn(registry_pb2_grpc.RegistryServiceStub)
        self.result = self._in_turn(result_pb2_grpc.ResultServiceStub)
        self.session = self._in_turn(session_pb2_grpc.SessionServiceStub)
        self.health = self._in_turn(health_pb2_grpc.HealthStub)

    def _in_turn(self, stub: Any) -> Any:
        stubs = [stub(channel) for channel in self.channels]
        return stubs[0] if len(stubs) == 1 else InTurn(stubs)

    @property
    def channel(self) -> grpc.aio.Channel:
        """Any of them."""
        return self.channels[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self.channels:
            await channel.close()


class Ended(Exception):
    """A stream ended while a test waited for something on it."""


class Stream:
    """One bidirectional stream: a task reads it, and sorts what comes by kind of item."""

    request: type
    kinds: tuple[str, ...]

    def __init__(self, call: Any) -> None:
        self.call = call
        self.frames: list[Any] = []
        self.seen: dict[str, list[Any]] = defaultdict(list)
        """Everything that came, by kind."""
        self._taken: dict[str, int] = defaultdict(int)
        self._news = asyncio.Event()
        self._over = False
        self._reading = asyncio.create_task(self._read(), name="stub-reader")

    async def _read(self) -> None:
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                self.frames.append(frame)
                for kind in self.kinds:
                    self.seen[kind].extend(getattr(frame, kind))
                self._news.set()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            self._over = True
            self._news.set()

    async def send(self, **items: Any) -> None:
        """Writes one frame."""
        await self.call.write(self.request(**items))

    async def next(self, kind: str) -> Any:
        """The next item of a kind."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.seen[kind]) <= self._taken[kind]:
                if self._over:
                    raise Ended(f"no {kind}: {await self.call.code()} {await self.call.details()}")
                self._news.clear()
                await self._news.wait()
        item = self.seen[kind][self._taken[kind]]
        self._taken[kind] += 1
        return item

    async def until(self, condition: Any) -> None:
        """Waits until something that depends on frames holds."""
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                if self._over:
                    raise Ended(f"{await self.call.code()} {await self.call.details()}")
                self._news.clear()
                await self._news.wait()

    async def first_frame(self) -> Any:
        """The frame with the welcome."""
        await self.until(lambda: self.frames)
        return self.frames[0]

    async def half_close(self) -> None:
        """Says that nothing more will be sent."""
        await self.call.done_writing()

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        """Waits for the end: code, and reason (empty if there is none)."""
        async with asyncio.timeout(TIMEOUT):
            await asyncio.wait({self._reading})
            return await self.call.code(), reason_in(await self.call.trailing_metadata())

    async def close(self) -> None:
        """Leaves, as a process that ends does."""
        self.call.cancel()
        await asyncio.wait({self._reading})


class AgentByHand(Stream):
    """An agent on an Attach stream. Link 1 is the one that `join` opens."""

    request = attach_pb2.AttachRequest
    kinds = (
        "links",
        "refusals",
        "offers",
        "cancels",
        "acknowledgements",
        "credits",
        "grants",
        "drains",
        "pings",
        "handoffs",
    )

    def __init__(self, stubs: Stubs, metadata: Metadata = ()) -> None:
        super().__init__(stubs.agent.Attach(metadata=metadata))
        self.metadata = metadata
        self.agent_id = ""
        self.instance_id = ""
        self.boot_id = unique("boot")

    async def join(self, agent_id: str, link: int = 1, **fields: Any) -> Any:
        """Opens the stream and a link; the welcome of the link."""
        self.agent_id = agent_id
        self.instance_id = fields.setdefault("instance_id", unique(agent_id))
        fields.setdefault("boot_id", self.boot_id)
        opening = {"opening": {"protocol_version": "1"}} if not self.frames else {}
        hello = {"link": link, "running": fields.pop("running", []), "number": fields.pop("number", 0)}
        registration = {"agent_id": agent_id, "ready": True, **fields}
        await self.send(**opening, hellos=[{**hello, "registration": registration}])
        welcome = await self.next("links")
        await heard()
        return welcome

    async def accept(self, offer: Any) -> None:
        """Takes an attempt up."""
        await self.send(accepts=[{"link": offer.link, "key": key_of(offer)}])

    async def delta(self, offer: Any, number: int, text: str, **delta: Any) -> None:
        """Sends one piece of an answer."""
        piece = {"payload": {"text": text}, "mode": "DELTA_MODE_APPEND", **delta}
        await self.send(deltas=[{"link": offer.link, "key": key_of(offer), "attempt_sequence": number, "delta": piece}])

    async def finish(self, offer: Any, text: str | None = None, **outcome: Any) -> Any:
        """Sends an outcome; the acknowledgement."""
        if text is not None:
            outcome["output"] = {"text": text, "media_type": "text/plain"}
        await self.send(results=[{"link": offer.link, "key": key_of(offer), **outcome}])
        return await self.next("acknowledgements")

    async def serve(self, offer: Any, text: str) -> None:
        """Does one task."""
        await self.accept(offer)
        await self.finish(offer, text)


class CallerByHand(Stream):
    """A caller on a DispatchStream."""

    request = dispatch_pb2.DispatchStreamRequest
    kinds = ("acknowledgements", "refusals", "events", "cancelled")

    def __init__(self, stubs: Stubs, metadata: Metadata = ()) -> None:
        super().__init__(stubs.dispatch.DispatchStream(metadata=metadata))

    async def open(self) -> Any:
        """Opens the stream; the welcome."""
        await self.send(opening={"protocol_version": "1"})
        return (await self.first_frame()).welcome

    async def submit(self, reference: int, interest: str, **spec: Any) -> None:
        """Sends one task."""
        await self.send(submits=[{"reference": reference, "task": spec, "interest": interest}])

    async def complete(self, task_id: str) -> Any:
        """Waits for the final event of a task; its result."""
        await self.until(lambda: self.completed(task_id) is not None)
        return self.completed(task_id)

    def completed(self, task_id: str) -> Any:
        """The result of a task, if it is here."""
        for event in self.seen["events"]:
            if event.task_id == task_id and event.HasField("complete"):
                return event.complete
        return None

    def events_of(self, task_id: str) -> list[Any]:
        """What came of a task."""
        return [event for event in self.seen["events"] if event.task_id == task_id]


def key_of(offer: Any) -> dict[str, Any]:
    """The key of an offered attempt."""
    return {"task_id": offer.task.task_id, "attempt": offer.attempt, "tenant": offer.tenant}


def kind_of(event: Any) -> str:
    """What a TaskEvent tells."""
    return str(event.WhichOneof("kind"))


def reason_in(trailing: Any) -> str:
    """The reason in the trailing metadata of a call; empty if there is none."""
    info = info_in(trailing)
    return info.reason if info is not None else ""


def details_in(trailing: Any) -> list[Any]:
    """The details of a status."""
    for key, value in trailing or ():
        if key == "grpc-status-details-bin":
            return list(status_pb2.Status.FromString(value).details)
    return []


def info_in(trailing: Any) -> Any:
    """The ErrorInfo in the trailing metadata of a call."""
    for detail in details_in(trailing):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
            assert info.domain == "agentreach"
            return info
    return None


def retry_in(trailing: Any) -> float | None:
    """Seconds of the RetryInfo in the trailing metadata of a call."""
    for detail in details_in(trailing):
        if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            return float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    return None


def reason_name(error: Any) -> str:
    """The reason of an `agentreach.v1.Error`, as statuses name it."""
    return error_pb2.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_")


async def refusal(call: Any) -> tuple[str, str, str]:
    """(code, reason, text) of a call that fails; ("OK", "", "") if it does not. Streams are read to their end.

    A call whose deadline passes while a frame is written is cancelled by gRPC itself, and says CancelledError.
    """
    try:
        async with asyncio.timeout(TIMEOUT):
            if hasattr(call, "read"):
                while await call.read() is not grpc.aio.EOF:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, reason_in(error.trailing_metadata()), error.details() or ""
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
        return "CANCELLED", "", ""
    return "OK", "", ""


async def golden(stubs: Stubs, agent: AgentByHand | None = None, metadata: Metadata = ()) -> None:
    """The golden request: a task is accepted, runs and is answered. Proves that the node still works."""
    mine = agent
    if mine is None:
        mine = AgentByHand(stubs, metadata)
        await mine.join(unique("golden"))
    try:
        task_id = unique("golden-task")
        spec = {"task_id": task_id, "selector": {"instance_id": mine.instance_id}, "payload": {"text": "ping"}}
        asked = stubs.dispatch.Dispatch(
            pb.DispatchRequest(task=spec, wait={"seconds": 15}), metadata=metadata, timeout=TIMEOUT
        )
        waiting = asyncio.ensure_future(_answer(mine, task_id))
        answer = await asked
        await waiting
        assert answer.result.output.text == f"pong {task_id}"
        checked = await stubs.health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert checked.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        if agent is None:
            await mine.close()


async def _answer(agent: AgentByHand, task_id: str) -> None:
    while (offer := await agent.next("offers")).task.task_id != task_id:
        pass
    await agent.serve(offer, f"pong {task_id}")
