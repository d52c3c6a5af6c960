"""A host for tests: the real one on the memory journal, with a writer and reads that wait until they are let go."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

from agentreach.v1 import task_pb2
from reach.core.model import Fault, Task
from reach.core.stream import Interest, Reader
from reach.runtime.clock import Clock
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.host import Host
from reach.runtime.loading import restore
from reach.runtime.reach_api import Reach
from reach.runtime.settings import Settings
from reach.runtime.writer import Work, nothing
from reach.store.memory import MemoryJournal
from reach.wire.codec import ProtoCodec
from reach.wire.requests import TaskReader

READER = TaskReader()
TENANT = "acme"


class HeldWriter:
    """Does nothing before it is let."""

    def __init__(self) -> None:
        self.work: list[Work] = []

    def now(self) -> float:
        return 0.0

    def here(self, rows: int, size_bytes: Any) -> bool:
        return False

    def took(self, ms: float, rows: int, *, here: bool) -> None:
        assert not here

    def put(self, work: Any, then: Any = nothing) -> None:
        self.work.append(lambda: then(work()))

    def go(self) -> None:
        while self.work:
            self.work.pop(0)()

    def stop(self) -> None:
        self.go()


class HeldReads(Executor):
    """Reads at once, and tells of it when it is let."""

    def __init__(self) -> None:
        self.held = False
        self._answers: list[tuple[Future[Any], Any]] = []

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._answers.append((future, function(*arguments)))
        if not self.held:
            self.go()
        return future

    def go(self) -> None:
        while self._answers:
            future, answer = self._answers.pop(0)
            future.set_result(answer)


class Quiet:
    """Nobody hears of it."""

    def noted(self, note: Any) -> None: ...
    def ended(self, task: Task) -> None: ...
    def committed(self, rows: int, ms: float) -> None: ...

    def began(self, task: Task) -> str:
        return ""


class Shell:
    """A host and what it says. `journal` is that of an earlier one: this one goes on where that one was."""

    def __init__(self, journal: MemoryJournal | None = None, clock: Clock | None = None) -> None:
        self.journal = journal if journal is not None else MemoryJournal()
        self.writer = HeldWriter()
        self.reads = HeldReads()
        self.host = Host(
            self.journal,
            ProtoCodec(READER),
            Quiet(),
            clock or Clock(),
            Settings(),
            lambda _: None,
            self.writer,
            self.reads,
        )
        restore(self.host, self.journal.load())
        self.reach = Reach(self.host, "test")
        self.said: list[tuple[Any, str, Any]] = []

    def submit(self, task_id: str, interest: Interest, text: str = "", *, capability: str = "") -> Reader:
        """Brings a task for an agent that is not there; `capability`: for one of which not even the pool is known."""
        spec = task_pb2.TaskSpec(task_id=task_id)
        spec.selector.capability = capability
        spec.selector.agent_type = "" if capability else "nobody"
        spec.payload.text = text
        reader = Reader(self, len(self.said) + 1, interest)
        self.reach.submit(*READER.read(TENANT, spec), reader)
        return reader

    def subscribe(self, task_id: str, interest: Interest, after: int = 0) -> Reader:
        reader = Reader(self, 0, interest, after)
        self.reach.subscribe(TENANT, task_id, reader)
        return reader

    def cancel(self, task_id: str, reason: str) -> None:
        self.reach.cancel(TENANT, task_id, reason, self)

    async def settle(self, turns: int = 20) -> None:
        """Lets all happen that can: commits and reads too."""
        import asyncio

        for _ in range(turns):
            self.writer.go()
            await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.settle()
        await self.host.stop()

    # Sink and Reply

    def accepted(self, reader: Reader, task: Task, state: int, deduplicated: bool) -> None:
        self.said.append((reader, "accepted", deduplicated))

    def refused(self, reader: Any, fault: Fault | None = None) -> None:
        fault = fault if fault is not None else reader
        self.said.append((reader, "refused", fault.reason if fault is not None else None))

    def elsewhere(self, reader: Reader, task_id: str, spec: bytes, where: Elsewhere) -> None:
        self.said.append((reader, "elsewhere", (where.peer.node_id, bool(spec))))

    def events(self, reader: Reader, task: Task, events: list[Any]) -> None:
        told = [(number, kind.name, (data.first, data.last) if kind.name == "GAP" else None)
                for number, _, _, kind, data in events]  # fmt: skip
        self.said.append((reader, "events", told))

    def ended(self, reader: Reader, task: Task) -> None:
        assert task.outcome is not None
        self.said.append((reader, "ended", message_of(task)))

    def done(self, task: Task) -> None:
        self.said.append((0, "cancelled", message_of(task)))

    def heard(self, reader: Reader) -> list[tuple[str, Any]]:
        """What one reader was told."""
        return [(what, detail) for one, what, detail in self.said if one is reader]


def message_of(task: Task) -> str:
    """Why a task was cancelled, or what came out."""
    assert task.outcome is not None
    return task.outcome.fault.message if task.outcome.fault is not None else str(task.outcome.content)
