"""HTTP calls to addresses that the configuration names: wake hooks and embedders."""

from __future__ import annotations

import urllib.request


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Keys and bodies go to the address that was configured and nowhere else."""


def opener() -> urllib.request.OpenerDirector:
    """Opens what is asked for; redirects are errors."""
    return urllib.request.build_opener(_NoRedirect)
