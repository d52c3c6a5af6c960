"""Who serves where, and channels to them (`grpc.aio.Channel`), as far as nodes use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from reach.testing.sim.calls import failure_of
from reach.testing.sim.nodes.calls import ClientCall, Handler, Line
from reach.testing.sim.nodes.process import NodeProcess
from reach.testing.sim.nodes.roads import Roads

CONNECT_S = 20.0
"""How long a connection is tried where nobody answers."""
REFUSED = "failed to connect to all addresses; last error: connection refused"


class Servers:
    """Who serves at which address: an address stays, its processes come and go."""

    def __init__(self, roads: Roads) -> None:
        self.roads = roads
        self._at: dict[str, tuple[NodeProcess, dict[str, Handler]]] = {}
        self.lines: dict[Line, None] = {}

    def serve(self, address: str, process: NodeProcess, handlers: dict[str, Handler]) -> None:
        """From now on this process serves there."""
        self._at[address] = process, handlers

    def close(self, address: str, process: NodeProcess) -> None:
        """Nothing new is taken by this process."""
        if self._at.get(address, (None, None))[0] is process:
            del self._at[address]

    def at(self, address: str) -> tuple[NodeProcess, dict[str, Handler]] | None:
        """The process there, unless it is dead."""
        found = self._at.get(address)
        return found if found is not None and not found[0].dead else None

    def died(self, process: NodeProcess) -> None:
        """All connections of a process are gone; the other ends learn of it where the way is open."""
        for line in list(self.lines):
            line.died(process)


class Channel:
    """`grpc.aio.Channel` of one process to one address: a line, and another one when that is broken."""

    def __init__(self, servers: Servers, process: NodeProcess, address: str) -> None:
        self._servers = servers
        self._process = process
        self._address = address
        self._line: Line | None = None
        self._closed = False

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., ClientCall]:
        """See grpc.aio.Channel."""
        return lambda timeout=None, metadata=(): self._begin(method, None, response_deserializer, timeout, metadata)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., ClientCall]:
        """See grpc.aio.Channel."""

        def call(request: Any, timeout: float | None = None, metadata: Any = ()) -> ClientCall:
            return self._begin(method, request.SerializeToString(), response_deserializer, timeout, metadata)

        return call

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., Awaitable[Any]]:
        """See grpc.aio.Channel."""

        async def call(request: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
            begun = self._begin(method, request.SerializeToString(), response_deserializer, timeout, metadata)
            try:
                return await begun.read()
            finally:
                begun.cancel()

        return call

    def _begin(
        self, method: str, request: bytes | None, parse: Any, timeout: float | None, metadata: Any
    ) -> ClientCall:
        call = ClientCall(self._process, method, request, parse, timeout, metadata)
        line = self._line
        if line is None or line.broken:
            there = self._servers.at(self._address)
            if there is None or self._closed:
                roads, machine = self._servers.roads, self._address.partition(":")[0]
                open_ways = roads.open(self._process.name, machine) and roads.open(machine, self._process.name)
                refused_in = roads.delay() if open_ways else CONNECT_S
                self._process.call_later(refused_in, call.ended, failure_of(grpc.StatusCode.UNAVAILABLE, REFUSED))
                return call
            line = self._line = Line(self._servers, self._process, *there)
        call.line = line
        line.begin(call)
        return call

    async def close(self, grace: float | None = None) -> None:
        """See grpc.aio.Channel."""
        self._closed = True
        line, self._line = self._line, None
        if line is not None:
            line.lost_by_client("the channel is closed")
