"""What changed in the registry, for those who watch it (REG-9).

A log of *which* instances changed, never of *how*: each instance has one record with the number of its latest change.
So a watcher that was away or is slow finds each of them once, as it is now (latest wins), and nothing grows with the
number of changes. Whoever keeps the log shows it instances (`look`); it finds out by itself whether they look
different.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from reach.core.model import Instance
from reach.core.sifting import ANYBODY

TOMBSTONES = 10_000
"""Instances that are gone and still told of. Who has heard nothing since before the oldest of them starts anew."""
AUDIENCE = 1_024
"""Tenants that one instance may have been visible to, while it is in the log."""

Key = tuple[str, str]
"""(owning tenant, instance_id)"""


def visible_to(instance: Instance, tenant: str) -> bool:
    """Whether a tenant may see an instance: its owner, and those that may call it (GOV-1)."""
    return instance.pool_key.tenant == tenant or may_call(tenant, instance.profile.allowed_tenants)


def may_call(tenant: str, allowed: Collection[str]) -> bool:
    """Whether a tenant is among those that an agent of another one lets call it."""
    return tenant in allowed or ANYBODY in allowed


def looks(instance: Instance) -> tuple[Any, ...]:
    """What makes a difference to who watches. Not the age of the last beat: else every beat would be news."""
    score = instance.reach_score
    return (
        instance.revision,
        instance.generation,
        instance.health,
        instance.availability,
        instance.blocked_by,
        instance.inflight,
        instance.max_concurrency,
        instance.probe_status,
        instance.last_probe_error,
        None if score is None else int(score),
        tuple(instance.conditions) if instance.conditions else (),
    )


class Record:
    """One instance as it was seen last."""

    __slots__ = ("audience", "instance", "looks", "number", "sweep")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.looks: tuple[Any, ...] = ()
        self.number = 0
        """Of its latest change."""
        self.sweep = 0
        """The latest sweep that found it."""
        self.audience: frozenset[str] = frozenset()
        """Tenants other than its owner that it has been visible to: these may hear that it is not any more."""


class Gone:
    """A tombstone."""

    __slots__ = ("audience", "number")

    def __init__(self, number: int, audience: frozenset[str]) -> None:
        self.number = number
        self.audience = audience


class ChangeLog:
    """See the module."""

    __slots__ = ("_sweep", "gone", "horizon", "number", "records")

    def __init__(self) -> None:
        self.number = 0
        """Of the latest change."""
        self.horizon = 0
        """Who has not heard of this change may have missed something for good."""
        self.records: OrderedDict[Key, Record] = OrderedDict()
        """The latest change comes last."""
        self.gone: OrderedDict[Key, Gone] = OrderedDict()
        self._sweep = 1

    def look(self, instance: Instance) -> bool:
        """Compares an instance with what is known of it; True if that is news."""
        key = (instance.pool_key.tenant, instance.instance_id)
        record = self.records.get(key)
        if instance.bit < 0:  # it has left; perhaps another one has its name by now
            return record is not None and record.instance is instance and self._remove(key)
        now = looks(instance)
        if record is None:
            record = self.records[key] = Record(instance)
            if (gone := self.gone.pop(key, None)) is not None:
                record.audience = gone.audience  # who has not heard that it went may hear that it is not theirs
        elif record.looks == now and record.instance is instance:
            record.sweep = self._sweep
            return False
        self.number += 1
        record.instance, record.looks, record.number, record.sweep = instance, now, self.number, self._sweep
        if instance.profile.allowed_tenants:
            self._widen(record, instance.profile.allowed_tenants)
        self.records.move_to_end(key)
        return True

    def _widen(self, record: Record, tenants: tuple[str, ...]) -> None:
        if not record.audience.issuperset(tenants):
            record.audience = record.audience.union(tenants)
            if len(record.audience) > AUDIENCE:
                record.audience = frozenset(tenants)
                self.horizon = self.number  # whoever is forgotten by this hears of it by starting anew

    def _remove(self, key: Key) -> bool:
        record = self.records.pop(key)
        self.number += 1
        self.gone[key] = Gone(self.number, record.audience)
        if len(self.gone) > TOMBSTONES:
            self.horizon = self.gone.popitem(last=False)[1].number
        return True

    def swept(self) -> bool:
        """All instances that there are have been shown since the last call: the others are gone. True if any is."""
        missing = [key for key, record in self.records.items() if record.sweep != self._sweep]
        for key in missing:
            self._remove(key)
        self._sweep += 1
        return bool(missing)

    def sweep_anew(self) -> None:
        """What was seen since the last sweep may have gone again unseen: only what is shown from now on is there."""
        self._sweep += 1

    def since(self, number: int) -> tuple[list[Record], list[tuple[Key, Gone]]]:
        """Records and tombstones of later changes, each group from its latest."""
        records = []
        for record in reversed(self.records.values()):
            if record.number <= number:
                break
            records.append(record)
        gone = []
        for key in reversed(self.gone):
            if self.gone[key].number <= number:
                break
            gone.append((key, self.gone[key]))
        return records, gone

    def clear(self) -> None:
        """Forgets all records: whoever comes back starts anew."""
        self.number += 1
        self.horizon = self.number
        self.records.clear()
        self.gone.clear()
