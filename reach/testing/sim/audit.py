"""Looks into the server for what only it can know: bounds while faults rage, and that nothing is left in the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reach.core import finished, stream
from reach.core.model import FIRST_TERMINAL, TaskKey, TaskState
from reach.runtime.host import Host
from reach.testing.sim.checker import Checker

if TYPE_CHECKING:
    from reach.testing.sim.attempts import Attempts


RETURNED = 15
"""Tasks that may wait beyond the limit of the queue: those that ran come back to it, however full it is."""


def audit_bounds(host: Host, checker: Checker) -> None:
    """Queues, logs and what is finished stay within their bounds."""
    for pool in host.pools():
        if pool.queue.bytes != sum(task.size for task in pool.queue):
            checker.violate("BOUNDS_HOLD", None, f"the queue of {pool.key} counts {pool.queue.bytes} bytes")
        slots = sum(max(one.max_concurrency, one.inflight) for one in pool.instances.values())
        pending = [task for task in host.tasks.values() if task.pool is pool and task.state == TaskState.PENDING]
        if len(pending) > pool.queue.max_tasks + 2 * slots + RETURNED:
            checker.violate("BOUNDS_HOLD", None, f"{len(pending)} tasks wait in {pool.key}")
        for instance in pool.instances.values():
            held = sum(one.cost for one in pool.held if one.instance is instance)
            running = sum(task.cost for task in instance.running.values())
            if instance.inflight != held + running:
                message = f"{instance} counts {instance.inflight} slots, {running} run and {held} are held"
                checker.violate("SLOTS_ADD_UP", None, message)
    plain = sum(1 for task in host.tasks.values() if task.state >= FIRST_TERMINAL and not _streams(task))
    most = (finished.KEEP_PLAIN + finished.KEEP_VOLATILE) * max(1, len(host.pools()))
    if plain > most:
        checker.violate("BOUNDS_HOLD", None, f"{plain} finished tasks are held, {most} may be")
    for task in host.tasks.values():
        log = task.log
        if log is not None and log.bytes > stream.KEEP_BYTES and len(log.events) > 1:
            checker.violate("BOUNDS_HOLD", task.key, f"its events take {log.bytes} bytes")


def _streams(task: object) -> bool:
    log = getattr(task, "log", None)
    return log is not None and bool(log.fold.channels or log.readers)


def audit_quiet(host: Host, checker: Checker, agents: Sequence[Attempts]) -> None:
    """Nothing is left of all that work."""

    def left(message: str, key: TaskKey | None = None) -> None:
        checker.violate("QUIET_IN_THE_END", key, message)

    for task in host.tasks.values():
        if task.state < FIRST_TERMINAL:
            left(f"{task} is still there", task.key)
        elif task.log is not None and any(reader.credit > 0 for reader in task.log.readers):
            left(f"{task} has readers who could read on", task.key)
    for pool in host.pools():
        if len(pool.queue) or pool.queue.bytes or len(pool.held):
            left(f"{len(pool.queue)} tasks wait in {pool.key}, {len(pool.held)} slots are held")
        for instance in [one for one in pool.instances.values() if one.inflight or one.running]:
            left(f"{instance} is not idle")
    if host.committer.held is not None:
        left("the committer holds a batch")
    for agent in agents:
        for key in [key for key, run in agent.running.items() if run.steps]:
            left(f"{agent.name} still works", key)
        for key in agent.unacknowledged:
            left(f"{agent.name} waits for an acknowledgement", key)
