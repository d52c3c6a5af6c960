"""URLs that we are given to call: `http(s)://host[:port][/path][?query]`, and nothing that servers read differently.

Who connects does so to the addresses that were judged (`transports.guarded`), not to the name.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from reach.wire.requests import invalid

URL_BYTES: Final = 2_048

_URL: Final = re.compile(
    r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)(?::([0-9]{1,5}))?"
    r"(/[!-\"$-~]*)?(\?[!-\"$-~]*)?\Z",
    re.IGNORECASE,
)


class Target(NamedTuple):
    """The parts of a URL."""

    tls: bool
    host: str
    """In lower case, without brackets."""
    port: int
    path: str
    """With the query."""

    @property
    def origin(self) -> str:
        """Scheme, host and port: what a server is told apart by."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def authority(self) -> str:
        """The `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def read_url(url: str, field: str) -> Target:
    """The parts of a URL.

    Args:
        url: What we were given.
        field: Where, for the error.

    Raises:
        InvalidRequest: INVALID_FIELD: it is not an http or https URL, or has a user, a fragment, spaces or control
            characters.
    """
    found = _URL.match(url) if len(url) <= URL_BYTES else None
    tls = found is not None and found[1].lower() == "https"
    port = int(found[3] or (443 if tls else 80)) if found is not None else 0
    if found is None or not 1 <= port <= 65_535:
        text = f"must be https://host[:port][/path][?query] of at most {URL_BYTES} printable characters, without a user"
        raise invalid(field, text)
    host = found[2].strip("[]").lower()
    return Target(tls, host, port, (found[4] or "/") + (found[5] or ""))
