"""The public contract: it changes only on purpose, and keeps the conventions that no proto linter knows."""

import difflib
from pathlib import Path

from tests import contract_text

GOLDEN = Path(__file__).parent / "golden" / "contract.txt"

# Untyped content hides what an agent and a caller agreed on (and Struct takes NaN and rounds large integers). Points in
# time mean nothing between machines whose clocks differ, so what is acted on is a Duration.
AVOIDED_TYPES = {
    "google.protobuf.Any",
    "google.protobuf.ListValue",
    "google.protobuf.Struct",
    "google.protobuf.Timestamp",
    "google.protobuf.Value",
}
# Fields that have one of these types all the same, each with its reason.
SHOWN = "told to people by the server's clock; nothing is decided by it at the other end"
ALLOWED = {
    "agentreach.v1.Agent.registered_at": SHOWN,
    "agentreach.v1.ApiKey.created_at": SHOWN,
    "agentreach.v1.ApiKey.expires_at": SHOWN,
    "agentreach.v1.ApiKey.revoked_at": SHOWN,
    "agentreach.v1.Attempt.ended_at": SHOWN,
    "agentreach.v1.Attempt.offered_at": SHOWN,
    "agentreach.v1.FailedWebhook.gave_up_at": SHOWN,
    "agentreach.v1.Node.now": "compared, to tell how far clocks are apart",
    "agentreach.v1.Session.last_used_at": "lists are ordered by it over several nodes",
    "agentreach.v1.StateChange.at": SHOWN,
    "agentreach.v1.Task.accepted_at": SHOWN,
    "agentreach.v1.Task.ended_at": SHOWN,
    "agentreach.v1.TaskEvent.time": SHOWN,
    "agentreach.v1.Waiting.until": SHOWN,
    "agentreach.v1.TaskFilter.accepted_after": "compared with accepted_at, which came from the same server",
    "agentreach.v1.TaskFilter.accepted_before": "compared with accepted_at, which came from the same server",
    "agentreach.v1.WebhookDelivery.time": SHOWN,
}


def test_contract_is_the_golden_one():
    golden = GOLDEN.read_text()
    now = contract_text.text()
    change = difflib.unified_diff(golden.splitlines(), now.splitlines(), "golden", "now", lineterm="", n=0)
    assert now == golden, "the contract changed; if that is wanted: make golden\n" + "\n".join(change)


def test_contract_is_read_whole():
    """Guards the tests below against passing over an empty contract."""
    assert {service.name for service in contract_text.services()} >= {"DispatchService", "RegistryService"}
    assert sum(1 for _ in contract_text.fields()) > 100


def test_zero_of_each_enum_is_unspecified():
    zeros = {enum.full_name: enum.values_by_number[0].name for enum in contract_text.enums()}
    assert [name for name, zero in zeros.items() if not zero.endswith("_UNSPECIFIED")] == []


def test_states_are_not_called_status():
    """A message may be a status (a report of many things); where one thing stands is its `state`."""
    names = {
        field.full_name
        for field in contract_text.fields()
        if field.message_type is None and field.name.split("_")[-1] == "status"
    }
    assert names == {"agentreach.v1.Agent.probe_status"}, "that one is a probe's answer in words, as operators know it"


def test_S3_untyped_content_and_points_in_time_have_a_reason():
    avoided = {
        field.full_name
        for field in contract_text.fields()
        if field.message_type is not None and field.message_type.full_name in AVOIDED_TYPES
    }
    assert sorted(avoided - ALLOWED.keys()) == []
    assert sorted(ALLOWED.keys() - avoided) == [], "no longer in the contract"
    assert all(ALLOWED.values())
