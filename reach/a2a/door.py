"""The A2A door as HTTP and gRPC see it: an ASGI application, and methods beside our contract. What needs a2a-sdk is
loaded with the first call that comes here, in a thread; servers that nobody calls over A2A pay nothing for it.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Message, Receive, Scope, Send

from reach.a2a.settings import A2aSettings
from reach.errors import InvalidRequest, ReachError, Reason
from reach.http.api import ApiSettings, peer_of, stopping, until_gone
from reach.http.bodies import Refused, read_whole
from reach.http.certificates import certificate_of
from reach.http.problems import no_such_path, problem
from reach.rpc.entrance import Entrance
from reach.rpc.inner_calls import InnerCalls

if TYPE_CHECKING:
    from reach.a2a.loaded import Loaded

PREFIXES: Final = ("/lf.a2a.v1.A2AService/", "/a2a.v1.A2AService/")
"""gRPC services of version 1.0 and 0.3."""
CLOSE_SECONDS: Final = 1.0
"""How long calls under way may go on when the server stops."""


def is_installed() -> bool:
    """Whether the extra is there. Loads nothing."""
    return importlib.util.find_spec("a2a") is not None


class Call:
    """One request that is being answered.

    Attributes:
        peer: Where it comes from.
        streams: Its answer is a stream that has begun.
        closing: It is to end because the server stops.
    """

    __slots__ = ("closing", "peer", "streams")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.streams = self.closing = False


class A2aDoor:
    """See the module.

    Args:
        calls: What is behind all doors.
        entrance: Of the node: it logs and counts faults.
        limits: What HTTP takes, and from whom.
        settings: What cards say of us; asked for once, when our ports are known.
    """

    def __init__(
        self, calls: InnerCalls, entrance: Entrance, limits: ApiSettings, settings: Callable[[], A2aSettings]
    ) -> None:
        self._calls = calls
        self._entrance = entrance
        self._limits = limits
        self._settings = settings
        self._loading: asyncio.Future[Loaded] | None = None
        self._closing = False
        self._calling: dict[asyncio.Future[Any], Call] = {}

    def routes(self) -> list[BaseRoute]:
        """For the application that serves HTTP."""
        known = [Route(path, self) for path in ("/.well-known/agent-card.json", "/.well-known/ai-catalog.json")]
        return [*known, Route("/a2a", self), Mount("/a2a", app=self)]

    async def handler(self, method: str) -> Any:
        """The gRPC handler of a method of A2A; None for all others."""
        if not method.startswith(PREFIXES) or not is_installed():
            return None
        return (await self._loaded()).methods.get(method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request over HTTP."""
        if scope["type"] != "http":
            await no_such_path()(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            if self._closing:
                raise stopping()
            self._limits.guard.check(scope["method"], headers)
            if not is_installed():
                text = "this server lacks what A2A needs: pip install 'agentreach[a2a]'"
                raise InvalidRequest(text, Reason.NOT_IMPLEMENTED)
            body = b""
            if scope["method"] == "POST":
                self._calls.admit(headers.get("authorization", ""), peer_of(scope), certificate=certificate_of(scope))
                body = await read_whole(headers, receive, self._limits.body_limit)
            loaded = await self._loaded()
        except Refused as refused:
            await problem(refused.error, refused.status)(scope, receive, send)
            return
        except ReachError as error:
            await problem(error)(scope, receive, send)
            return
        await self._serve(loaded, scope, body, receive, send)

    async def _serve(self, loaded: Loaded, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Runs the application until it has answered, the client goes, or the server stops."""
        gone = asyncio.ensure_future(until_gone(receive))
        sent = False

        async def heard() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        told = {name: value for name, value in scope.items() if name not in ("path_params", "endpoint", "route")}
        call = Call(peer_of(scope))
        work = asyncio.ensure_future(loaded.answer(told, body, call, heard, send))
        self._calling[work] = call
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._calling[work]
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _loaded(self) -> Loaded:
        """All that needs the SDK. A load that failed is tried again by the next call."""
        loading = self._loading
        if loading is None or (loading.done() and (loading.cancelled() or loading.exception() is not None)):
            loading = self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        return await asyncio.shield(loading)

    def _load(self) -> Loaded:
        from reach.a2a.loaded import Loaded

        return Loaded(self._calls, self._entrance, self._settings())

    async def close(self) -> None:
        """The server stops: nothing new, streams end at once, and what is being answered has a second."""
        self._closing = True
        self._end(streams=True)
        if self._calling:
            await asyncio.wait(set(self._calling), timeout=CLOSE_SECONDS)
        self._end(streams=False)

    def _end(self, *, streams: bool) -> None:
        for work, call in self._calling.items():
            if call.streams or not streams:
                call.closing = True
                work.cancel()
