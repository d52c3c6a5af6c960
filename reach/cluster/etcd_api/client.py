"""Reads, transactions and leases of etcd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import grpc

from agentreach.internal.etcd.v3 import etcd_pb2 as pb
from reach.cluster.base import ClusterUnavailable
from reach.cluster.etcd_api.connection import TRY_S, Access, Answered, Connection, Stream

PAGE = 500
"""Keys per read of a list."""
EQUAL, GREATER = 0, 1
_CREATE, _MOD, _VALUE = 1, 2, 3


Step = pb.RequestOp
"""One step of a transaction."""


class LeaseGone(Exception):
    """The lease has lapsed or was revoked."""


class KeyValue(NamedTuple):
    """One key as etcd has it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


def key_value(kv: pb.KeyValue) -> KeyValue:
    """Of the message."""
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def after(prefix: bytes) -> bytes:
    """The first key behind all that begin with prefix, which must not end with 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    """A step that writes."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def remove(key: bytes) -> pb.RequestOp:
    """A step that removes; no revision is used if it is not there."""
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def unless_equal(key: bytes, value: bytes) -> pb.RequestOp:
    """A step that writes only what is not there already, so that it costs no revision."""
    same = pb.Compare(result=EQUAL, target=_VALUE, key=key, value=value)
    return pb.RequestOp(request_txn=pb.TxnRequest(compare=[same], failure=[put(key, value)]))


def unchanged(key: bytes, mod_revision: int) -> pb.Compare:
    """The condition that a key was last written at this revision; 0: is not there."""
    return pb.Compare(result=EQUAL, target=_MOD, key=key, mod_revision=mod_revision)


def created_at(key: bytes, create_revision: int) -> pb.Compare:
    """The condition that a key was created at this revision and is still there; 0: is not there."""
    return pb.Compare(result=EQUAL, target=_CREATE, key=key, create_revision=create_revision)


def none_created_before(prefix: bytes, revision: int) -> pb.Compare:
    """The condition that no key of the prefix was created before this revision."""
    return pb.Compare(result=GREATER, target=_CREATE, key=prefix, range_end=after(prefix), create_revision=revision - 1)


class EtcdClient:
    """What a node asks of etcd. Errors: see connection.py."""

    def __init__(self, access: Access) -> None:
        self.connection = Connection(access)

    async def close(self) -> None:
        """Ends all calls."""
        await self.connection.close()

    async def get(self, key: bytes) -> KeyValue | None:
        """One key, linearizable."""
        answer = await self._range(pb.RangeRequest(key=key))
        return key_value(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: bytes) -> tuple[list[KeyValue], int]:
        """All keys with this prefix as of one revision, and the revision.

        Starts anew if that is compacted meanwhile.
        """
        while True:
            found: list[KeyValue] = []
            request = pb.RangeRequest(key=prefix, range_end=after(prefix), limit=PAGE)
            try:
                while True:
                    answer = await self._range(request)
                    request.revision = request.revision or answer.header.revision
                    found.extend(map(key_value, answer.kvs))
                    if not answer.more:
                        return found, request.revision
                    request.key = found[-1].key + b"\0"
            except Answered as error:
                if error.code is not grpc.StatusCode.OUT_OF_RANGE:
                    raise ClusterUnavailable(str(error)) from error

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        return await self.connection.call("/etcdserverpb.KV/Range", request, pb.RangeResponse, read=True)

    async def txn(
        self, steps: Sequence[pb.RequestOp], conditions: Sequence[pb.Compare] = (), try_s: float = TRY_S
    ) -> tuple[bool, int]:
        """Does the steps if all conditions hold. Returns whether they did, and the revision. At most 128 steps
        (etcd's own limit).

        LeaseGone if a step names a lease that is gone.
        """
        request = pb.TxnRequest(compare=conditions, success=steps)
        try:
            answer = await self.connection.call("/etcdserverpb.KV/Txn", request, pb.TxnResponse, try_s=try_s)
        except Answered as error:
            raise LeaseGone(str(error)) from error
        return answer.succeeded, answer.header.revision

    async def grant(self, ttl_s: int, try_s: float = TRY_S) -> int:
        """Begins a lease. If the outcome is unknown, one may be left behind, which lapses."""
        request = pb.LeaseGrantRequest(ttl=ttl_s)
        answer = await self.connection.call(
            "/etcdserverpb.Lease/LeaseGrant", request, pb.LeaseGrantResponse, try_s=try_s
        )
        return answer.id

    async def revoke(self, lease: int) -> bool:
        """Ends a lease with all its keys. False if it was gone already."""
        request = pb.LeaseRevokeRequest(id=lease)
        try:
            await self.connection.call("/etcdserverpb.Lease/LeaseRevoke", request, pb.LeaseRevokeResponse)
        except Answered:
            return False
        return True

    async def renewals(self, timeout: float) -> Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]:
        """A stream on which `renew` keeps a lease."""
        return await self.connection.open(
            "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse, timeout
        )


async def renew(
    stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], lease: int, timeout: float
) -> None:
    """Renews; LeaseGone if it is gone, ClusterUnavailable if there is no answer in time."""
    await stream.send(pb.LeaseKeepAliveRequest(id=lease), timeout)
    answer = await stream.receive(timeout)
    if answer is None:
        raise stream.left()
    if answer.ttl <= 0:
        raise LeaseGone(f"lease {lease:x}")
