"""Deliveries (DLV-12, C5, P7): repeated until they are received, given up in the end, each destination for itself."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentreach.v1 import task_pb2
from reach.core.effects import Turn
from reach.core.model import Outcome, Requirement, Task, TaskState
from reach.core.rows import OutboxRow
from reach.runtime.clock import Clock
from reach.store.base import StoreUnavailable
from reach.transports import webhooks as module
from reach.transports.posting import Answer
from reach.transports.webhooks import AT_ONCE, Webhooks, WebhookSettings
from reach.wire.urls import Target
from reach.wire.webhooks import FAILED, FailedDelivery, Secret, WebhookRules, delivery_id

GOOD, BUSY, DOWN = Answer(200), Answer(503), Answer(error="connection refused")


class FakeLoop:
    """Tasks run on the real loop, timers when the test says that time goes by."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, int, asyncio.Handle]] = []
        self.create_task = asyncio.get_running_loop().create_task

    def call_later(self, delay: float, act: Callable[..., object], *arguments: Any) -> asyncio.Handle:
        handle = asyncio.Handle(act, arguments, asyncio.get_running_loop())
        heapq.heappush(self.timers, (self.now + delay, len(self.timers), handle))
        return handle

    async def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        await settle()
        while self.timers and self.timers[0][0] <= until:
            self.now, _, handle = heapq.heappop(self.timers)
            if not handle.cancelled():
                handle._run()
            await settle()
        self.now = until


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Desk(Clock):
    """Everything around the deliveries: outbox, journal, receivers, clock and counters."""

    def __init__(self, tmp_path: Path, hours: float = 24.0) -> None:
        self.loop = FakeLoop()
        self.leap_ms = 0
        (tmp_path / "secret").write_text("hush")
        rules = WebhookRules([Secret("one", str(tmp_path / "secret"), frozenset({"acme", "globex"}))])
        self.answers: dict[str, Any] = {}
        """By host: an answer, a list of answers, or a future that never comes."""
        self.tries: list[tuple[float, str, str]] = []
        self.finished: list[str] = []
        self.turns: list[Turn] = []
        self.counts: dict[str, int] = {}
        self.tasks: dict[str, Task] = {}
        self.reading: Exception | None = None
        self.running = self.most_running = 0
        self.webhooks = Webhooks(
            self.done, self.turns.append, self.find, self.post, rules, self, self,
            WebhookSettings(int(hours * 3_600_000)), self.loop,
        )  # fmt: skip

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.loop.now * 1_000) + self.leap_ms

    def now_ms(self) -> int:
        return 5_000 + int(self.loop.now * 1_000)

    def seed(self) -> int:
        return 1

    def done(self, fact: OutboxRow) -> None:
        assert fact.key not in self.finished
        self.finished.append(fact.key)

    def webhook(self, outcome: str) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1

    async def find(self, tenant: str, task_id: str) -> Task | None:
        if self.reading is not None:
            raise self.reading
        return self.tasks.get(task_id)

    async def post(self, target: Target, headers: Any, body: bytes) -> Answer:
        self.tries.append((self.loop.now, target.host, headers["webhook-id"]))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            answer = self.answers.get(target.host, GOOD)
            if isinstance(answer, list):
                answer = answer.pop(0) if answer else GOOD
            found: Answer = await answer if isinstance(answer, asyncio.Future) else answer
            return found
        finally:
            self.running -= 1

    def end(self, row: int, host: str, content: str = "done", tenant: str = "acme") -> OutboxRow:
        spec = task_pb2.TaskSpec(task_id=f"t{row}")
        spec.webhook.url = f"https://{host}/x"
        task = Task(tenant, spec.task_id, spec.SerializeToString(), Requirement())
        task.row, task.outcome = row, Outcome(TaskState.SUCCEEDED, content)
        self.tasks[task.task_id] = task
        lane = f"{tenant} https://{host}:443"
        fact = OutboxRow(0, "webhook", lane, str(row), row, tenant, task.task_id, self.wall_ms(), b"")
        self.webhooks.take(fact)
        return fact

    def tries_of(self, host: str) -> list[float]:
        return [round(at, 1) for at, tried, _ in self.tries if tried == host]


async def test_DLV_12_a_delivery_is_repeated_under_one_name_with_growing_delays(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = [DOWN, BUSY, Answer(404), Answer(302), DOWN]
    fact = desk.end(1, "a")
    await desk.loop.pass_by(12 * 3_600)
    assert desk.finished == ["1"]
    assert {name for _, _, name in desk.tries} == {delivery_id(fact)}
    waits = [after - before for before, after in zip(desk.tries_of("a"), desk.tries_of("a")[1:], strict=False)]
    assert all(0.8 * usual <= wait <= 1.2 * usual for wait, usual in zip(waits, module.DELAYS_S, strict=False))
    assert desk.counts == {"failed": 5, "delivered": 1}
    assert desk.webhooks._lines == {}


async def test_DLV_12_what_is_never_received_is_given_up_and_kept_to_be_looked_at(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = BUSY
    fact = desk.end(1, "a")
    await desk.loop.pass_by(48 * 3_600)
    assert desk.finished == []
    (turn,) = desk.turns
    (failed,) = turn.writes.outbox
    (done,) = turn.writes.outbox_done
    assert (done.kind, done.key, done.lane) == (fact.kind, fact.key, fact.lane)
    assert (failed.kind, failed.lane, failed.key, failed.row) == (FAILED, "acme", "1", 1)
    told = msgspec.json.decode(failed.body, type=FailedDelivery)
    assert (told.delivery_id, told.destination) == (delivery_id(fact), "https://a:443")
    assert (told.error, told.tries) == ("it answered 503", len(desk.tries))
    assert 22 * 3_600 < desk.tries[-1][0] <= 24 * 3_600
    assert len(desk.tries) < 40
    assert desk.counts["given_up"] == 1


async def test_a_receiver_that_is_gone_is_not_asked_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = [Answer(410)]
    desk.end(1, "a")
    await desk.loop.pass_by(24 * 3_600)
    assert len(desk.tries) == 1
    assert len(desk.turns) == 1


async def test_a_receiver_may_ask_for_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = [Answer(429, retry_after_s=100), Answer(429, retry_after_s=1_000_000)]
    desk.end(1, "a")
    await desk.loop.pass_by(10_000)
    assert desk.tries_of("a") == [0, 100, 3_700]


async def test_C5_P7_a_receiver_that_hangs_is_retried_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["hangs"] = asyncio.get_running_loop().create_future()
    for row in range(20):
        desk.end(row, "hangs")
        desk.end(100 + row, "answers")
    await settle()
    assert sorted(desk.finished) == [str(100 + row) for row in range(20)]
    assert len(desk.tries_of("answers")) == 20
    assert len(desk.tries_of("hangs")) == AT_ONCE
    # The tries end without an answer; from then on one at a time, and all are received in the end.
    desk.answers["hangs"].set_result(DOWN)
    await settle()
    desk.answers["hangs"] = GOOD
    await desk.loop.pass_by(60)
    assert len(desk.finished) == 40
    names = [name for _, host, name in desk.tries if host == "hangs"]
    assert len(set(names)) == 20


async def test_Security_at_most_four_tries_to_one_destination_at_a_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    hanging: list[asyncio.Future[Answer]] = [asyncio.get_running_loop().create_future() for _ in range(30)]
    desk.answers["a"] = list(hanging)
    for row in range(30):
        desk.end(row, "a")
    for one in hanging:
        await settle()
        one.set_result(GOOD)
    await settle()
    assert len(desk.finished) == 30
    assert desk.most_running == 4


async def test_a_destination_that_is_not_well_gets_one_try_at_a_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = DOWN
    for row in range(10):
        desk.end(row, "a")
    await settle()
    desk.most_running = 0
    await desk.loop.pass_by(600)
    assert desk.most_running == 1


async def test_when_a_destination_is_back_nobody_waits_any_longer(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = DOWN
    for row in range(10):
        desk.end(row, "a")
    await desk.loop.pass_by(3 * 3_600)  # by now they wait for an hour
    assert desk.finished == []
    desk.answers["a"] = GOOD
    desk.end(10, "a")
    await desk.loop.pass_by(1)
    assert len(desk.finished) == 11


async def test_one_bad_path_is_not_hurried_by_the_good_ones(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = [Answer(404), *[GOOD] * 20]
    for row in range(10):
        desk.end(row, "a")
    await desk.loop.pass_by(3)
    assert len(desk.tries) == 10


async def test_all_tries_together_are_bounded_and_nobody_is_forgotten(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MOST_TRIES", 6)
    desk = Desk(tmp_path)
    hanging: list[asyncio.Future[Answer]] = []
    for row in range(40):
        host = f"h{row % 10}"
        hanging.append(asyncio.get_running_loop().create_future())
        desk.answers.setdefault(host, []).append(hanging[-1])
        desk.end(row, host)
    for _ in range(60):
        await settle()
        for one in hanging:
            if not one.done() and desk.running:
                one.set_result(GOOD)
                break
    for one in hanging:
        if not one.done():
            one.set_result(GOOD)
    await settle()
    await settle()
    assert desk.most_running <= 6
    assert len(desk.finished) == 40


async def test_P7_one_tenant_does_not_take_all_tries(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MOST_OF_TENANT", 3)
    desk = Desk(tmp_path)
    never: list[asyncio.Future[Answer]] = []
    for row in range(12):
        never.append(asyncio.get_running_loop().create_future())
        desk.answers[f"h{row}"] = never[-1]
        desk.end(row, f"h{row}")
    desk.end(100, "good", tenant="globex")
    await settle()
    assert (desk.most_running, desk.finished) == (3 + 1, ["100"])
    for one in never:
        one.set_result(GOOD)
    await settle()
    await settle()
    assert len(desk.finished) == 13
    assert desk.webhooks._of_tenant == {}


async def test_large_results_are_sent_a_few_at_a_time_and_one_to_a_destination(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    hanging = [asyncio.get_running_loop().create_future() for _ in range(3)]
    desk.answers["a"] = list(hanging)
    for row in range(3):
        desk.end(row, "a", "x" * 100_000)
    desk.end(8, "b", "x" * 100_000)
    async with asyncio.timeout(5):
        while not desk.finished or not desk.running:  # noqa: ASYNC110 - bodies are made in a thread
            await asyncio.sleep(0.01)
    assert desk.finished == ["8"]
    assert desk.running == 1
    for one in hanging:
        one.set_result(GOOD)
    async with asyncio.timeout(5):
        while len(desk.finished) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_cannot_be_sent_now_is_tried_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.end(1, "a")
    desk.reading = StoreUnavailable("busy")
    await desk.loop.pass_by(1)
    desk.reading = None
    (tmp_path / "secret").rename(tmp_path / "gone")
    await desk.loop.pass_by(6)
    assert desk.tries == []
    (tmp_path / "gone").rename(tmp_path / "secret")
    await desk.loop.pass_by(60)
    assert desk.finished == ["1"]


async def test_GOV_6_a_host_that_left_the_configuration_is_not_told_in_plain_text(tmp_path: Path) -> None:
    """The task is older than the configuration: it was allowed once."""
    desk = Desk(tmp_path, hours=0.001)
    desk.end(1, "a")
    spec = task_pb2.TaskSpec.FromString(desk.tasks["t1"].spec)
    spec.webhook.url = "http://a/x"
    desk.tasks["t1"].spec = spec.SerializeToString()
    await desk.loop.pass_by(60)
    assert desk.tries == []
    failed = msgspec.json.decode(desk.turns[0].writes.outbox[0].body, type=FailedDelivery)
    assert "webhooks.hosts" in failed.error


async def test_a_task_that_is_kept_no_longer_is_not_told_of(tmp_path: Path) -> None:
    """Its id may even have been given to another task since."""
    desk = Desk(tmp_path)
    desk.end(1, "a")
    desk.tasks["t1"].row = 9
    desk.end(2, "a")
    del desk.tasks["t2"]
    await desk.loop.pass_by(60)
    assert (desk.tries, desk.finished) == ([], [])
    failed = [msgspec.json.decode(turn.writes.outbox[0].body, type=FailedDelivery) for turn in desk.turns]
    assert [(one.task_id, one.error) for one in failed] == [
        ("t1", "its task is kept no longer"),
        ("t2", "its task is kept no longer"),
    ]


async def test_a_fault_of_ours_is_a_failed_try(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    desk = Desk(tmp_path)
    monkeypatch.setattr(module, "body_of", lambda *_: 1 / 0)
    desk.end(1, "a")
    await desk.loop.pass_by(1)
    monkeypatch.undo()
    await desk.loop.pass_by(60)
    assert desk.finished == ["1"]
    assert "report this" in caplog.text


async def test_what_is_under_way_ends_with_the_process(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = asyncio.get_running_loop().create_future()
    desk.answers["b"] = DOWN
    desk.end(1, "a")
    desk.end(2, "b")
    await settle()
    await desk.webhooks.stop()
    await desk.loop.pass_by(3_600)
    assert desk.finished == []
    assert len(desk.tries) == 2


async def test_F9_a_leap_of_the_wall_clock_gives_nothing_up(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.answers["a"] = DOWN
    desk.end(1, "a")
    await desk.loop.pass_by(1)
    desk.leap_ms = 7 * 86_400_000
    await desk.loop.pass_by(1_800)
    assert desk.turns == []
    await desk.loop.pass_by(7_200)
    assert len(desk.turns) == 1
