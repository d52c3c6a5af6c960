"""One stream of a caller, without a server: what becomes of its readers (STR-1, CLU-3). Found by the simulation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentreach.v1 import dispatch_pb2
from reach.core.model import Requirement, Task
from reach.core.stream import Kind, Reader
from reach.rpc.access import SCOPES
from reach.rpc.callers import CallerStream
from reach.rpc.known_nodes import KnownNodes
from reach.rpc.principal import Principal
from reach.runtime.agents import let_go


class Moving:
    """A door whose pools have all moved: who leaves is told so at once."""

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.left: list[str] = []

    def subscribe(self, tenant: str, task_id: str, reader: Reader) -> None:
        self.readers.append(reader)

    def unsubscribe(self, reader: Reader, tenant: str, task_id: str) -> None:
        reader.left = True
        self.left.append(task_id)
        let_go(reader)


def stream_to(door: Moving) -> CallerStream:
    services: Any = SimpleNamespace(
        reach=door, welcome=dispatch_pb2.StreamWelcome, metrics=SimpleNamespace(refused=lambda reason: None),
        nodes=KnownNodes(),
    )  # fmt: skip
    return CallerStream(services, Principal("acme", "tests", SCOPES), "")


def subscribe(stream: CallerStream, *task_ids: str) -> None:
    asked = [
        dispatch_pb2.Subscribe(reference=1, task_id=one, interest=dispatch_pb2.INTEREST_EVENTS) for one in task_ids
    ]
    stream.handle(dispatch_pb2.DispatchStreamRequest(subscribes=asked))


def said(stream: CallerStream) -> int:
    return stream.out.queued_bytes


async def test_CLU_3_a_stream_that_ends_as_its_shards_move_lets_all_its_readers_go() -> None:
    door = Moving()
    stream = stream_to(door)
    subscribe(stream, "one", "two", "three")
    stream.close()
    assert door.left == ["one", "two", "three"]


async def test_STR_1_a_reader_that_another_one_has_replaced_is_not_told_of() -> None:
    door = Moving()
    stream = stream_to(door)
    subscribe(stream, "one")
    (first,) = door.readers
    subscribe(stream, "one")
    before = said(stream)
    task, event = Task("acme", "one", b"", Requirement()), (1, 0, 0, Kind.ACCEPTED, None)
    stream.events(first, task, [event])
    assert said(stream) == before
    stream.events(door.readers[1], task, [event])
    assert said(stream) > before
