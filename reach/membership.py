"""What a node has beyond one that is alone, where nodes share a journal: built, started and stopped here.

    membership = Membership(config, host, journal, node_id)     # before anything is restored
    membership.join(services, interceptor, stack)               # before it serves
    await membership.start(address)                             # once it serves: joins, claims, leads if it is to
    await membership.leave(seconds)                             # hands over what it owns
    await membership.stop()

A node that has the journal to itself, with no etcd, is a cluster of one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path

from reach.cluster.base import Cluster, ClusterError, NodeInfo
from reach.cluster.etcd import EtcdCluster
from reach.cluster.etcd_api import Access
from reach.cluster.leader import Leader
from reach.cluster.single import SingleCluster
from reach.config import Config
from reach.config.sharing import SharedRules
from reach.config.watching import Rules
from reach.errors import Unavailable
from reach.rpc.interceptors import Interceptor
from reach.rpc.joining import PeerTls, join
from reach.rpc.services import Services
from reach.runtime.claims import Claims
from reach.runtime.convicting import Convictions
from reach.runtime.host import Host
from reach.runtime.member import Member
from reach.runtime.standing import NodeStanding
from reach.runtime.steering import Steering
from reach.store.base import SharedJournal
from reach.version import VERSION

log = logging.getLogger("reach.node")

EXIT_BROKEN = 71


class Membership:
    """See the module.

    Args:
        config: Says which etcd, if any: without one, this node owns all there is.
        host: Whose shards they are.
        journal: Who owns them.
        node_id: This node.
        boot: Random name of this process.
    """

    def __init__(self, config: Config, host: Host, journal: SharedJournal, node_id: str, boot: str) -> None:
        self._config = config
        self.node_id = node_id
        self.cluster = _cluster(config)
        self.claims = Claims(host, journal)
        info = NodeInfo(node_id, boot, "", config.cluster.weight if config.cluster.endpoints else 1, VERSION)
        self.member = Member(host, self.claims, self.cluster, info)
        alone = not config.cluster.endpoints
        self.leader = Leader(self.cluster, host.clock.now_ms, *((0,) if alone else ()))
        self._alone = alone
        self._standing: NodeStanding | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def tell(self, standing: NodeStanding) -> None:
        """How this node does is told by `standing` from now on."""
        standing.claims = self.claims
        standing.steering = Steering(self.cluster, self.leader, self.node_id)
        standing.cluster_name = "" if self._alone else self._config.cluster.name
        self._standing = standing

    def join(self, services: Services, interceptor: Interceptor, stack: AsyncExitStack) -> None:
        """Brings to the other nodes what is theirs, and takes from them what is ours. Before the server serves; `stack`
        gets what ends it."""
        peers = join(services, interceptor, self.member, secret_of(self._config), peer_tls(self._config))
        assert services.reach.abroad is not None
        convictions = Convictions(self.cluster.membership)
        peers.on_broken = convictions.suspect
        for part in (services.reach.abroad, peers, convictions):
            stack.push_async_callback(part.stop)

    async def start(self, address: str, rules: Rules) -> None:
        """Takes part from now on; a node that is alone has all there is when it returns.

        Args:
            address: Where other nodes reach this one.
            rules: Of this node, which it shares with the others.

        Raises:
            Unavailable: etcd does not answer.
        """
        try:
            await self.cluster.start()
        except ClusterError as error:
            raise Unavailable(f"{error}: is it running at {', '.join(self._config.cluster.endpoints)}?") from error
        self.member.reached_at(address)
        if self._standing is not None:
            self._standing.address = address
        shared = SharedRules(rules, self.cluster.registry, self.node_id)
        if not self._alone:
            await shared.join()
        work = {"member": self.member.run(), "leader": self.leader.run()}
        if not self._alone:
            work["rules"] = shared.run()
        self._tasks = [asyncio.create_task(one, name=name) for name, one in work.items()]
        for task in self._tasks:
            task.add_done_callback(_failed)
        if self._alone:
            await self.claims.fulfilled()

    async def leave(self, seconds: float) -> None:
        """Hands over what this node owns, and goes; it waits for others to take it for `seconds` at most."""
        if self._tasks:
            await self.member.leave(seconds)

    async def give_up(self) -> None:
        """Leaves what nobody took, and what ran to its end here, to whoever comes next."""
        if self._tasks:
            await self.claims.end()

    async def stop(self) -> None:
        """Ends what runs here."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.stop()


def _failed(task: asyncio.Task[None]) -> None:
    """A broken invariant: this process must not keep its lease, and what it owns, while it does nothing for them."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s broke: this process ends, and others take over", task.get_name(), exc_info=error)
        logging.shutdown()
        os._exit(EXIT_BROKEN)


def _cluster(config: Config) -> Cluster:
    return (
        EtcdCluster(access_of(config), config.cluster.name, config.cluster.lease)
        if config.cluster.endpoints
        else SingleCluster()
    )


def access_of(config: Config) -> Access:
    """Where etcd is, and how to get in."""
    settings = config.cluster
    password = _read(settings.password_file) or b""
    return Access(
        settings.endpoints, settings.user, password.decode(errors="replace").strip(),
        _read(settings.ca), _read(settings.cert), _read(settings.key),
    )  # fmt: skip


def peer_tls(config: Config) -> PeerTls | None:
    """How this node speaks TLS to others, if it does: it shows them the certificate that it has as a server."""
    server = config.server
    if not server.tls_cert:
        return None
    roots, key, certificate = map(_read, (config.cluster.peer_ca or server.tls_cert, server.tls_key, server.tls_cert))
    return PeerTls(roots or b"", key or b"", certificate or b"")


def secret_of(config: Config) -> bytes:
    """What the nodes of a cluster show each other."""
    return (_read(config.cluster.secret_file) or b"").strip()


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
