"""Which kind of endpoint an agent has: a `seam.Way` for each scheme. What a kind needs is loaded with its first one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Final

from reach.core.endpoint import Endpoint
from reach.errors import Internal, Reason
from reach.transports.seam import Approach, Way

A2A: Final = "reach.transports.a2a.endpoint"


def _grpc(endpoint: Endpoint, approach: Approach) -> Way:
    from reach.transports.grpc_endpoint import Route

    return Route(approach)


def _a2a(endpoint: Endpoint, approach: Approach) -> Way:
    from reach.transports.a2a.endpoint import A2aWay

    return A2aWay(endpoint, approach)


def _http(endpoint: Endpoint, approach: Approach) -> Way:
    from reach.transports.http_endpoint import HttpWay

    return HttpWay(endpoint, approach)


WAYS: Final[dict[str, Callable[[Endpoint, Approach], Way]]] = {
    "grpc": _grpc,
    "grpcs": _grpc,
    "http": _http,
    "https": _http,
    "a2a+http": _a2a,
    "a2a+https": _a2a,
}
"""By scheme, in small letters. `wire.addresses.SCHEMES` has the same ones: a registration with another is refused."""


def way_to(endpoint: Endpoint, approach: Approach) -> Way:
    """The way to an endpoint whose addresses were judged."""
    return WAYS[approach.address.scheme](endpoint, approach)


async def load_a2a() -> None:
    """Loads what A2A agents need, beside the loop: it takes half a second.

    Raises:
        Internal: NOT_IMPLEMENTED: the extra is not installed.
    """
    try:
        await asyncio.to_thread(import_module, A2A)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "reach":
            raise
        text = f"A2A agents need the extra: pip install 'agentreach[a2a]' ({missing.name} is missing)"
        raise Internal(text, Reason.NOT_IMPLEMENTED) from missing
