"""etcd, as far as nodes use it: revisions, transactions, leases and watches, behind several addresses.

Always consistent, as etcd is; but answers get lost, watches lag and are compacted, leases lapse, and all of it may be
away for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message

from agentreach.internal.etcd.v3 import etcd_pb2 as pb
from reach.testing.sim.calls import failure_of
from reach.testing.sim.nodes.calls import Handler, ServerCall
from reach.testing.sim.nodes.channels import Servers
from reach.testing.sim.nodes.process import NodeProcess, NodesLoop

MEMBERS = ("e1", "e2")
"""Machines; a node that cannot use one turns to the next."""
LEASES_S = 0.25
"""How often it looks for leases that have lapsed."""
_C = grpc.StatusCode
_CREATE, _MOD, _VALUE = 1, 2, 3


def address_of(member: str) -> str:
    """Where a member serves."""
    return f"{member}:2379"


class Entry(NamedTuple):
    """A key."""

    value: bytes
    created: int
    changed: int
    lease: int


class Etcd:
    """See the module."""

    def __init__(self, loop: NodesLoop, random: Random, servers: Servers, tell: Callable[..., None]) -> None:
        self._loop = loop
        self._random = random
        self._servers = servers
        self._tell = tell
        self.unknown = 0.0
        """Share of transactions that are not answered; half of them are done."""
        self.lag = 0.0
        """Share of changes that watches tell late."""
        self.revision = 1
        self.entries: dict[bytes, Entry] = {}
        self._changes: list[tuple[int, bytes, Entry | None]] = []
        self._compacted = 0
        self.leases: dict[int, tuple[int, float]] = {}
        """By lease: time to live, and when it lapses, in seconds."""
        self._last_lease = 7_000
        self._changed: dict[asyncio.Event, None] = {}
        self.up = False
        self._processes: list[NodeProcess] = []
        self.start()
        loop.call_later(LEASES_S, self._lapse)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All members serve; leases begin anew, in full."""
        if self.up:
            return
        self.up = True
        self.leases = {lease: (ttl, self._loop.now + ttl) for lease, (ttl, _) in self.leases.items()}
        handlers: dict[str, Handler] = {
            "/etcdserverpb.KV/Range": self._answering(pb.RangeRequest, self._range),
            "/etcdserverpb.KV/Txn": self._answering(pb.TxnRequest, self._txn),
            "/etcdserverpb.Lease/LeaseGrant": self._answering(pb.LeaseGrantRequest, self._grant),
            "/etcdserverpb.Lease/LeaseRevoke": self._answering(pb.LeaseRevokeRequest, self._revoke),
            "/etcdserverpb.Lease/LeaseKeepAlive": self._keep_alive,
            "/etcdserverpb.Watch/Watch": self._watch,
        }
        for member in MEMBERS:
            process = NodeProcess(self._loop, self._random, member)
            self._processes.append(process)
            self._servers.serve(address_of(member), process, handlers)

    def stop(self) -> None:
        """All members are away."""
        self.up = False
        for process in self._processes:
            if not process.dead:
                process.die()
                self._servers.died(process)

    def processes(self) -> list[NodeProcess]:
        """All that ever were."""
        return self._processes

    def compact(self) -> None:
        """What has changed before now is not told any more."""
        self._compacted = self.revision
        self._changes.clear()
        for changed in self._changed:
            changed.set()

    def _lapse(self) -> None:
        self._loop.call_later(LEASES_S, self._lapse)
        if self.up:
            for lease in [lease for lease, (_, at) in self.leases.items() if at <= self._loop.now]:
                self._tell("etcd", "a lease lapses: {}", self.keys_of(lease))
                self.end_lease(lease)

    def keys_of(self, lease: int) -> list[str]:
        """What hangs on a lease."""
        return [key.decode() for key, entry in self.entries.items() if entry.lease == lease]

    def end_lease(self, lease: int) -> None:
        """With all its keys, at one revision."""
        del self.leases[lease]
        gone = [key for key, entry in self.entries.items() if entry.lease == lease]
        if gone:
            self.revision += 1
            for key in gone:
                self._change(key, None)
            self._wake()

    def _change(self, key: bytes, entry: Entry | None) -> None:
        if entry is None:
            del self.entries[key]
        else:
            self.entries[key] = entry
        self._changes.append((self.revision, key, entry))

    def _wake(self) -> None:
        for changed in list(self._changed):
            changed.set()

    # -- calls --------------------------------------------------------------------------------------------------------

    def _answering(self, kind: type[Message], act: Callable[[Any], Message]) -> Handler:
        async def handle(call: ServerCall) -> None:
            request = kind.FromString(call.request)
            writes = act != self._range
            lost = writes and self._random.random() < self.unknown
            if lost and self._random.random() < 0.5:
                raise failure_of(_C.UNAVAILABLE, "etcdserver: request timed out")
            answer = act(request)
            if lost:
                self._tell("etcd", "does something, and says that it does not know")
                raise failure_of(_C.UNAVAILABLE, "transport is closing")
            await call.write(answer)

        return handle

    def _header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(revision=self.revision)

    def _in(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            return [key] if key in self.entries else []
        return sorted(one for one in self.entries if key <= one < end)

    def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        if request.revision and request.revision <= self._compacted:
            raise failure_of(_C.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        answer = pb.RangeResponse(header=self._header())
        answer.kvs.extend(self._kv(key, self.entries[key]) for key in self._in(request.key, request.range_end))
        return answer

    @staticmethod
    def _kv(key: bytes, entry: Entry) -> pb.KeyValue:
        return pb.KeyValue(
            key=key, value=entry.value, create_revision=entry.created, mod_revision=entry.changed, lease=entry.lease
        )

    def _txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        for step in (*request.success, *request.failure):
            lease = step.request_put.lease
            if step.HasField("request_put") and lease and lease not in self.leases:
                raise failure_of(_C.NOT_FOUND, "etcdserver: requested lease not found")
        self.revision += 1  # taken back if nothing changes
        before = len(self._changes)
        succeeded = self._steps(request)
        if len(self._changes) == before:
            self.revision -= 1
        else:
            self._wake()
        return pb.TxnResponse(header=self._header(), succeeded=succeeded)

    def _steps(self, request: pb.TxnRequest) -> bool:
        succeeded = all(self._holds(one) for one in request.compare)
        for step in request.success if succeeded else request.failure:
            if step.HasField("request_put"):
                put = step.request_put
                there = self.entries.get(put.key)
                created = there.created if there is not None else self.revision
                self._change(put.key, Entry(put.value, created, self.revision, put.lease))
            elif step.HasField("request_delete_range"):
                for key in self._in(step.request_delete_range.key, step.request_delete_range.range_end):
                    self._change(key, None)
            else:
                self._steps(step.request_txn)
        return succeeded

    def _holds(self, one: pb.Compare) -> bool:
        if one.range_end:
            return all(self._compared(one, self.entries[key]) for key in self._in(one.key, one.range_end))
        return self._compared(one, self.entries.get(one.key))

    @staticmethod
    def _compared(one: pb.Compare, entry: Entry | None) -> bool:
        if one.target == _VALUE:
            return entry is not None and entry.value == one.value
        if one.target == _CREATE:
            have, wanted = (entry.created if entry is not None else 0), one.create_revision
        else:
            have, wanted = (entry.changed if entry is not None else 0), one.mod_revision
        return have > wanted if one.result else have == wanted

    def _grant(self, request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        self._last_lease += 1
        self.leases[self._last_lease] = request.ttl, self._loop.now + request.ttl
        return pb.LeaseGrantResponse(header=self._header(), id=self._last_lease, ttl=request.ttl)

    def _revoke(self, request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        if request.id not in self.leases:
            raise failure_of(_C.NOT_FOUND, "etcdserver: requested lease not found")
        self.end_lease(request.id)
        return pb.LeaseRevokeResponse(header=self._header())

    async def _keep_alive(self, call: ServerCall) -> None:
        while True:
            request = pb.LeaseKeepAliveRequest.FromString(await call.read())
            ttl, _ = self.leases.get(request.id, (0, 0.0))
            if ttl:
                self.leases[request.id] = ttl, self._loop.now + ttl
            await call.write(pb.LeaseKeepAliveResponse(header=self._header(), id=request.id, ttl=ttl))

    # -- watches ------------------------------------------------------------------------------------------------------

    async def _watch(self, call: ServerCall) -> None:
        create = pb.WatchRequest.FromString(await call.read()).create_request
        changed = asyncio.Event()
        self._changed[changed] = None
        progress = asyncio.get_running_loop().create_task(self._progress(call))
        try:
            await call.write(pb.WatchResponse(header=self._header(), created=True))
            await self._follow(call, create, changed)
        finally:
            progress.cancel()
            self._changed.pop(changed, None)

    async def _progress(self, call: ServerCall) -> None:
        while True:
            await call.read()
            await call.write(pb.WatchResponse(header=self._header()))

    async def _follow(self, call: ServerCall, create: pb.WatchCreateRequest, changed: asyncio.Event) -> None:
        told = create.start_revision - 1
        while True:
            changed.clear()
            if told < self._compacted:
                answer = pb.WatchResponse(header=self._header(), canceled=True, compact_revision=self._compacted)
                await call.write(answer)
                return
            news = [one for one in self._changes if one[0] > told and create.key <= one[1] < create.range_end]
            if news:
                answer = pb.WatchResponse(header=self._header())
                for revision, key, entry in news:
                    kv = self._kv(key, entry) if entry is not None else pb.KeyValue(key=key, mod_revision=revision)
                    answer.events.add(type=int(entry is None), kv=kv)
                told = news[-1][0]
                await call.write(answer)
            told = max(told, self.revision if not news else told)
            await changed.wait()
            if self._random.random() < self.lag:
                await asyncio.sleep(3.0 * self._random.random())  # virtual time
