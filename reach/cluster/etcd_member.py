"""This node in etcd: one lease, on which its membership and its candidacy hang.

The own clock says how long the lease is surely held: time a renewal was *sent* + TTL. After an etcd restart leases
begin anew in full, so
a node that only could not reach etcd finds its lease again, and nothing has moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from reach.cluster.base import ClusterError, ClusterUnavailable, NodeInfo, Standing, Unsubscribe
from reach.cluster.etcd_api import EtcdClient, KeyValue, LeaseGone, put, unchanged
from reach.cluster.etcd_api.client import renew
from reach.cluster.etcd_mirror import Mirror, now_ms
from reach.cluster.listeners import Listeners

TTL_S = 2
"""At least one and a half of etcd's election timeout (1 s by default), or etcd raises it."""
RENEWALS = 4
"""Per TTL."""
_AGAIN_S = 0.1

_log = logging.getLogger(__name__)


class EtcdMembership:
    """Membership; see base.py. `run()` keeps the lease."""

    def __init__(self, client: EtcdClient, mirror: Mirror, prefix: bytes, ttl_s: int = TTL_S) -> None:
        self._client = client
        self._mirror = mirror
        self._prefix = prefix
        self._ttl_s = ttl_s
        self._info: NodeInfo | None = None
        self._nodes: dict[str, NodeInfo] = {}
        self._lease = 0
        self._joined_at = 0
        self._held_until_ms = 0
        self._replaced = False
        self._told = Standing.OUT
        self._stirred = asyncio.Event()
        self._entering = asyncio.Lock()
        self._listeners: Listeners[[]] = Listeners()
        self._entered: Listeners[[]] = Listeners()
        mirror.subscribe(b"nodes", self._changed)

    @property
    def info(self) -> NodeInfo | None:
        """What was joined with; None before and after."""
        return self._info

    @property
    def lease(self) -> int:
        """The lease that this node's keys hang on; 0: none."""
        return self._lease

    @property
    def ttl_ms(self) -> int:
        """Of the lease."""
        return 1000 * self._ttl_s

    @property
    def lease_age_ms(self) -> int | None:
        """By the own clock."""
        return now_ms() - self._held_until_ms + self.ttl_ms if self._lease else None

    @property
    def standing(self) -> Standing:
        """As of now, by the own clock."""
        if self._info is None or not self._joined_at:
            return Standing.OUT  # who has not been there yet has lost nothing
        if self._replaced:
            return Standing.REPLACED
        if not self._lease or now_ms() >= self._held_until_ms or self._mirror.revision < self._joined_at:
            return Standing.LOST  # the last: what is known here is older than the lease, such as the wish
        return Standing.MEMBER

    def nodes(self) -> Mapping[str, NodeInfo]:
        """All that are there."""
        return MappingProxyType(self._nodes)

    def subscribe(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener after changes."""
        return self._listeners.add(listener)

    def on_entered(self, listener: Callable[[], None]) -> Unsubscribe:
        """Calls the listener each time a new lease was won: what hung on the old one is gone."""
        return self._entered.add(listener)

    async def join(self, info: NodeInfo) -> None:
        """Takes the place of an earlier process, too."""
        self._info = info
        self._replaced = False
        try:
            await self._enter(take_over=True)
        except LeaseGone as error:  # this process stood still in the middle
            self._info = None
            raise ClusterUnavailable(f"the lease lapsed while the node joined: {error}") from error
        except BaseException:
            self._info = None
            raise

    async def update(self, info: NodeInfo) -> None:
        """Changes what the others know."""
        if self._info is None or (info.node_id, info.boot) != (self._info.node_id, self._info.boot):
            raise ClusterError("update() is for the process that joined: node_id and boot stay")
        changed = info != self._info
        self._info = info
        async with self._entering:
            there = self._mirror.get(_key(info))
            if self.standing is not Standing.MEMBER or there is None or (not changed and _decoded(there) == info):
                return
            key = self._prefix + _key(info)
            try:
                done, revision = await self._client.txn(
                    [put(key, _encoded(info), self._lease)], [unchanged(key, there.mod_revision)]
                )
            except LeaseGone:
                done, revision = False, 0
        if done:
            await self._mirror.reached(revision)
        else:
            self._lose()

    async def leave(self) -> None:
        """Goes at once."""
        lease, self._lease, self._info = self._lease, 0, None
        self._joined_at = 0
        self._stirred.set()
        if lease:
            await self._revoke(lease)
        self._tell()

    async def convict(self, node_id: str, boot: str) -> bool:
        """Ends the lease of a process that is surely dead.

        The lease is of that boot alone, so nobody else can be hit.
        """
        entry = self._mirror.get(b"nodes/" + node_id.encode())
        if entry is None or _decoded(entry).boot != boot:
            return False
        return await self._client.revoke(entry.lease)

    async def run(self) -> None:
        """Renews the lease, wins a new one when it is lost, until cancelled."""
        while True:
            self._stirred.clear()
            try:
                if self._info is None or self._replaced:
                    await self._stirred.wait()
                elif not self._lease:
                    await self._enter(take_over=False)
                else:
                    await self._renew()
            except LeaseGone as error:
                _log.warning("the lease is gone, joining again: %s", error)
                self._lose()
            except ClusterError as error:
                _log.log(
                    logging.DEBUG if self._told is Standing.LOST else logging.WARNING,
                    "the lease is not renewed: %s",
                    error,
                )
                self._tell()
                await asyncio.sleep(_AGAIN_S)

    async def _enter(self, *, take_over: bool) -> None:
        async with self._entering:
            info = self._info
            if info is None or self._lease:
                return
            key = self._prefix + _key(info)
            there = await self._client.get(key)
            if there is not None and not take_over and _decoded(there).boot != info.boot:
                self._replaced = True
                self._tell()
                return
            sent = now_ms()
            lease = await self._client.grant(self._ttl_s, self._ttl_s / 2)
            # The key changes hands in one step: an earlier process never finds it free, and takes it back.
            seen = there.mod_revision if there is not None else 0
            done, revision = await self._client.txn(
                [put(key, _encoded(info), lease)], [unchanged(key, seen)], self._ttl_s / 2
            )
            if not done:
                await self._revoke(lease)
                raise ClusterUnavailable("another process joins under this node id at the same time")
            if there is not None:  # what else hangs on it, the candidacy, is the earlier process's
                await self._revoke(there.lease)
            if self._info is None:  # it left meanwhile
                await self._revoke(lease)
                return
            await self._mirror.reached(revision)
            self._lease, self._joined_at, self._held_until_ms = lease, revision, sent + 1000 * self._ttl_s
        self._stirred.set()
        self._tell()
        self._entered.tell()

    async def _revoke(self, lease: int) -> None:
        """Ends a lease, or leaves it to its TTL."""
        with contextlib.suppress(ClusterError):
            await self._client.revoke(lease)

    async def _renew(self) -> None:
        """Returns when the lease was given up; raises when it is lost, or not renewed in time."""
        lease = self._lease
        every = self._ttl_s / RENEWALS
        stream = await self._client.renewals(every)
        try:
            while self._lease == lease:
                sent = now_ms()
                await renew(stream, lease, every)
                if self.standing is Standing.LOST:  # who looked while it was late has seen that, and was told nothing
                    self._told = Standing.LOST
                self._held_until_ms = sent + 1000 * self._ttl_s
                self._tell()
                self._stirred.clear()
                if self._missing():
                    raise LeaseGone("the node's key is gone")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, every - (now_ms() - sent) / 1000)):
                        await self._stirred.wait()
        finally:
            await stream.close()

    def _missing(self) -> bool:
        if self._info is None or self._mirror.revision < self._joined_at:
            return False
        entry = self._mirror.get(_key(self._info))
        return entry is None or entry.lease != self._lease

    def _lose(self) -> None:
        self._lease = 0
        self._held_until_ms = 0
        self._tell()

    def _tell(self) -> None:
        if self.standing is not self._told:
            self._told = self.standing
            self._listeners.tell()

    def _changed(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            entry = self._mirror.get(key)
            name = key.removeprefix(b"nodes/").decode()
            if entry is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = _decoded(entry)
        if self._info is not None and self._lease and self._missing():
            self._lose()
            self._stirred.set()
        self._told = self.standing
        self._listeners.tell()


def _key(info: NodeInfo) -> bytes:
    return b"nodes/" + info.node_id.encode()


def _encoded(info: NodeInfo) -> bytes:
    return json.dumps(info._asdict()).encode()


def _decoded(entry: KeyValue) -> NodeInfo:
    """Of this version or the next, which may know more fields (CLU-6)."""
    fields = json.loads(entry.value)
    return NodeInfo(**{name: value for name, value in fields.items() if name in NodeInfo._fields})
