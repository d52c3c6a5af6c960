"""What browsers may do here: pages of other sites cannot act, unless the configuration names them.

Two ways lead from a page to a server that its reader can reach, and the server alone can close them. A page may send a
request without being able to read the answer: browsers say where it comes from (`Origin`). And a site may let its own
name point to the reader's machine, so that the page and the server are one site for the browser (DNS rebinding): then
the server is called by a name that is not its own (`Host`), which matters where it asks for no key.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from reach.errors import InvalidRequest, Reason

ANY: Final = "*"
_PREFLIGHT_SECONDS: Final = 600
_HEADERS: Final = (
    "a2a-extensions", "a2a-version", "authorization", "content-type", "idempotency-key", "last-event-id",
    "reach-after-seq", "traceparent",
)  # fmt: skip


class Guard(NamedTuple):
    """See the module."""

    origins: frozenset[str] = frozenset()
    """Sites whose pages may call, such as `https://console.example`; `*`: all."""
    local: bool = False
    """It asks for no key and serves this machine alone: it goes by an address or `localhost`, and no other name."""

    def check(self, verb: str, headers: Headers) -> None:
        """Raises InvalidRequest (PERMISSION_DENIED) for what a page of another site asks."""
        host = headers.get("host", "")
        if self.local and not _is_local(host):
            raise InvalidRequest("call this server by an address or as localhost", Reason.PERMISSION_DENIED)
        origin = headers.get("origin")
        if origin is None or verb == "GET" or urlsplit(origin).netloc == host:
            return
        if self.origins.isdisjoint({origin, ANY}):
            raise InvalidRequest("pages of other sites may not call this server", Reason.PERMISSION_DENIED)

    def middleware(self) -> list[Middleware]:
        """Tells browsers which pages may call, if any may."""
        if not self.origins:
            return []
        return [
            Middleware(
                CORSMiddleware,
                allow_origins=sorted(self.origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=list(_HEADERS),
                expose_headers=["x-trace-id", "retry-after"],
                max_age=_PREFLIGHT_SECONDS,
            )
        ]


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        ipaddress.ip_address(name)
    except ValueError:
        return host.partition(":")[0].lower() == "localhost"
    return True
