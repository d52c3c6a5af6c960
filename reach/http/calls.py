"""What is behind the doors of HTTP: the methods of the contract, made as calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from reach.http.certificates import Certificate


class Calls(Protocol):
    """The methods of the contract, whichever door a call comes through (rpc/inner_calls.py)."""

    def scopes(self, method: str) -> frozenset[str]:
        """Any one of these opens the method."""

    def admit(self, authorization: str, peer: str, method: str = "", certificate: Certificate = ...) -> None:
        """Refuses at once who is nobody, or may not make calls of a method. Raises InvalidRequest."""

    async def unary(
        self,
        method: str,
        request: Any,
        authorization: str,
        traceparent: str,
        peer: str,
        certificate: Certificate = ...,
    ) -> Any:
        """Makes a call with one response. Raises ReachError."""

    def streaming(
        self,
        method: str,
        request: Any,
        authorization: str,
        traceparent: str,
        peer: str,
        certificate: Certificate = ...,
    ) -> AsyncGenerator[Any, None]:
        """Makes a call with a stream of responses. Raises ReachError."""
