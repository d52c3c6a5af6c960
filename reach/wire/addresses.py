"""Addresses of agents that are dialled, by gRPC or HTTP, and where we may connect for them (GOV-6).

A name is looked up and *all* its addresses are judged; who dials then connects to the judged addresses, not to the
name, so that an answer that changes between the two is of no use.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from reach.wire.requests import invalid
from reach.wire.urls import read_url

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_URL: Final = re.compile(r"(grpcs?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})/?\Z", re.IGNORECASE)
_A2A_URL: Final = re.compile(
    r"(a2a\+https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?(/[!-\"$-~]*)?\Z", re.IGNORECASE
)
SCHEMES: Final = ("grpc", "grpcs", "http", "https", "a2a+http", "a2a+https")
"""Kinds of endpoints that are dialled (`transports.ways`)."""
_FIELD: Final = "registration.endpoints.url"
_LAST_4_BYTES: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")))
"""IPv6 for an IPv4 address, which is at its end: NAT64 of the world and of a network, and two forms given up."""
_THIS_NETWORK: Final = ipaddress.ip_network("0.0.0.0/8")
METADATA: Final = frozenset(
    ipaddress.ip_address(one)
    for one in (
        "169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd00:ec2::23",
        "fd20:ce::254", "fd00:42::42",
    )
)  # fmt: skip
"""Where clouds answer with credentials: Amazon, Google and Azure; Alibaba; Oracle; Azure's agent; by IPv6 Amazon (also
for pods), Google and Scaleway."""


class Address(NamedTuple):
    """Where an agent serves."""

    host: str
    """A name, or an address without brackets."""
    port: int
    tls: bool
    scheme: str = "grpc"
    """In small letters; one of `SCHEMES`."""
    path: str = ""
    """Path and query, where the scheme has them."""

    @property
    def authority(self) -> str:
        """`host:port`, as it is written."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(url: str) -> Address:
    """The parts of `grpc(s)://host:port`, `http(s)://host[:port][/path][?query]` or `a2a+http(s)://host[:port][/path]`.

    Raises:
        InvalidRequest: INVALID_FIELD: it has parts that its scheme does not have, or lacks one.
    """
    if url[:4].lower() == "a2a+":
        return _read_a2a(url)
    if url[:4].lower() == "http":
        target = read_url(url, _FIELD)
        return Address(target.host, target.port, target.tls, "https" if target.tls else "http", target.path)
    match = _URL.match(url)
    if match is None or not 1 <= int(match[3]) <= 65_535:
        raise invalid(_FIELD, "must be grpc://host:port or grpcs://host:port, with nothing else in it")
    return Address(match[2].strip("[]"), int(match[3]), match[1].lower() == "grpcs", match[1].lower())


def _read_a2a(url: str) -> Address:
    """Where an interface of an A2A agent is; for gRPC without a path."""
    found = _A2A_URL.match(url)
    tls = found is not None and found[1].lower() == "a2a+https"
    port = int(found[3] or (443 if tls else 80)) if found is not None else 0
    if found is None or not 1 <= port <= 65_535:
        raise invalid(_FIELD, "must be a2a+https://host[:port][/path], or a2a+http://…, with nothing else in it")
    return Address(found[2].strip("[]"), port, tls, found[1].lower(), found[4] or "")


def embedded(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if int(address) > 1 and any(address in network for network in _LAST_4_BYTES):
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if address.sixtofour is not None:
            return address.sixtofour
        if address.teredo is not None:
            return address.teredo[1]
    return address


class Judgement(NamedTuple):
    """What is to be said of the addresses of a host."""

    refusal: str
    """Why it must not be connected to; empty if it may be."""
    warning: str


class AgentRules(NamedTuple):
    """Where agents, and what tells of them, may be (GOV-6): at private addresses too, for they are mostly ours."""

    on_loopback: bool
    """The server listens on loopback only, so that whoever is on loopback is its neighbour."""
    local_hosts: frozenset[str] = frozenset()
    """Hosts, in lower case, that may be this machine all the same (`agents.local_hosts`)."""

    def refusal(self, host: str, found: Iterable[str]) -> str:
        """Why a host must not be connected to, seeing all its addresses; empty if it may be."""
        return self.judge(host, found).refusal

    def judge(self, host: str, found: Iterable[str]) -> Judgement:
        """Whether a host may be connected to, seeing all its addresses, and what is odd about them (REG-6)."""
        local = ""
        for text in found:
            try:
                one = embedded(ipaddress.ip_address(text.partition("%")[0]))
            except ValueError:
                return Judgement(f"{host} has an address that is none ({text})", "")
            if one.is_link_local or one in METADATA:
                return Judgement(f"{host} is a link-local or metadata address ({text}): never dialled", "")
            if one.is_multicast or one == ipaddress.IPv4Address("255.255.255.255"):
                return Judgement(f"{host} is a multicast address ({text}): never dialled", "")
            if one.is_loopback or one.is_unspecified or one in _THIS_NETWORK:
                local = local or text
        if not local:
            return Judgement("", "")
        if not self.on_loopback and host.lower() not in self.local_hosts:
            text = f"{host} is this server's own machine ({local}): give an address that is reachable from here"
            return Judgement(text, text)
        if ipaddress.ip_address(local.partition("%")[0]).is_unspecified:
            return Judgement("", f"{host} is no address to connect to; this machine is taken instead")
        return Judgement("", "")
