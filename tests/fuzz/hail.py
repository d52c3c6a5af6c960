"""Sends bytes to methods of a server, many calls at a time, and looks at how each call ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

from tests.rpc.hostile import METHODS
from tests.rpc.peers import Stubs, refusal

OPEN_FOR = 0.3
"""Seconds until streams that go on for ever are left."""
ANSWER_WITHIN = 3.0
"""Seconds within which any other call has to have an answer: tasks wait no longer than they are asked to."""
AT_ONCE = 40
FORBIDDEN = {"UNKNOWN", "INTERNAL", "DATA_LOSS"}
"""What no input may be answered with."""
CLIENT_LOST_IT = "Internal error from Core"
"""What grpc.aio says when a status came before its call was ready to hear it (grpc/grpc#36066): no word of ours."""


class Input(NamedTuple):
    """One call: the method, and the messages that are sent."""

    path: str
    frames: tuple[bytes, ...]
    what: str = ""
    """How it was made, for people."""

    def __str__(self) -> str:
        return f"{self.path} {self.what or self.frames!r:.300}"


class Wrong(NamedTuple):
    """An input with an answer that must not be."""

    given: Input
    answer: str

    def __str__(self) -> str:
        return f"{self.given}: {self.answer}"


class Hail:
    """See the module.

    Args:
        stubs: The channel.
        open_for: Seconds until streams that go on for ever are left.
        at_once: How many calls are open at a time.
    """

    def __init__(self, stubs: Stubs, open_for: float = OPEN_FOR, at_once: int = AT_ONCE) -> None:
        self._stubs = stubs
        self._open_for = open_for
        self._room = asyncio.Semaphore(at_once)
        self.wrong: list[Wrong] = []
        self.ends: Counter[str] = Counter()
        """Reasons of refusals, and codes of the other ends."""
        self.sent = 0

    async def send(self, given: Input) -> None:
        """One call with these messages, read until it ends or for `open_for`."""
        async with self._room:
            call = self._call(given)
            try:
                code, reason, text = await refusal(call)
            finally:
                call.cancel()
        self.sent += 1
        self.ends["lost by the client" if text == CLIENT_LOST_IT else reason or code] += 1
        if text == CLIENT_LOST_IT or code in ("OK", "CANCELLED", "DEADLINE_EXCEEDED"):
            return
        if code in FORBIDDEN:
            self.wrong.append(Wrong(given, f"{code} {text}"))
        elif not reason and "larger than max" not in text:
            self.wrong.append(Wrong(given, f"{code} without a reason: {text}"))

    def _call(self, given: Input) -> Any:
        method = METHODS[given.path]
        kinds = ["stream" if yes else "unary" for yes in (method.client_streaming, method.server_streaming)]
        make = getattr(self._stubs.channel, "_".join(kinds))(
            given.path, request_serializer=bytes, response_deserializer=bytes
        )

        async def several() -> Any:
            for frame in given.frames:
                yield frame

        patience = self._open_for if method.server_streaming else max(self._open_for, ANSWER_WITHIN)
        return make(several() if method.client_streaming else given.frames[0], timeout=patience)

    async def all(self, inputs: list[Input]) -> None:
        """All of these, as many at a time as there is room for."""
        await asyncio.gather(*(self.send(one) for one in inputs))
