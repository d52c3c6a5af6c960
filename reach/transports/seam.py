"""What a dialled agent is to those who dial it, whatever it speaks: the seam between `dialled` and gRPC, HTTP and A2A.

Each kind of endpoint is a `Way`, chosen by the scheme of the registered URL (`ways`). What an agent says is told in
the words of AgentEndpointService, so that everything behind the seam is the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from agentreach.v1 import attempt_pb2, endpoint_pb2, result_pb2
from reach.core.endpoint import Endpoint
from reach.core.model import Fault
from reach.wire.addresses import Address


class Failed(Exception):
    """The call of an attempt ended without its outcome. Raised by `Call.read`.

    Attributes:
        fault: What became of the attempt; None: nothing is known but that the connection is gone.
        lost: Why the connection of *all* work is gone for certain (refused, or closed by the peer where all calls share
            it); empty: this is of one call.
        unbegun: By the contract of its kind the agent has certainly not begun. Counts only if nothing was heard of it.
        doubtful: The connection of this one call broke: whoever probes should look now.
    """

    def __init__(self, fault: Fault | None, *, lost: str = "", unbegun: bool = False, doubtful: bool = False) -> None:
        super().__init__(lost or (fault.message if fault is not None else ""))
        self.fault = fault
        self.lost = lost
        self.unbegun = unbegun
        self.doubtful = doubtful


class Call(Protocol):
    """One attempt at an agent. It lasts as long as that, also where the agent answers at once and reports later."""

    async def read(self) -> endpoint_pb2.ExecuteResponse | None:
        """What the agent says next; None: it has said all, or we cancelled. Keys and sequences may be left out.
        Not read means not taken from the agent, as far as its transport can do that.

        Raises:
            Failed: The call ended otherwise.
            ReachError: Something it said cannot be read. The call goes on.
        """

    def cancel(self) -> None:
        """Ends the call at our side; whoever reads is told None. Safe to repeat, and after the end."""


class Line(Protocol):
    """The connections for the work of one endpoint; probes have their own."""

    def execute(self, request: endpoint_pb2.ExecuteRequest, timeout_s: float | None, handle: str = "") -> Call:
        """Begins an attempt, or goes on with one that asked, with all answers. `timeout_s`: when nobody waits for its
        end any more; None: no limit. `handle`: of one that was accepted, where it can be asked about."""

    def resume(self, request: endpoint_pb2.ExecuteRequest, handle: str, timeout_s: float | None) -> Call | None:
        """Follows an attempt that goes on there, by what it said where it can be asked about (`accept.handle`), after a
        restart of ours or at another node. None: this kind cannot."""

    async def cancel(self, key: attempt_pb2.AttemptKey, handle: str) -> None:
        """Tells the agent to stop an attempt, if it can be told. Ends in bounded time, raises nothing. `handle` is
        empty where the agent said none."""

    async def prepare_handoff(self, request: endpoint_pb2.PrepareHandoffRequest, timeout_s: float) -> bytes:
        """What the agent knows of a session; nothing if it does not say. Raises nothing."""

    async def close(self) -> None:
        """Ends all calls."""


class ProbeOutcome(NamedTuple):
    """What a probe came to."""

    ok: bool
    rtt_ms: float
    error: str = ""
    refused: bool = False
    """The machine is there and nobody listens: the process is gone, for certain."""
    serving: bool = True
    """What the agent's health says; True where it says nothing."""


class CheckOutcome(NamedTuple):
    """What a Check came to."""

    answer: endpoint_pb2.CheckResponse | None
    """None if it failed. Empty if the agent does not serve Check."""
    error: str = ""
    refused: bool = False
    knows: bool = True
    """It says what it runs, so that what it does not name does not run there."""
    facts: dict[str, Any] | None = None
    """What else is known of an agent that was adopted (`Adopted` of the contract)."""
    card: bytes | None = None
    """Its card, if that says something new."""


class Sounder(Protocol):
    """Connections for probes and checks of one endpoint, apart from its work."""

    async def probe(self) -> ProbeOutcome:
        """One round trip (HLT-3). Ends in bounded time, raises nothing."""

    async def check(self, running: Iterable[tuple[str, str, int]], tenant: str) -> CheckOutcome:
        """Asks the agent how it is, and which of these attempts (tenant, task_id, attempt) it runs; `tenant` is the
        agent's own (HLT-4). Ends in bounded time, raises nothing."""

    async def close(self) -> None:
        """Ends what is under way."""


class Approach(NamedTuple):
    """What leads to an endpoint, once its addresses were judged (GOV-6)."""

    address: Address
    ips: tuple[str, ...]
    """Where to connect, and nowhere else: the name is not looked up again."""
    token: str
    """What we show there, as `Bearer`; empty: nothing."""
    tls_roots: bytes | None
    """PEM of the authorities that sign the certificates of agents; None: those of the system."""
    payload_limit: int
    """The largest payload, in bytes."""
    refusal: Callable[[str, list[str]], str] = lambda _host, _found: "only the endpoint itself may be connected to"
    """Judges other hosts that the endpoint makes us connect to (`AgentRules.refusal`)."""


class Way(Protocol):
    """How one endpoint is reached: addresses that were judged, credentials, and what is spoken there."""

    payload_limit: int
    """The largest payload, in bytes."""
    ips: tuple[str, ...]
    """The addresses that were judged."""

    def takes_over(self, former: Way) -> None:
        """It leads to the same instance as a former one: what that learned of the agent is known."""

    def line(self, endpoint: Endpoint, who: result_pb2.Reporter) -> Line:
        """Connections for its work. `who`: as whom the agent reports, where it does not by its call."""

    def sounder(self, timeout_s: float) -> Sounder:
        """Connections for its probes. `timeout_s`: for each probe and check."""
