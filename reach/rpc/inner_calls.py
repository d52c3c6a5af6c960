"""Calls of the methods of the contract from another door of this process (HTTP): all that happens to a call that comes
over gRPC happens to these too, in the same code. Methods with a stream of requests are gRPC's alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final

from google.protobuf.message_factory import GetMessageClass

from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.access import TABLE, Access
from reach.rpc.entrance import Entrance, leaf_of, short_name
from reach.rpc.peer_service import Behaviour
from reach.rpc.principal import PeerProperties, Principal

Certificate = Callable[[], PeerProperties]
"""What the door knows of the caller's certificate."""


def _no_certificate() -> PeerProperties:
    return {}


class _Context:
    """What a servicer may ask of a call that did not come over gRPC."""

    __slots__ = ()

    def time_remaining(self) -> float | None:
        """As long as it takes: a caller that has enough goes, and the call is cancelled."""
        return None


class InnerCalls:
    """See the module.

    Args:
        entrance: Of the node.
        methods: All with one request, by full name ("/agentreach.v1.DispatchService/Dispatch").
        certificate_required: Nobody calls without a client certificate, as over gRPC, where the handshake sees to it.
    """

    def __init__(
        self, entrance: Entrance, methods: Mapping[str, Behaviour], *, certificate_required: bool = False
    ) -> None:
        self._entrance: Final = entrance
        self._certificate_required: Final = certificate_required
        self._acts: Final = {
            method: entrance.anywhere(method, one.act, streams=one.streams) for method, one in methods.items()
        }
        self._responses: Final = {method: GetMessageClass(one.response) for method, one in methods.items()}

    def scopes(self, method: str) -> frozenset[str]:
        """Any one of these opens the method."""
        return TABLE[method].scopes

    def admit(
        self, authorization: str, peer: str, method: str = "", certificate: Certificate = _no_certificate
    ) -> None:
        """Refuses at once who is nobody, or may not make calls of a method, before anything of the call is read.

        Raises:
            InvalidRequest: UNAUTHENTICATED or PERMISSION_DENIED; already counted and logged.
        """
        try:
            self._check(certificate)
            self._entrance.recognise(authorization, certificate, self._access(method).scopes if method else None)
        except ReachError as error:
            raise self._entrance.failed(short_name(method) or "HTTP", error, peer) from None

    def _check(self, certificate: Certificate) -> None:
        if self._certificate_required and not certificate():
            raise InvalidRequest("a client certificate is needed", Reason.UNAUTHENTICATED)

    def who(self, authorization: str, peer: str, certificate: Certificate = _no_certificate) -> Principal:
        """Who calls, for a door that has to know before it can say what is asked.

        Raises:
            ReachError: nobody is known by these credentials; already counted and logged.
        """
        try:
            self._check(certificate)
            return self._entrance.recognise(authorization, certificate)
        except ReachError as error:
            raise self._entrance.failed("A2A", error, peer) from None

    async def unary(
        self,
        method: str,
        request: Any,
        authorization: str,
        traceparent: str,
        peer: str,
        certificate: Certificate = _no_certificate,
        access: Access | None = None,
    ) -> Any:
        """Makes a call with one response.

        Args:
            method: Its full name.
            request: Its message.
            authorization: The header as it came; empty if there was none.
            traceparent: The same.
            peer: Where it comes from, for the log of refusals.
            certificate: Of the caller, where the door has one.
            access: Who may, where that is not what the method's own row says.

        Raises:
            ReachError: what the caller is to be told; already counted and logged.
        """
        with self._within(method, (authorization, traceparent, peer, certificate), access):
            answer = await self._acts[method](request, _Context())
        return self._message(method, answer)

    async def streaming(
        self,
        method: str,
        request: Any,
        authorization: str,
        traceparent: str,
        peer: str,
        certificate: Certificate = _no_certificate,
    ) -> AsyncGenerator[Any, None]:
        """Makes a call with a stream of responses; arguments and errors as for `unary`. It is to be read and closed by
        one task."""
        with self._within(method, (authorization, traceparent, peer, certificate)):
            async with aclosing(self._acts[method](request, _Context())) as answers:
                async for answer in answers:
                    yield self._message(method, answer)

    @contextmanager
    def _within(
        self, method: str, caller: tuple[str, str, str, Certificate], access: Access | None = None
    ) -> Iterator[None]:
        """Around a call: it comes in, holds a place, and is counted as it ends."""
        authorization, traceparent, peer, certificate = caller
        name, access, entrance = short_name(method), access or self._access(method), self._entrance
        gate = entrance.gates[access.admission]
        whose: str | None = None
        try:
            self._check(certificate)
            _, whose = entrance.enter(authorization, traceparent, certificate, access, gate)
            yield
        except Exception as failure:  # noqa: BLE001 - each becomes an error that the caller can be told
            raise entrance.failed(name, _error_in(failure), peer) from None
        except BaseException:
            entrance.called(name, "CANCELLED")
            raise
        finally:
            if whose is not None:
                gate.leave(whose)
        entrance.called(name, "OK")

    def _access(self, method: str) -> Access:
        access = TABLE.get(method)
        if access is None or method not in self._acts:
            raise InvalidRequest("there is no such method", Reason.NOT_IMPLEMENTED)
        return access

    def _message(self, method: str, answer: Any) -> Any:
        """What another node answered comes as bytes."""
        return self._responses[method].FromString(answer) if type(answer) is bytes else answer


def _error_in(failure: Exception) -> Exception:
    found = leaf_of(failure)
    return found if isinstance(found, Exception) else failure
