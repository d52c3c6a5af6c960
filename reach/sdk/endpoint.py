"""Agents that want to be dialled: the same handlers, served as AgentEndpointService.

The server calls Execute for each attempt. A handler goes on when that call breaks: a server that comes back asks by
Check what runs here, and calls Execute again, which joins the attempt (feature `rejoin`). An outcome is held until a
Check no longer names its attempt, for only then the server has it for certain.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from agentreach.v1 import (
    attach_pb2,
    attempt_pb2,
    endpoint_pb2,
    endpoint_pb2_grpc,
    heartbeat_pb2,
    heartbeat_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    result_pb2,
    result_pb2_grpc,
)
from reach.core.instance_states import Availability
from reach.errors import Internal, InvalidRequest, ReachError
from reach.sdk.attempts import Attempts
from reach.sdk.calls import Calls
from reach.sdk.channel import Target, Tls
from reach.sdk.connection import FIRST_WAIT_S, LONGEST_WAIT_S, log
from reach.sdk.figures import Figures
from reach.sdk.handlers import Handler
from reach.sdk.outcomes import Key, Outcomes
from reach.sdk.payloads import Fields
from reach.sdk.unary import UnaryCalls
from reach.wire.status import error_to_proto

FEATURES: Final = ("rejoin", "effects", "keepalive")
HTTP_FEATURES: Final = ("rejoin", "effects", "cancel")
UNASKED_S: Final = 45.0
"""A server that asked nothing for so long has forgotten us: we register again."""
CALL_S: Final = 5.0
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 66 << 20),
    ("grpc.max_send_message_length", -1),
    # The server pings each 10 s, also while a handler says nothing; gRPC's default would cut it off for that.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where and how an agent is dialled.

    Attributes:
        address: `host:port` to listen on; port 0 takes a free one.
        advertise: `host:port` under which Agent-Reach reaches it; empty: `address`, or where that is every interface,
            the address of this machine that leads to Agent-Reach.
        token_file: File with a token that callers must show; None: everybody may call.
        auth_reference: Entry of the server's `agents.auth` that holds the same token.
        tls: `cert` and `key` to serve TLS with; `ca`: callers must have a certificate of it.
        http: Speak HTTP, in place of gRPC. `http://host:port` as address says the same.
    """

    address: str
    advertise: str = ""
    token_file: str | None = None
    auth_reference: str = ""
    tls: Tls | None = None
    http: bool = False

    def __post_init__(self) -> None:
        """Reads `http://` off the address."""
        if self.address.startswith("http://"):
            object.__setattr__(self, "address", self.address.removeprefix("http://").rstrip("/"))
            object.__setattr__(self, "http", True)


class EndpointLink:
    """Speaks for one instance that is dialled; in place of `Link`. Lives on one loop, from `run` until cancelled."""

    def __init__(
        self, target: Target, registration: Fields, handlers: dict[str, Handler], figures: Figures, listen: Listen
    ) -> None:
        self.welcomed = asyncio.Event()
        """The server has taken us in, at least once."""
        self.generation = 0
        self.instance_id: str = registration["instance_id"]
        self.boot_id: str = registration["boot_id"]
        self.connection = Calls(self._begin_effect, self._goodbye)
        self.outcomes = Outcomes(self.connection, self.status)
        self.attempts = Attempts(self.connection, handlers, figures, self.outcomes, self.instance_id)
        self.connection.attach(self.attempts, self.outcomes)
        self.figures = figures
        self.asked_at = time.monotonic()
        """When the server last called."""
        self._target = target
        self._registration = registration
        self._handlers = handlers
        self._listen = listen
        self._token = Path(listen.token_file).read_text().strip() if listen.token_file is not None else ""
        self._port = 0
        self._to_server = UnaryCalls(target)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until cancelled. Raises the ReachError of a refusal that trying again does not change."""
        door = self._door()
        self._port = await door.start()
        self.connection.up = self.connection.welcomed = True
        try:
            await self._register_for_ever()
        finally:
            self.connection.up = self.connection.welcomed = False
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await door.stop()
            await self._to_server.close()
            self.attempts.threads.close()

    def start_beating(self) -> None:
        """Nothing: the server asks."""

    def beat(self) -> None:
        """Something changed: says so now, and does not wait to be asked."""
        if self.attempts.draining:
            self.connection.settle()
        if self.welcomed.is_set():
            self._own(self._beat())

    def say_goodbye(self) -> None:
        """The end of the connection says it."""

    async def hand_over(self) -> None:
        """Nothing: the server asks, when a session is about to move."""

    def status(self) -> Fields:
        """The fields of AgentStatus."""
        fields = self.figures.fields(time.monotonic(), self.attempts.threads.waiting, self._handlers)
        if self.attempts.draining:
            fields["availability"] = int(Availability.DRAINING)
        return fields

    def allows(self, metadata: Any) -> bool:
        """Whether a caller has shown the token."""
        if not self._token:
            return True
        shown = dict(metadata or ()).get("authorization", "")
        return hmac.compare_digest(str(shown).encode(), f"Bearer {self._token}".encode())

    def asked(self) -> None:
        """The server has called."""
        self.asked_at = time.monotonic()

    # -- the server ---------------------------------------------------------------------------------------------------

    def _door(self) -> Any:
        if not self._listen.http:
            return _GrpcDoor(self, self._listen)
        from reach.sdk.http_door import HttpDoor  # most agents need none

        return HttpDoor(self, self._listen)

    def _url(self) -> str:
        host, _, port = (self._listen.advertise or self._listen.address).rpartition(":")
        if port in ("", "0"):
            port = str(self._port)
        if host in ("0.0.0.0", "[::]", "::", ""):
            host = _own_address(self._target.addresses[0])
        return f"{'http' if self._listen.http else 'grpc'}{'s' if self._listen.tls is not None else ''}://{host}:{port}"

    async def _register_for_ever(self) -> None:
        tries = 0
        while True:
            try:
                await self._register()
            except ReachError as error:
                final = isinstance(error, InvalidRequest | Internal) and not error.retryable
                if final and not self.welcomed.is_set():
                    raise
                if tries == 0:
                    log.warning("cannot register %s: %s; trying on for ever", self.instance_id, error.message)
                await asyncio.sleep(random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(tries, 10))))
                tries += 1
                continue
            tries = 0
            self.asked_at = time.monotonic()
            while (left := self.asked_at + UNASKED_S - time.monotonic()) > 0:  # noqa: ASYNC110 - each call moves it
                await asyncio.sleep(left)

    async def _register(self) -> None:
        endpoint = {"url": self._url(), "auth_reference": self._listen.auth_reference}
        methods = [] if "default" in self._handlers else [{"name": name} for name in self._handlers]
        fields: Fields = {
            **self._registration,
            "methods": methods,
            "endpoints": [endpoint],
            "features": self._features(),
        }
        fields.pop("heartbeat_interval", None)  # it does not beat: probes are its beats
        request: Fields = {"registration": fields}
        answer = await self._to_server.call(
            registry_pb2_grpc.RegistryServiceStub, "Register", registry_pb2.RegisterRequest(**request), 2 * CALL_S
        )
        self.generation = answer.generation
        for warning in answer.warnings:
            log.warning("Agent-Reach says of %s: %s", self.instance_id, warning)
        self.welcomed.set()

    def _features(self) -> list[str]:
        if self._listen.http:
            return [*HTTP_FEATURES]
        return [*FEATURES, *(feature for feature in self._registration["features"] if feature == "handoff")]

    async def _beat(self) -> None:
        beat: Fields = {"instance_id": self.instance_id, "boot_id": self.boot_id, "status": self.status()}
        request: Fields = {"beat": beat}
        stub_of = heartbeat_pb2_grpc.HeartbeatServiceStub
        try:
            await self._to_server.call(stub_of, "Heartbeat", heartbeat_pb2.HeartbeatRequest(**request), CALL_S)
        except ReachError as error:
            log.debug("a beat did not arrive: %s", error.message)

    async def _goodbye(self, timeout_s: float) -> None:
        request = registry_pb2.DeregisterRequest(instance_id=self.instance_id, boot_id=self.boot_id)
        try:
            await self._to_server.call(registry_pb2_grpc.RegistryServiceStub, "Deregister", request, timeout_s)
        except ReachError as error:
            log.debug("Agent-Reach did not hear our goodbye: %s", error.message)

    def _begin_effect(self, effect: attach_pb2.EffectRequest) -> None:
        self._own(self._ask_effect(effect))

    async def _ask_effect(self, effect: attach_pb2.EffectRequest) -> None:
        reporter = result_pb2.Reporter(instance_id=self.instance_id, boot_id=self.boot_id)
        request = result_pb2.BeginEffectRequest(reporter=reporter, key=effect.key, effect=effect.effect)
        grant = attach_pb2.EffectGrant(key=effect.key, effect=effect.effect)
        while True:
            try:
                await self._to_server.call(result_pb2_grpc.ResultServiceStub, "BeginEffect", request, CALL_S)
            except ReachError as error:
                if error.retryable:
                    await asyncio.sleep(random.uniform(0.1, 1.0))
                    continue
                grant.refusal.CopyFrom(error_to_proto(error))
            self.attempts.granted(grant)
            return

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="reach-sdk-endpoint")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _GrpcDoor:
    """Where one agent listens for gRPC."""

    def __init__(self, link: EndpointLink, listen: Listen) -> None:
        self._listen = listen
        self._server = grpc.aio.server(options=_OPTIONS)
        endpoint_pb2_grpc.add_AgentEndpointServiceServicer_to_server(_Servicer(link), self._server)
        self._healthy = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._healthy, self._server)

    async def start(self) -> int:
        """Listens; the port. Raises InvalidRequest if that cannot be."""
        port = self._bind()
        await self._server.start()
        for name in ("", "agentreach.v1.AgentEndpointService"):
            await self._healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self) -> None:
        """Ends all calls."""
        await self._server.stop(0.2)

    def _bind(self) -> int:
        server, address, tls = self._server, self._listen.address, self._listen.tls
        try:
            if tls is None:
                return server.add_insecure_port(address)
            if tls.cert is None or tls.key is None:
                raise InvalidRequest("to serve TLS an agent needs cert and key")
            pair = (Path(tls.key).read_bytes(), Path(tls.cert).read_bytes())
            roots = Path(tls.ca).read_bytes() if tls.ca is not None else None
            credentials = grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)
            return server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise InvalidRequest(f"cannot listen on {address}: is another program using the port?") from error


class _Servicer(endpoint_pb2_grpc.AgentEndpointServiceServicer):
    """What Agent-Reach calls. Method names are those of the contract."""

    def __init__(self, link: EndpointLink) -> None:
        self._link = link
        self._calls: Calls = link.connection

    async def _admit(self, context: Any) -> None:
        if not self._link.allows(context.invocation_metadata()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "show the token of this agent")
        self._link.asked()

    async def Execute(  # noqa: N802
        self, request: endpoint_pb2.ExecuteRequest, context: Any
    ) -> AsyncIterator[endpoint_pb2.ExecuteResponse]:
        """See the contract."""
        await self._admit(context)
        offer = request.offer
        call = self._calls.open(offer)
        if call is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a newer attempt of this task has been here")
            return
        try:
            while (response := await call.next()) is not None:
                yield response
                self._calls.written(call, response)
        finally:
            self._calls.close(call)

    async def Cancel(  # noqa: N802
        self, request: endpoint_pb2.CancelRequest, context: Any
    ) -> endpoint_pb2.CancelResponse:
        """See the contract."""
        await self._admit(context)
        self._calls.cancel(request.key)
        return endpoint_pb2.CancelResponse()

    async def PrepareHandoff(  # noqa: N802
        self, request: endpoint_pb2.PrepareHandoffRequest, context: Any
    ) -> endpoint_pb2.PrepareHandoffResponse:
        """See the contract."""
        await self._admit(context)
        handoffs = self._link.attempts.handoffs
        if handoffs is None:
            return endpoint_pb2.PrepareHandoffResponse()
        snapshot = await handoffs.snapshot_of(request.session, request.tenant)
        return endpoint_pb2.PrepareHandoffResponse(snapshot=snapshot)

    async def Check(self, request: endpoint_pb2.CheckRequest, context: Any) -> endpoint_pb2.CheckResponse:  # noqa: N802
        """See the contract."""
        await self._admit(context)
        link = self._link
        believed: set[tuple[Key, int]] = {((key.tenant, key.task_id), key.attempt) for key in request.running}
        fields: Fields = {"boot_id": link.boot_id, "status": link.status()}
        figures = link.figures
        fields["worker_idle_share"] = max(0.0, 1 - figures.inflight / figures.max_concurrency)
        answer = endpoint_pb2.CheckResponse(**fields)
        for (tenant, task_id), attempt in self._calls.names(believed):
            answer.running.append(attempt_pb2.AttemptKey(task_id=task_id, attempt=attempt, tenant=tenant))
        return answer


def _own_address(server: str) -> str:
    """The address of this machine from which a server is reached."""
    host, _, port = server.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            mine = str(probe.getsockname()[0])
    except (OSError, ValueError):
        return socket.gethostname()
    return f"[{mine}]" if ":" in mine else mine
