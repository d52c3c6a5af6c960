"""The whole of a cluster's keys in memory: listed, watched, and listed again every minute.

One watch over one prefix, so that what depends on each other (members, candidates, wish) is seen in the order in
which it happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic_ns

from reach.cluster.base import ClusterError, ClusterUnavailable, Unsubscribe
from reach.cluster.etcd_api import Compacted, EtcdClient, Followed, KeyValue, follow
from reach.cluster.listeners import Listeners

RELIST_S = 60.0
BEHIND_MS = 2_500
"""Silence up to this is the rhythm of heartbeats, and one turn to another member."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 1.0

_log = logging.getLogger(__name__)


def now_ms() -> int:
    """The monotonic clock. Leases are judged by it, so it is never a simulated one."""
    return monotonic_ns() // 1_000_000


class Mirror:
    """Keys below a prefix, in groups by what stands before their first slash. `run()` keeps it; reads never wait."""

    def __init__(self, client: EtcdClient, prefix: bytes, relist_s: float = RELIST_S) -> None:
        self._client = client
        self._prefix = prefix
        self._relist_s = relist_s
        self._entries: dict[bytes, KeyValue] = {}
        self._listeners: dict[bytes, Listeners[[Sequence[bytes]]]] = {}
        self._moved = asyncio.Event()
        self._heard_ms = now_ms()
        self.revision = 0
        """All changes up to here are in it."""
        self.filled = asyncio.Event()

    def get(self, key: bytes) -> KeyValue | None:
        """The entry of a key below the prefix."""
        return self._entries.get(key)

    def group(self, group: bytes) -> list[tuple[bytes, KeyValue]]:
        """All entries of a group, in no order: cost grows with all entries."""
        start = group + b"/"
        return [(key, entry) for key, entry in self._entries.items() if key.startswith(start)]

    def subscribe(self, group: bytes, listener: Callable[[Sequence[bytes]], None]) -> Unsubscribe:
        """Calls the listener with the keys of the group that have changed."""
        return self._listeners.setdefault(group, Listeners()).add(listener)

    @property
    def behind_ms(self) -> int:
        """See Cluster.behind_ms."""
        silence = now_ms() - self._heard_ms
        return silence if silence > BEHIND_MS else 0

    async def reached(self, revision: int, seconds: float = 1.0) -> bool:
        """Waits until the changes up to revision are in, but no longer than so."""
        try:
            async with asyncio.timeout(seconds):
                while self.revision < revision:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Follows etcd, until cancelled. What was known stays readable while etcd is away."""
        wait = _FIRST_WAIT_S
        while True:
            try:
                found, revision = await self._client.list(self._prefix)
                self._replace(found, revision)
                wait = _FIRST_WAIT_S
                await follow(self._client, self._prefix, revision + 1, self._apply, self._heard, self._relist_s)
            except Compacted as error:
                _log.info("etcd has compacted past the watch: listing anew", extra={"cause": str(error)})
            except ClusterError as error:
                level = (
                    logging.DEBUG if isinstance(error, ClusterUnavailable) and wait > _FIRST_WAIT_S else logging.WARNING
                )
                _log.log(level, "etcd cannot be followed, what was known stays: %s", error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)

    def _heard(self) -> None:
        self._heard_ms = now_ms()

    def _replace(self, found: Sequence[KeyValue], revision: int) -> None:
        entries = {one.key.removeprefix(self._prefix): one for one in found}
        before = self._entries
        changed = [key for key, one in entries.items() if before.get(key) != one]
        changed += [key for key in before if key not in entries]
        self._entries = entries
        self._heard()
        self._advance(revision, changed)
        self.filled.set()

    def _apply(self, events: Sequence[Followed]) -> None:
        changed: dict[bytes, None] = {}
        revision = 0
        for kv, removed in events:
            if kv.mod_revision <= self.revision or kv.mod_revision < revision:
                continue  # versions of etcd 3.4 repeat events (E6): what was so then may be otherwise by now
            revision = kv.mod_revision
            key = kv.key.removeprefix(self._prefix)
            if removed:
                self._entries.pop(key, None)
            else:
                self._entries[key] = kv
            changed[key] = None
        if changed:
            self._advance(revision, list(changed))

    def _advance(self, revision: int, changed: Sequence[bytes]) -> None:
        self.revision = revision
        self._moved.set()
        groups: dict[bytes, list[bytes]] = {}
        for key in changed:
            groups.setdefault(key.split(b"/", 1)[0], []).append(key)
        for group, keys in groups.items():
            if group in self._listeners:
                self._listeners[group].tell(keys)
