"""What each member of etcd says of itself, asked one by one: for `reach doctor`, never on the way of a node."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from agentreach.internal.etcd.v3 import etcd_pb2 as pb
from reach.cluster.base import ClusterError
from reach.cluster.etcd_api.client import EtcdClient, put, remove
from reach.cluster.etcd_api.connection import Access, Answered, Connection

ANSWER_S = 2.0
_ALARMS = {1: "NOSPACE", 2: "CORRUPT"}


class Member(NamedTuple):
    """One member, as it says itself."""

    endpoint: str
    error: str = ""
    """Why it could not be asked; the rest is empty then."""
    version: str = ""
    db_bytes: int = 0
    used_bytes: int = 0
    leader: int = 0
    """Member id of the leader; 0: it knows none."""
    member: int = 0
    errors: tuple[str, ...] = ()
    """What it complains of."""
    alarms: tuple[str, ...] = ()
    """`NOSPACE`, `CORRUPT`."""
    ahead_s: float | None = None
    """How far its clock is ahead, to the second; None: it does not tell."""


async def ask(access: Access, endpoint: str) -> Member:
    """Asks one member. Never raises: what fails is in the answer."""
    connection = Connection(access._replace(endpoints=[endpoint]))
    try:
        status = await connection.call(
            "/etcdserverpb.Maintenance/Status", pb.StatusRequest(), pb.StatusResponse, read=True, call_s=ANSWER_S
        )
        alarms: tuple[str, ...] = ()
        try:
            said = await connection.call(
                "/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest(), pb.AlarmResponse, read=True, call_s=ANSWER_S
            )
            alarms = tuple(sorted({_ALARMS.get(one.alarm, "unknown") for one in said.alarms}))
        except (ClusterError, Answered):
            pass  # a user of few rights may not ask
        return Member(
            endpoint, "", status.version, status.db_size, status.db_size_in_use, status.leader,
            status.header.member_id, tuple(status.errors), alarms,
        )  # fmt: skip
    except (ClusterError, Answered) as error:
        return Member(endpoint, str(error))
    finally:
        await connection.close()


async def try_to_write(access: Access, name: str) -> str:
    """Reads, writes and removes a key of a cluster, and begins and ends a lease: why that fails, or nothing."""
    client = EtcdClient(access)
    key = f"/reach/{name}/doctor".encode()
    try:
        lease = await client.grant(60)
        try:
            await client.txn([put(key, b"is etcd writable?", lease)])
            await client.get(key)
            await client.txn([remove(key)])
        finally:
            await client.revoke(lease)
    except (ClusterError, Answered) as error:
        return str(error)
    finally:
        await client.close()
    return ""


def clock_ahead(access: Access, endpoint: str, context: ssl.SSLContext | None) -> float | None:
    """How far a member's clock is ahead, by the date of its HTTP answer, to the second. Blocks."""
    scheme = "https" if access.tls else "http"
    began = time.time()
    try:
        with urllib.request.urlopen(f"{scheme}://{endpoint}/version", timeout=ANSWER_S, context=context) as answer:  # noqa: S310
            said = answer.headers["Date"]
    except (OSError, urllib.error.URLError, ValueError):
        return None
    now = (began + time.time()) / 2
    return parsedate_to_datetime(said).timestamp() + 0.5 - now if said else None
