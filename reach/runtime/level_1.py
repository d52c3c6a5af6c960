"""Level 1: from a task to the pool that takes it (RTE-15), by the directory's rules and the rooms of the pools.

A request whose selector was seen before, and that one pool can take, costs one look-up. Where several pools could, each
is asked for its room just then; what was sent in this turn of the loop, and is not counted by the pool yet, is counted
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core.directory import UNRESOLVED, Directory
from reach.core.documents import schema_key
from reach.core.drain import serves_sessions
from reach.core.intents import Route
from reach.core.model import PoolKey, Task
from reach.core.resolving import Resolved, Selector
from reach.core.retry import RetryPolicy
from reach.core.spread import TRIED, Placing, Room, ranked
from reach.errors import InvalidRequest, ReachError, Reason, error_of

if TYPE_CHECKING:
    from reach.core.pool import Pool
    from reach.runtime.far_pins import FarPins
    from reach.runtime.host import Host
    from reach.runtime.rooms import Rooms

BY_TEXT = "content"
"""The policy of tasks that are addressed by text, where nobody names another."""
LOOK_MS = 10
"""How old the room of a pool may be that has not read its mail."""
VIEWS = 1_000
"""Selectors with several pools whose rooms are remembered."""
NO_MATCH = "no_match"
"""What a pending reason begins with, where nobody could take the task."""


class LevelOne:
    """See the module."""

    def __init__(self, host: Host, directory: Directory, seed: int) -> None:
        self._host = host
        self._directory = directory
        self._seed = seed
        self._sent: dict[PoolKey, tuple[Any, int]] = {}
        """Slots that were sent to a pool with mail that it has not read: the mail, and how many."""
        self._views: dict[Selector, _View] = {}
        self.rooms: Rooms | None = None
        """What is known of the pools of other nodes; None on a node that is alone."""
        self.far_pins: FarPins | None = None
        """Where sessions are pinned on other nodes; None on a node that is alone."""
        self.default_retry: RetryPolicy | None = None
        """What a task has that names no policy, so that a route may."""

    def forget(self, key: PoolKey) -> None:
        """A pool is dropped: one with the same key is another one."""
        self._views.clear()
        self._sent.pop(key, None)

    def place(self, task: Task, selector: Selector, *, send: bool = True, placing: Placing | None = None) -> PoolKey:
        """The pool that takes a task; the task gets what its route says.

        Args:
            task: The task.
            selector: What it asks for.
            send: It will be sent there; not so if somebody only wants to know.
            placing: What was chosen before: if that is a pool, the task gets what it needs to be there.

        Raises:
            ReachError: nobody may take it, or could ever: the reason says what is missing. Or all that could are full.
        """
        resolved = self._directory.resolve(task.tenant, selector)
        if resolved.refusal is not None:
            raise _error(resolved)
        task.requirement = resolved.requirement
        if resolved.route is not None:
            self._follow(resolved.route, task, selector)
        if resolved.match is not None:
            task.policy = task.policy or BY_TEXT
        if placing is not None and placing.pool is not None:
            pools: tuple[PoolKey, ...] = (placing.pool,)
        else:
            pools = self._fitting(task, selector, resolved) if resolved.schemas else resolved.pools
            if placing is not None and placing.full:
                pools = self._left(pools, placing, task.size)
        if not pools:
            task.pending_reason = f"{NO_MATCH}: {resolved.lack.message if resolved.lack is not None else ''}"
            return PoolKey(task.tenant, selector.agent_type or UNRESOLVED)
        key = pools[0] if len(pools) == 1 else self._choose(task, selector, pools, send)
        if key.tenant != task.tenant:
            task.requirement = task.requirement._replace(tenant=task.tenant)
        return key

    def _left(self, pools: tuple[PoolKey, ...], placing: Placing, size: int) -> tuple[PoolKey, ...]:
        """The pools that are left when some were full. Raises ReachError if there is none, or enough were tried."""
        last = placing.full[-1]
        if self.rooms is not None and not self.rooms.is_here(last):
            self.rooms.found_full(last)
        left = tuple(key for key in pools if key not in placing.full and self._has_room(key, size))
        if left and len(placing.full) < TRIED:
            return left
        fault = placing.fault
        assert fault is not None
        raise error_of(
            fault.error_class,
            fault.reason,
            fault.message,
            retry_after_ms=fault.retry_after_ms,
            metadata=fault.metadata,
        )

    def had_choice(self, pool: PoolKey) -> bool:
        """Whether a pool was ever chosen among several, of late."""
        return pool in self._sent

    def others(self, task: Task, selector: Selector, pool: PoolKey, full: tuple[PoolKey, ...] = ()) -> bool:
        """Whether a task that goes to a pool could go to another one if that is full, as some were already."""
        if (not full and pool not in self._sent) or len(full) + 1 >= TRIED:
            return False
        pools = self._directory.resolve(task.tenant, selector).pools
        return any(key != pool and key not in full and self._has_room(key, task.size) for key in pools)

    def restore(self, task: Task, selector: Selector, pool: PoolKey) -> None:
        """What a task needs that was accepted before and stays in this pool: as `place`, and nothing is refused. What
        the rules of today do not understand waits for rules that do."""
        try:
            self.place(task, selector, send=False)
        except ReachError as error:
            task.requirement = selector.requirement
            if selector.intent or selector.text:
                task.requirement = selector.requirement._replace(instance_id=UNRESOLVED)
            task.pending_reason = f"{NO_MATCH}: {error.message}"
            return
        if pool.tenant != task.tenant and not task.requirement.tenant:
            task.requirement = task.requirement._replace(tenant=task.tenant)

    def _follow(self, route: Route, task: Task, selector: Selector) -> None:
        """What a route says, where the request does not."""
        if route.session_required and not task.session:
            message = f"task.session: intent {selector.intent!r} needs a session"
            raise InvalidRequest(message, Reason.INVALID_FIELD, field="task.session", intent=selector.intent)
        task.policy = task.policy or route.policy
        if task.start_to_close_ms is None:
            task.start_to_close_ms = route.timeout_ms
        if route.retry is not None and task.retry is self.default_retry:
            task.retry = route.retry
        task.session_ttl_ms = route.session_ttl_ms

    def _fitting(self, task: Task, selector: Selector, resolved: Resolved) -> tuple[PoolKey, ...]:
        """The pools with a schema that the parameters fit; instances with another one are no candidates (RTE-1)."""
        faults = self._host.codec.mismatches(task.spec, resolved.schemas)
        if not faults:
            return resolved.pools
        capability = resolved.requirement.capability
        fitting = tuple((schema_key(capability, one), 100) for one, _ in resolved.schemas if one not in faults)
        pools: tuple[PoolKey, ...] = ()
        if fitting:
            if not resolved.requirement.documents:
                task.requirement = resolved.requirement._replace(documents=fitting)
            pools = self._directory.with_schemas(task.tenant, resolved, selector, task.requirement)
        if not pools and resolved.pools:
            path, words = next(iter(faults.values()))
            message = (
                f"the parameters do not fit the schema of capability {capability!r}: at {path or 'the top'}: {words}"
            )
            raise InvalidRequest(message, Reason.SCHEMA_MISMATCH, path=path, capability=capability)
        return pools

    def _choose(self, task: Task, selector: Selector, pools: tuple[PoolKey, ...], send: bool) -> PoolKey:
        """Of several pools the one that has the session, else the one with the best room; a full one spills over."""
        view = self._views.get(selector)
        if view is None or view.keys != pools or view.requirement != task.requirement:
            abroad, pool_of = self.rooms, self._host.pool
            known = [pool_of(key) if abroad is None or abroad.is_here(key) else None for key in pools]
            view = _View(pools, known, task, selector)
            if selector.kept:
                if len(self._views) >= VIEWS:
                    self._views.clear()
                self._views[selector] = view
        if task.session and (kept := self._pinned(task, view)) is not None:
            if self.far_pins is not None:
                self.far_pins.placed((task.tenant, task.session), kept)
            return kept
        now = self._host.clock.now_ms()
        rooms = [self._room(view, at, now) for at in range(len(pools))]
        if now - view.looked_ms > LOOK_MS:
            view.looked_ms = now
        self._seed += 1
        first = -1
        for at in ranked(rooms, self._seed):
            if rooms[at].slots > 0 or self._has_room(pools[at], task.size):
                first = at
                break
            first = at if first < 0 else first
        if send:
            unread = self._unread(view, first)
            mail, sent = self._sent.get(pools[first], (None, 0))
            self._sent[pools[first]] = (unread, sent + task.cost if mail is unread else task.cost)
            if task.session and self.far_pins is not None:
                self.far_pins.placed((task.tenant, task.session), pools[first])
        return pools[first]

    def _has_room(self, key: PoolKey, size: int) -> bool:
        """Whether another task could wait in a pool."""
        if self.rooms is not None and not self.rooms.is_here(key):
            return not self.rooms.said(key).full
        pool = self._host.pool_if_any(key)
        return pool is None or pool.queue.has_room(size)

    def unknown_pins(self, task: Task, selector: Selector) -> tuple[PoolKey, ...]:
        """The pools of other nodes in one of which the session of a task may be pinned, if that is to be asked."""
        pools = self._directory.resolve(task.tenant, selector).pools
        far, rooms, name = self.far_pins, self.rooms, (task.tenant, task.session)
        if len(pools) < 2 or far is None or rooms is None or far.pools_of(name) is not None:
            return ()
        here = [self._host.pool_if_any(key) for key in pools if rooms.is_here(key)]
        if any(pool is not None and pool.pins.look(name, self._host.clock.now_ms()) is not None for pool in here):
            return ()
        return tuple(key for key in pools if not rooms.is_here(key))

    def _pinned(self, task: Task, view: _View) -> PoolKey | None:
        """The pool that has the session of a task, with an instance that goes on with it."""
        name, now = (task.tenant, task.session), self._host.clock.now_ms()
        far = self.far_pins.pools_of(name) if self.far_pins is not None else None
        for key, pool in zip(view.keys, view.pools, strict=True):
            if pool is None:
                if far is not None and key in far:
                    return key
                continue
            pin = pool.pins.get(name, now)
            instance = pool.instances.get(pin.moving_to or pin.instance_id) if pin is not None else None
            if instance is not None and serves_sessions(instance, now):
                return pool.key
        return None

    def _room(self, view: _View, at: int, now_ms: int) -> Room:
        """The room of a pool. Until it has read its mail nothing about it changes but by a timer, so that one look is
        enough for all that comes in one turn of the loop."""
        key = view.keys[at]
        unread = self._unread(view, at)
        if view.mails[at] is not unread or now_ms - view.looked_ms > LOOK_MS:
            view.mails[at] = unread
            view.rooms[at] = self._look(view, at)
        room = view.rooms[at]
        mail, sent = self._sent.get(key, (None, 0))
        if mail is unread:
            return Room(room.slots - sent, room.priority, room.best, room.queued + sent, room.capacity, room.near)
        return room

    def _look(self, view: _View, at: int) -> Room:
        pool, key, requirement = view.pools[at], view.keys[at], view.requirement
        if pool is None:
            assert self.rooms is not None
            return self.rooms.room(key, view.tenant, view.selector, requirement)
        slots, priority, best, capacity = pool.router.room(view.needs[at])
        slots = slots if pool.queue.has_room(0) else 0  # nobody comes in, whoever has a slot
        near = not requirement.region or self._directory.in_region(key, requirement.region)
        return Room(slots, priority, best, len(pool.queue), capacity, near)

    def _unread(self, view: _View, at: int) -> Any:
        """The mail that the shard of a pool has not read, or what its owner has told of it last; another object as soon
        as what was sent there is counted."""
        pool = view.pools[at]
        if pool is not None:
            return self._host.shards[pool.shard].mail
        assert self.rooms is not None
        return self.rooms.said(view.keys[at])

    def moved(self) -> None:
        """Pools may be elsewhere now."""
        self._views.clear()
        self._sent.clear()


class _View:
    """What one selector sees of the pools that it could go to."""

    __slots__ = ("keys", "looked_ms", "mails", "needs", "pools", "requirement", "rooms", "selector", "tenant")

    def __init__(self, keys: tuple[PoolKey, ...], pools: list[Pool | None], task: Task, selector: Selector) -> None:
        self.keys = keys
        self.pools = pools
        """None for those that are elsewhere."""
        self.selector = selector
        self.tenant = task.tenant
        self.requirement = requirement = task.requirement
        foreign = requirement._replace(tenant=task.tenant)
        self.needs = [requirement if key.tenant == task.tenant else foreign for key in keys]
        self.looked_ms = 0
        self.mails: list[Any] = [None] * len(keys)
        """The mail of each that was unread when we looked."""
        self.rooms: list[Room] = [Room(0)] * len(keys)


def _error(resolved: Resolved) -> ReachError:
    fault = resolved.refusal
    assert fault is not None
    return error_of(fault.error_class, fault.reason, fault.message, metadata=fault.metadata)
