"""Who wants to hear of changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

from reach.cluster.base import Unsubscribe

P = ParamSpec("P")
_log = logging.getLogger(__name__)


class Listeners(Generic[P]):
    """Plain functions, called in the order they came.

    One that fails is logged and does not keep the others from hearing.
    """

    def __init__(self) -> None:
        self._all: dict[int, Callable[P, None]] = {}
        self._next = 0

    def add(self, listener: Callable[P, None]) -> Unsubscribe:
        """Returns how to take it away again, which may be called twice."""
        number = self._next
        self._next += 1
        self._all[number] = listener

        def unsubscribe() -> None:
            self._all.pop(number, None)

        return unsubscribe

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls all that are there now."""
        for listener in list(self._all.values()):
            try:
                listener(*args, **kwargs)
            except Exception:  # noqa: BLE001 - it must not end the watch that tells all the others
                _log.exception("a listener of the cluster failed")
