"""The gRPC server: options as measured (docs/architecture.md), all servicers, health and reflection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from agentreach.internal.v1 import peer_pb2_grpc
from agentreach.v1 import (
    attach_pb2,
    attach_pb2_grpc,
    dispatch_pb2,
    dispatch_pb2_grpc,
    heartbeat_pb2,
    heartbeat_pb2_grpc,
    ops_pb2,
    ops_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    result_pb2,
    result_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from reach.core.pieces import FOLD_LIMIT
from reach.errors import Unavailable
from reach.rpc.agent import AgentServicer
from reach.rpc.dispatch import DispatchServicer
from reach.rpc.inner_calls import InnerCalls
from reach.rpc.interceptors import Beside, Interceptor
from reach.rpc.ops import OpsServicer
from reach.rpc.peer_service import PeerServicer, behaviours
from reach.rpc.registry import HeartbeatServicer, RegistryServicer
from reach.rpc.result import ResultServicer
from reach.rpc.services import Services
from reach.rpc.session import SessionServicer
from reach.store.base import KeyStore
from reach.wire.batcher import FRAME_BYTES

log = logging.getLogger(__name__)

HEALTH_SECONDS = 0.1
"""How soon health checks hear that a node takes no work any more, or takes it again."""
MESSAGE_MARGIN = 256 << 10
"""What a message from a peer may have beside one payload of the largest size, in bytes."""
SENT_MARGIN = 1 << 20
"""What a message to a peer may have beside two contents: a whole task has its payload, its answer and its labels; an
offer has a checkpoint too."""

_SERVICES: dict[Any, Any] = {
    attach_pb2.DESCRIPTOR: attach_pb2_grpc.add_AgentServiceServicer_to_server,
    dispatch_pb2.DESCRIPTOR: dispatch_pb2_grpc.add_DispatchServiceServicer_to_server,
    heartbeat_pb2.DESCRIPTOR: heartbeat_pb2_grpc.add_HeartbeatServiceServicer_to_server,
    ops_pb2.DESCRIPTOR: ops_pb2_grpc.add_OpsServiceServicer_to_server,
    registry_pb2.DESCRIPTOR: registry_pb2_grpc.add_RegistryServiceServicer_to_server,
    result_pb2.DESCRIPTOR: result_pb2_grpc.add_ResultServiceServicer_to_server,
    session_pb2.DESCRIPTOR: session_pb2_grpc.add_SessionServiceServicer_to_server,
}


def _nothing_new() -> None:
    """What there was stays."""


@dataclass(slots=True)
class Listen:
    """Where the server listens, and how."""

    host: str
    port: int
    payload_limit: int
    certificate: bytes = b""
    private_key: bytes = b""
    client_ca: bytes = b""
    client_required: bool = False
    renewed: Callable[[], tuple[bytes, bytes, bytes] | None] = _nothing_new
    """Certificate, key and authorities from now on; None: those of before. Asked at each handshake, in threads."""
    max_age_ms: int = 0
    """Connections older than this are asked to reconnect; 0: never."""
    max_connections: int = 0
    """More are closed as they come; 0: no bound."""


def options(listen: Listen) -> list[tuple[str, int]]:
    """Channel arguments. Keepalive needs all three on both ends, or a stopped peer is noticed after a minute."""
    received = max(listen.payload_limit, FRAME_BYTES) + MESSAGE_MARGIN
    sent = 2 * max(listen.payload_limit, FOLD_LIMIT) + SENT_MARGIN
    chosen = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", received),
        ("grpc.max_send_message_length", sent),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.max_concurrent_streams", 1_000),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
    if listen.max_connections:
        chosen.append(("grpc.max_allowed_incoming_connections", listen.max_connections))
    if listen.max_age_ms:
        chosen += [("grpc.max_connection_age_ms", listen.max_age_ms), ("grpc.max_connection_age_grace_ms", 1_000)]
    return chosen


class GrpcServer:
    """The server of one node."""

    def __init__(
        self,
        listen: Listen,
        services: Services,
        interceptor: Interceptor,
        keys: KeyStore | None,
        version: str,
        store: str,
    ) -> None:
        self._listen = listen
        self._services = services
        self._interceptor = interceptor
        self.entrance = interceptor.entrance
        self._server = grpc.aio.server(interceptors=[interceptor], options=options(listen))
        self.ops = OpsServicer(services, keys, version, store)
        servicers: dict[Any, Any] = {
            attach_pb2.DESCRIPTOR: AgentServicer(services),
            dispatch_pb2.DESCRIPTOR: DispatchServicer(services),
            heartbeat_pb2.DESCRIPTOR: HeartbeatServicer(services),
            ops_pb2.DESCRIPTOR: self.ops,
            registry_pb2.DESCRIPTOR: RegistryServicer(services),
            result_pb2.DESCRIPTOR: ResultServicer(services),
            session_pb2.DESCRIPTOR: SessionServicer(services),
        }
        self.methods = behaviours(servicers)
        """Those with one request."""
        if services.peers is not None:
            pings = servicers[attach_pb2.DESCRIPTOR].pings
            peer = PeerServicer(services, services.peers, self.methods, pings)
            peer_pb2_grpc.add_PeerServiceServicer_to_server(peer, self._server)
        names = [reflection.SERVICE_NAME, health.SERVICE_NAME]
        for descriptor, servicer in servicers.items():
            _SERVICES[descriptor](servicer, self._server)
            names += [service.full_name for service in descriptor.services_by_name.values()]
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(names, self._server)
        self._names = names
        self.port = 0

    def inner_calls(self) -> InnerCalls:
        """The same methods for another door of this process."""
        required = bool(self._listen.client_ca) and self._listen.client_required
        return InnerCalls(self.entrance, self.methods, certificate_required=required)

    def serve_beside(self, other: Beside) -> None:
        """Another contract on the same port."""
        self._interceptor.beside = other

    async def start(self) -> None:
        """Binds the port and serves.

        Raises:
            Unavailable: the port is taken.
        """
        listen = self._listen
        address = f"[{listen.host}]:{listen.port}" if ":" in listen.host else f"{listen.host}:{listen.port}"
        _refuse_taken(listen.host, listen.port)
        try:
            if listen.certificate:
                self.port = self._server.add_secure_port(address, _credentials(listen))
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}: is another server using the port?") from error
        await self.tell_health(serving=False)
        await self._server.start()

    async def tell_health(self, *, serving: bool) -> None:
        """Tells health checks whether this node takes work. After `not_serving` nothing changes that any more."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, state)

    async def follow(self, ready: Callable[[], bool]) -> None:
        """Tells health checks of each change, until it is cancelled."""
        told = True
        while True:
            if (now := ready()) != told:
                told = now
                await self.tell_health(serving=now)
                log.log(logging.INFO if now else logging.WARNING, "serving again" if now else "not serving for now")
            await asyncio.sleep(HEALTH_SECONDS)

    async def not_serving(self) -> None:
        """Tells health checks that the server is about to go."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Ends all streams, lets short calls finish, and closes the port."""
        stopping = asyncio.create_task(self._server.stop(grace_seconds), name="grpc-stop")
        self._services.close_streams()
        await stopping


def _credentials(listen: Listen) -> grpc.ServerCredentials:
    """TLS, with what is in the files at each handshake."""

    def made(certificate: bytes, key: bytes, client_ca: bytes) -> Any:
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca or None)

    def renewed() -> Any:
        new = listen.renewed()
        return None if new is None else made(*new)

    first = made(listen.certificate, listen.private_key, listen.client_ca)
    required = bool(listen.client_ca) and listen.client_required
    return grpc.dynamic_ssl_server_credentials(first, renewed, required)


def _refuse_taken(host: str, port: int) -> None:
    """gRPC binds a port that another process merely listens on with SO_REUSEPORT; a plain bind tells the truth."""
    if not port:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            message = f"cannot listen on {host}:{port} ({error.strerror}): is another server using the port?"
            raise Unavailable(message) from error
