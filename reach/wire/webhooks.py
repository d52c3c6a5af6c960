"""Webhooks: where they may go (GOV-6), what is sent, and how it is signed.

A URL is judged twice: when a task names it, by its words, and when it is delivered, by *all* the addresses that its
host has then; who delivers connects to those addresses, not to the name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from google.protobuf import json_format

from agentreach.v1 import task_pb2, webhook_pb2
from reach.core.model import Task
from reach.core.rows import OutboxRow
from reach.wire.addresses import METADATA, embedded
from reach.wire.answers import fill_result, timestamp
from reach.wire.requests import check_id, invalid
from reach.wire.urls import Target, read_url

KIND: Final = "webhook"
"""The facts of the outbox that are delivered so."""
FAILED: Final = "webhook_failed"
"""The facts that tell of deliveries which were given up. Nobody takes them: they are kept to be looked at."""
SECRET_BYTES: Final = 4_096
_FIELD: Final = "task.webhook.url"
ENDED: Final = "task.ended"

_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""The addresses of IPv6 that are given to the world; all others have a meaning of their own."""
_SPECIAL: Final = tuple(map(ipaddress.ip_network, ("192.88.99.0/24", "3fff::/20")))
"""Not public either, whatever the version of Python says: relays of 6to4, examples."""


def not_public(address: str) -> str:
    """Why a webhook must not go to an address; empty if it may: only what the whole world can reach is reached."""
    try:
        one = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"{address} is no address"
    if one.is_multicast:
        return f"{address} is a multicast address"
    if embedded(one) is not one:
        return f"{address} stands for an address of another kind"
    special = any(one in network for network in _SPECIAL) or (one.version == 6 and one not in _UNICAST)
    if special or one in METADATA or not one.is_global:
        return f"{address} is not a public address"
    return ""


class Secret(NamedTuple):
    """An entry of `webhooks.secrets`."""

    name: str
    file: str
    tenants: frozenset[str]


class SecretUnreadable(Exception):
    """The file of a secret cannot be read, or holds none; the message says which."""


class WebhookRules:
    """What the configuration says of webhooks.

    Args:
        secrets: Who signs, in order.
        hosts: Hosts, as URLs write them in lower case, that may have any address but a link-local or metadata one, and
            may be reached by plain http.
    """

    def __init__(self, secrets: Iterable[Secret] = (), hosts: frozenset[str] = frozenset()) -> None:
        self._secrets = tuple(secrets)
        self._hosts = hosts

    def check(self, tenant: str, webhook: task_pb2.Webhook) -> None:
        """Whether a task of a tenant may name this webhook.

        Raises:
            InvalidRequest: INVALID_FIELD.
        """
        target = self.target(webhook)
        try:
            ipaddress.ip_address(target.host)
        except ValueError:
            pass
        else:
            if refusal := self.refusal(target.host, [target.host]):
                raise invalid(_FIELD, refusal)
        check_id("task.webhook.secret_name", webhook.secret_name)
        if self._secret(tenant, webhook.secret_name) is None:
            wanted = f"secret {webhook.secret_name!r}" if webhook.secret_name else "secret"
            text = f"there is no {wanted} for tenant {tenant!r} in webhooks.secrets of the server's configuration"
            raise invalid("task.webhook.secret_name", text)

    def target(self, webhook: task_pb2.Webhook) -> Target:
        """Where a webhook goes, by the configuration of now: a task may be older than that.

        Raises:
            InvalidRequest: INVALID_FIELD: nowhere.
        """
        target = read_url(webhook.url, _FIELD)
        if not target.tls and target.host not in self._hosts:
            text = f"must be https: plain http only goes to hosts in webhooks.hosts, and {target.host} is not there"
            raise invalid(_FIELD, text)
        return target

    def read(self, task: Task, webhook: task_pb2.Webhook) -> None:
        """Checks the webhook of a new task, and has its end announced (`TaskReader.webhook`).

        Raises:
            InvalidRequest: INVALID_FIELD.
        """
        self.check(task.tenant, webhook)
        if task.volatile:
            raise invalid("task.webhook", "needs a task that is DURABLE: nobody hears of one that may be lost")
        task.announce = (*task.announce, *announced(task.tenant, webhook))

    def refusal(self, host: str, addresses: Iterable[str]) -> str:
        """Why a host must not be connected to, seeing all its addresses; empty if it may be."""
        named = host in self._hosts
        for address in addresses:
            why = not_public(address)
            if named and why:
                one = embedded(ipaddress.ip_address(address.partition("%")[0]))
                why = f"{address} is a link-local or metadata address" if one.is_link_local or one in METADATA else ""
            if why:
                return why if named else f"{why}: name the host in webhooks.hosts to allow it"
        return ""

    def key(self, tenant: str, name: str) -> bytes:
        """The key that signs. Read anew each time, so that a secret that is replaced counts from the next try on.

        Raises:
            SecretUnreadable: There is none any more, or its file cannot be read.
        """
        secret = self._secret(tenant, name)
        if secret is None:
            raise SecretUnreadable(f"there is no secret {name!r} for its tenant in webhooks.secrets any more")
        try:
            text = Path(secret.file).read_bytes()[:SECRET_BYTES].strip()
        except OSError as error:
            raise SecretUnreadable(f"secret {secret.name!r} cannot be read: {error.strerror}") from error
        if not text:
            raise SecretUnreadable(f"secret {secret.name!r} is empty")
        if text.startswith(b"whsec_"):
            try:
                return base64.b64decode(text.removeprefix(b"whsec_"), validate=True)
            except binascii.Error as error:
                raise SecretUnreadable(f"secret {secret.name!r} is no base64 behind whsec_") from error
        return text

    def _secret(self, tenant: str, name: str) -> Secret | None:
        fitting = (one for one in self._secrets if tenant in one.tenants and name in ("", one.name))
        return next(fitting, None)


def announced(tenant: str, webhook: task_pb2.Webhook) -> tuple[tuple[str, str], ...]:
    """What the end of a task with this webhook is announced by (`Task.announce`). One lane for each receiver, and for
    each tenant: a receiver that hangs delays nobody else."""
    return ((KIND, f"{tenant} {read_url(webhook.url, _FIELD).origin}"),)


def shown_to_agents(task: Task) -> bytes:
    """The request of a task whose end is announced, without what is none of an agent's business."""
    if all(kind != KIND for kind, _ in task.announce):
        return task.spec
    spec = task_pb2.TaskSpec.FromString(task.spec)
    spec.ClearField("webhook")
    return spec.SerializeToString()


def delivery_id(fact: OutboxRow) -> str:
    """Names a delivery, the same in every try and after every restart."""
    name = "\0".join((fact.tenant, fact.task_id, str(fact.row), str(fact.wall_ms)))
    return "wh_" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def body_of(fact: OutboxRow, task: Task, spec: task_pb2.TaskSpec) -> bytes:
    """What is sent."""
    assert task.outcome is not None
    message = webhook_pb2.WebhookDelivery(delivery_id=delivery_id(fact), type=ENDED, labels=spec.labels)
    message.time.CopyFrom(timestamp(task.outcome.ended_wall_ms))
    if spec.HasField("session"):
        message.session.CopyFrom(spec.session)
    fill_result(message.result, task, task.outcome)
    return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None).encode()


def headers_of(name: str, key: bytes, wall_ms: int, body: bytes) -> Mapping[str, str]:
    """The headers of one try, as in the Standard Webhooks specification (standardwebhooks.com)."""
    at = str(wall_ms // 1_000)
    mac = hmac.digest(key, f"{name}.{at}.".encode() + body, "sha256")
    return {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": at,
        "webhook-signature": "v1," + base64.b64encode(mac).decode(),
    }


class FailedDelivery(msgspec.Struct):
    """The body of a `webhook_failed` fact, as JSON."""

    delivery_id: str
    task_id: str
    destination: str
    error: str
    tries: int


def fill_failed(message: webhook_pb2.FailedWebhook, fact: OutboxRow) -> None:
    """Writes a delivery that was given up."""
    failed = msgspec.json.decode(fact.body, type=FailedDelivery)
    message.delivery_id, message.task_id, message.destination = failed.delivery_id, failed.task_id, failed.destination
    message.error, message.tries = failed.error, failed.tries
    message.gave_up_at.CopyFrom(timestamp(fact.wall_ms))
