"""What a text asks for, beyond its words (RTE-5): vectors first, and for what still fits nobody a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reach.core.resolving import Selector
from reach.runtime.classifier import Classifier
from reach.runtime.matcher import Matcher


class Texts:
    """See the module."""

    def __init__(self) -> None:
        self.matcher: Matcher | None = None
        """Knows texts by their meaning."""
        self.classifier: Classifier | None = None
        """Sorts texts that nothing else matches."""

    def ask(self, tenant: str, selector: Selector, then: Callable[[], None]) -> bool:
        """Calls `then` when all is known of a text that will be, or when the time for that is over. False if there is
        nothing to wait for."""

        def classify() -> None:
            if not self._classify(tenant, selector, then):
                then()

        if self.matcher is not None and self.matcher.ask(selector.text, classify):
            return True
        return self._classify(tenant, selector, then)

    def _classify(self, tenant: str, selector: Selector, then: Callable[[], None]) -> bool:
        return self.classifier is not None and self.classifier.ask(tenant, selector, then)

    async def understand(self, tenant: str, selector: Selector) -> None:
        """Waits for what a submitted task with this selector would wait for."""
        done = asyncio.Event()
        if selector.text and self.ask(tenant, selector, done.set):
            await done.wait()
