"""Who calls: keys, and client certificates over real TLS."""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from reach.errors import InvalidRequest, Reason
from reach.rpc.principal import KeyAuthentication
from reach.store.keys import SqliteKeyStore
from tests.rpc.certificates import Authority
from tests.rpc.test_interceptors import DISPATCH, HEARTBEAT, serving


@dataclass
class Row:
    identity: str
    tenant: str = "acme"
    app_id: str = "billing"
    scopes: frozenset[str] = frozenset({"caller"})
    agent_types: frozenset[str] = frozenset()


ROWS = [Row("spiffe://acme/billing"), Row("by-name", app_id="named")]


@pytest.fixture
def store(tmp_path):
    with closing(SqliteKeyStore(tmp_path)) as made:
        yield made


def peer(**properties: list[bytes]) -> Any:
    return lambda: properties


@pytest.mark.parametrize(
    ("properties", "app_id"),
    [
        ({"x509_subject_alternative_name": [b"dns-name", b"spiffe://acme/billing"]}, "billing"),
        ({"x509_common_name": [b"by-name"]}, "named"),
        ({"x509_subject_alternative_name": [b"spiffe://acme/billing"], "x509_common_name": [b"by-name"]}, "billing"),
    ],
)
def test_a_certificate_that_the_configuration_names_is_a_principal(store, properties, app_id):
    principal = KeyAuthentication(store, ROWS).authenticate("", peer(**properties))
    assert (principal.tenant, principal.app_id, principal.key_id) == ("acme", app_id, "")
    assert principal.still_valid()


def test_GOV_2_what_to_send_is_told_and_nothing_of_keys(store):
    def said(authorization: str = "", **properties: list[bytes]) -> str:
        with pytest.raises(InvalidRequest) as raised:
            KeyAuthentication(store, ROWS).authenticate(authorization, peer(**properties))
        return raised.value.message

    assert "send 'authorization: Bearer <API key or token>'" in said()
    assert "these are no credentials: send" in said("ar_x_y")
    assert said("Bearer ar_x_y") == "the credentials are not valid"
    assert "credentials are needed" in said(transport_security_type=[b"ssl"])
    assert "none of server.client_identities" in said(x509_common_name=[b"by-name-not"])


def test_GOV_2_a_certificate_may_be_for_some_types_of_agents(store):
    rows = [Row("by-name", agent_types=frozenset({"echo"}))]
    principal = KeyAuthentication(store, rows).authenticate("", peer(x509_common_name=[b"by-name"]))
    principal.check_type("echo")
    with pytest.raises(InvalidRequest) as raised:
        principal.check_type("sum")
    assert raised.value.reason is Reason.PERMISSION_DENIED


@pytest.mark.parametrize(
    "properties",
    [{}, {"x509_common_name": [b"by-name-not"]}, {"x509_subject_alternative_name": [b"spiffe://acme/billing/x"]},
     {"x509_pem_cert": [b"by-name"]}, {"x509_common_name": [b"BY-NAME", b"\xff"]}],
)  # fmt: skip
def test_any_other_certificate_is_nobody(store, properties):
    with pytest.raises(InvalidRequest) as raised:
        KeyAuthentication(store, ROWS).authenticate("", peer(**properties))
    assert raised.value.reason is Reason.UNAUTHENTICATED


def test_a_key_counts_more_than_a_certificate_and_a_wrong_key_is_not_made_good_by_one(store):
    _, token = store.create("other", "keyed", ["reader"])
    certificate = peer(x509_common_name=[b"by-name"])
    authentication = KeyAuthentication(store, ROWS)
    assert authentication.authenticate(f"Bearer {token}", certificate).app_id == "keyed"
    with pytest.raises(InvalidRequest):
        authentication.authenticate(f"Bearer {token}x", certificate)


def test_without_mapped_certificates_the_peer_is_not_even_asked(store):
    def never():
        raise AssertionError

    with pytest.raises(InvalidRequest):
        KeyAuthentication(store).authenticate("", never)


async def test_gov_2_mutual_tls(store, tmp_path):
    authority = Authority(tmp_path / "ours")
    stranger = Authority(tmp_path / "strangers", "another authority")
    server_key, server_certificate = authority.issue("server", "IP:127.0.0.1")
    credentials = grpc.ssl_server_credentials(
        [(server_key, server_certificate)], authority.certificate, require_client_auth=True
    )
    refused = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN)
    cases = {
        "mapped": (authority.issue("x", "URI:spiffe://acme/billing"), "OK"),
        "not mapped": (authority.issue("x", "URI:spiffe://acme/other"), "UNAUTHENTICATED"),
        "of a stranger": (stranger.issue("x", "URI:spiffe://acme/billing"), None),
        "none": ((None, None), None),
    }
    for name, ((key, certificate), expected) in cases.items():
        client = grpc.ssl_channel_credentials(authority.certificate, key, certificate)
        async with serving(
            KeyAuthentication(store, ROWS), credentials=credentials, channel_credentials=client
        ) as server:
            code, _ = await server.finish(DISPATCH)
            if expected is None:
                assert (name, grpc.StatusCode[code] in refused, server.fleet.seen) == (name, True, [])
            else:
                assert (name, code) == (name, expected)
            if expected == "OK":
                assert (await server.finish(HEARTBEAT))[0] == "PERMISSION_DENIED", "it has the scope caller only"
