"""Level 1: from a task to the pool that takes it (RTE-15), by the directory's rules and the rooms of the pools.

A request whose selector was seen before, and that one pool can take, costs one look-up. Where several pools could, each
is asked for its room just then; what was sent in this turn of the loop, and is not counted by the pool yet, is counted
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core.directory import UNRESOLVED, Directory
from reach.core.intents import Route
from reach.core.model import PoolKey, Task, schema_key
from reach.core.resolving import Resolved, Selector
from reach.core.retry import RetryPolicy
from reach.core.spread import Room, ranked
from reach.errors import InvalidRequest, ReachError, Reason, error_of

if TYPE_CHECKING:
    from reach.core.pool import Pool
    from reach.runtime.host import Host

BY_TEXT = "content"
"""The policy of tasks that are addressed by text, where nobody names another."""
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
        self.default_retry: RetryPolicy | None = None
        """What a task has that names no policy, so that a route may."""

    def place(self, task: Task, selector: Selector, *, send: bool = True) -> PoolKey:
        """The pool that takes a task; the task gets what its route says.

        Args:
            task: The task.
            selector: What it asks for.
            send: It will be sent there; not so if somebody only wants to know.

        Raises:
            ReachError: nobody may take it, or could ever: the reason says what is missing.
        """
        resolved = self._directory.resolve(task.tenant, selector)
        if resolved.refusal is not None:
            raise _error(resolved)
        task.requirement = resolved.requirement
        if resolved.route is not None:
            self._follow(resolved.route, task, selector)
        if resolved.match is not None:
            task.match = resolved.match
            task.policy = task.policy or BY_TEXT
        pools = resolved.pools
        if resolved.schemas:
            pools = self._fitting(task, selector, resolved)
        if not pools:
            task.pending_reason = f"{NO_MATCH}: {resolved.waits_for}"
            return PoolKey(task.tenant, selector.agent_type or UNRESOLVED)
        key = pools[0] if len(pools) == 1 else self._choose(task, pools, send)
        if key.tenant != task.tenant:
            task.requirement = task.requirement._replace(tenant=task.tenant)
        return key

    def restore(self, task: Task, selector: Selector, pool: PoolKey) -> PoolKey:
        """As `place`, for a task that was accepted before: nothing is refused, and it stays where it was if it was
        anywhere. What the rules of today do not understand waits for rules that do."""
        homeless = pool.agent_type == UNRESOLVED
        try:
            placed = self.place(task, selector)
        except ReachError as error:
            task.requirement = selector.requirement
            if selector.intent or selector.text:
                task.requirement = selector.requirement._replace(instance_id=UNRESOLVED)
            task.pending_reason = f"{NO_MATCH}: {error.message}"
            return pool
        if not homeless and pool.tenant != task.tenant and not task.requirement.tenant:
            task.requirement = task.requirement._replace(tenant=task.tenant)
        return placed if homeless else pool

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

    def _choose(self, task: Task, pools: tuple[PoolKey, ...], send: bool) -> PoolKey:
        """Of several pools the one that has the session, else the one with the best room; a full one spills over."""
        host = self._host
        known = [host.pool(key) for key in pools]
        if task.session:
            now = host.clock.now_ms()
            for pool in known:
                pin = pool.pins.get((task.tenant, task.session), now)
                instance = pool.instances.get(pin.instance_id) if pin is not None else None
                if instance is not None and not instance.blocked_by:
                    return pool.key
        rooms = [self._room(pool, task) for pool in known]
        self._seed += 1
        order = ranked(rooms, self._seed)
        first = next((at for at in order if rooms[at].slots > 0 or known[at].queue.has_room(task.size)), order[0])
        if send:
            self._count(known[first], task.cost)
        return pools[first]

    def _room(self, pool: Pool, task: Task) -> Room:
        requirement = task.requirement
        if pool.key.tenant != task.tenant:
            requirement = requirement._replace(tenant=task.tenant)
        slots, priority, best, capacity = pool.router.room(requirement)
        mail, sent = self._sent.get(pool.key, (None, 0))
        if mail is self._unread(pool):
            slots -= sent
        near = not requirement.region or self._directory.in_region(pool.key, requirement.region)
        return Room(slots, priority, best, len(pool.queue) + max(0, -slots), capacity, near)

    def _unread(self, pool: Pool) -> Any:
        """The mail that the shard of a pool has not read; another object as soon as it has."""
        return self._host.shards[pool.shard].mail

    def _count(self, pool: Pool, slots: int) -> None:
        """Notes what is about to be sent."""
        unread = self._unread(pool)
        mail, sent = self._sent.get(pool.key, (None, 0))
        self._sent[pool.key] = (unread, sent + slots if mail is unread else slots)


def _error(resolved: Resolved) -> ReachError:
    fault = resolved.refusal
    assert fault is not None
    return error_of(fault.error_class, fault.reason, fault.message, metadata=fault.metadata)
