"""What gRPC says when two programs cannot agree on TLS, in words that say what to do. gRPC tells it by text alone."""

from __future__ import annotations

from typing import Final

_FOREIGN: Final = "the server's certificate is not signed by an authority that is trusted here: name that one"
_HUNG_UP: Final = "it hung up at once: TLS is spoken there and not here, or it asks for a client certificate"
_ADVICE: Final = (
    ("certificate has expired", "the server's certificate has expired: renew it, and restart the server"),
    ("certificate is not yet valid", "the server's certificate is not valid yet: compare the clocks of both machines"),
    ("Hostname Verification", "the server's certificate needs the host of this address as a subject alternative name"),
    ("CERTIFICATE_VERIFY_FAILED", f"{_FOREIGN} (--tls-ca, tls=; nodes: cluster.peer_ca)"),
    ("WRONG_VERSION_NUMBER", "TLS is spoken here and not there: use both or neither"),
    ("http1.x server", "an HTTP server answers there: gRPC has a port of its own, 8900 where nothing else is set"),
    ("Socket closed", f"{_HUNG_UP} of its own authority"),
)
"""What gRPC says, and what to do; the first that fits."""


def advice(details: str) -> str:
    """What to do about a connection that could not be made; empty if nothing is known to do.

    Args:
        details: Of the status UNAVAILABLE, as gRPC makes it.
    """
    if not details.startswith("failed to connect to all addresses"):
        return ""
    return next((text for sign, text in _ADVICE if sign in details), "")
