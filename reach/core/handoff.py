"""Sessions that move from one instance of a pool to another (SES-4), and sessions that are forgotten.

Before a session leaves an instance that is still there and can say what it knows of it, that one is asked: the
session's tasks wait for the answer, but not for long. Whoever gets the session next is given the answer with its offers
until it has taken one up; where there is none, the context of the session has to do. As long as the old instance is
there, the pin moves only then: an instance that never takes up has not got the session.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from reach.core.effects import AskSnapshot, Turn
from reach.core.model import Instance, Task
from reach.core.pieces import Kind
from reach.core.rows import PinRow
from reach.core.session import Pin, SessionName
from reach.core.stream import emit

if TYPE_CHECKING:
    from reach.core.events import SessionForgotten, SnapshotCame
    from reach.core.pool import Pool

ASK_MS = 1_000
"""How long a session's tasks wait for what its instance knows of it."""
MUTE_MS = 10_000
"""How long an instance that did not answer is not asked again: its other sessions need not wait for nothing."""
MOVING = 100_000
"""Sessions of a pool that are on their way; of more, the longest known one goes without a snapshot."""
HELD_BYTES = 64 << 20
"""What the snapshots of a node take."""
WAITS = "handoff"
"""What the tasks of such a session wait for, as callers read it."""


class Snapshots:
    """The snapshots of a node; its pools share them. If they are too much, the one that is known longest goes, whosever
    it is: many are of sessions that nobody goes on with, and these must not take the room of others."""

    __slots__ = ("_held", "bytes")

    def __init__(self) -> None:
        self._held: OrderedDict[Moving, None] = OrderedDict()
        self.bytes = 0

    def hold(self, moving: Moving, snapshot: bytes) -> None:
        """Keeps what an instance said."""
        self.drop(moving)
        if snapshot:
            moving.snapshot = snapshot
            self.bytes += len(snapshot)
            self._held[moving] = None
            while self.bytes > HELD_BYTES:
                self.drop(next(iter(self._held)))

    def drop(self, moving: Moving) -> None:
        """It is not needed any more."""
        self._held.pop(moving, None)
        self.bytes -= len(moving.snapshot)
        moving.snapshot = b""


class Moving:
    """A session on its way."""

    __slots__ = ("number", "ready", "snapshot", "source", "target", "until_ms")

    def __init__(self, source: str) -> None:
        self.source = source
        """The instance that it leaves."""
        self.until_ms = 0
        """Until when the answer of that one is waited for."""
        self.ready = False
        """It has answered, or need not be waited for."""
        self.snapshot = b""
        self.target = ("", 0)
        """(instance, generation) that is to have it."""
        self.number = 0
        """Of the hand-off."""


class Handoffs:
    """The sessions of one pool that are on their way."""

    __slots__ = ("_moving", "_mute", "moves", "pool", "room")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._moving: OrderedDict[SessionName, Moving] = OrderedDict()
        self._mute: dict[str, int] = {}
        self.room = Snapshots()
        self.moves = 0
        """How often a session of the pool has moved."""
        pool.pins.busy = self._is_busy

    def __len__(self) -> int:
        return len(self._moving)

    def _is_busy(self, name: SessionName, instance_id: str) -> bool:
        """Whether a session has tasks that are not over at an instance."""
        instance = self.pool.instances.get(instance_id)
        if instance is not None and any((one.tenant, one.session) == name for one in instance.running.values()):
            return True
        waiting = self.pool.questions.paused()
        return any((one.tenant, one.session) == name and one.instance_id == instance_id for one in waiting)

    # -- asking -------------------------------------------------------------------------------------------------------

    def wait_until_ms(self, task: Task, pin: Pin, turn: Turn) -> int:
        """Until when the session of a task has to wait for what its instance knows of it, before it goes to another
        one; 0: it may go. Asks, if that has not been done yet. A task in a hurry waits for less."""
        name = (task.tenant, task.session)
        moving = self._moving.get(name)
        if moving is None or moving.source != pin.instance_id:
            moving = self._begin(name, pin.instance_id)
            old = self.pool.instances.get(pin.instance_id)
            link = old.link if old is not None else None
            if getattr(link, "hands_over", False) and turn.now_ms >= self._mute.get(pin.instance_id, 0):
                patience_ms = max(1, min(ASK_MS, self.pool.deadlines.to_start_ms(task, turn.now_ms) // 2))
                moving.until_ms = turn.now_ms + patience_ms
                turn.sends.append(AskSnapshot(link, *name, patience_ms))
            else:
                moving.ready = True
        if moving.ready:
            return 0
        if turn.now_ms < moving.until_ms:
            return moving.until_ms
        moving.ready = True
        self._mute = {one: until for one, until in self._mute.items() if until > turn.now_ms}
        self._mute[pin.instance_id] = turn.now_ms + MUTE_MS
        return 0

    def _begin(self, name: SessionName, source: str) -> Moving:
        self._end(name)
        while len(self._moving) >= MOVING:
            self._end(next(iter(self._moving)))
        moving = self._moving[name] = Moving(source)
        return moving

    def _end(self, name: SessionName) -> None:
        moving = self._moving.pop(name, None)
        if moving is not None:
            self.room.drop(moving)

    def came(self, event: SnapshotCame, turn: Turn) -> None:
        """An instance says what it knows of a session: as it was asked, or because it is about to leave."""
        pool, name, source = self.pool, event.name, event.instance.instance_id
        pin = pool.pins.look(name, turn.now_ms)
        if pin is None or pin.instance_id != source:
            return  # the session is not with it
        moving = self._moving.get(name)
        if moving is None or moving.source != source:
            moving = self._begin(name, source)
        self._mute.pop(source, None)
        if moving.target != ("", 0):
            return  # it is gone already
        moving.ready = True
        self.room.hold(moving, event.snapshot)
        pool.slot_freed = True

    def clear(self) -> None:
        """The pool is dropped."""
        for name in list(self._moving):
            self._end(name)

    # -- going --------------------------------------------------------------------------------------------------------

    def goes(self, task: Task, pin: Pin, instance: Instance, turn: Turn) -> bool:
        """An attempt of a session begins at an instance. False: its pin stays where it is until that one takes up."""
        name, here = (task.tenant, task.session), instance.instance_id
        moving = self._moving.get(name)
        if pin.instance_id == here:
            pin.moving_to = ""
            if moving is not None and moving.source == here:
                self._end(name)  # it goes on where it was: what that one said is no longer all
            if pin.generation not in (0, instance.generation):
                self._go(self._begin(name, ""), pin, instance)  # a new process, which knows nothing of it
            pin.generation = instance.generation
            return True
        if moving is None:
            moving = self._begin(name, pin.instance_id)
        if moving.target != (here, instance.generation):
            self._go(moving, pin, instance)
            self.moves += 1
            emit(task, Kind.HANDOFF, (pin.instance_id, here), turn)
            self.pool.delivery.touch(task)
        old = self.pool.instances.get(pin.instance_id)
        if old is not None and old.link is not None:
            pin.moving_to = here
            return False
        pin.moving_to = ""
        pin.generation = instance.generation
        return True

    @staticmethod
    def _go(moving: Moving, pin: Pin, instance: Instance) -> None:
        moving.ready = True
        moving.target = (instance.instance_id, instance.generation)
        moving.number = pin.handoffs + 1

    def given(self, task: Task) -> tuple[bytes, int]:
        """(what the instance before knew, the number of the hand-off) for the offer of a session's task; (nothing, 0)
        if the session is at home there."""
        moving = self._moving.get((task.tenant, task.session))
        if moving is None or task.instance is None:
            return b"", 0
        if moving.target != (task.instance_id, task.instance.generation):
            return b"", 0
        return moving.snapshot, moving.number

    def taken_up(self, task: Task, turn: Turn) -> None:
        """An instance works on a task of a session: it has what it was given, and the session is its."""
        name = (task.tenant, task.session)
        moving = self._moving.get(name)
        instance: Instance | None = task.instance
        if moving is None or instance is None or moving.target != (task.instance_id, instance.generation):
            return
        self._end(name)
        pin = self.pool.pins.look(name, turn.now_ms)
        if pin is None or pin.moving_to != task.instance_id:
            return
        pin.moving_to = ""
        pin = self.pool.pins.set(name, task.instance_id, turn.now_ms, task.session_ttl_ms)
        pin.generation = instance.generation
        if not task.volatile:
            self.write(name, pin, turn)

    def write(self, name: SessionName, pin: Pin, turn: Turn) -> None:
        """Has the journal keep where a session is. Each task renews the pin, and a row is due only when half of what is
        written has passed: after a restart a session has half of its time at least."""
        if pin.kept_until_ms - turn.now_ms > pin.ttl_ms // 2:
            return
        pin.kept_until_ms = pin.expires_ms
        pool, expires = self.pool, turn.wall_ms + pin.ttl_ms
        row = PinRow(pool.shard, pool.key.tenant, pool.key.agent_type, *name, pin.instance_id, expires, pin.handoffs)
        turn.writes.pins.append(row)

    def forget(self, event: SessionForgotten, turn: Turn) -> None:
        """A session was deleted: its pin goes, and what waited for its instance may go anywhere."""
        pool = self.pool
        self._end(event.name)
        if pool.pins.look(event.name, 0) is None:
            return
        pool.pins.drop(event.name)
        turn.writes.pins.append(PinRow(pool.shard, pool.key.tenant, pool.key.agent_type, *event.name, "", 0, 0))
        pool.slot_freed = True
