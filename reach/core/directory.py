"""Level 1: which pool takes a task (RTE-15). Static facts of all instances, looked up by what a selector names."""

from __future__ import annotations

from typing import NamedTuple

from reach.core.model import PoolKey, Profile

UNRESOLVED = "~"
"""Agent type of the pool in which a tenant's tasks wait until an agent registers that they could go to."""


ANY = ("any", "")
"""The name that every instance has."""


class Selector(NamedTuple):
    """What a caller names to choose a pool; empty parts match all."""

    agent_type: str = ""
    agent_id: str = ""
    instance_id: str = ""
    capability: str = ""


class Directory:
    """All pools of a node's registry by type, agent, instance and capability."""

    __slots__ = ("_cache", "_names", "_pools", "revision")

    def __init__(self) -> None:
        self._pools: dict[PoolKey, dict[str, Profile]] = {}
        self._names: dict[tuple[str, str, str], dict[PoolKey, int]] = {}
        self._cache: dict[tuple[str, Selector], tuple[PoolKey, ...]] = {}
        self.revision = 0
        """Grows with each change."""

    def add(self, pool: PoolKey, instance_id: str, profile: Profile) -> None:
        """An instance registered, or registered anew."""
        known = self._pools.setdefault(pool, {})
        before = known.get(instance_id)
        if before == profile:
            return
        if before is not None:
            self._count(pool, instance_id, before, -1)
        known[instance_id] = profile
        self._count(pool, instance_id, profile, 1)
        self._changed()

    def remove(self, pool: PoolKey, instance_id: str) -> None:
        """An instance is gone."""
        profile = self._pools.get(pool, {}).pop(instance_id, None)
        if profile is not None:
            self._count(pool, instance_id, profile, -1)
            self._changed()

    def _changed(self) -> None:
        self.revision += 1
        self._cache.clear()

    def _count(self, pool: PoolKey, instance_id: str, profile: Profile, change: int) -> None:
        names = {("agent", profile.agent_id), ("instance", instance_id), ("type", pool.agent_type), ANY}
        names |= {("capability", name) for name, _ in profile.capabilities}
        for tenant in {pool.tenant, *profile.allowed_tenants}:
            for kind, name in names:
                counts = self._names.setdefault((tenant, kind, name), {})
                counts[pool] = counts.get(pool, 0) + change
                if counts[pool] <= 0:
                    del counts[pool]
                if not counts:
                    del self._names[tenant, kind, name]

    def pools_of(self, tenant: str, selector: Selector) -> tuple[PoolKey, ...]:
        """Every pool with an instance that the tenant may call and that matches each named part."""
        key = (tenant, selector)
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= 10_000:
                self._cache.clear()
            found = self._cache[key] = self._resolve(tenant, selector)
        return found

    def _resolve(self, tenant: str, selector: Selector) -> tuple[PoolKey, ...]:
        parts = (
            ("type", selector.agent_type),
            ("agent", selector.agent_id),
            ("instance", selector.instance_id),
            ("capability", selector.capability),
        )
        found: set[PoolKey] | None = None
        for kind, name in parts:
            if name:
                pools = self._names.get((tenant, kind, name), {}).keys()
                found = set(pools) if found is None else found & pools
        return tuple(sorted(found or ()))

    def pools_for(self, tenant: str) -> list[PoolKey]:
        """Every pool with an instance that the tenant owns or may call."""
        return list(self._names.get((tenant, *ANY), ()))

    def where(self, tenant: str, instance_id: str) -> PoolKey | None:
        """The pool of an instance that the tenant owns."""
        for pool in self._names.get((tenant, "instance", instance_id), {}):
            if pool.tenant == tenant:
                return pool
        return None
