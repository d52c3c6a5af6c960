"""What a member believes of itself."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

from reach.cluster import etcd_member
from reach.cluster.base import NodeInfo, Standing
from reach.cluster.etcd_member import EtcdMembership
from reach.cluster.etcd_mirror import Mirror


class Etcd:
    """Takes a lease and a key, at revision 7."""

    async def get(self, key):
        return None

    async def grant(self, ttl_s, try_s):
        return 1

    async def txn(self, steps, conditions, try_s):
        return True, 7

    async def revoke(self, lease):
        return True


async def test_CLU_2_who_joined_is_a_member_once_it_has_seen_what_happened_before(monkeypatch):
    """Else a node that woke up would claim what an old wish gave it."""
    etcd: Any = Etcd()
    mirror = Mirror(etcd, b"/reach/main/")

    async def too_late(revision, seconds=1.0):
        return False

    monkeypatch.setattr(mirror, "reached", too_late)
    member = EtcdMembership(etcd, mirror, b"/reach/main/")
    mirror.revision = 3
    await member.join(NodeInfo("a", "boot", "a:1"))
    standings = [member.standing]
    mirror.revision = 7
    standings.append(member.standing)
    assert standings == [Standing.LOST, Standing.MEMBER]


async def test_CLU_2_who_has_not_joined_yet_has_not_lost_its_lease():
    """Else each start of a node would be an alert."""
    etcd: Any = Etcd()
    member = EtcdMembership(etcd, Mirror(etcd, b"/reach/main/"), b"/reach/main/")
    seen = []

    async def txn(steps, conditions, try_s):
        seen.append(member.standing)
        return True, 7

    etcd.txn = txn
    await member.join(NodeInfo("a", "boot", "a:1"))
    await member.leave()
    assert [*seen, member.standing] == [Standing.OUT, Standing.OUT]


async def test_CLU_3_a_renewal_that_comes_too_late_is_told_to_who_has_seen_that_it_was_late(monkeypatch):
    """Found by the simulation: the leader looked in that moment, and led no more, though nobody else did."""
    clock, renewals = SimpleNamespace(ms=1_000), asyncio.Queue[int]()
    etcd: Any = Etcd()
    monkeypatch.setattr(etcd_member, "now_ms", lambda: clock.ms)

    async def stream(every):
        async def close():
            pass

        return SimpleNamespace(close=close)

    async def renew(stream, lease, every):
        clock.ms += await renewals.get()

    etcd.renewals = stream
    monkeypatch.setattr(etcd_member, "renew", renew)
    mirror = Mirror(etcd, b"/reach/main/")
    mirror.revision = 7
    member = EtcdMembership(etcd, mirror, b"/reach/main/", ttl_s=2)
    monkeypatch.setattr(member, "_missing", lambda: False)

    async def reached(revision, seconds=1.0):
        return True

    monkeypatch.setattr(mirror, "reached", reached)
    await member.join(NodeInfo("a", "boot", "a:1"))
    told: list[Standing] = []
    member.subscribe(lambda: told.append(member.standing))
    running = asyncio.create_task(member.run())
    await renewals.put(100)
    await asyncio.sleep(0.01)
    assert (member.standing, told) == (Standing.MEMBER, [])
    clock.ms += 1_950  # by now it should have been renewed
    assert member.standing is Standing.LOST
    member._stirred.set()
    await asyncio.sleep(0.01)
    await renewals.put(50)
    await asyncio.sleep(0.01)
    assert (member.standing, told) == (Standing.MEMBER, [Standing.MEMBER])
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
