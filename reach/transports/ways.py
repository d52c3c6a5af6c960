"""Which kind of endpoint an agent has: a `seam.Way` for each scheme. What a kind needs is loaded with its first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reach.core.endpoint import Endpoint
from reach.transports.seam import Approach, Way


def _grpc(endpoint: Endpoint, approach: Approach) -> Way:
    from reach.transports.grpc_endpoint import Route

    return Route(approach)


WAYS: Final[dict[str, Callable[[Endpoint, Approach], Way]]] = {"grpc": _grpc, "grpcs": _grpc}
"""By scheme, in small letters. `wire.addresses.SCHEMES` has the same ones: a registration with another is refused."""


def way_to(endpoint: Endpoint, approach: Approach) -> Way:
    """The way to an endpoint whose addresses were judged."""
    return WAYS[approach.address.scheme](endpoint, approach)
