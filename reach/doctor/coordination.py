"""etcd: whether its members can be reached, agree, and take what a node writes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from reach.cluster.etcd_api import Access
from reach.cluster.etcd_api.members import Member, ask, clock_ahead, try_to_write
from reach.doctor.findings import Finding, error, ok, warning

QUOTA_BYTES: Final = 2 << 30
"""Space that etcd gives itself where nothing else is said (--quota-backend-bytes)."""
FULL_SHARE: Final = 0.8
SKEW_SECONDS: Final = 2.0


async def coordination(access: Access, name: str) -> list[Finding]:
    """Looks at each member, and tries to write.

    Args:
        access: Where etcd is, and how to get in.
        name: Of the cluster of nodes.
    """
    members = await asyncio.gather(*(ask(access, endpoint) for endpoint in access.endpoints))
    context = context_of(access)
    ahead = await asyncio.gather(
        *(asyncio.to_thread(clock_ahead, access, one.endpoint, context) for one in members if not one.error)
    )
    clocks = iter(ahead)
    found = list(judged([one if one.error else one._replace(ahead_s=next(clocks)) for one in members]))
    if any(not one.error for one in members):
        failure = await try_to_write(access, name)
        if failure:
            found.append(
                error(
                    "etcd",
                    f"a key under /reach/{name}/ cannot be written: {failure}",
                    "nodes cannot join, and shards cannot move",
                    f"give the user read and write for /reach/{name}/ (etcdctl role grant-permission --prefix=true)"
                    if "permission" in failure or "auth" in failure
                    else "see what etcd says of it in its log",
                )
            )
        else:
            found.append(ok("etcd", f"takes keys under /reach/{name}/ and leases"))
    return found


def judged(members: Sequence[Member]) -> Iterator[Finding]:
    """What the members' answers mean."""
    there = [one for one in members if not one.error]
    for one in members:
        if one.error:
            yield error(
                "etcd", f"member {one.endpoint} cannot be asked: {one.error}",
                "with a majority gone nothing joins or moves" if there else "nodes cannot join, shards cannot move",
                "is it running there, is cluster.endpoints right, do cluster.user and cluster.ca fit?",
            )  # fmt: skip
            continue
        if not one.leader:
            yield error(
                "etcd", f"member {one.endpoint} knows no leader", "it answers nothing that matters",
                "are most of its members running, and do they reach each other (peer urls)?",
            )  # fmt: skip
        if "NOSPACE" in one.alarms:
            yield error(
                "etcd", f"member {one.endpoint} is full (alarm NOSPACE)",
                "it takes no writes: agents and nodes cannot register, running work goes on",
                "etcdctl compact and defrag, then etcdctl alarm disarm; raise --quota-backend-bytes",
            )  # fmt: skip
        for text in (*one.errors, *(alarm for alarm in one.alarms if alarm != "NOSPACE")):
            if "NOSPACE" not in text:
                yield error("etcd", f"member {one.endpoint} says: {text}", "it may not be trusted", "see its log")
        if one.db_bytes > QUOTA_BYTES * FULL_SHARE:
            yield warning(
                "etcd", f"member {one.endpoint} takes {one.db_bytes >> 20} MiB, {one.used_bytes >> 20} of them in use",
                f"at its quota ({QUOTA_BYTES >> 20} MiB unless it is told otherwise) it takes no writes any more",
                "etcdctl defrag; set --auto-compaction-retention; raise --quota-backend-bytes",
            )  # fmt: skip
        if one.ahead_s is not None and abs(one.ahead_s) > SKEW_SECONDS:
            yield warning(
                "etcd", f"the clock of {one.endpoint} is {one.ahead_s:+.0f} s off", "logs and certificates go by it",
                "let all machines follow a time server (NTP)",
            )  # fmt: skip
    if there and len({one.leader for one in there if one.leader}) > 1:
        yield error(
            "etcd", "its members follow different leaders", "they may belong to different clusters",
            "check --initial-cluster of the members, and cluster.endpoints",
        )  # fmt: skip
    if len(members) < 3:
        yield warning(
            "etcd", f"cluster.endpoints names {len(members)} of its members",
            "when that one is away nothing can join or move; running work goes on", "run three, and name all of them",
        )  # fmt: skip
    elif there:
        yield ok("etcd", f"{len(there)} of {len(members)} members answer, version {there[0].version}")


def context_of(access: Access) -> ssl.SSLContext | None:
    """How a member is asked over HTTPS: by its authority, with our certificate. None: without TLS.

    Nodes check `Access.server_name`, a name that is not the host of a member; here it is not looked at.
    """
    if not access.tls:
        return None
    context = ssl.create_default_context(cadata=access.ca.decode() if access.ca is not None else None)
    context.check_hostname = not access.server_name
    if access.certificate is not None and access.key is not None:
        with TemporaryDirectory() as folder:  # ssl reads them from a file only; the folder is ours alone
            both = Path(folder) / "client.pem"
            both.write_bytes(access.certificate + b"\n" + access.key)
            context.load_cert_chain(both)
    return context
