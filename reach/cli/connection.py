"""Single calls to the server: answers, or errors of ours."""

from __future__ import annotations

from typing import Any, Final, Protocol, Self, TypeVar, cast

from reach.errors import Reason, Timeout, Unavailable
from reach.sdk.channel import Target
from reach.wire.status import error_from_rpc

Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

CALL_TIMEOUT_S: Final = 10.0


class Pending(Protocol[A_co]):
    """A call that was made."""

    def exception(self) -> Any:
        """Waits; what went wrong."""

    def result(self) -> A_co:
        """Waits; the answer."""


class Method(Protocol[Q_contra]):
    """A call of a stub."""

    def future(self, request: Q_contra, timeout: float | None = None, metadata: Any = None) -> Any:
        """Makes the call."""


class Connection:
    """A channel that is closed at the end. `channel` makes stubs, `ask` makes their calls."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.channel = target.channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def ask(self, method: Any, request: Any) -> Any:
        """The answer to a call. Raises the ReachError of its end."""
        call = method.future(request, timeout=CALL_TIMEOUT_S, metadata=self._target.metadata)
        failure = call.exception()
        if failure is None:
            return call.result()
        error = error_from_rpc(cast("Any", failure))
        if isinstance(error, Timeout) and error.reason is Reason.WAIT_EXPIRED:
            text = f"no answer from {self._target.address} within {CALL_TIMEOUT_S:g} s"
            raise Unavailable(text, Reason.OWNER_UNAVAILABLE)
        raise error
