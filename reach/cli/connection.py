"""Single calls to the server: answers, or errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Self, cast

from reach.errors import ReachError, Reason, Timeout, Unavailable
from reach.sdk.channel import Target
from reach.wire.status import error_from_rpc

CALL_TIMEOUT_S: Final = 10.0
PAGE: Final = 1_000
"""Items of a list that are asked for at once."""


class Connection:
    """A channel that is closed at the end. `channel` makes stubs, `ask` makes their calls."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._address = target.answering()
        self.channel = target.channel(self._address)

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
        raise self._error(failure, timeout)

    def pages(self, method: Any, request: Any) -> Iterator[Any]:
        """The answers of a call that goes page by page. A page may be empty, and yet not be the last."""
        while True:
            answer = self.ask(method, request)
            yield answer
            request.page_token = answer.next_page_token
            if not request.page_token:
                return

    def listed(self, method: Any, request: Any, field: str, limit: int | None = None) -> list[Any]:
        """The items of a list, in the field of that name: all, or the first `limit`."""
        found: list[Any] = []
        request.page_size = PAGE if limit is None else min(PAGE, limit)
        for answer in self.pages(method, request):
            found.extend(getattr(answer, field))
            if limit is not None and len(found) >= limit:
                break
        return found[:limit]

    def follow(self, method: Any, request: Any, timeout: float | None = None) -> Iterator[Any]:
        """The messages of a stream, until the server ends it or `timeout` seconds are over. Raises the ReachError of
        its end."""
        call = method(request, timeout=timeout, metadata=self._target.metadata)
        try:
            yield from call
        except Exception as failure:
            if not hasattr(failure, "trailing_metadata"):  # not the end of the call, but a fault of whoever reads it
                raise
            error = error_from_rpc(cast("Any", failure))
            if not (isinstance(error, Timeout) and error.reason is Reason.WAIT_EXPIRED):
                raise self._error(failure, timeout or 0.0) from None
        finally:
            call.cancel()

    def _error(self, failure: Any, timeout: float) -> ReachError:
        """The end of a call, in words for people."""
        error = error_from_rpc(cast("Any", failure))
        if isinstance(error, Timeout) and error.reason is Reason.WAIT_EXPIRED:
            text = f"no answer from {self._address} within {timeout:g} s"
            return Unavailable(text, Reason.OWNER_UNAVAILABLE)
        if error.reason is Reason.OWNER_UNAVAILABLE:
            said = error.message.partition(" (failed to connect")[
                0
            ]  # behind what is to be done about it, if that is known
            why = said.partition("last error: ")[2] or said
            return Unavailable(f"cannot reach Agent-Reach at {self._address}: {why}", Reason.OWNER_UNAVAILABLE)
        return error
