"""Single calls to the server: answers, or errors of ours."""

from __future__ import annotations

from typing import Any, Final, Self, cast

from reach.errors import Reason, Timeout, Unavailable
from reach.sdk.channel import Target
from reach.wire.status import error_from_rpc

CALL_TIMEOUT_S: Final = 10.0


class Connection:
    """A channel that is closed at the end. `channel` makes stubs, `ask` makes their calls."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.channel = target.channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def ask(self, method: Any, request: Any, timeout: float = CALL_TIMEOUT_S) -> Any:
        """The answer of a stub's method. Raises the ReachError of its end."""
        call = method.future(request, timeout=timeout, metadata=self._target.metadata)
        failure = call.exception()
        if failure is None:
            return call.result()
        error = error_from_rpc(cast("Any", failure))
        if isinstance(error, Timeout) and error.reason is Reason.WAIT_EXPIRED:
            text = f"no answer from {self._target.address} within {timeout:g} s"
            raise Unavailable(text, Reason.OWNER_UNAVAILABLE)
        if error.reason is Reason.OWNER_UNAVAILABLE:
            why = error.message.partition("last error: ")[2] or error.message
            raise Unavailable(f"cannot reach Agent-Reach at {self._target.address}: {why}", Reason.OWNER_UNAVAILABLE)
        raise error
