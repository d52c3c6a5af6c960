"""From the configuration to what the parts of a node want to know."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from reach.a2a.door import A2aDoor
from reach.a2a.settings import A2aSettings
from reach.config.relations import is_loopback
from reach.config.sections import Config
from reach.config.thresholds import thresholds_of
from reach.config.tls import Files, ServerTls
from reach.config.watching import Policies
from reach.core.model import PoolKey
from reach.errors import InvalidRequest
from reach.http.api import BODY_MARGIN, Api, ApiSettings
from reach.http.app import HttpServer, MayRead, MetricsText, Readiness, create_app
from reach.http.guard import Guard
from reach.rpc.server import GrpcServer, Listen
from reach.runtime.retention import Keep
from reach.runtime.settings import Settings
from reach.runtime.summarisers import EndpointSummariser
from reach.runtime.wake import WakeHook
from reach.transports.credentials import CredentialEntry, Credentials
from reach.transports.dialler import DialSettings
from reach.wire.addresses import AgentRules
from reach.wire.webhooks import Secret, WebhookRules


def host_settings(config: Config, policies: Policies) -> Settings:
    """The limits of a host."""
    router = config.router
    settings = Settings()
    settings.queue_limit, settings.queue_bytes = router.queue_limit, router.queue_bytes
    settings.overcommit = router.overcommit
    settings.policies, settings.policy, settings.pool_policies = policies
    settings.canary_share = router.canary_share
    settings.pin_wait_ms = int(config.session.pin_wait * 1_000)
    settings.dead_letters = router.dead_letter
    settings.weights, settings.backlog_alert = dict(router.fairness_weights), router.backlog_alert
    settings.input_wait_ms = int(router.input_wait * 1_000)
    settings.wake = {
        PoolKey(hook.tenant, hook.agent_type): WakeHook(tuple(hook.command), hook.url, hook.timeout)
        for hook in config.wake.hooks
    }
    settings.thresholds = thresholds_of(config)
    settings.heartbeat_ms = int(config.heartbeat.interval * 1_000)
    session = config.session
    settings.session_ttl_ms = int(session.ttl * 1_000)
    settings.session_limit, settings.session_bytes = session.limit, session.limit_bytes
    settings.context_bytes = session.context_bytes
    if session.summariser == "endpoint":
        key = _read(session.key_file).decode(errors="replace").strip()
        settings.summariser = EndpointSummariser(session.url, session.model, key)
    return settings


def agent_rules(config: Config) -> AgentRules:
    """Where agents, and what tells of them, may be."""
    return AgentRules(is_loopback(config.server.host), frozenset(map(_host, config.agents.local_hosts)))


def dial_settings(config: Config) -> DialSettings:
    """How agents are dialled."""
    probe, server, agents = config.probe, config.server, config.agents
    return DialSettings(
        rules=agent_rules(config),
        payload_limit=server.payload_limit,
        timeout_s=probe.timeout,
        interval_ms=int(probe.interval * 1_000),
        credentials=Credentials(
            [CredentialEntry(one.name, one.token_file, one.tenants, one.hosts) for one in agents.auth],
            _read(agents.tls_ca) or None,
        ),
    )


def webhook_rules(config: Config) -> WebhookRules:
    """Where webhooks may go, and who signs."""
    webhooks = config.webhooks
    secrets = (Secret(one.name, one.file, one.tenants) for one in webhooks.secrets)
    return WebhookRules(secrets, frozenset(map(_host, webhooks.hosts)))


def kept(config: Config) -> Keep:
    """How much is kept of tasks that ended."""
    results = config.results
    return Keep(
        int(results.keep_hours * 3_600_000),
        results.keep_bytes,
        int(results.dead_letter_hours * 3_600_000),
        results.dead_letters,
    )


def api_settings(config: Config) -> ApiSettings:
    """What the JSON door takes, and from whom."""
    server = config.server
    local = server.auth == "none" and is_loopback(server.host)
    guard = Guard(frozenset(config.http.cors_origins), local)
    return ApiSettings(2 * server.payload_limit + BODY_MARGIN, guard)


def a2a_settings(config: Config, http_port: int, grpc_port: int) -> A2aSettings:
    """Where the cards say that we are, and what we are called. The ports are those that were bound."""
    a2a, server = config.a2a, config.server
    host = server.host
    if not is_loopback(host):
        host = server.advertise.rpartition(":")[0] or socket.gethostname()
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    scheme = "https" if server.tls_cert else "http"
    return A2aSettings(
        a2a.public_url or f"{scheme}://{host}:{http_port}",
        a2a.public_grpc or (server.advertise if not is_loopback(server.host) else "") or f"{host}:{grpc_port}",
        bool(a2a.public_grpc),
        a2a.name,
        a2a.description,
        server.auth != "none",
    )


class Seen(NamedTuple):
    """What HTTP shows of a node."""

    ready: Readiness
    metrics: MetricsText | None
    may_read: MayRead


def server_tls(config: Config) -> ServerTls | None:
    """The server's certificate; None: it has none.

    Raises:
        InvalidRequest: a file cannot be read, or the certificate and its key are none, or not of each other.
    """
    server = config.server
    if not server.tls_cert:
        return None
    return ServerTls(Files(server.tls_cert, server.tls_key, server.tls_client_ca))


def http_server(
    config: Config,
    grpc: GrpcServer,
    seen: Seen,
    ports: Callable[[], tuple[int, int]],
    tls: ServerTls | None = None,
) -> HttpServer:
    """All doors of HTTP, where and how they are served. A2A comes in at the gRPC server too. `ports` are those of HTTP
    and gRPC, once they are bound."""
    server = config.server
    calls, limits = grpc.inner_calls(), api_settings(config)
    api, routes, closing = Api(calls, limits), [], []
    if config.a2a.enabled:
        a2a = A2aDoor(calls, grpc.entrance, limits, lambda: a2a_settings(config, *ports()))
        grpc.serve_beside(a2a)
        routes, closing = a2a.routes(), [a2a.close]

    async def close() -> None:
        await asyncio.gather(api.close(), *(end() for end in closing))

    app = create_app(seen.ready, seen.metrics, seen.may_read, api, routes)
    context = tls.context if tls is not None else None
    return HttpServer(
        app,
        server.host,
        server.admin_port,
        tls=context,
        closing=close,
        connections=config.http.max_connections,
        of_address=config.http.max_connections_per_address,
        frame_limit=limits.body_limit,
    )


def listen(config: Config, tls: ServerTls | None = None) -> Listen:
    """Where and how gRPC is served."""
    server = config.server
    made = Listen(server.host, server.port, server.payload_limit, client_required=server.client_cert_required)
    made.max_connections = config.grpc.max_connections
    if tls is not None:
        made.certificate, made.private_key, made.client_ca = tls.content
        made.renewed = tls.renewed
    return made


def _host(written: str) -> str:
    """A host as it is compared."""
    return written.strip("[]").lower()


def _read(path: str) -> bytes:
    """The content of a file that the configuration names; nothing where it names none."""
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise InvalidRequest(f"cannot read {error.filename}: {error.strerror}") from error
