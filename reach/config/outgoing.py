"""Sections about calls that we make: to wake hooks, agents and webhooks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from reach.config.fields import Name, Section, Text


class WakeHook(Section, frozen=True):
    """How the agents of one type are started."""

    agent_type: Annotated[str, Meta(min_length=1, max_length=256)]
    tenant: Name = "default"
    command: Annotated[list[str], Meta(max_length=64)] = field(default_factory=list)
    url: Annotated[str, Meta(max_length=1024)] = ""
    timeout: Annotated[float, Meta(ge=0.1, le=600)] = 10.0


class Wake(Section, frozen=True):
    """Starting agents on demand: what to call when a task waits and no agent of its type is ready."""

    hooks: Annotated[list[WakeHook], Meta(max_length=1000)] = field(default_factory=list)
    """A list of `agent_type`, `tenant` (default `default`), `timeout` in seconds (default 10), and one of `command` (a
    list: program and arguments; it gets AGENT_REACH_WAKE_ID, _AGENT_TYPE, _TENANT and _WAITING) or `url` (gets a POST
    with the same as JSON). Called once for many tasks; up to three times with the same id if it fails or nobody comes
    within 2 minutes."""


class AgentAuth(Section, frozen=True):
    """A token that we show to agents which are dialled."""

    name: Name
    token_file: Annotated[str, Meta(min_length=1, max_length=4096)]
    hosts: Annotated[frozenset[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(min_length=1, max_length=1000)]
    tenants: Annotated[frozenset[Name], Meta(min_length=1, max_length=1000)] = frozenset({"default"})


class Agents(Section, frozen=True):
    """Agents that are dialled (`grpc://`, `grpcs://`)."""

    auth: Annotated[list[AgentAuth], Meta(max_length=1000)] = field(default_factory=list)
    """Tokens that agents want to see: a list of `name` (a registration gives it as `auth_reference`), `token_file` (a
    file with the token; sent as `authorization: Bearer …`, never logged, read anew for each connection), `hosts` (where
    it may be sent: the host names or addresses of endpoints, in lower case) and `tenants` (whose agents may name it;
    without it: `default`)."""
    tls_ca: Text = ""
    """File with the authorities that sign the certificates of `grpcs://` agents (PEM). Empty: those of the system."""
    local_hosts: Annotated[list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(max_length=1000)] = field(
        default_factory=list
    )
    """Host names or addresses, as endpoints write them, that may be this machine though the server listens beyond
    loopback: agents in the same pod, or on the developer's laptop. Whoever may register agents can then have the server
    call any port of it that is open. Other agents on this machine are not dialled."""


class WebhookSecret(Section, frozen=True):
    """A secret that signs webhooks."""

    name: Name
    file: Annotated[str, Meta(min_length=1, max_length=4096)]
    tenants: Annotated[frozenset[Name], Meta(min_length=1, max_length=1000)] = frozenset({"default"})


class Webhooks(Section, frozen=True):
    """Telling others by a POST that a task ended."""

    secrets: Annotated[list[WebhookSecret], Meta(max_length=1000)] = field(default_factory=list)
    """Secrets that sign: a list of `name` (a task gives it as `secret_name`; without one the first that fits the tenant
    is taken), `file` (with the secret: `whsec_` and base64, or any text; read anew for each try) and `tenants` (whose
    tasks may name it; without it: `default`). Tasks of tenants without a secret may name no webhook."""
    hosts: Annotated[list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(max_length=1000)] = field(
        default_factory=list
    )
    """Host names or addresses, as URLs write them in lower case, that may be private or this machine, and may be
    reached by plain http. All other hosts must be public and have https."""
    timeout: Annotated[float, Meta(ge=0.1, le=120)] = 10.0
    """Seconds that a receiver may take for one try. Too small: slow receivers get the same again and again. Too large:
    one that hangs is noticed late."""
    give_up_hours: Annotated[float, Meta(ge=0.001, le=720)] = 24.0
    """Hours after the end of a task from which on its webhook is not tried again, but kept among those that failed.
    Not longer than `results.keep_hours`: what is sent is the result. Too small: a receiver that is away for a while
    misses them. Too large: receivers that are gone are asked for long."""
