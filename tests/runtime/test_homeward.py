"""Turns on their way to the homes of their sessions, and contexts on their way to agents: what one node does with the
words of others, by a clock of its own (SES-3, CLU-1)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from reach.core.model import Fault, Requirement, Task, TaskState
from reach.core.placement import shard_of_session
from reach.core.rows import OutboxDone, OutboxRow
from reach.core.session import TURN
from reach.errors import ErrorClass, Reason
from reach.runtime import homeward
from reach.runtime.homeward import (
    CONTEXT_SECONDS,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    READ_AGAIN_SECONDS,
    TELL_SECONDS,
    Brought,
    Homeward,
    Told,
)
from reach.runtime.ownership import Peer

NAME, OTHER = ("acme", "shop:u:s"), ("acme", "shop:u:other")
HOME = shard_of_session(NAME)
POOL = 1
FAR = Peer("far", "far:1")
AWAY = Fault(ErrorClass.UNAVAILABLE, Reason.STORE_UNAVAILABLE, "away")


class Loop:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._numbers), lambda: act(*arguments)))

    def call_soon(self, act: Callable[..., None], *arguments: Any) -> None:
        self.call_later(0.0, act, *arguments)

    def go(self, seconds: float = 0.0) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, _, act = heapq.heappop(self._due)
            act()
        self.now = until


class Scene:
    """A node whose sessions live elsewhere, unless a test says otherwise; what it asks, writes and tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = Loop()
        monkeypatch.setattr(homeward, "asyncio", SimpleNamespace(get_running_loop=lambda: self.loop))
        self.away = {shard_of_session(name): FAR for name in (NAME, OTHER)}
        self.known: set[str] = set()
        """Tasks whose turns the homes here have."""
        self.keeping: set[tuple[int, str]] = set()
        """Facts whose turns are here and about to be kept, though the homes may have forgotten their tasks."""
        self.journal: dict[str, Any] = {}
        self.did: list[tuple[str, Any]] = []
        self.turns: list[tuple[Brought, Callable[[Told], None]]] = []
        self.contexts: list[tuple[str, Callable[[bytes | None], None]]] = []
        self.given: list[bytes] = []
        self.ended: list[str] = []
        self.held: list[OutboxRow] = []
        home = SimpleNamespace(has=lambda name, task_id: task_id in self.known)
        sessions = SimpleNamespace(
            home=lambda name: home,
            apply=lambda task: self.did.append(("apply", task.task_id)),
            take_in=lambda turn: self.did.append(("take in", turn.task_id)),
            keep=lambda done: self.did.append(("keep", done)),
            keeps=lambda fact: fact in self.keeping,
            offered=lambda task: b"of this node",
            field_of=lambda task, context: b"nothing" if context is None else context,
        )
        self.host: Any = SimpleNamespace(
            sessions=sessions,
            owners=SimpleNamespace(node_of=self.away.get),
            committer=SimpleNamespace(submit=self._submit),
            codec=SimpleNamespace(turn_bytes=self._turn_bytes),
            outbox=SimpleNamespace(
                done=lambda fact: self.did.append(("done", fact.key)),
                forgotten=lambda fact: self.did.append(("forgotten", fact.key)),
                facts_held=lambda kind: list(self.held),
            ),
            past=SimpleNamespace(look_up=self._look_up, task_of=lambda stored: stored.shown),
            tasks={},
        )
        self.homeward = Homeward(self.host)  # type: ignore[arg-type]
        far: Any = SimpleNamespace(context=self._context, turn=self._turn)
        self.homeward.far = far
        self.broken = False
        self.durable = True
        self._waits: list[Any] = []

    def _submit(self, turn: Any) -> None:
        self._waits.append(turn)
        if self.durable:
            self.commit()

    def commit(self) -> None:
        waits, self._waits = self._waits, []
        for turn in waits:
            for send in turn.sends:
                send.act()

    def _turn_bytes(self, task: Task) -> bytes:
        if self.broken:
            raise RuntimeError("it cannot be written")
        return b"turn of " + task.task_id.encode()

    def _look_up(self, tenant: str, task_id: str, then: Callable[[Any], None]) -> None:
        self.did.append(("look up", task_id))
        self.loop.call_soon(lambda: then(self.journal.get(task_id)))

    def _turn(self, peer: Peer, turn: Brought, told: Callable[[Told], None]) -> None:
        assert peer == FAR
        self.turns.append((turn, told))

    def _context(self, peer: Peer, name: Any, accepted: Any, ttl_ms: Any, told: Callable[[Any], None]) -> None:
        assert (peer, accepted.row, accepted.at_ms, ttl_ms) == (FAR, 7, 70, 700)
        self.contexts.append((name[1], told))

    def task(self, task_id: str, row: int = 7, *, name: tuple[str, str] = NAME, volatile: bool = False) -> Task:
        task = Task(name[0], task_id, b"", Requirement())
        task.row, task.session, task.volatile, task.pool = row, name[1], volatile, SimpleNamespace(shard=POOL)
        task.accepted_ms, task.session_ttl_ms, task.attempt, task.state = 70, 700, 1, TaskState.RUNNING
        self.host.tasks[task.key] = task
        return task

    def ends(self, task: Task) -> bool:
        task.state = TaskState.SUCCEEDED
        return self.homeward.ended(task, lambda task: self.ended.append(task.task_id))

    def stored(self, task_id: str, row: int) -> None:
        """The journal has a task that has ended."""
        shown = self.task(task_id, row)
        self.journal[task_id] = SimpleNamespace(outcome=True, task=SimpleNamespace(row=row), shown=shown)

    def brought(self) -> list[str]:
        return [turn.task_id for turn, _ in self.turns]

    def hears(self, what: Told, which: int = -1) -> None:
        self.turns[which][1](what)
        self.loop.go()

    def is_idle(self) -> bool:
        """Nothing of what has been is left."""
        road = self.homeward
        return not road._roads and not road._underway and not road._unkept and road._bytes == 0


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def fact_of(task_id: str, row: int, name: tuple[str, str] = NAME, shard: int = POOL) -> OutboxRow:
    return OutboxRow(shard, TURN, name[1], str(row), row, name[0], task_id, 0, b"")


def done_of(row: int, name: tuple[str, str] = NAME, shard: int = POOL) -> OutboxDone:
    return OutboxDone(shard, TURN, name[1], str(row), shard_of_session(name))


def test_SES_3_a_fact_that_comes_late_is_not_told_again_though_its_session_has_forgotten_the_task(scene: Scene) -> None:
    scene.away.clear()
    assert scene.ends(scene.task("t"))
    scene.keeping.add((POOL, "7"))
    scene.did.clear()
    scene.homeward.take(fact_of("t", 7))
    assert scene.did == [("keep", done_of(7))]
    assert scene.is_idle()


@pytest.mark.parametrize("volatile", [False, True])
def test_SES_3_a_session_of_this_node_has_the_turn_at_once(scene: Scene, volatile: bool) -> None:
    scene.away.clear()
    assert scene.ends(scene.task("t", volatile=volatile))
    assert scene.did == [("apply", "t")] + [("keep", done_of(7))] * (not volatile)
    assert scene.is_idle()


def test_SES_3_a_turn_goes_home_before_anybody_hears_of_its_end_and_is_forgotten_when_it_is_kept(scene: Scene) -> None:
    task = scene.task("t")
    assert not scene.ends(task)
    ((turn, _),) = scene.turns
    assert turn == Brought(NAME, "t", (7, 70), 700, b"turn of t", done_of(7))  # type: ignore[arg-type]
    assert scene.ended == []
    scene.durable = False
    scene.hears(Told.HEARD)
    assert scene.ended == [], "like all that is told: not while this node may have lost what it owns"
    told: Any = scene.turns[0][1]
    assert told.args[1].brought is None, "what is heard and not kept yet is counted no more, nor held"
    scene.durable = True
    scene.commit()
    assert scene.ended == ["t"]
    scene.homeward.take(fact_of("t", 7))
    assert scene.did == [], "the outbox need not look after it"
    scene.hears(Told.KEPT)
    assert scene.did == [("forgotten", "7")]
    assert scene.ended == ["t"]
    scene.loop.go(2 * TELL_SECONDS)
    assert scene.ended == ["t"], "it is told once"
    assert scene.is_idle()


def test_SES_3_a_volatile_turn_has_no_fact(scene: Scene) -> None:
    assert not scene.ends(scene.task("t", volatile=True))
    assert scene.turns[0][0].fact is None
    scene.hears(Told.HEARD)
    assert scene.ended == ["t"]
    scene.hears(Told.LOST)
    assert scene.is_idle()


def test_SES_3_turns_of_a_session_go_one_after_the_other_and_those_of_others_beside(scene: Scene) -> None:
    for number in range(3):
        scene.ends(scene.task(f"t{number}", number + 1))
    scene.ends(scene.task("other", 9, name=OTHER))
    assert scene.brought() == ["t0", "other"]
    scene.hears(Told.HEARD, 0)
    assert scene.brought() == ["t0", "other", "t1"]
    scene.hears(Told.KEPT, 0)
    scene.hears(Told.HEARD, 2)
    assert scene.brought() == ["t0", "other", "t1", "t2"]
    assert scene.ended == ["t0", "t1"]


def test_SES_3_a_turn_whose_home_is_not_there_is_brought_again_and_those_behind_it_wait(scene: Scene) -> None:
    for number in range(2):
        scene.ends(scene.task(f"t{number}", number + 1))
    pause_s = FIRST_PAUSE_S
    for number in range(8):
        assert scene.brought() == ["t0"] * (number + 1)
        scene.hears(Told.LOST)
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        scene.loop.go(pause_s - 0.001)
        assert scene.brought() == ["t0"] * (number + 1)
        scene.loop.go(0.002)
    scene.hears(Told.HEARD)
    assert scene.brought()[-1] == "t1"
    scene.hears(Told.LOST)
    scene.loop.go(2 * FIRST_PAUSE_S)
    assert scene.brought()[-2:] == ["t1", "t1"], "the next one begins with a short pause"


def test_SES_3_callers_hear_of_an_end_after_a_while_though_its_home_does_not_answer(scene: Scene) -> None:
    scene.ends(scene.task("t"))
    scene.loop.go(TELL_SECONDS - 0.01)
    assert scene.ended == []
    scene.loop.go(0.02)
    assert scene.ended == ["t"]
    scene.hears(Told.HEARD)
    scene.hears(Told.KEPT)
    assert scene.ended == ["t"]
    assert scene.is_idle()


def test_SES_3_a_turn_that_was_heard_and_not_kept_is_read_and_goes_before_those_that_wait(scene: Scene) -> None:
    scene.stored("t0", 1)
    for number in range(4):
        scene.ends(scene.task(f"t{number}", number + 1))
    scene.hears(Told.HEARD, 0)
    assert scene.brought() == ["t0", "t1"]
    scene.hears(Told.LOST, 0)
    assert scene.did == [], "one is on its way: behind that"
    scene.hears(Told.HEARD, 1)
    assert scene.did == [("look up", "t0")]
    assert scene.brought() == ["t0", "t1", "t0"]
    scene.hears(Told.HEARD)
    assert scene.brought() == ["t0", "t1", "t0", "t2"]
    for which in (1, 2):
        scene.hears(Told.KEPT, which)
    for _ in range(2):
        scene.hears(Told.HEARD)
    assert scene.brought() == ["t0", "t1", "t0", "t2", "t3"]
    for which in (3, 4):
        scene.hears(Told.KEPT, which)
    assert scene.is_idle()


def test_SES_3_too_much_on_the_way_is_left_to_the_journal(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homeward, "MOST_BYTES", len(b"turn of t0"))
    assert not scene.ends(scene.task("t0", 1))
    assert scene.ends(scene.task("t1", 2)), "the outbox hands it over"
    assert scene.brought() == ["t0"]
    scene.hears(Told.HEARD)
    assert not scene.ends(scene.task("t2", 3)), "there is room again"


def test_SES_3_a_turn_that_cannot_be_written_keeps_no_end_from_its_callers(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.broken = True
    assert scene.ends(scene.task("t"))
    assert "the turn of a task was lost" in caplog.text
    assert scene.is_idle()


def test_SES_3_a_fact_whose_turn_is_there_is_kept_and_one_whose_turn_is_not_is_read(scene: Scene) -> None:
    scene.away.clear()
    scene.known.add("there")
    scene.homeward.take(fact_of("there", 1))
    assert scene.did == [("keep", done_of(1))]
    scene.stored("lacking", 2)
    scene.homeward.take(fact_of("lacking", 2))
    scene.homeward.take(fact_of("lacking", 2))
    scene.homeward.take(fact_of("there", 3))
    assert scene.did[1:] == [("look up", "lacking")], "once; and what came later waits for it"
    scene.loop.go()
    assert scene.did[2:] == [("take in", "lacking"), ("keep", done_of(2)), ("keep", done_of(3))]
    assert scene.is_idle()


def test_SES_3_what_this_node_knew_of_a_session_that_is_elsewhere_by_now_counts_for_nothing(scene: Scene) -> None:
    scene.known.add("t")
    scene.stored("t", 7)
    scene.homeward.take(fact_of("t", 7))
    scene.loop.go()
    assert scene.did == [("look up", "t")]
    assert scene.brought() == ["t"]


@pytest.mark.parametrize("found", ["none", "open", "another one"])
def test_SES_3_a_fact_whose_task_is_no_more_is_over(scene: Scene, found: str) -> None:
    """It was purged, and its id may be another one's by now."""
    if found != "none":
        scene.stored("t", 8)
        scene.journal["t"].outcome = None if found == "open" else True
        scene.journal["t"].task.row = 7 if found == "open" else 8
    scene.homeward.take(fact_of("t", 7))
    scene.homeward.take(fact_of("next", 9))
    scene.loop.go()
    assert scene.did == [("look up", "t"), ("done", "7"), ("look up", "next"), ("done", "9")]
    assert scene.brought() == []
    assert scene.is_idle()


def test_CLU_4_a_fact_that_cannot_be_read_is_read_again(scene: Scene) -> None:
    scene.journal["t"] = AWAY
    scene.homeward.take(fact_of("t", 7))
    scene.loop.go()
    scene.stored("t", 7)
    scene.loop.go(READ_AGAIN_SECONDS - 0.01)
    assert scene.did == [("look up", "t")]
    scene.loop.go(0.02)
    assert scene.brought() == ["t"]
    assert scene.homeward._bytes == len(b"turn of t")
    scene.hears(Told.HEARD)
    scene.hears(Told.KEPT)
    assert scene.did[2:] == [("forgotten", "7")]
    assert scene.is_idle()


def test_CLU_3_what_a_pool_that_leaves_had_on_its_way_is_for_its_new_owner(scene: Scene) -> None:
    """Its callers are let go; the turns of other pools go on."""
    scene.ends(scene.task("heard", 1))
    scene.hears(Told.HEARD)
    leaving, other = scene.task("leaving", 2), scene.task("stays", 3)
    other.pool = SimpleNamespace(shard=POOL + 1)
    behind = scene.task("behind", 4)
    for task in (leaving, other, behind):
        scene.ends(task)
    assert scene.brought() == ["heard", "leaving"]
    scene.homeward.leave([POOL])
    scene.loop.go()
    assert scene.ended == ["heard", "leaving", "behind"]
    assert scene.brought() == ["heard", "leaving", "stays"]
    for which in (0, 1):
        for what in (Told.HEARD, Told.KEPT, Told.LOST):
            scene.hears(what, which)  # of what left nobody here hears any more
    assert scene.did == []
    assert scene.homeward._underway == {(POOL + 1, "3")}
    assert scene.homeward._unkept == {}
    scene.hears(Told.HEARD)
    scene.hears(Told.KEPT)
    assert scene.did == [("forgotten", "3")]
    assert scene.is_idle()


def test_CLU_3_a_fact_that_is_read_as_its_pool_leaves_is_dropped(scene: Scene) -> None:
    scene.stored("t", 7)
    scene.homeward.take(fact_of("t", 7))
    scene.homeward.leave([POOL])
    scene.loop.go()
    assert scene.brought() == []
    assert scene.is_idle()


def test_CLU_3_a_turn_that_waits_to_be_brought_again_as_its_pool_leaves_is_not(scene: Scene) -> None:
    scene.ends(scene.task("t"))
    scene.hears(Told.LOST)
    scene.homeward.leave([POOL])
    scene.loop.go(10)
    assert scene.brought() == ["t"]
    assert scene.ended == ["t"]
    assert scene.is_idle()


def test_CLU_3_turns_of_sessions_that_leave_go_to_their_new_home(scene: Scene) -> None:
    """What this node alone knew of them may not be kept."""
    scene.away.clear()
    scene.ends(scene.task("t", 7))
    scene.stored("t", 7)
    scene.held = [fact_of("t", 7), fact_of("other", 8, OTHER)]
    scene.did.clear()
    scene.away[HOME] = FAR
    scene.homeward.leave([HOME])
    scene.loop.go()
    assert scene.did == [("look up", "t")]
    assert scene.brought() == ["t"]


def gives(scene: Scene, task: Task) -> None:
    scene.homeward.given(task, scene.given.append)


def test_SES_3_the_context_of_a_session_of_this_node_is_given_at_once(scene: Scene) -> None:
    scene.away.clear()
    gives(scene, scene.task("t"))
    assert scene.given == [b"of this node"]
    scene.away[HOME] = FAR
    scene.homeward.far = None  # a node that is alone
    gives(scene, scene.task("t"))
    assert scene.given == [b"of this node"] * 2


def test_SES_3_the_context_of_a_session_elsewhere_is_asked_of_its_home(scene: Scene) -> None:
    scene.durable = False
    gives(scene, scene.task("t"))
    ((session, told),) = scene.contexts
    assert session == NAME[1]
    told(b"what was said")
    assert scene.given == [], "like all that is sent: not while this node may have lost what it owns"
    scene.durable = True
    scene.commit()
    assert scene.given == [b"what was said"]


def test_SES_3_a_home_that_does_not_answer_is_asked_again_for_a_while_and_the_task_goes_on_without(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    gives(scene, scene.task("t"))
    asked = 0
    while not scene.given:
        asked += 1
        assert len(scene.contexts) == asked
        scene.contexts[-1][1](None)
        scene.loop.go(FIRST_PAUSE_S)
        assert asked < 1_000
    assert CONTEXT_SECONDS <= scene.loop.now < CONTEXT_SECONDS + 2 * FIRST_PAUSE_S
    assert scene.given == [b"nothing"]
    assert "without the context of its session" in caplog.text


def test_SES_3_a_home_that_has_come_to_this_node_meanwhile_answers_here(scene: Scene) -> None:
    gives(scene, scene.task("t"))
    scene.contexts[0][1](None)
    scene.away.clear()
    scene.durable = False
    scene.loop.go(FIRST_PAUSE_S)
    assert scene.given == []
    scene.commit()
    assert scene.given == [b"of this node"]
    assert len(scene.contexts) == 1


@pytest.mark.parametrize("how", ["next attempt", "ended", "left", "another one of its id"])
def test_SES_3_a_task_that_needs_it_no_more_is_not_asked_for_again(scene: Scene, how: str) -> None:
    task = scene.task("t")
    gives(scene, task)
    if how == "next attempt":
        task.attempt += 1
    elif how == "ended":
        task.state = TaskState.CANCELLED
    elif how == "left":
        del scene.host.tasks[task.key]
    else:
        scene.task("t")
    scene.contexts[0][1](None)
    scene.loop.go(1)
    assert len(scene.contexts) == 1
    assert scene.given == []
