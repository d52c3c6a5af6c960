"""Conversations that come to this process and leave it: the two hooks of an agent that keeps something of them (SES-4).

The one who has a conversation says what it knows of it when it moves, as bytes; the one who gets it is given that
before the first task of the conversation begins. Both hooks are called on the loop: they may be `async def`, and must
not block.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from agentreach.v1 import attempt_pb2, task_pb2
from reach.sdk.connection import log
from reach.sdk.context import Context, context_of
from reach.sdk.payloads import json_text
from reach.sdk.task import SessionKey

SNAPSHOT_BYTES: Final = 256 << 10
KNOWN: Final = 10_000
"""Conversations that are remembered: those whose hand-off was taken over, and those that a leaving agent tells of."""

F = TypeVar("F", bound=Callable[..., Any])
Name = tuple[str, str, str, str]
"""(tenant, application, user, conversation)"""


@dataclass(frozen=True, slots=True)
class Handoff:
    """A conversation that has come to this process.

    Attributes:
        session: Which.
        snapshot: What the instance before knew of it; empty if it could not say.
        context: What was said, as the first task brings it.
    """

    session: SessionKey
    snapshot: bytes
    context: Context

    @property
    def text(self) -> str:
        """The snapshot as text."""
        return self.snapshot.decode(errors="replace")


class Handoffs:
    """The hooks of one agent, and the conversations that are here."""

    def __init__(self) -> None:
        self.on_snapshot: Callable[..., Any] | None = None
        self.on_handoff: Callable[..., Any] | None = None
        self._here: OrderedDict[Name, int] = OrderedDict()
        """Conversations, the one used longest ago first, with the number of the hand-off that was taken over."""
        self._arriving: dict[Name, list[Callable[[], None]]] = {}
        """What is to begin when a hand-off is taken over."""
        self._works: set[asyncio.Future[Any]] = set()

    @property
    def are_wanted(self) -> bool:
        """Whether the agent has any hook."""
        return self.on_snapshot is not None or self.on_handoff is not None

    def admit(self, offer: attempt_pb2.Offer, begin: Callable[[], None]) -> None:
        """Begins an attempt of a conversation, after its hand-off is taken over if there is one that was not yet."""
        key = offer.task.session
        name = (offer.tenant, key.app_id, key.user_id, key.session_id)
        number = offer.session_context.handoff_number
        waiting = self._arriving.get(name)
        if waiting is not None:
            waiting.append(begin)
            return
        known = self._here.pop(name, 0)
        self._here[name] = number or known
        if len(self._here) > KNOWN:
            self._here.popitem(last=False)
        if not number or number == known or self.on_handoff is None:
            begin()
            return
        message = offer.session_context
        session = SessionKey(key.app_id, key.user_id, key.session_id)
        handoff = Handoff(session, message.handoff, context_of(message))
        self._arriving[name] = [begin]
        self._own(self._take_over(name, handoff))

    async def _take_over(self, name: Name, handoff: Handoff) -> None:
        assert self.on_handoff is not None
        try:
            done = self.on_handoff(handoff)
            if inspect.isawaitable(done):
                await done
        except Exception:  # noqa: BLE001 - their code; the context of the task says what is needed most
            log.exception("the handoff hook failed for session %s", ":".join(name[1:]))
        finally:
            for begin in self._arriving.pop(name):
                begin()

    def ask(self, key: task_pb2.SessionKey, tenant: str, tell: Callable[[bytes], None]) -> None:
        """Somebody wants to know what is known of a conversation; `tell` hears it."""

        async def answer() -> None:
            tell(await self.snapshot_of(key, tenant))

        self._own(answer())

    async def snapshot_of(self, key: task_pb2.SessionKey, tenant: str) -> bytes:
        """What is known of a conversation; empty if nothing is."""
        return await self._snapshot((tenant, key.app_id, key.user_id, key.session_id))

    async def _snapshot(self, name: Name) -> bytes:
        if self.on_snapshot is None or name not in self._here:
            return b""
        try:
            value = self.on_snapshot(SessionKey(*name[1:]))
            if inspect.isawaitable(value):
                value = await value
            if value is None:
                return b""
            text = value if isinstance(value, str | bytes) else json_text(value)
            data = text.encode("utf-8", "replace") if isinstance(text, str) else text
        except Exception:  # noqa: BLE001 - their code; the session moves with its context
            log.exception("the snapshot hook failed for session %s", ":".join(name[1:]))
            return b""
        if len(data) > SNAPSHOT_BYTES:
            log.warning("the snapshot of session %s has %d bytes, at most %d go along: none does", ":".join(name[1:]),
                        len(data), SNAPSHOT_BYTES)  # fmt: skip
            return b""
        return data

    def names(self) -> Iterator[Name]:
        """The conversations that are here, the latest first."""
        return reversed([*self._here])

    async def tell_all(self, tell: Callable[[Name, bytes], None]) -> None:
        """The agent leaves: says what it knows of all its conversations, the latest first."""
        for name in self.names() if self.on_snapshot is not None else ():
            snapshot = await self._snapshot(name)
            if snapshot:
                tell(name, snapshot)

    def _own(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)


class SessionHooks:
    """What an `Agent` has for conversations that move."""

    _registration: dict[str, Any]
    _handoffs: Handoffs

    def snapshot(self, function: F) -> F:
        """A decorator: the function says what this process knows of a conversation that is about to move to another
        one. It gets the `SessionKey` and returns bytes, text or what JSON can say, at most 256 KiB, or None. It is
        called on the loop, may be `async def`, and has a second to answer. Keep what it tells of for a while: if nobody
        takes the conversation up, it stays here. The context (what was said) goes along anyway."""
        self._handoffs.on_snapshot = function
        if "handoff" not in self._registration["features"]:
            self._registration["features"].append("handoff")
        return function

    def handoff(self, function: F) -> F:
        """A decorator: the function is given a `Handoff` before the first task of a conversation that comes from
        another process begins: once. Called on the loop; may be `async def`."""
        self._handoffs.on_handoff = function
        return function
