"""What makes a node one of several: it joins, owns what the leader wishes, and knows the agents of the others (CLU-1).

What this node owns its `Claims` know; who owns the rest, the leader's wish says, as far as it is known here
(`cluster/leader.py`). A call that comes to the wrong node costs a hop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from reach.cluster.base import AgentChange, AgentKey, Cluster, ClusterError, NodeInfo, Standing
from reach.cluster.drained import drained
from reach.core.model import Instance, PoolKey
from reach.core.placement import SHARDS, shard_of
from reach.runtime.claims import Claims
from reach.runtime.host import Host
from reach.runtime.ownership import NOBODY, Moved, Peer

log = logging.getLogger(__name__)

PUBLISH_SECONDS: Final = 0.25
"""How soon the others hear of what has changed of an agent. Smaller: more looks through all agents."""
GATHER_SECONDS: Final = 0.05
"""How soon they hear of one that has registered, with all others that register meanwhile."""
UNREACHABLE_MS: Final = 3_000
"""How long the journal may not answer before the leader is told, so that another node may take over."""
LEAVE_SECONDS: Final = 5.0
"""How long a node that stops waits for the others to take what it owns."""
AGAIN_SECONDS: Final = 1.0


class Record(msgspec.Struct, array_like=True, frozen=True):
    """What all nodes know of an agent."""

    agent_type: str
    boot_id: str
    registration: bytes


class Member:
    """See the module. It is the `Owners` of its host.

    Args:
        host: What this node does.
        claims: What it owns.
        cluster: The others. Started before, and stopped after.
        info: What they know of this node.
    """

    def __init__(self, host: Host, claims: Claims, cluster: Cluster, info: NodeInfo) -> None:
        self._host = host
        self._claims = claims
        self._cluster = cluster
        self._info = info._replace(hands_over=True)
        self._owners: list[Peer | None] = [NOBODY] * SHARDS
        self._watchers: list[Moved] = []
        self._weights: dict[str, int] = {}
        """Of the nodes that there are."""
        self._records: dict[AgentKey, tuple[bytes, str, bytes]] = {}
        """Registration and boot of the agents of this node's pools, and what all are to know of them."""
        self._standing = Standing.OUT
        self._joined = asyncio.Event()
        host.owners = self
        host.on_joined = self._joined.set
        claims.on_change = self._look
        claims.process, claims.gives_up = info.boot, self._gives_up
        claims.may_claim = lambda: cluster.membership.standing is Standing.MEMBER

    def reached_at(self, address: str) -> None:
        """Where other nodes reach this one. Before it runs."""
        self._info = self._info._replace(peer_address=address)

    # -- Owners -------------------------------------------------------------------------------------------------------

    def node_of(self, shard: int) -> Peer | None:
        """See Owners."""
        return self._owners[shard]

    def others(self) -> Sequence[Peer]:
        """See Owners."""
        nodes = self._cluster.membership.nodes()
        return [Peer(name, info.peer_address) for name, info in nodes.items() if name != self._info.node_id]

    def hands_over(self, node_id: str) -> bool:
        """See Owners."""
        info = self._cluster.membership.nodes().get(node_id)
        return info is not None and info.node_id != self._info.node_id and info.store_reachable and info.hands_over

    def watch(self, moved: Moved) -> None:
        """See Owners."""
        self._watchers.append(moved)

    def _look(self) -> None:
        """Something may have moved."""
        wish, nodes = self._cluster.placement.wish().nodes, self._cluster.membership.nodes()
        self._tell_of_standing()
        if wish:
            self._claims.wish(self._cluster.placement.wish().shards_of(self._info.node_id))
        before, owned = self._owners, self._claims.owned
        self._owners = [None if shard in owned else NOBODY for shard in range(SHARDS)]
        for shard, name in enumerate(wish):
            info = nodes.get(name)
            if shard not in owned and info is not None and name != self._info.node_id:
                self._owners[shard] = Peer(name, info.peer_address)
        fallen = self._has_fallen(nodes)
        changed = [shard for shard in range(SHARDS) if fallen or self._owners[shard] != before[shard]]
        self._hear_of([key for key in self._cluster.registry.agents() if self._shard_of(key) in changed])
        for shard in changed:
            for moved in self._watchers:
                moved(shard)

    def _has_fallen(self, nodes: Mapping[str, NodeInfo]) -> bool:
        """Whether a node is gone that might still have handed something over. Not one that left: it has."""
        before, self._weights = self._weights, {name: info.weight for name, info in nodes.items()}
        return any(before[name] > 0 for name in before.keys() - nodes.keys())

    def _gives_up(self, process: str) -> bool:
        """See `Claims.gives_up`."""
        nodes = self._cluster.membership.nodes()
        return any(info.boot == process and self.hands_over(name) for name, info in nodes.items())

    def _tell_of_standing(self) -> None:
        standing = self._cluster.membership.standing
        if standing is Standing.REPLACED and standing is not self._standing:
            log.critical("another process has joined as this node, and gets what it owned: give each a name of its own"
                         " (--node-id), and start this one anew", extra={"node": self._info.node_id})  # fmt: skip
        self._standing = standing

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Joins, and takes part until it is cancelled."""
        cluster = self._cluster
        ends = [
            cluster.membership.subscribe(self._look),
            cluster.placement.subscribe(self._look),
            cluster.registry.subscribe(lambda changes: self._hear_of([change.key for change in changes])),
        ]
        try:
            await self._join()
            self._look()
            self._hear_of(list(cluster.registry.agents()))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._claims.run(), name="claims")
                tasks.create_task(self._tell(), name="tell")
        finally:
            for end in ends:
                end()

    async def _join(self) -> None:
        while True:
            try:
                await self._cluster.membership.join(self._info)
                await self._cluster.election.campaign()
            except ClusterError as error:
                log.warning("the cluster cannot be joined now: %s", error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    async def leave(self, seconds: float = LEAVE_SECONDS) -> None:
        """Hands over what it owns, and goes. Never raises: what nobody takes within `seconds` is claimed after the
        end."""
        cluster = self._cluster
        try:
            async with asyncio.timeout(min(seconds, LEAVE_SECONDS)):
                self._info = self._info._replace(weight=0)
                await cluster.membership.update(self._info)
                while not self._claims.has_left and self._has_heirs():  # noqa: ASYNC110 - seldom, and for some seconds at most
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log.warning("this node goes without handing over: nobody took over in time")
        except ClusterError as error:
            log.warning("this node goes without handing over: %s", error)
        await cluster.election.resign()
        await cluster.membership.leave()

    def _has_heirs(self) -> bool:
        """Whether somebody would take what this node owns. Asked anew each time: all may be leaving at once."""
        away, nodes = drained(self._cluster.registry), self._cluster.membership.nodes()
        return any(info.weight > 0 and name not in away for name, info in nodes.items())

    async def _tell(self) -> None:
        """Tells the others of the agents here, and whether the journal answers."""
        while True:
            try:
                await self._publish()
                await self._tell_of_store()
            except ClusterError as error:
                log.warning("the others cannot be told of what is here: %s", error)
                await asyncio.sleep(AGAIN_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_SECONDS):
                    await self._joined.wait()
            self._joined.clear()
            await asyncio.sleep(GATHER_SECONDS)

    async def _tell_of_store(self) -> None:
        reachable = self._claims.unconfirmed_ms < UNREACHABLE_MS  # by what all do alike, whether they have work or not
        changed = reachable != self._info.store_reachable
        self._info = self._info._replace(store_reachable=reachable)
        there = self._cluster.membership.nodes().get(self._info.node_id)
        # What all know is put right until it is so: a change may be lost on its way, or come while the lease is late.
        if changed or (there is not None and there.boot == self._info.boot and there != self._info):
            await self._cluster.membership.update(self._info)

    # -- agents -------------------------------------------------------------------------------------------------------

    def _shard_of(self, key: AgentKey) -> int:
        return shard_of(PoolKey(key.tenant, read(self._cluster.registry.agents()[key]).agent_type))

    async def _publish(self) -> None:
        """What differs from what all know, whoever said that: a write that was held up on its way may land after a
        newer one."""
        here, known, changes = self._here(), self._cluster.registry.agents(), []
        records = self._records
        for key, one in here.items():
            record = records.get(key)
            if record is None or record[:2] != (one.registration, one.boot_id):
                record = records[key] = one.registration, one.boot_id, written(one)
            if known.get(key) != record[2]:
                changes.append(AgentChange(key, record[2]))
        gone = (key for key in known if key not in here and self._owners[self._shard_of(key)] is None)
        changes.extend(AgentChange(key, None) for key in gone)
        if changes:
            await self._cluster.registry.publish(changes)
        for key in records.keys() - here.keys():
            del records[key]

    def _here(self) -> dict[AgentKey, Instance]:
        return {
            AgentKey(pool.key.tenant, one.instance_id): one
            for pool in self._host.pools()
            if self._owners[pool.shard] is None
            for one in pool.instances.values()
        }

    def _hear_of(self, keys: Sequence[AgentKey]) -> None:
        """Takes what is known of agents of other nodes into the directory, by which tasks are placed."""
        directory, known = self._host.directory, self._cluster.registry.agents()
        for key in keys:
            before = directory.where(key.tenant, key.instance_id)
            if before is not None and self._owners[shard_of(before)] is None:
                continue  # it is here, where more is known of it
            data = known.get(key)
            record = read(data) if data is not None else None
            pool = PoolKey(key.tenant, record.agent_type) if record is not None else None
            if before is not None and before != pool:
                directory.remove(before, key.instance_id)
            if record is not None and pool is not None and self._owners[shard_of(pool)] is not None:
                joining = self._host.codec.joining_of(record.registration, record.boot_id)
                self._host.resettling.heard_of(pool, directory.add(pool, key.instance_id, joining.profile))


def written(instance: Instance) -> bytes:
    """What all are to know of an agent."""
    return msgspec.msgpack.encode(Record(instance.pool_key.agent_type, instance.boot_id, instance.registration))


def read(data: bytes) -> Record:
    """What somebody said of an agent."""
    return msgspec.msgpack.decode(data, type=Record)
