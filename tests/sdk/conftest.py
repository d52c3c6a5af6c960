"""Fixtures of the SDK's tests: a scripted server in the same loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.sdk.fake_server import FakeServer


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A running server."""
    made = FakeServer()
    await made.start()
    yield made
    await made.stop()
