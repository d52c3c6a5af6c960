"""Makes a node one of several: to be called before it serves."""

from __future__ import annotations

from typing import NamedTuple

import grpc

from reach.rpc.far_sessions import FarSessions
from reach.rpc.homes import FarHomes
from reach.rpc.interceptors import Interceptor
from reach.rpc.peer_secret import PeerSecret
from reach.rpc.peers import Peers
from reach.rpc.proxy import Proxy
from reach.rpc.result import ResultServicer
from reach.rpc.services import Services
from reach.runtime.elsewhere import Whereabouts
from reach.runtime.far_pins import FarPins
from reach.runtime.ownership import Owners


class PeerTls(NamedTuple):
    """How this node speaks TLS to others."""

    roots: bytes
    """The authority that signs the certificates of nodes."""
    key: bytes
    """Of the certificate, which others may ask for (mTLS)."""
    certificate: bytes


def join(
    services: Services, interceptor: Interceptor, owners: Owners, secret: bytes, tls: PeerTls | None = None
) -> Peers:
    """Brings what others own to them from now on, and serves them in turn.

    Args:
        services: Of the node.
        interceptor: Of its server, which does not serve yet.
        owners: Who owns what.
        secret: What all nodes of the cluster have.
        tls: None: nodes speak without it.

    Returns:
        The other nodes; to be stopped before the server stops.

    Raises:
        InvalidRequest: The secret is too short.
    """
    reach = services.reach
    proof = PeerSecret(secret, services.node_id, services.clock.wall_ms)
    peers = services.peers = Peers(services, owners, proof, None if tls is None else grpc.ssl_channel_credentials(*tls))
    reach.host.owners = owners
    reach.host.trees.tell = peers.tell_cancelled
    reach.host.homeward.far = FarHomes(peers, reach.host)
    reach.sessions.far = sessions = FarSessions(peers)
    reach.host.sessions.share(sessions.busy)
    reach.abroad = reach.tasks.abroad = Whereabouts(reach.host, owners, peers.has)
    interceptor.entrance.proxy = Proxy(peers, ResultServicer(services).StreamResult)
    reach.host.departures.tell, reach.host.departures.bring = peers.came, peers.bring_task
    level_1 = reach.host.level_1
    level_1.rooms = peers.rooms
    level_1.far_pins = FarPins(services.clock, sessions.pinned, peers.begin)
    owners.watch(lambda _: level_1.moved())
    peers.start()
    return peers
