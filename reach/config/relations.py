"""What fields must hold together, beyond the range of each."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator

from reach.config.outgoing import Agents, WakeHook
from reach.config.sections import Config, Router, Server
from reach.config.tokens import broken_issuers
from reach.core.policies import POLICIES, own_policy

Broken = tuple[tuple[str, ...], str]
"""The fields that do not fit, and what is wrong with them."""


def broken_relations(config: Config) -> Iterator[Broken]:
    """Everything that does not fit together."""
    yield from _tls(config.server)
    yield from _exposure(config.server)
    yield from _policies(config.router)
    yield from _files(config)
    yield from _cluster(config)
    server, probe, telemetry = config.server, config.probe, config.telemetry
    if server.port == server.admin_port != 0:
        yield ("server.port", "server.admin_port"), f"server.port and server.admin_port are both {server.port}"
    if server.advertise and not re.fullmatch(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/@]+):[0-9]{1,5}", server.advertise):
        yield ("server.advertise",), "server.advertise must be host:port"
    if "*" in config.http.cors_origins and server.auth == "none":
        text = (
            "http.cors_origins '*' needs server.auth: any page in a browser that reaches this server could do anything"
        )
        yield ("http.cors_origins", "server.auth"), text
    if probe.unreachable_interval < probe.retry_interval:
        text = "probe.unreachable_interval must not be shorter than probe.retry_interval"
        yield ("probe.unreachable_interval", "probe.retry_interval"), text
    yield from _agents(config.agents)
    if probe.retry_interval > probe.interval:
        yield ("probe.retry_interval", "probe.interval"), "probe.retry_interval must not be longer than probe.interval"
    health = config.health
    parts = (health.reach_heartbeat, health.reach_rtt, health.reach_loss)
    if abs(sum(parts) - 100) > 1e-6:
        names = ("health.reach_heartbeat", "health.reach_rtt", "health.reach_loss")
        yield names, f"{', '.join(names)} must come to 100, they come to {sum(parts):g}"
    if health.reach_rtt_good >= health.reach_rtt_bad:
        both = ("health.reach_rtt_good", "health.reach_rtt_bad")
        yield both, "health.reach_rtt_good must be shorter than health.reach_rtt_bad"
    yield from _wake(config.wake.hooks)
    yield from _webhooks(config)
    yield from broken_issuers(config.jwt, config.server.auth)
    if telemetry.otlp_endpoint and not re.fullmatch(r"https?://[^\s/?#]+(?::[0-9]+)?/?", telemetry.otlp_endpoint):
        yield ("telemetry.otlp_endpoint",), "telemetry.otlp_endpoint must be http://host:port or https://host:port"


def _files(config: Config) -> Iterator[Broken]:
    router, matcher, session = config.router, config.matcher, config.session
    named = {
        "router.vocabulary_file": router.vocabulary_file,
        "router.routes_file": router.routes_file,
        "matcher.key_file": matcher.key_file,
        "matcher.classifier_key_file": matcher.classifier_key_file,
        "session.key_file": session.key_file,
        "storage.password_file": config.storage.password_file,
        "cluster.secret_file": config.cluster.secret_file,
        "cluster.peer_ca": config.cluster.peer_ca,
        "cluster.password_file": config.cluster.password_file,
        "cluster.ca": config.cluster.ca,
        "cluster.cert": config.cluster.cert,
        "cluster.key": config.cluster.key,
    }
    for name, path in named.items():
        if path and not os.access(path, os.R_OK):
            yield (name,), f"{name} cannot be read: {path}"
    if matcher.embedder == "endpoint":
        yield from _endpoint("matcher", "embedder", matcher.url, matcher.model)
    if matcher.classifier == "endpoint":
        yield from _endpoint("matcher", "classifier", matcher.classifier_url, matcher.classifier_model, "classifier_")
    if session.summariser == "endpoint":
        yield from _endpoint("session", "summariser", session.url, session.model)


def _cluster(config: Config) -> Iterator[Broken]:
    """What nodes of a cluster need, and what is of no use to others."""
    storage, cluster, server = config.storage, config.cluster, config.server
    if storage.type == "postgres" and not re.fullmatch(r"postgres(?:ql)?://[^\s/]+/[^\s/?]+(?:\?\S*)?", storage.url):
        yield ("storage.url", "storage.type"), "storage.url must be postgres://user@host:port/database"
    if storage.url and storage.type != "postgres":
        yield ("storage.url", "storage.type"), f"storage.url is for storage.type postgres, which is {storage.type!r}"
    if storage.password_file and not re.match(r"postgres(?:ql)?://[^\s/:@]+@", storage.url):
        text = (
            "storage.password_file needs storage.url with a user and without a password: postgres://user@host/database"
        )
        yield ("storage.password_file", "storage.url"), text
    if not cluster.endpoints:
        return
    for one in cluster.endpoints:
        if not re.fullmatch(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/@]+):[0-9]{1,5}", one):
            yield ("cluster.endpoints",), f"cluster.endpoints: {one!r} is not host:port"
    if storage.type != "postgres":
        yield (
            ("cluster.endpoints", "storage.type"),
            "a cluster needs storage.type postgres: its nodes share one journal",
        )
    if not cluster.secret_file:
        yield ("cluster.endpoints", "cluster.secret_file"), "a cluster needs cluster.secret_file, the same on all nodes"
    yield from _reached(server)
    if bool(cluster.cert) != bool(cluster.key):
        yield ("cluster.cert", "cluster.key"), "cluster.cert and cluster.key need each other"
    if bool(cluster.user) != bool(cluster.password_file):
        yield ("cluster.user", "cluster.password_file"), "cluster.user and cluster.password_file need each other"


def _reached(server: Server) -> Iterator[Broken]:
    """Other nodes come to where this one says that it is."""
    if server.host in ("0.0.0.0", "::") and not server.advertise:
        yield ("server.advertise",), f"server.advertise must say where other nodes reach this one: {server.host} is all"
    if is_loopback(server.host) and server.advertise and not is_loopback(server.advertise.rpartition(":")[0]):
        text = f"server.host {server.host} is this machine alone, and server.advertise has other nodes come to"
        yield ("server.host", "server.advertise"), f"{text} {server.advertise}: listen where they can reach it (--host)"


def _endpoint(section: str, kind: str, url: str, model: str, prefix: str = "") -> Iterator[Broken]:
    """A model that is called needs an address and a name."""
    if not re.fullmatch(r"https?://[^\s/?#@]+(?::[0-9]+)?(?:/[^\s?#]*)?", url):
        text = f"{section}.{prefix}url must be http://host:port/… or https://host/…"
        yield (f"{section}.{prefix}url", f"{section}.{kind}"), text
    if not model:
        text = f"{section}.{kind} endpoint needs {section}.{prefix}model"
        yield (f"{section}.{prefix}model", f"{section}.{kind}"), text


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost may be anything, so it is not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _policies(router: Router) -> Iterator[Broken]:
    """Own policies must mean something, and every name must be one of a policy."""
    for name, weights in router.policies.items():
        try:
            own_policy(name, weights)
        except ValueError as error:
            yield ("router.policies",), f"router.policies.{name}: {error}"
    known = [*POLICIES, *router.policies]
    for field, name in (("policy", router.policy), *(("pool_policies", one) for one in router.pool_policies.values())):
        if name not in known:
            yield (f"router.{field}",), f"router.{field}: there is no policy {name!r}; there is {', '.join(known)}"


def _wake(hooks: list[WakeHook]) -> Iterator[Broken]:
    named = [(hook.tenant, hook.agent_type) for hook in hooks]
    for tenant, agent_type in sorted({one for one in named if named.count(one) > 1}):
        yield ("wake.hooks",), f"wake.hooks has {agent_type!r} of tenant {tenant!r} twice"
    for hook in hooks:
        if bool(hook.command) == bool(hook.url):
            yield ("wake.hooks",), f"wake.hooks: {hook.agent_type!r} needs either command or url"
        if hook.url and not re.fullmatch(r"https?://[^\s]+", hook.url):
            yield ("wake.hooks",), f"wake.hooks: the url of {hook.agent_type!r} must be http://… or https://…"


def _webhooks(config: Config) -> Iterator[Broken]:
    webhooks = config.webhooks
    names = [row.name for row in webhooks.secrets]
    for name in sorted({one for one in names if names.count(one) > 1}):
        yield ("webhooks.secrets",), f"webhooks.secrets has {name!r} twice"
    for row in webhooks.secrets:
        if not os.access(row.file, os.R_OK):
            yield ("webhooks.secrets",), f"webhooks.secrets: the file of {row.name!r} cannot be read: {row.file}"
    if webhooks.give_up_hours > config.results.keep_hours:
        both = ("webhooks.give_up_hours", "results.keep_hours")
        yield both, "webhooks.give_up_hours must not be longer than results.keep_hours"


def _tls(server: Server) -> Iterator[Broken]:
    if bool(server.tls_cert) != bool(server.tls_key):
        there, missing = ("cert", "key") if server.tls_cert else ("key", "cert")
        yield (f"server.tls_{there}",), f"server.tls_{there} needs server.tls_{missing}"
    if server.tls_client_ca and not server.tls_cert:
        yield ("server.tls_client_ca",), "server.tls_client_ca needs server.tls_cert and server.tls_key"
    if server.client_cert_required != bool(server.tls_client_ca):
        text = "server.client_cert_required and server.tls_client_ca must be set together"
        yield ("server.client_cert_required", "server.tls_client_ca"), text
    if server.client_identities and not (server.tls_client_ca and server.auth == "keys"):
        text = "server.client_identities needs server.tls_client_ca and server.auth keys"
        yield ("server.client_identities",), text
    identities = [row.identity for row in server.client_identities]
    for identity in sorted({one for one in identities if identities.count(one) > 1}):
        yield ("server.client_identities",), f"server.client_identities has {identity!r} twice"
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        path = getattr(server, name)
        if path and not os.access(path, os.R_OK):
            yield (f"server.{name}",), f"server.{name} cannot be read: {path}"


def _agents(agents: Agents) -> Iterator[Broken]:
    names = [row.name for row in agents.auth]
    for name in sorted({one for one in names if names.count(one) > 1}):
        yield ("agents.auth",), f"agents.auth has {name!r} twice"
    for row in agents.auth:
        if not os.access(row.token_file, os.R_OK):
            yield ("agents.auth",), f"agents.auth: the token file of {row.name!r} cannot be read: {row.token_file}"
    if agents.tls_ca and not os.access(agents.tls_ca, os.R_OK):
        yield ("agents.tls_ca",), f"agents.tls_ca cannot be read: {agents.tls_ca}"


def _exposure(server: Server) -> Iterator[Broken]:
    """GOV-2: beyond loopback everybody may knock, so there is authentication and TLS, or somebody said `insecure`."""
    if is_loopback(server.host) or server.insecure:
        return
    if server.auth == "none" and not server.client_cert_required:
        text = f"without authentication the server listens on loopback only, not on {server.host}"
        yield ("server.host", "server.auth"), f"{text}: set server.auth to keys, or server.insecure"
    if not server.tls_cert:
        text = f"without TLS the server listens on loopback only, not on {server.host}"
        yield ("server.host", "server.tls_cert"), f"{text}: set server.tls_cert and server.tls_key, or server.insecure"
