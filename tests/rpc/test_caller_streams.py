"""One stream of a caller, without a server: what becomes of its readers (STR-1, CLU-3). Found by the simulation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import dispatch_pb2, task_pb2
from reach.core.model import Fault, Outcome, PoolKey, Requirement, Task, TaskState
from reach.core.pieces import Kind
from reach.core.spread import Placing
from reach.core.stream import READER_CREDIT, Interest, Reader
from reach.errors import ErrorClass, Reason
from reach.rpc.access import SCOPES
from reach.rpc.callers import CallerStream
from reach.rpc.known_nodes import KnownNodes
from reach.rpc.principal import Principal
from reach.runtime.agents import let_go
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer
from tests.runtime.hosts import READER


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
        nodes=KnownNodes(), end_trace=lambda key: None,
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


async def test_STR_1_a_reader_is_one_of_its_stream_until_it_has_heard_the_end() -> None:
    """Its task has ended and it is told so in a moment: if it asks anew meanwhile, it hears all of that once."""
    door = Moving()
    stream = stream_to(door)
    subscribe(stream, "one")
    (first,) = door.readers
    task = Task("acme", "one", b"", Requirement())
    first.after = task.sequence = 2
    task.outcome = Outcome(TaskState.SUCCEEDED)
    stream.events(first, task, [(1, 0, 0, Kind.ACCEPTED, None)])
    subscribe(stream, "one")
    assert door.left == ["one"]
    before = said(stream)
    stream.events(first, task, [(2, 0, 0, Kind.COMPLETE, task.outcome)])
    assert said(stream) == before
    stream.events(door.readers[1], task, [(1, 0, 0, Kind.ACCEPTED, None), (2, 0, 0, Kind.COMPLETE, task.outcome)])
    assert stream._readers == {}


class Taking(Moving):
    """A door that takes all, and hears who is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[str] = []
        self.credits: list[tuple[Reader, int]] = []

    def submit(self, task: Task, selector: Any, reader: Reader, placed: Any = None) -> None:
        task.sequence, reader.task = 1, task
        self.readers.append(reader)

    def credit(self, reader: Reader, count: int) -> None:
        reader.credit += count

    def cancel(self, tenant: str, task_id: str, reason: str, reply: Any) -> None:
        self.cancelled.append(task_id)


def submit(stream: CallerStream, *task_ids: str, cancel_with_caller: bool = True) -> None:
    services: Any = stream._services
    services.streamed, services.clock = READER, SimpleNamespace(new_id=lambda: "made")
    services.tracing = SimpleNamespace(records=False)
    for task_id in task_ids:
        task = task_pb2.TaskSpec(task_id=task_id, cancel_with_caller=cancel_with_caller)
        task.selector.agent_type = "nobody"
        submit = dispatch_pb2.Submit(reference=1, task=task, interest=dispatch_pb2.INTEREST_EVENTS)
        stream.handle(dispatch_pb2.DispatchStreamRequest(submits=[submit]))


@pytest.mark.parametrize("how", ["ended", "told the last event", "refused", "let go", "moved"])
async def test_DLV_11_what_a_caller_hears_no_more_of_does_not_go_with_it(how: str) -> None:
    """Its task may be tried again, or another one have its id by then; and a stream may last for ever."""
    door = Taking()
    stream = stream_to(door)
    submit(stream, "one", "two")
    (reader, _), task = door.readers, door.readers[0].task
    assert task is not None
    if how == "ended":
        task.outcome = Outcome(TaskState.SUCCEEDED)
        stream.ended(reader, task)
    elif how == "told the last event":
        task.outcome, reader.after = Outcome(TaskState.SUCCEEDED), task.sequence
        stream.events(reader, task, [])
    elif how == "refused":
        stream.refused(reader, Fault(ErrorClass.UNAVAILABLE, Reason.SHUTTING_DOWN, "later"))
    elif how == "let go":
        stream.handle(dispatch_pb2.DispatchStreamRequest(unsubscribes=[dispatch_pb2.Unsubscribe(task_id="one")]))
    else:
        stream._bring = lambda frame, where: None  # type: ignore[method-assign]
        stream.elsewhere(reader, "one", b"", Elsewhere(Peer("two", "two:1")))
    assert list(stream._with_caller) == list(stream._readers) == ["two"]
    task.outcome = None
    stream.close()
    assert door.cancelled == ["two"]


async def test_CLU_1_what_a_reader_may_still_take_follows_it_to_another_node() -> None:
    """There it begins with what all begin with: the rest is told, once."""
    door = Taking()
    stream = stream_to(door)
    brought: list[dispatch_pb2.DispatchStreamRequest] = []
    stream._bring = lambda frame, where: brought.append(  # type: ignore[method-assign]
        dispatch_pb2.DispatchStreamRequest.FromString(frame)
    )
    where = Elsewhere(Peer("two", "two:1"))
    for name, more in (("poor", 0), ("rich", 1_000)):
        subscribe(stream, name)
        reader = door.readers[-1]
        stream.handle(dispatch_pb2.DispatchStreamRequest(credits=[dispatch_pb2.ReaderCredit(task_id=name, bytes=more)]))
        reader.after = 7
        stream.elsewhere(reader, name, b"", where)
    assert [[(one.task_id, one.bytes) for one in frame.credits] for frame in brought] == [[], [("rich", 1_000)]]
    assert [one.after_sequence for frame in brought for one in frame.subscribes] == [7, 7]
    again = stream_to(door)
    again._again(brought[1].SerializeToString(), None, False)  # it came back: nobody owns it there
    assert door.readers[-1].credit == READER_CREDIT + 1_000


async def test_CLU_1_what_a_caller_lets_go_or_gives_credit_for_is_told_to_the_nodes_that_have_it() -> None:
    door = Taking()
    stream = stream_to(door)
    told: list[dispatch_pb2.DispatchStreamRequest] = []
    stream._branches = SimpleNamespace(  # type: ignore[assignment]
        tell_all=lambda frame: told.append(dispatch_pb2.DispatchStreamRequest.FromString(frame))
    )
    stream.handle(dispatch_pb2.DispatchStreamRequest(credits=[dispatch_pb2.ReaderCredit(task_id="far", bytes=5)]))
    stream.handle(dispatch_pb2.DispatchStreamRequest(unsubscribes=[dispatch_pb2.Unsubscribe(task_id="far")]))
    assert [(one.task_id, one.bytes) for frame in told for one in frame.credits] == [("far", 5)]
    assert [one.task_id for frame in told for one in frame.unsubscribes] == ["far"]


@pytest.mark.parametrize("how", ["the caller leaves", "the node stops", "what it had elsewhere is lost"])
async def test_DLV_11_only_a_caller_that_leaves_takes_its_tasks_along(how: str) -> None:
    door = Taking()
    stream = stream_to(door)
    closed: list[bool] = []
    stream._branches = SimpleNamespace(close=lambda *, ours: closed.append(ours))  # type: ignore[assignment]
    submit(stream, "one", "ended")
    task = door.readers[1].task
    assert task is not None
    task.outcome = Outcome(TaskState.SUCCEEDED)  # which the caller has not heard yet
    if how == "the node stops":
        stream.closing(stream.out)
    elif how == "what it had elsewhere is lost":
        stream._anew()
        assert stream.out.closed
    stream.close()
    assert door.cancelled == ["one"] * (how == "the caller leaves")
    assert closed == [how != "the caller leaves"], "other nodes hear whose doing it is"


async def test_CLU_1_what_a_caller_has_let_go_is_brought_nowhere_and_what_it_only_gives_is() -> None:
    door = Taking()
    stream = stream_to(door)
    brought: list[dispatch_pb2.DispatchStreamRequest] = []
    stream._bring = lambda frame, where: brought.append(  # type: ignore[method-assign]
        dispatch_pb2.DispatchStreamRequest.FromString(frame)
    )
    traces: list[Any] = []
    services: Any = stream._services
    services.end_trace = traces.append
    where, spec = Elsewhere(Peer("two", "two:1")), task_pb2.TaskSpec(task_id="t").SerializeToString()
    subscribe(stream, "t")
    (reader,) = door.readers
    reader.reads = True
    stream.handle(dispatch_pb2.DispatchStreamRequest(unsubscribes=[dispatch_pb2.Unsubscribe(task_id="t")]))
    stream.elsewhere(reader, "t", b"", where)
    waits, gives = Reader(stream, 2, Interest.OUTCOME), Reader(stream, 3, Interest.ACCEPTANCE)
    stream.elsewhere(waits, "t", spec, where)
    assert brought == []
    stream.elsewhere(gives, "t", spec, where)
    assert [(one.reference, one.task.task_id) for frame in brought for one in frame.submits] == [(3, "t")]
    assert traces == [("acme", "t")], "it is recorded where it goes on"


async def test_CLU_1_all_that_came_back_is_done_again_where_it_belongs_or_refused() -> None:
    door = Taking()
    stream = stream_to(door)
    submit(stream, "before")
    door.readers.clear()
    told: list[Any] = []
    door.submit = lambda task, selector, reader, placed=None: told.append(placed)  # type: ignore[method-assign]
    task = task_pb2.TaskSpec(task_id="t")
    task.selector.agent_type = "nobody"
    items = dispatch_pb2.DispatchStreamRequest(
        submits=[dispatch_pb2.Submit(reference=1, task=task, interest=dispatch_pb2.INTEREST_EVENTS)],
        subscribes=[dispatch_pb2.Subscribe(reference=2, task_id="s")],
        cancels=[dispatch_pb2.CancelItem(reference=3, task_id="c")],
    ).SerializeToString()
    placing = Placing(PoolKey("acme", "echo"))
    stream._again(items, placing, False)
    assert told == [placing]
    assert len(door.readers) == 1
    assert door.cancelled == ["c"]
    stream.handle(
        dispatch_pb2.DispatchStreamRequest(
            submits=[dispatch_pb2.Submit(reference=4, task=task, interest=dispatch_pb2.INTEREST_EVENTS)]
        )
    )
    assert told == [placing, None], "what the caller says next is placed anew"
    refused: list[tuple[int, str, Reason]] = []
    stream.refuse = lambda reference, fault, task_id: refused.append((reference, task_id, fault.reason))  # type: ignore[method-assign]
    stream._again(items, None, True)
    reason = Reason.OWNER_UNAVAILABLE
    assert refused == [(1, "t", reason), (2, "s", reason), (3, "c", reason)]
    assert len(told) == 2


async def test_CLU_3_a_stream_that_has_ended_is_told_of_other_nodes_no_more() -> None:
    stream = stream_to(Moving())
    stream.handle(dispatch_pb2.DispatchStreamRequest())
    nodes = stream._services.nodes
    assert len(nodes._says) == 1
    stream.close()
    assert not nodes._says


@pytest.mark.parametrize("asked", ["submit", "subscribe"])
async def test_DLV_3_who_asks_wrongly_for_a_task_takes_it_from_nobody_on_the_same_stream(asked: str) -> None:
    """Found by the simulation: another task was given the same id, and was refused; who waited for the first one waited
    for ever."""
    door = Taking()
    stream = stream_to(door)
    submit(stream, "one")
    (first,) = door.readers
    task, complete = first.task, Outcome(TaskState.SUCCEEDED)
    assert task is not None
    stream.accepted(first, task, TaskState.PENDING, False)
    stream.events(first, task, [(1, 0, 0, Kind.ACCEPTED, None), (2, 0, 0, Kind.STARTED, ("", ""))])
    for _ in range(2):
        submit(stream, "one", cancel_with_caller=False) if asked == "submit" else subscribe(stream, "one")
    second, third = door.readers[1:]
    stream.events(first, task, [(3, 0, 0, Kind.PROGRESS, (None, ""))])  # it was on its way
    before = said(stream)
    for reader in (second, third):
        stream.refused(reader, Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_ID_REUSED, "it is taken"))
    assert said(stream) > before
    (again,) = door.readers[3:]
    assert (again.reference, again.interest, again.after) == (first.reference, first.interest, 2), (
        "as far as it was told"
    )
    assert stream._readers == {"one": again}
    assert stream._with_caller == {"one": again}
    assert stream._before == {}
    task.outcome = complete
    stream.events(again, task, [(3, 0, 0, Kind.PROGRESS, (None, "")), (4, 0, 0, Kind.COMPLETE, complete)])
    assert stream._readers == {}


async def test_DLV_3_who_asks_again_and_is_taken_is_the_only_one() -> None:
    door = Taking()
    stream = stream_to(door)
    submit(stream, "one")
    submit(stream, "one")
    first, second = door.readers
    assert first.left
    assert second.task is not None
    stream.accepted(second, second.task, TaskState.PENDING, True)
    stream.refused(second, Fault(ErrorClass.UNAVAILABLE, Reason.OWNER_UNAVAILABLE, "it has moved"))
    assert (stream._readers, stream._before) == ({}, {})
    assert door.readers == [first, second]


async def test_DLV_3_nothing_is_remembered_of_one_that_is_asked_for_again_and_is_another_nodes() -> None:
    door = Taking()
    stream = stream_to(door)
    stream._bring = lambda frame, where: None  # type: ignore[method-assign]
    submit(stream, "one")
    submit(stream, "one")
    stream.elsewhere(door.readers[1], "one", b"spec", Elsewhere(Peer("two", "two:1")))
    assert (stream._readers, stream._before) == ({}, {})
