"""Addresses of agents that are dialled: `grpc://host:port`, and where we may connect (GOV-6).

A name is looked up and *all* its addresses are judged; who dials then connects to the judged addresses, not to the
name, so that an answer that changes between the two is of no use.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from reach.wire.requests import invalid

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_URL: Final = re.compile(r"(grpcs?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})/?\Z", re.IGNORECASE)
_FIELD: Final = "registration.endpoints.url"
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
METADATA: Final = frozenset(
    ipaddress.ip_address(one)
    for one in ("169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254")
)
"""Where clouds answer with credentials: Amazon, Google and Azure; Alibaba; Oracle; Azure's agent; Amazon by IPv6."""


class Address(NamedTuple):
    """Where an agent serves."""

    host: str
    """A name, or an address without brackets."""
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        """`host:port`, as it is written."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(url: str) -> Address:
    """The parts of `grpc://host:port` or `grpcs://host:port`.

    Raises:
        InvalidRequest: INVALID_FIELD: it has a path, a user, a query, or no port.
    """
    match = _URL.match(url)
    if match is None or not 1 <= int(match[3]) <= 65_535:
        raise invalid(_FIELD, "must be grpc://host:port or grpcs://host:port, with nothing else in it")
    return Address(match[2].strip("[]"), int(match[3]), match[1].lower() == "grpcs")


def embedded(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if address.sixtofour is not None:
            return address.sixtofour
    return address


class Judgement(NamedTuple):
    """What is to be said of the addresses of an endpoint."""

    refusal: str
    """Why it must not be dialled; empty if it may be."""
    warning: str


def judge(address: Address, found: Iterable[str], *, server_on_loopback: bool) -> Judgement:
    """Whether all addresses of an endpoint may be dialled (GOV-6), and what is odd about them (REG-6)."""
    local = ""
    for text in found:
        one = embedded(ipaddress.ip_address(text.partition("%")[0]))
        if one.is_link_local or one in METADATA:
            return Judgement(f"{address.host} is a link-local or metadata address ({text}): never dialled", "")
        if one.is_multicast or one == ipaddress.IPv4Address("255.255.255.255"):
            return Judgement(f"{address.host} is a multicast address ({text}): never dialled", "")
        if one.is_loopback or one.is_unspecified:
            local = local or text
    if not local:
        return Judgement("", "")
    if not server_on_loopback:
        text = f"{address.host} is this server's own machine ({local}): give an address that is reachable from here"
        return Judgement(text, text)
    if ipaddress.ip_address(local.partition("%")[0]).is_unspecified:
        return Judgement("", f"{address.host} is no address to connect to; this machine is taken instead")
    return Judgement("", "")
