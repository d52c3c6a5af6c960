"""Where agents may be dialled (GOV-6, REG-6, case G6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.errors import InvalidRequest
from reach.wire.addresses import Address, AgentRules, read_address

HOST = "agent"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("grpc://host:9000", Address("host", 9000, False)),
        ("GRPCS://Host.example:1/", Address("Host.example", 1, True, "grpcs")),
        ("grpc://[::1]:65535", Address("::1", 65535, False)),
        ("grpc://10.0.0.7:9000", Address("10.0.0.7", 9000, False)),
    ],
)
def test_REG_6_the_parts_of_an_address(url, address):
    assert read_address(url) == address


def test_an_authority_is_written_as_in_a_url():
    assert Address("::1", 1, False).authority == "[::1]:1"
    assert Address("host", 1, False).authority == "host:1"


@given(st.text(max_size=40))
def test_GOV_6_anything_else_is_refused_and_never_more_than_that(text):
    try:
        address = read_address(f"grpc://{text}")
    except InvalidRequest:
        return
    assert set(address.host) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:")
    assert 1 <= address.port <= 65_535


@pytest.mark.parametrize(
    "ip",
    [
        "169.254.0.1",
        "169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "fd00:ec2::254",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
    ],
)
@pytest.mark.parametrize("on_loopback", [True, False])
def test_GOV_6_never_dialled_by_anybody(ip, on_loopback):
    assert AgentRules(on_loopback).judge(HOST, [ip]).refusal
    # one bad address among good ones is enough
    assert AgentRules(on_loopback).judge(HOST, ["10.0.0.7", ip]).refusal


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_REG_6_G6_loopback_is_for_neighbours_only(ip):
    beyond = AgentRules(False).judge(HOST, [ip])
    assert beyond.refusal == beyond.warning != ""
    assert not AgentRules(True).judge(HOST, [ip]).refusal


@pytest.mark.parametrize("ip", ["10.0.0.7", "192.168.1.1", "172.16.0.1", "fd12::1", "93.184.216.34", "2001:db8::1"])
def test_GOV_6_private_addresses_are_fine(ip):
    assert AgentRules(False).judge(HOST, [ip]) == ("", "")
