"""Servicers that are called without a server."""

from collections.abc import Iterator
from contextlib import contextmanager

from reach.rpc.principal import Principal, set_principal


@contextmanager
def acting_as(principal: Principal) -> Iterator[None]:
    """Calls are this principal's, as the interceptor would have it."""
    token = set_principal(principal)
    try:
        yield
    finally:
        token.var.reset(token)
