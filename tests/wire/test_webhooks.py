"""Webhooks: which URLs are taken (GOV-6), and how deliveries are named and signed (DLV-12)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from agentreach.v1 import task_pb2, webhook_pb2
from reach.core.model import Fault, Outcome, Task, TaskState
from reach.core.rows import OutboxRow
from reach.errors import ErrorClass, InvalidRequest, Reason
from reach.wire.codec import ProtoCodec
from reach.wire.requests import TaskReader
from reach.wire.urls import read_url
from reach.wire.webhooks import (
    Secret,
    SecretUnreadable,
    WebhookRules,
    announced,
    body_of,
    delivery_id,
    headers_of,
    not_public,
    shown_to_agents,
)

NOT_PUBLIC = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.3.4", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "169.254.1.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "168.63.129.16",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.7", "203.0.113.5", "224.0.0.1", "239.1.1.1",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1",
    "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "64:ff9b::808:808",
    "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:808:808::1", "2001::1", "2001:db8::1",
    "3fff::1", "100::1", "5f00::1", "no address",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_GOV_6_only_public_addresses_are_connected_to(address: str) -> None:
    assert not_public(address)
    assert WebhookRules().refusal("example.com", ["8.8.8.8", address])


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_public_addresses_are_connected_to(address: str) -> None:
    assert not not_public(address)
    assert not WebhookRules().refusal("example.com", [address])


def test_GOV_6_a_host_that_is_named_may_be_private_but_never_link_local() -> None:
    rules = WebhookRules(hosts=frozenset({"hooks.internal"}))
    assert not rules.refusal("hooks.internal", ["10.0.0.1", "::1", "::ffff:10.0.0.1"])
    for address in ("169.254.169.254", "fe80::1", "100.100.100.200", "::ffff:169.254.169.254", "fd00:ec2::254"):
        assert rules.refusal("hooks.internal", ["10.0.0.1", address])
    assert "webhooks.hosts" in rules.refusal("other.internal", ["10.0.0.1"])


BAD_URLS = [
    "", "example.com", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/",
    "javascript:1",    "https://", "https:///path", "https://user@example.com/", "https://user:pass@example.com/", "https://a.com#fragment",
    "https://example.com/#x", "https://exam ple.com/", "https://example.com/a b", "https://example.com/\r\nx: y",
    "https://example.com/\n", "https://example.com\n", "https://example.com/\0", "https://example.com:0/",
    "https://example.com:65536/", "https://example.com:-1/", "https://example.com:http/", "https://[::1/", "https://[1]x/",
    "https://example.com\\@evil.com/", "https://exämple.com/", "https://example.com/ä", "https://.example.com/",
    "https://example.com./", "https://" + "a" * 2_050, "https://example.com/" + "a" * 2_048, " https://example.com/",
    "https://%31%32%37.0.0.1/", "https://a.com:80:80/", "http+unix://sock/", "https://example.com/?a#b",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_GOV_6_odd_urls_are_refused_by_their_words(url: str) -> None:
    with pytest.raises(InvalidRequest, match="https://host") as caught:
        read_url(url, "task.webhook.url")
    assert caught.value.reason is Reason.INVALID_FIELD


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("https://Example.com", "https://example.com:443", "/"),
        ("HTTPS://example.com:8443/a/b?c=d%20e&f", "https://example.com:8443", "/a/b?c=d%20e&f"),
        ("http://10.0.0.1/x", "http://10.0.0.1:80", "/x"),
        ("https://[2001:DB8::1]:444?q", "https://[2001:db8::1]:444", "/?q"),
        ("https://a_b.c-d.example/", "https://a_b.c-d.example:443", "/"),
    ],
)
def test_urls_have_parts(url: str, origin: str, path: str) -> None:
    target = read_url(url, "task.webhook.url")
    assert (target.origin, target.path) == (origin, path)


LOCAL = ["127.0.0.1", "[::1]", "169.254.169.254", "[::ffff:127.0.0.1]", "10.1.2.3", "[fd00::1]", "[64:ff9b::7f00:1]"]


@pytest.mark.parametrize("host", LOCAL)
def test_GOV_6_a_task_cannot_name_an_address_that_is_not_public(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"webhooks\.hosts|link-local"):
        taken(f"https://{host}/", rules_with(tmp_path))


def rules_with(tmp_path: Path, secret: str = "hush hush", hosts: tuple[str, ...] = ()) -> WebhookRules:
    (tmp_path / "one").write_text(secret)
    (tmp_path / "two").write_text("other")
    secrets = [
        Secret("one", str(tmp_path / "one"), frozenset({"acme"})),
        Secret("two", str(tmp_path / "two"), frozenset({"acme", "globex"})),
    ]
    return WebhookRules(secrets, frozenset(hosts))


def taken(url: str, rules: WebhookRules | None, tenant: str = "acme", name: str = "", **fields: Any) -> Task:
    reader = TaskReader()
    if rules is not None:
        reader.take_webhooks(rules.read)
    spec = task_pb2.TaskSpec(task_id="t1", selector=task_pb2.Selector(agent_type="a"), **fields)
    spec.webhook.url, spec.webhook.secret_name = url, name
    return reader.read(tenant, spec)[0]


def test_DLV_12_a_task_with_a_webhook_is_announced_to_its_destination(tmp_path: Path) -> None:
    task = taken("https://Example.com/path?token=1", rules_with(tmp_path))
    assert task.announce == (("webhook", "acme https://example.com:443"),)
    assert announced("globex", task_pb2.Webhook(url="https://example.com/")) != task.announce


def test_DLV_12_what_cannot_be_delivered_is_refused_with_the_task(tmp_path: Path) -> None:
    rules = rules_with(tmp_path, hosts=("hooks.internal",))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"url": "http://example.com/"}, "task.webhook.url"),
        ({"url": "https://example.com/", "name": "none"}, "task.webhook.secret_name"),
        ({"url": "https://example.com/", "tenant": "globex", "name": "one"}, "task.webhook.secret_name"),
        ({"url": "https://example.com/", "tenant": "initech"}, "task.webhook.secret_name"),
        ({"url": "https://example.com/", "durability": task_pb2.DURABILITY_VOLATILE}, "task.webhook"),
        ({"url": "https://example.com/", "name": "a\r\nb"}, "task.webhook.secret_name"),
    ]
    for arguments, field in cases:
        with pytest.raises(InvalidRequest) as caught:
            taken(rules=rules, **arguments)
        assert caught.value.metadata["field"] == field
    with pytest.raises(InvalidRequest, match="delivers none"):
        taken("https://example.com/", None)
    assert taken("http://hooks.internal:8000/", rules).announce


def test_a_stored_task_is_read_back_whatever_the_configuration_says_now(tmp_path: Path) -> None:
    task = taken("https://example.com/x", rules_with(tmp_path))
    again = ProtoCodec(TaskReader()).task_of("acme", task.spec)
    assert (again.announce, again.spec) == (task.announce, task.spec)


def test_P11_agents_do_not_see_where_the_caller_is_told(tmp_path: Path) -> None:
    task = taken("https://example.com/x?token=canary", rules_with(tmp_path), method="m")
    shown = task_pb2.TaskSpec.FromString(shown_to_agents(task))
    assert not shown.HasField("webhook")
    assert (shown.task_id, shown.method) == ("t1", "m")
    task.announce = (("turn", ""),)
    assert shown_to_agents(task) is task.spec


# What is sent


def ended(outcome: Outcome) -> tuple[OutboxRow, Task, task_pb2.TaskSpec]:
    spec = task_pb2.TaskSpec(task_id="t1", labels={"a": "b"})
    spec.session.app_id, spec.session.user_id, spec.session.session_id = "app", "user", "one"
    task = Task("acme", "t1", spec.SerializeToString(), None)  # type: ignore[arg-type]
    task.row, task.outcome = 7, outcome
    fact = OutboxRow(0, "webhook", "acme https://example.com:443", "7", 7, "acme", "t1", 1_700_000_000_000, b"")
    return fact, task, spec


def test_DLV_12_the_body_is_the_one_envelope_as_json() -> None:
    outcome = Outcome(
        TaskState.SUCCEEDED, "grüße\x00", "text/plain", extra={"confidence": 0.5, "executed_intent": "x.y"}
    )
    outcome.agent_id, outcome.attempts, outcome.ended_wall_ms, outcome.ran_ms = "agent", 2, 1_700_000_000_250, 1_500
    fact, task, spec = ended(outcome)
    body = body_of(fact, task, spec)
    read = json.loads(body)
    assert read["delivery_id"] == delivery_id(fact)
    assert read["type"] == "task.ended"
    assert read["time"] == "2023-11-14T22:13:20.250Z"
    assert read["labels"] == {"a": "b"}
    assert read["session"] == {"app_id": "app", "user_id": "user", "session_id": "one"}
    result = read["result"]
    assert (result["task_id"], result["state"], result["agent_id"]) == ("t1", "TASK_STATE_SUCCEEDED", "agent")
    assert (result["output"]["text"], result["ran"], result["executed_intent"]) == ("grüße\x00", "1.500s", "x.y")
    assert json_format.Parse(body, webhook_pb2.WebhookDelivery()).result.confidence == 0.5


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(TaskState.SUCCEEDED, b"\xff\x00", "application/octet-stream"),
        Outcome(TaskState.SUCCEEDED, "", "", extra={"confidence": float("nan")}),
        Outcome(TaskState.FAILED, fault=Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "no\r\n\u2028", {"a": "b"})),
    ],
)
def test_any_outcome_is_json_without_raw_line_ends(outcome: Outcome) -> None:
    body = body_of(*ended(outcome))
    assert json_format.Parse(body, webhook_pb2.WebhookDelivery()).result.task_id == "t1"
    assert not any(byte < 0x20 for byte in body)


def test_a_delivery_has_one_name_for_ever_and_no_other_has_it() -> None:
    fact = ended(Outcome(TaskState.SUCCEEDED))[0]
    assert delivery_id(fact) == delivery_id(fact._replace(body=b"else", lane="else"))
    others = [fact._replace(row=8), fact._replace(tenant="b"), fact._replace(task_id="t"), fact._replace(wall_ms=1)]
    assert len({delivery_id(one) for one in (fact, *others)}) == 5


def test_DLV_12_a_try_is_signed_over_its_name_time_and_body(tmp_path: Path) -> None:
    key = rules_with(tmp_path).key("acme", "one")
    headers = headers_of("wh_1", key, 1_700_000_000_999, b"{}")
    assert headers["webhook-id"] == "wh_1"
    assert headers["webhook-timestamp"] == "1700000000"
    mac = hmac.new(b"hush hush", b"wh_1.1700000000.{}", hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()


def test_secrets_are_read_anew_and_may_be_written_as_others_write_them(tmp_path: Path) -> None:
    rules = rules_with(tmp_path, "hush\n")
    assert rules.key("acme", "") == b"hush"
    (tmp_path / "one").write_text("whsec_" + base64.b64encode(b"\x00\xff key").decode())
    assert rules.key("acme", "one") == b"\x00\xff key"
    assert rules.key("globex", "") == b"other"
    (tmp_path / "one").write_text("whsec_!!")
    with pytest.raises(SecretUnreadable, match="base64"):
        rules.key("acme", "one")
    (tmp_path / "one").write_text(" \n")
    with pytest.raises(SecretUnreadable, match="empty"):
        rules.key("acme", "one")
    (tmp_path / "one").unlink()
    with pytest.raises(SecretUnreadable, match="cannot be read"):
        rules.key("acme", "one")
    with pytest.raises(SecretUnreadable, match="no secret"):
        rules.key("initech", "one")
