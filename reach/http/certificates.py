"""Client certificates over HTTP: TLS has checked who signed them, and here their names are read, in gRPC's words.

The handshake asks for a certificate and lets go on who shows none, because probes of `/healthz` have none; who shows a
bad one is refused by it. Whoever makes calls is then asked again, see `rpc/inner_calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from starlette.types import Scope

KEY: Final = "certificate"
"""Where a connection leaves it in the state of its requests."""
ALTERNATIVE: Final = "x509_subject_alternative_name"
COMMON: Final = "x509_common_name"
_KINDS: Final = frozenset({"DNS", "URI", "IP Address", "email"})

Properties = Mapping[str, Iterable[bytes]]
Certificate = Callable[[], Properties]
"""What is known of the caller's certificate; nothing if there was none."""


def names_of(certificate: Mapping[str, Any] | None) -> dict[str, list[bytes]]:
    """The names in a certificate as `ssl` tells it; nothing if there is none."""
    if not certificate:
        return {}
    alternative = [name.encode() for kind, name in certificate.get("subjectAltName", ()) if kind in _KINDS]
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    common = [value.encode() for name, value in subject if name == "commonName"]
    return {ALTERNATIVE: alternative, COMMON: common, "transport_security_type": [b"ssl"]}


def certificate_of(scope: Scope) -> Certificate:
    """The certificate of the connection by which a request came."""
    return lambda: scope.get("state", {}).get(KEY) or {}
