"""gRPC as far as the dialling of agents uses it: channels and calls over simulated connections, late and fragile.

The code that dials is the real one (`transports.dialled`, `grpc_endpoint`, `executions`, `probing`), and bytes travel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2

from agentreach.v1 import endpoint_pb2
from reach.core.endpoint import Endpoint
from reach.testing.sim.link import LINGER_SECONDS, LINGERS, Frame, Network, Pipe
from reach.testing.sim.loop import Process, VirtualLoop
from reach.transports.dialler import Dialler
from reach.transports.grpc_endpoint import Route
from reach.transports.probing import SERVICE
from reach.transports.seam import Approach, Way
from reach.wire.addresses import read_address

if TYPE_CHECKING:
    from reach.testing.sim.dialled import DialledAgent

EXECUTE = f"{SERVICE}Execute"
PORT = 7_000
NOT_READY_S = 0.06
"""How long a channel says that it is down after its connection broke."""
PING_S = (10.0, 15.0)
"""When we notice that nobody answers our pings."""
_C = grpc.StatusCode


def failure_of(code: grpc.StatusCode, details: str, *, by_agent: bool = False) -> grpc.aio.AioRpcError:
    """The end of a call. `by_agent`: the agent ended it so, not the machinery in between."""
    said = grpc.aio.Metadata(("server", "sim")) if by_agent else grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), said, details)


def stale() -> grpc.aio.AioRpcError:
    """An agent had a newer attempt of the task."""
    return failure_of(_C.FAILED_PRECONDITION, "a newer attempt was here", by_agent=True)


def refusal(random: Random) -> grpc.aio.AioRpcError:
    """An agent takes no attempt now."""
    return failure_of(random.choice((_C.RESOURCE_EXHAUSTED, _C.UNAVAILABLE)), "not now", by_agent=True)


SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
"""The answer of gRPC health."""


class Call:
    """One call, as the server has it (`grpc.aio.Call`); an agent answers it through its wire."""

    def __init__(self, loop: VirtualLoop, wire: Wire, method: str, request: bytes) -> None:
        self._loop = loop
        self.wire = wire
        self.method = method
        self.request = request
        self.owner = asyncio.current_task(loop)
        self._answers: deque[bytes] = deque()
        self._over = False
        self._cancelled = False
        self._failure: grpc.aio.AioRpcError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> Any:
        """The next answer; EOF at a good end."""
        while not self._cancelled:
            if self._answers:
                return self._answers.popleft()
            if self._failure is not None:
                raise self._failure
            if self._over:
                return grpc.aio.EOF
            self._waiter = self._loop.create_future()
            await self._waiter
        raise asyncio.CancelledError

    def cancel(self) -> bool:
        """Hangs up."""
        if self._over or self._cancelled:
            return False
        self._cancelled = True
        self.wire.hang_up(self)
        self._wake()
        return True

    def cancelled(self) -> bool:
        """Whether we hung up."""
        return self._cancelled

    def heard(self, answer: bytes) -> None:
        """An answer came."""
        if not self._over:
            self._answers.append(answer)
            self._wake()

    def ended(self, failure: grpc.aio.AioRpcError | None = None) -> None:
        """It is over."""
        if not self._over:
            self._over, self._failure = True, failure
            self.wire.calls.pop(self, None)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Wire:
    """One connection from a process of the server to a process of an agent: ordered in both directions."""

    def __init__(self, exchange: Exchange, channel: Channel, server: Process, agent: DialledAgent) -> None:
        self._exchange = exchange
        self._network, self._loop = exchange.network, exchange.loop
        self._channel = channel
        self._server = server
        self._agent = agent
        self.to = agent.process
        self.up = Pipe(self._network, agent.process, self._agent_heard)
        self.down = Pipe(self._network, server, self._server_heard)
        self.calls: dict[Call, None] = {}
        self.broken = False

    def begin(self, call: Call) -> None:
        """Calls the agent."""
        self.up.put(("begin", call))

    def hang_up(self, call: Call) -> None:
        """The server ends a call."""
        if self.calls.pop(call, self) is None and not self._server.dead:
            self.up.put(("end", call))

    def answer(self, call: Call, answer: bytes) -> None:
        """The agent says something."""
        self.down.put((call, answer))

    def finish(self, call: Call, failure: grpc.aio.AioRpcError | None = None) -> None:
        """The agent ends a call."""
        self.down.put((call, failure))

    def _agent_heard(self, items: Frame) -> None:
        for what, call in items:
            if what == "begin":
                self._agent.serve(call)
            else:
                self._agent.hung_up(call)

    def _server_heard(self, items: Frame) -> None:
        for call, said in items:
            if isinstance(said, bytes):
                call.heard(said)
            else:
                call.ended(said)

    def break_now(self, details: str) -> None:
        """It is reset: both sides learn of it soon. What was on its way to the agent may arrive nevertheless."""
        if self.broken:
            return
        self.broken = self.down.cut = True
        random, loop = self._network.random, self._loop
        late = 0.05 * random.random()
        if random.random() < LINGERS:
            self.up.shut, late = True, late + LINGER_SECONDS
        else:
            self.up.cut = True
        calls = list(self.calls)
        loop.call_later(0.05 * random.random(), self._server.call_soon, self._lost, details)
        loop.call_later(late, self.to.call_soon, self._agent_lost, calls)

    def _lost(self, details: str) -> None:
        self._channel.broken_at = self._loop.now
        for call in list(self.calls):
            call.ended(failure_of(_C.UNAVAILABLE, details))
        self._exchange.wires.pop(self, None)

    def _agent_lost(self, calls: list[Call]) -> None:
        self.up.cut = True
        for call in calls:
            self._agent.hung_up(call)

    def break_half(self, up: bool) -> None:
        """One direction is dead, until somebody notices."""
        (self.up if up else self.down).deaf = True
        least, most = PING_S
        self._loop.call_later(least + (most - least) * self._network.random.random(), self.break_now, "ping timeout")

    def server_died(self) -> None:
        """Nobody is left to hear; the agent's machine notices."""
        self.broken = self.down.cut = self.up.shut = True
        calls, self.calls = list(self.calls), {}
        if not calls:
            return
        for call in calls:
            if call.owner is not None:
                call.owner.cancel()
        self._loop.call_later(0.1, self.to.call_soon, self._agent_lost, calls)


class Channel:
    """`grpc.aio.Channel`: a wire, and another one when that is broken."""

    def __init__(self, exchange: Exchange, server: Process, address: str) -> None:
        self._exchange = exchange
        self._server = server
        self._address = address
        self.wire: Wire | None = None
        self.broken_at = -1e9

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See grpc.aio.Channel."""
        down = self._exchange.agents[self._address].process.dead
        if down or self._exchange.loop.now < self.broken_at + NOT_READY_S:
            return grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return grpc.ChannelConnectivity.READY

    def unary_stream(self, method: str) -> Callable[..., Call]:
        """See grpc.aio.Channel."""

        def call(request: bytes, timeout: float | None = None, metadata: Any = ()) -> Call:
            return self._begin(method, request, timeout)

        return call

    def unary_unary(self, method: str, serialize: Any = None, parse: Any = None) -> Callable[..., Any]:
        """See grpc.aio.Channel."""

        async def call(request: bytes, timeout: float | None = None, metadata: Any = ()) -> Any:
            begun = self._begin(method, request, timeout)
            try:
                answer = await begun.read()
            finally:
                begun.cancel()
            return parse(answer) if parse is not None else answer

        return call

    def _begin(self, method: str, request: bytes, timeout: float | None) -> Call:
        exchange, agent = self._exchange, self._exchange.agents[self._address]
        wire = self.wire
        if wire is None or wire.broken or wire.to is not agent.process:
            wire = self.wire = Wire(exchange, self, self._server, agent)
            exchange.wires[wire] = self._address
        call = Call(exchange.loop, wire, method, request)
        wire.calls[call] = None
        if timeout is not None:
            self._server.call_later(timeout, call.ended, failure_of(_C.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        if method == EXECUTE:
            exchange.on_execute(agent, endpoint_pb2.ExecuteRequest.FromString(request).offer, not agent.process.dead)
        if agent.process.dead:
            details = "failed to connect to all addresses; last error: connection refused"
            self._server.call_later(exchange.network.delay(), call.ended, failure_of(_C.UNAVAILABLE, details))
        else:
            wire.begin(call)
        return call

    async def close(self) -> None:
        """See grpc.aio.Channel."""
        wire, self.wire = self.wire, None
        if wire is not None:
            for call in list(wire.calls):
                call.cancel()
            self._exchange.wires.pop(wire, None)


class Exchange:
    """All agents that are dialled, by their addresses, and all connections to them."""

    def __init__(self, loop: VirtualLoop, random: Random, network: Network, on_execute: Callable[..., None]) -> None:
        self.loop = loop
        self.random = random
        self.network = network
        self.on_execute = on_execute
        """Hears of each offer that leaves the server: (agent, offer, whether it can get there)."""
        self.agents: dict[str, DialledAgent] = {}
        self.wires: dict[Wire, str] = {}
        loop.refusal = self._refusal

    def _refusal(self, host: str) -> OSError:
        return ConnectionRefusedError() if self.agents[host].process.dead else OSError("somebody listens there")

    def to(self, address: str) -> list[Wire]:
        """The connections to an agent."""
        return [wire for wire, there in self.wires.items() if there == address and not wire.broken]

    def died(self, address: str, details: str) -> None:
        """All connections to an agent break."""
        for wire in self.to(address):
            wire.break_now(details)

    def server_died(self) -> None:
        """A process of the server ended."""
        wires, self.wires = self.wires, {}
        for wire in wires:
            wire.server_died()


class SimRoute(Route):
    """A way over simulated connections."""

    __slots__ = ("_exchange", "_server")

    def __init__(self, exchange: Exchange, server: Process, endpoint: Endpoint) -> None:
        address = read_address(endpoint.url)
        super().__init__(Approach(address, (address.host,), "", None, 4 << 20))
        self._exchange = exchange
        self._server = server

    def channel(self, *, keepalive: bool) -> Any:
        """See Route."""
        return Channel(self._exchange, self._server, self.address.host)


class SimDialler(Dialler):
    """Dials over simulated connections. Names are looked up by others' tests."""

    exchange: Exchange
    process: Process

    async def way(self, tenant: str, endpoint: Endpoint) -> tuple[Way | None, list[str]]:
        """See Dialler."""
        return SimRoute(self.exchange, self.process, endpoint), []
