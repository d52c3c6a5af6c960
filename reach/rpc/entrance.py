"""What every call meets before and after its servicer, whatever door it comes through: who is it, may it, is there
room, where is it done, and how does it end.

gRPC comes through `interceptors.py`, HTTP through `inner_calls.py`; neither decides anything of this by itself.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from reach.errors import Internal, InvalidRequest, ReachError, Reason, ResourceExhausted
from reach.rpc.access import TABLE, Access, Admission
from reach.rpc.principal import Authenticator, PeerProperties, Principal, set_principal
from reach.telemetry.logs import RepeatedLogger, frames_of
from reach.telemetry.tracing import TraceContext, Tracing, set_current_trace
from reach.wire.status import TABLE as CODES

if TYPE_CHECKING:
    from reach.rpc.proxy import Proxy

_RETRY_AFTER_MS: Final = 1000
NO_SHARES: Final[Mapping[Admission, int]] = {}
"""Each tenant may have all calls."""
PEER_CALLS: Final = 20_000
"""Calls of other nodes that are open, where nothing else is said: each of them is bounded at the node that makes it."""

_log: Final = logging.getLogger(__name__)
_refusals: Final = RepeatedLogger(_log)


class Gate:
    """Room for calls of one class, and in it for those of one tenant.

    Args:
        name: Of the class.
        limit: How many calls may be open.
        share: How many of them one tenant may have; 0: all.
    """

    __slots__ = ("_of_tenants", "held", "limit", "name", "share")

    def __init__(self, name: str, limit: int, share: int = 0) -> None:
        self.name = name
        self.limit = limit
        self.share = share
        self.held = 0
        self._of_tenants: dict[str, int] = {}  # only tenants with an open call, so never more than `held`

    def enter(self, tenant: str) -> str:
        """Takes a place. Returns for whom it is to be given back: nobody, where tenants have no shares, or for a call
        that is open to everybody. Raises ResourceExhausted."""
        if self.held >= self.limit:
            raise self._full(f"the server holds {self.limit} calls of the class '{self.name}' already", self.limit)
        if not self.share or not tenant:
            self.held += 1
            return ""
        has = self._of_tenants.get(tenant, 0)
        if has >= self.share:
            raise self._full(f"your tenant holds {self.share} calls of the class '{self.name}' already", self.share)
        self._of_tenants[tenant] = has + 1
        self.held += 1
        return tenant

    def leave(self, whose: str) -> None:
        """Gives a place back. `whose`: what `enter` said."""
        self.held -= 1
        if whose:
            if left := self._of_tenants[whose] - 1:
                self._of_tenants[whose] = left
            else:
                del self._of_tenants[whose]

    def _full(self, message: str, limit: int) -> ResourceExhausted:
        return ResourceExhausted(
            message,
            Reason.TOO_MANY_STREAMS,
            retry_after_ms=_RETRY_AFTER_MS,
            limit=str(limit),
            admission=self.name,
        )


class Entrance:
    """See the module. One for all doors of a node: they share its limits.

    Args:
        authenticator: Tells who calls.
        tracing: Reads what trace a call belongs to.
        limits: How many calls of each class may be open.
        called: Is told of each call that ended: its method ("DispatchService/Dispatch") and code ("OK").
        refused: Is told of each call that ended with an error of ours: why.
        shares: How many calls of each class one tenant may have; those of other classes: all.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        tracing: Tracing,
        limits: Mapping[Admission, int],
        called: Callable[[str, str], None],
        refused: Callable[[Reason], None],
        shares: Mapping[Admission, int] = NO_SHARES,
    ) -> None:
        self._authenticator = authenticator
        self._refused = refused
        self.tracing = tracing
        self.called = called
        self.gates: Final = {one: Gate(one.value, limits.get(one, PEER_CALLS), shares.get(one, 0)) for one in Admission}
        self.proxy: Proxy | None = None
        """Brings calls to the nodes that they belong to; None on a node that is alone. To be set before it serves."""

    def enter(
        self, authorization: str, traceparent: str, peer: Callable[[], PeerProperties], access: Access, gate: Gate
    ) -> tuple[TraceContext, str]:
        """Who is it, may it, is there room. Raises what refuses the call; `failed` then ends it. Whoever comes in holds
        a place of the gate until he gives it back, for whom the second part of the answer says."""
        trace = self.tracing.accept(traceparent)
        set_current_trace(trace)
        tenant = ""
        if access.scopes:
            principal = self.recognise(authorization, peer, access.scopes)
            set_principal(principal)
            tenant = principal.tenant
        return trace, gate.enter(tenant)

    def recognise(
        self, authorization: str, peer: Callable[[], PeerProperties], scopes: frozenset[str] | None = None
    ) -> Principal:
        """Who is it, and does he have one of the scopes, if any is asked for. Raises InvalidRequest."""
        principal = self._authenticator.authenticate(authorization, peer)
        if scopes is not None and scopes.isdisjoint(principal.scopes):
            wanted = ", ".join(sorted(scopes))
            raise InvalidRequest(f"this call needs one of the scopes: {wanted}", Reason.PERMISSION_DENIED)
        return principal

    def anywhere(self, method: str, behaviour: Callable[..., Any], *, streams: bool) -> Callable[..., Any]:
        """The behaviour of a method with one request, wherever it has to be done. What another node answers comes as
        bytes."""
        if self.proxy is None or method not in TABLE:
            return behaviour
        found: Callable[..., Any] = (self.proxy.streaming if streams else self.proxy.unary)(method, behaviour)
        return found

    def failed(self, name: str, failure: Exception, peer: str) -> ReachError:
        """Counts and logs a call that failed. Returns what its caller is told."""
        error = failure if isinstance(failure, ReachError) else _unexpected(name, failure)
        if error.reason in (Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED):
            fields = {"method": name, "reason": error.reason, "peer": peer}
            _refusals.warning(f"{name} {error.reason}", "a call was refused", **fields)
        self.called(name, CODES[error.reason].code.name)
        self._refused(error.reason)
        return error


def short_name(method: str) -> str:
    """Of "/agentreach.v1.DispatchService/Dispatch" the part "DispatchService/Dispatch"."""
    return method.rpartition(".")[2]


def leaves_of(failure: BaseException) -> Iterator[BaseException]:
    """What failed in a TaskGroup, or the failure itself."""
    if isinstance(failure, BaseExceptionGroup):
        for part in failure.exceptions:
            yield from leaves_of(part)
    else:
        yield failure


def leaf_of(failure: BaseException, *first: type[BaseException]) -> BaseException:
    """What to tell of a failure in a TaskGroup: the first of these kinds, or the error of ours, if one is in it."""
    if not isinstance(failure, BaseExceptionGroup):
        return failure
    leaves = list(leaves_of(failure))
    for kind in (*first, ReachError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return failure


def _unexpected(name: str, failure: Exception) -> Internal:
    """Logs a fault of ours. Not its text, for that may hold a payload or a secret: its type and where it was raised."""
    error_id = secrets.token_hex(8)
    inner = next(leaves_of(failure))
    fields = {
        "error_id": error_id,
        "method": name,
        "error": type(inner).__name__,
        "frames": frames_of(inner) or frames_of(failure),
    }
    _log.error("a call failed unexpectedly", extra=fields)
    return Internal(f"internal fault; the server's log holds it as {error_id}", error_id=error_id)
