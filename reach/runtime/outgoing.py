"""HTTP calls to addresses that the configuration names: wake hooks and models."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from reach.errors import InvalidRequest


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Keys and bodies go to the address that was configured and nowhere else."""


def opener() -> urllib.request.OpenerDirector:
    """Opens what is asked for; redirects are errors."""
    return urllib.request.build_opener(_NoRedirect)


def secret(path: str) -> str:
    """The key that a file holds; empty without a file.

    Raises:
        InvalidRequest: it cannot be read.
    """
    try:
        return Path(path).read_text().strip() if path else ""
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from error
