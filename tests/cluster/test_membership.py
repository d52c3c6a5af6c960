"""What a member believes of itself."""

from typing import Any

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
