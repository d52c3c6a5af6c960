"""What we show to agents that are dialled: bearer tokens from files, each for named tenants and hosts only.

A registration names an entry; it never sees the token. An entry that is not for its tenant, or not for the host it
gives, is refused: else whoever may register an agent could have any token sent to himself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from reach.wire.addresses import Address
from reach.wire.requests import invalid

TOKEN_BYTES: Final = 8 << 10


class CredentialEntry(NamedTuple):
    """One entry of `agents.auth`."""

    name: str
    token_file: str
    tenants: frozenset[str]
    hosts: frozenset[str]


class Credentials:
    """All entries, and the authorities that sign the certificates of agents."""

    def __init__(self, entries: list[CredentialEntry], tls_roots: bytes | None) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self.tls_roots = tls_roots
        """PEM; None: those of the system."""

    def token(self, tenant: str, reference: str, address: Address) -> tuple[str, str]:
        """(token, warning) for an endpoint; no token where it asks for none. Read anew each time, so that a token that
        is replaced counts from the next connection on.

        Raises:
            InvalidRequest: There is no such entry for this tenant and host, or its file cannot be read.
        """
        if not reference:
            return "", ""
        field = "registration.endpoints.auth_reference"
        entry = self._entries.get(reference)
        if entry is None or tenant not in entry.tenants or address.host.lower() not in entry.hosts:
            raise invalid(field, f"there is no entry {reference!r} in agents.auth for this tenant and host")
        try:
            token = Path(entry.token_file).read_bytes()[:TOKEN_BYTES].decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise invalid(field, f"the token of entry {reference!r} in agents.auth cannot be read") from None
        if not token or not token.isprintable():
            raise invalid(field, f"the token of entry {reference!r} in agents.auth is empty, or more than one line")
        return token, "" if address.tls else f"credentials are sent in clear: use {address.scheme}s://"
