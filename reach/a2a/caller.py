"""Who calls, and how: what the SDK's call contexts carry of a call of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import GrpcServerCallContextBuilder
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.errors import VersionNotSupportedError

from reach.errors import ReachError
from reach.rpc.principal import PeerProperties
from reach.wire.a2a.words import AFTER_KEY, EXTENSIONS_KEY, VERSION, VERSION_KEY

_KEY: Final = "reach"
SCOPE_KEY: Final = "reach.a2a.caller"
"""Where the door leaves the caller for the SDK's routes, in the ASGI scope."""

Remaining = Callable[[], float | None]

_calling: Final[ContextVar[Caller | None]] = ContextVar("reach_a2a_caller", default=None)


def _for_ever() -> float | None:
    return None


def _no_certificate() -> PeerProperties:
    return {}


class Caller:
    """One call.

    Attributes:
        credentials: What `InnerCalls` wants to know of it: authorization, traceparent, peer, certificate.
        extensions: Those that the caller has activated, by URI.
        after: The last sequence that a reader says it has; None if it says nothing.
        route: The route that the path names, where the request cannot.
        remaining: Seconds until the call must have ended; None: as long as it takes.
        over_grpc: Its errors are statuses of gRPC.
        entered: The request could be read.
        fault: An error of ours that A2A has no word for, for the door to tell.
    """

    __slots__ = ("after", "credentials", "entered", "extensions", "fault", "over_grpc", "remaining", "route")

    def __init__(
        self,
        headers: Mapping[str, str],
        peer: str,
        certificate: Callable[[], PeerProperties] = _no_certificate,
        remaining: Remaining = _for_ever,
        *,
        over_grpc: bool = False,
    ) -> None:
        self.credentials = (headers.get("authorization", ""), headers.get("traceparent", ""), peer, certificate)
        listed = headers.get(EXTENSIONS_KEY, "")
        self.extensions = frozenset(one.strip() for one in listed.split(",") if one.strip())
        after = headers.get(AFTER_KEY, "")
        self.after = int(after) if after.isascii() and after.isdigit() and len(after) < 20 else None
        self.route = ""
        self.remaining = remaining
        self.over_grpc = over_grpc
        self.entered = False
        self.fault: ReachError | None = None


def was_read() -> bool:
    """Whether the request of the call over gRPC that is being handled here could be read."""
    caller = _calling.get()
    return caller is not None and caller.entered


def caller_of(context: ServerCallContext) -> Caller:
    """Who makes a call."""
    caller: Caller = context.state[_KEY]
    return caller


class FromHttp(ServerCallContextBuilder):
    """Contexts of calls over JSON-RPC and REST."""

    def build(self, request: Any) -> ServerCallContext:
        """See the SDK. The door has made the caller."""
        caller: Caller = request.scope[SCOPE_KEY]
        caller.route = request.path_params.get("tenant", "")
        state = {"headers": dict(request.headers), _KEY: caller}
        return ServerCallContext(state=state, requested_extensions=set(caller.extensions))


class FromGrpc(GrpcServerCallContextBuilder):
    """Contexts of calls over gRPC.

    Args:
        old: They call the service of version 0.3, whose name says so.
    """

    def __init__(self, *, old: bool = False) -> None:
        self._old = old

    def build(self, context: Any) -> ServerCallContext:
        """See the SDK. Raises VersionNotSupportedError: no version is 0.3, by the specification."""
        headers: dict[str, str] = {}
        for key, value in context.invocation_metadata() or ():
            if isinstance(value, str):
                headers[key] = f"{headers[key]},{value}" if key in headers else value
        version = headers.get(VERSION_KEY, "").strip()
        if not self._old and version.partition(".")[0] != VERSION.partition(".")[0]:
            raise VersionNotSupportedError(
                f"this service speaks A2A {VERSION}: send the metadata '{VERSION_KEY}: {VERSION}'"
                + (f", not {version[:20]}" if version else "")
            )
        caller = Caller(headers, context.peer(), context.auth_context, context.time_remaining, over_grpc=True)
        _calling.set(caller)
        state = {"headers": headers, _KEY: caller}
        return ServerCallContext(state=state, requested_extensions=set(caller.extensions))
