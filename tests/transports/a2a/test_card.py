"""Agent cards as registrations: what the operator says, what the card says, and what is odd about it (API-3, G6)."""

from __future__ import annotations

import json

import pytest

from agentreach.v1 import agent_pb2
from reach.core.endpoint import Endpoint
from reach.errors import InvalidRequest
from reach.transports.a2a.card import CARD_BYTES, card_target, read_card, registration_of
from reach.transports.a2a.endpoint import A2aWay
from reach.transports.seam import Approach
from reach.wire.a2a.words import CURSOR, RUNTIME
from reach.wire.addresses import read_address
from reach.wire.agents import CAPABILITIES, read_registration

CARD = {
    "name": "The Old Tailor & Sons",
    "description": "Sews",
    "version": "2.1",
    "supportedInterfaces": [
        {"url": "https://tailor.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
    ],
    "defaultInputModes": ["text/plain"],
    "skills": [
        {"id": "sew", "name": "Sewing", "description": "Sews it", "tags": ["cloth"], "examples": ["sew a shirt"]},
    ],
}


def made(card=None, body=b"", **terms):
    """(registration, warnings), and that the registry takes it."""
    said = agent_pb2.AdoptionTerms(**{"card_url": "https://tailor.example", **terms})
    found = registration_of(read_card(body or json.dumps({**CARD, **(card or {})}).encode()), said)
    read_registration(agent_pb2.Registration.FromString(found.registration.SerializeToString()))
    return found.registration, found.warnings


def interfaces(*urls, binding="JSONRPC", version="1.0"):
    return {
        "supportedInterfaces": [{"url": url, "protocolBinding": binding, "protocolVersion": version} for url in urls]
    }


def test_API_3_a_card_is_a_registration():
    r, warnings = made()
    assert (r.agent_id, r.version, r.endpoints[0].url) == (
        "the-old-tailor-sons", "2.1", "a2a+https://tailor.example:443/rpc"
    )  # fmt: skip
    assert r.instance_id.startswith("the-old-tailor-sons@tailor.example:443#")
    (skill,) = r.capabilities
    assert (skill.name, skill.description, list(skill.tags)) == ("sew", "Sewing: Sews it", ["cloth"])
    assert (list(skill.examples), list(r.input_media_types)) == (["sew a shirt"], ["text/plain"])
    assert not r.HasField("max_concurrency")
    assert warnings == []
    assert made()[0] == r  # again is an update: the same instance, the same process


def test_API_3_the_operators_word_counts_more():
    labels = {"team": "blue"}
    r, _ = made(agent_id="sewer", agent_type="crafts", instance_id="s1", max_concurrency=3, weight=7, labels=labels)
    assert (r.agent_id, r.agent_type, r.instance_id, r.max_concurrency, r.weight) == ("sewer", "crafts", "s1", 3, 7)
    assert r.labels["team"] == "blue"
    renamed, _ = made({"name": "New name"}, **{f: getattr(made()[0].endpoints[0].card.terms, f) for f in (
        "agent_id", "agent_type", "instance_id")})  # fmt: skip
    assert (renamed.agent_id, renamed.instance_id) == (made()[0].agent_id, made()[0].instance_id)


@pytest.mark.parametrize(
    ("said", "binding", "where"),
    [
        ("https://a.example", "JSONRPC", "a2a+https://a.example:443"),
        ("http://a.example:81/x/", "HTTP+JSON", "a2a+http://a.example:81/x/"),
        ("http://[::1]:81/x", "HTTP+JSON", "a2a+http://[::1]:81/x"),
        ("a.example:50051", "GRPC", "a2a+https://a.example:50051"),
        ("grpc://a.example:50051", "GRPC", "a2a+http://a.example:50051"),
        ("https://a.example", "GRPC", "a2a+https://a.example:443"),
    ],
)
def test_API_3_where_an_interface_is(said, binding, where):
    assert made(interfaces(said, binding=binding))[0].endpoints[0].url == where


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_G6_a_card_that_names_no_address_is_where_it_came_from(host):
    r, warnings = made(interfaces(f"http://{host}:8000/"))
    assert r.endpoints[0].url == "a2a+http://tailor.example:8000/"
    assert "no address" in warnings[0]
    assert made(interfaces(f"http://{host}:8000/"), url="http://x.example/")[1] == []


def test_API_3_the_first_interface_that_we_speak_is_taken():
    card = {"supportedInterfaces": [
        {"url": "wss://a.example", "protocolBinding": "WEBSOCKET", "protocolVersion": "1.0"},
        {"url": "https://a.example/9", "protocolBinding": "JSONRPC", "protocolVersion": "9.0"},
        {"url": "https://a.example/r", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t.x"},
        {"url": "https://a.example/j", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
    ]}  # fmt: skip
    found = made(card)[0].endpoints[0]
    assert (found.card.binding, found.card.tenant, found.url) == ("HTTP+JSON", "t.x", "a2a+https://a.example:443/r")
    with pytest.raises(InvalidRequest, match=r"WEBSOCKET 1\.0"):
        made({"supportedInterfaces": card["supportedInterfaces"][:1]})


def test_API_3_cards_of_version_0_3_are_read():
    body = {"name": "Old", "url": "http://a.example/", "preferredTransport": "JSONRPC", "protocolVersion": "0.3.0",
            "capabilities": {"streaming": True}, "defaultInputModes": ["text"], "skills": [], "v": "1"}  # fmt: skip
    r, _ = made(body=json.dumps(body).encode())
    assert (r.endpoints[0].card.protocol_version, r.endpoints[0].card.streaming) == ("0.3.0", True)
    assert list(r.input_media_types) == ["text/plain"]


def test_API_3_modes_that_are_any_are_none():
    assert list(made({"defaultInputModes": ["text/plain", "*/*"]})[0].input_media_types) == []


def test_API_3_the_operator_may_know_better_what_it_takes():
    skills = [{"id": "sew", "inputModes": ["image/png"], "outputModes": ["text/plain"]}]
    r, _ = made({"skills": skills}, any_media=True)
    taken, given = r.capabilities[0].input_media_types, r.capabilities[0].output_media_types
    assert (list(r.input_media_types), list(taken), list(given)) == ([], [], ["text/plain"])


def test_API_3_credentials_go_where_the_card_wants_them():
    def headers(scheme):
        card = {"securitySchemes": {"key": scheme}, "securityRequirements": [{"schemes": {"key": {"list": []}}}]}
        r, warnings = made(card, auth_reference="tailor")
        kept = r.endpoints[0].card.SerializeToString()
        approach = Approach(read_address(r.endpoints[0].url), ("192.0.2.1",), "secret", None, 1)
        return A2aWay(Endpoint("", card=kept), approach).headers, warnings

    assert headers({"httpAuthSecurityScheme": {"scheme": "Bearer"}}) == ({"authorization": "Bearer secret"}, [])
    assert headers({"httpAuthSecurityScheme": {"scheme": "Basic"}}) == ({"authorization": "Basic secret"}, [])
    api_key = {"apiKeySecurityScheme": {"location": "header", "name": "X-Api-Key"}}
    assert headers(api_key) == ({"x-api-key": "secret"}, [])
    warning = headers({"apiKeySecurityScheme": {"location": "query", "name": "k"}})[1]
    assert warning == ["credentials in the query are not sent (key)"]
    card = {"securitySchemes": {"key": api_key}, "securityRequirements": [{"schemes": {"key": {"list": []}}}]}
    assert made(card)[1] == ["the card asks for credentials (key): say --credential"]


def test_API_3_what_a_card_says_of_running_is_taken():
    params = {"max_concurrency": 5, "weight": 20, "region": "eu", "type": "x"}
    r, _ = made({"capabilities": {"extensions": [{"uri": RUNTIME, "params": params}]}})
    assert (r.max_concurrency, r.weight, r.region) == (5, 20, "eu")
    nonsense = {"max_concurrency": "many", "weight": 10**9}
    r, _ = made({"capabilities": {"extensions": [{"uri": RUNTIME, "params": nonsense}]}})
    assert not r.HasField("max_concurrency")
    assert not r.HasField("weight")


def test_API_3_the_card_of_an_agent_reach_is_told_as_such():
    _, warnings = made({"capabilities": {"extensions": [{"uri": CURSOR}]}})
    assert ["this one" in one for one in warnings] == [True]


def test_GOV_5_cards_are_bounded():
    skills = [{"id": f"s{n}", "tags": ["t" * 300] * 100, "examples": ["e" * 5_000] * 5} for n in range(60)]
    with pytest.raises(InvalidRequest, match="bytes"):
        made({"skills": skills})
    r, warnings = made({"skills": [{"id": f"s{n}"} for n in range(300)]})
    assert (len(r.capabilities), len(warnings)) == (CAPABILITIES, 1)
    assert CARD_BYTES == 256 << 10


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"\xff", b"{}", b'{"name": 7, "skills": 3}', b"[" * 100_000, b'{"name": {}}']
)
def test_GOV_5_what_is_no_card_is_told(body):
    with pytest.raises(InvalidRequest, match=r"terms\.card_url"):
        read_card(body)


def test_API_3_where_a_card_is():
    assert card_target("https://a.example").path == "/.well-known/agent-card.json"
    assert card_target("a2a+http://a.example:1/x/card.json") == card_target("http://a.example:1/x/card.json")
    for url in ("", "a.example", "file:///etc/passwd", "http://u:p@a.example/", "http://a.example/#x"):
        with pytest.raises(InvalidRequest):
            card_target(url)
