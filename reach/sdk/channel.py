"""Where the server is and how to speak to it: address, key, TLS, channel options, and the guard against fork."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from reach.sdk.addresses import Rotation, Told, read_addresses
from reach.sdk.showing import KeyLike, Metadata, Shown

DEFAULT_ADDRESS: Final = "127.0.0.1:8900"
PROTOCOL_VERSION: Final = "1"
PROBE_S: Final = 1.0
"""How long a server may take to take a connection where there are others."""

_MIB: Final = 1 << 20
_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # All three are needed: without ping_timeout_ms a frozen peer was noticed after 60 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # We wait between tries ourselves; the channel must not sit out a longer wait of its own behind our back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # in truth the time a connection attempt may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # What we send is checked by item against the limit that the server states. What the server sends is bounded by
    # that limit too, which may be set higher than the default; this bound only keeps a broken peer from our memory.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 66 * _MIB),
    # A connection of its own for each client and agent: one that does not read must not stop another (case A13).
    ("grpc.use_local_subchannel_pool", 1),
)

_forks = 0
_used = False


def _after_fork_in_child() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)


class ForkGuard:
    """Notices that the process was forked since this was made (case A7): what gRPC and a loop hold does not survive
    that, and using it would hang."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    def check(self, what: str) -> None:
        """Raises RuntimeError in a child of the process that made this, or made gRPC connections before forking."""
        if self._forks != _forks:
            raise RuntimeError(
                f"this {what} was made before the process forked and cannot be used in the child; make a new one in the"
                " child, and let the parent not use Agent-Reach before it forks (or start children with 'spawn')"
            )


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS, as PEM.

    Attributes:
        ca: The authorities to trust; None: those of the system.
        cert: Our certificate, for servers that ask for one (mTLS).
        key: Its private key.
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises OSError if one cannot be read, ValueError if only one of cert and key is given."""
        if (self.cert is None) is not (self.key is None):
            raise ValueError("tls needs cert and key together")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


TlsLike = Tls | bool | str | os.PathLike[str] | None
"""A `Tls`; the path of a CA file; True for the authorities of the system; None or False for no TLS."""


AddressLike = str | Iterable[str] | None
"""`host:port`, or several: `a:8900,b:8900`, or a list; None: AGENT_REACH_ADDR, else 127.0.0.1:8900."""


class Target:
    """A server, or several that work as one: makes channels and the metadata of calls."""

    __slots__ = ("_credentials", "_shown", "addresses", "told")

    def __init__(self, addr: AddressLike, api_key: KeyLike, tls: TlsLike) -> None:
        given = addr if addr is not None else os.environ.get("AGENT_REACH_ADDR", "")
        self.addresses = read_addresses(given) or (DEFAULT_ADDRESS,)
        self.told = Told()
        """Other nodes of the cluster."""
        self._shown = Shown(api_key)
        self._credentials = _credentials(tls)

    @property
    def metadata(self) -> Metadata:
        """What a call shows now."""
        return self._shown.metadata()

    @property
    def renews(self) -> bool:
        """Whether a call may show something else next time."""
        return self._shown.renews

    @property
    def address(self) -> str:
        """For people: all addresses that were given."""
        return ",".join(self.addresses)

    def rotation(self) -> Rotation:
        """Whom to ask, one after the other; the one that answered last is the first."""
        return Rotation(self.addresses, self.told)

    def answering(self) -> str:
        """A server that takes connections, for those who ask once; blocks for `PROBE_S` for each that does not."""
        rotation = self.rotation()
        while not rotation.is_alone and not _takes_connections(rotation.current):
            if not rotation.failed():
                break
        return rotation.current

    @staticmethod
    def check_unforked() -> None:
        """Raises RuntimeError in a child of a process that used gRPC before it forked."""
        _check_unforked()

    def aio_channel(self, address: str) -> grpc.aio.Channel:
        """A channel to one server for the running loop."""
        _check_unforked()
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        return grpc.aio.secure_channel(address, self._credentials, options=_OPTIONS)

    def channel(self, address: str) -> grpc.Channel:
        """A channel to one server for a thread."""
        _check_unforked()
        if self._credentials is None:
            return grpc.insecure_channel(address, options=_OPTIONS)
        return grpc.secure_channel(address, self._credentials, options=_OPTIONS)


def _takes_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, ValueError):
        return False
    return True


def _check_unforked() -> None:
    global _used, _first
    if not _used:
        _used, _first = True, _forks
    elif _first != _forks:
        raise RuntimeError(
            "this process was forked from one that already used Agent-Reach, and gRPC does not survive that; let the"
            " parent not use it before it forks, or start children with 'spawn'"
        )


_first = 0


def _credentials(tls: Any) -> grpc.ChannelCredentials | None:
    if tls is None or tls is False:
        return None
    if tls is True:
        return Tls().credentials()
    return (tls if isinstance(tls, Tls) else Tls(ca=tls)).credentials()


def _read(path: str | os.PathLike[str] | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
