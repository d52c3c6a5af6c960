"""Watching the registry: who has been told what, and when to look again (REG-9).

Nothing is done while nobody watches. While somebody does, rare changes (an instance registers, leaves, changes its
health, is drained) are looked at when they happen, and all instances are looked at in turn, a few at a time, for what
changes often: their load and scores. So neither a beat nor a task costs anything more because somebody watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from hashlib import blake2b

from reach.core.changes import ChangeLog, Key, may_call, visible_to
from reach.core.model import Instance
from reach.runtime.host import Host

EVERY_SECONDS = 0.2
"""How often a small fleet is looked at."""
EVERY_SECONDS_LARGE = 0.05
"""How often the next LOOKED_AT of a large one are."""
LOOKED_AT = 2_000
"""Instances that are looked at in one go: about 2 ms."""
GATHER_SECONDS = 0.02
"""What happens this soon after a change is told with it."""
KEEP_SECONDS = 600.0
"""How long a watcher may be away and still resume, when nobody else watches."""

Wanted = Callable[[Instance], bool]


class Round:
    """What a watcher is to be told next."""

    __slots__ = ("cursor", "instances", "removed", "whole")

    def __init__(self, instances: list[Instance], removed: list[str], cursor: str, *, whole: bool) -> None:
        self.instances = instances
        """To be told as they are when it is done; those that have left since then are passed over."""
        self.removed = removed
        self.cursor = cursor
        self.whole = whole
        """All that was told before is void."""


class AgentChanges:
    """Changes of the registry of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.log = ChangeLog()
        self.life = host.clock.new_id()[:12]
        """Cursors of another server, or of this one before it was started anew, mean nothing here."""
        self._watchers = 0
        self._news: asyncio.Future[None] | None = None
        self._lock = asyncio.Lock()
        self._left: Iterator[Instance] = iter(())
        self._looked_at = 0.0
        self._forgetting: asyncio.TimerHandle | None = None

    def touched(self, instance: Instance) -> None:
        """Something rare happened to an instance."""
        if self._watchers and self.log.look(instance):
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    async def begin(self) -> None:
        """Somebody watches from now on. Each call needs an `end`."""
        self._watchers += 1
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        if self._watchers == 1 or self._lock.locked():
            try:
                await self._catch_up()
            except BaseException:
                self.end()
                raise

    async def _catch_up(self) -> None:
        """Finds all that happened while nobody watched."""
        async with self._lock:
            self._begin_sweep()
            while not self._sweep():  # noqa: ASYNC110 - others get their turn between two chunks of work
                await asyncio.sleep(0)

    def end(self) -> None:
        """Somebody has gone."""
        self._watchers -= 1
        if not self._watchers:
            self._forgetting = asyncio.get_running_loop().call_later(KEEP_SECONDS, self.log.clear)

    def _begin_sweep(self) -> None:
        self.log.sweep_anew()
        self._left = self._everybody()

    def _everybody(self) -> Iterator[Instance]:
        for pool in self._host.pools():
            yield from list(pool.instances.values())

    def _sweep(self) -> bool:
        """Looks at the next instances; True at the end of the fleet."""
        look, news = self.log.look, False
        for _ in range(LOOKED_AT):
            instance = next(self._left, None)
            if instance is None:
                news |= self.log.swept()
                self._left = self._everybody()
                if news:
                    self._tell()
                return True
            news |= look(instance)
        if news:
            self._tell()
        return False

    async def wait(self, number: int) -> None:
        """Returns when there may be changes after `number`, or a little later anyhow."""
        loop = asyncio.get_running_loop()
        every = EVERY_SECONDS if len(self.log.records) <= LOOKED_AT else EVERY_SECONDS_LARGE
        if self.log.number == number:
            if self._news is None:
                self._news = loop.create_future()
            await asyncio.wait({self._news}, timeout=max(0.0, self._looked_at + every - loop.time()))
        if loop.time() >= self._looked_at + every and not self._lock.locked():
            self._looked_at = loop.time()
            self._sweep()
        if self.log.number != number:
            await asyncio.sleep(GATHER_SECONDS)


class Watch:
    """One watcher. What it keeps is one entry for each instance it was told of.

    Args:
        changes: Of the node.
        tenant: Who watches.
        wanted: The filter.
        scope: The filter as bytes: a cursor means nothing under another one.
        cursor: Of an earlier watch, or empty.
    """

    def __init__(self, changes: AgentChanges, tenant: str, wanted: Wanted, scope: bytes, cursor: str) -> None:
        self._changes = changes
        self._log = changes.log
        self._tenant = tenant
        self._wanted = wanted
        self._scope = blake2b(tenant.encode() + b"\0" + scope, digest_size=6).hexdigest()
        self._told: dict[str, tuple[str, ...]] = {}
        """Instance id -> owners. Two tenants may use the same id, and a third may call both."""
        self._cursor = cursor
        self._at: int | None = None

    async def __aenter__(self) -> Watch:
        await self._changes.begin()
        self._at = self._position(self._cursor)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._changes.end()

    def _position(self, cursor: str) -> int | None:
        """The change that a cursor names; None if it is not one that can be resumed."""
        version, _, rest = cursor.partition(".")
        life, _, rest = rest.partition(".")
        scope, _, number = rest.partition(".")
        if (version, life, scope) != ("1", self._changes.life, self._scope):
            return None
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            return None
        return int(number) if self._log.horizon <= int(number) <= self._log.number else None

    def first(self) -> Round:
        """What is told first: all that match; or, to who resumes, what has changed meanwhile."""
        if self._at is None:
            return self._whole()
        for record in self._log.records.values():
            if record.number > self._at:
                break  # the latest come last
            if self._matches(record.instance):
                self._add((record.instance.pool_key.tenant, record.instance.instance_id))
        return self._changed(self._at, resumes=True)

    async def next(self) -> Round:
        """Waits for changes and takes them. May come back with none, to let the caller look after itself."""
        assert self._at is not None
        await self._changes.wait(self._at)
        return self.take()

    def take(self) -> Round:
        """What is known to have changed since the last round."""
        if self._at is None or self._at < self._log.horizon:
            return self._whole()
        return self._changed(self._at, resumes=False)

    def _matches(self, instance: Instance) -> bool:
        return visible_to(instance, self._tenant) and self._wanted(instance)

    def _round(self, instances: list[Instance], removed: list[str], *, whole: bool) -> Round:
        self._at = self._log.number
        cursor = f"1.{self._changes.life}.{self._scope}.{self._at}"
        instances.sort(key=lambda one: one.instance_id)
        return Round(instances, removed, cursor, whole=whole)

    def _whole(self) -> Round:
        self._told.clear()
        found = [record.instance for record in self._log.records.values() if self._matches(record.instance)]
        for one in found:
            self._add((one.pool_key.tenant, one.instance_id))
        return self._round(found, [], whole=True)

    def _changed(self, after: int, *, resumes: bool) -> Round:
        records, gone = self._log.since(after)
        found: list[Instance] = []
        lost: list[str] = []
        for record in records:
            one = record.instance
            key = (one.pool_key.tenant, one.instance_id)
            if self._matches(one):
                found.append(one)
                self._add(key)
            elif self._drop(key) or (resumes and self._may_know(key, record.audience)):
                lost.append(one.instance_id)
        for key, tombstone in gone:
            if self._drop(key) or (resumes and self._may_know(key, tombstone.audience)):
                lost.append(key[1])
        removed = []
        for instance_id in dict.fromkeys(lost):
            left = self._told.get(instance_id)
            if left is None:
                removed.append(instance_id)
            else:  # one of that name is left: it is told instead
                found.extend(self._log.records[owner, instance_id].instance for owner in left)
        return self._round(found, removed, whole=False)

    def _may_know(self, key: Key, audience: frozenset[str]) -> bool:
        """Whether a former watch may have told of it."""
        return key[0] == self._tenant or may_call(self._tenant, audience)

    def _add(self, key: Key) -> None:
        owners = self._told.get(key[1], ())
        if key[0] not in owners:
            self._told[key[1]] = (*owners, key[0])

    def _drop(self, key: Key) -> bool:
        owners = self._told.get(key[1], ())
        if key[0] not in owners:
            return False
        left = tuple(owner for owner in owners if owner != key[0])
        if left:
            self._told[key[1]] = left
        else:
            del self._told[key[1]]
        return True
