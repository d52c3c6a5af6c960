"""What the end of an Execute call means, for statuses that no agent of grpcio makes by itself (DLV-4)."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from reach.errors import AgentError, ErrorClass, Reason, Unavailable
from reach.transports.executions import Execution
from reach.transports.grpc_endpoint import fault_of_end
from reach.transports.seam import Failed
from reach.wire.status import status_of
from tests.rpc.peers import pb


def ended(code: grpc.StatusCode, details: str = "", trailing=()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_code_has_a_meaning_and_keeps_what_was_said(code):
    fault = fault_of_end(ended(code, "said \x1b[31mso"))
    assert "said" in fault.message
    assert "\x1b" not in fault.message
    assert fault.metadata == {"grpc_code": code.name}
    assert fault.error_class in ErrorClass


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN])
def test_a_call_that_was_reset_is_tried_elsewhere_and_is_no_crash(code):
    fault = fault_of_end(ended(code, "Received RST_STREAM with error code 2"))
    assert (fault.error_class, fault.reason) == (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE)


@pytest.mark.parametrize(
    "error",
    [
        AgentError("no such order", order="7"),
        AgentError("not for you", Reason.AGENT_REJECTED),
        Unavailable("come back", retry_after_ms=1_500),
    ],
)
def test_our_error_details_say_more_than_the_code(error):
    status = status_of(error)
    fault = fault_of_end(ended(status.code, status.details, status.trailing_metadata))
    assert (fault.error_class, fault.reason, fault.message) == (error.error_class, error.reason, error.message)
    assert fault.retry_after_ms == error.retry_after_ms


def test_an_oversize_message_is_told_from_a_full_agent():
    too_large = fault_of_end(ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)"))
    full = fault_of_end(ended(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full"))
    assert (too_large.reason, full.reason) == (Reason.RESULT_TOO_LARGE, Reason.AGENT_BUSY)
    assert too_large.error_class is ErrorClass.INVALID_REQUEST


def test_a_long_text_is_cut():
    assert len(fault_of_end(ended(grpc.StatusCode.INTERNAL, "x" * 100_000)).message) < 1_200


class Line:
    """A link, and the call under it, that count what is said."""

    def __init__(self) -> None:
        self.instance = object()
        self.calls: list[str] = []
        self.cancelled: list[tuple[str, str, int]] = []
        self.forgotten: list[Execution] = []
        self.posted: list[Any] = []

    def execute(self) -> Line:
        self.calls.append("called")
        return self

    async def read(self) -> None:
        """It says nothing."""

    def cancel(self) -> None:
        """The call is over."""

    def cancel_there(self, name: tuple[str, str, int]) -> None:
        self.cancelled.append(name)

    def forget(self, execution: Execution) -> None:
        self.forgotten.append(execution)

    def post(self, event: Any) -> None:
        self.posted.append(event)


@pytest.mark.parametrize("act", [Execution.stop, Execution.abandon])
async def test_DLV_11_an_attempt_that_is_given_up_before_its_call_began_is_not_called(act):
    """Found by the simulation, seed 3008159: the offer and the end of its task left in the same turn of the loop."""
    line: Any = Line()
    execution = Execution(line, "acme", "t", 1, 0)
    act(execution)
    await execution.run(line.execute)
    assert (line.calls, line.cancelled, line.forgotten) == ([], [], [execution])
    told = [(event.begun, event.fault.reason) for event in line.posted]
    assert told == ([(False, Reason.CANCELLED)] if act is Execution.stop else [])


async def test_DLV_11_an_attempt_that_is_joined_and_stopped_at_once_is_told_to_stop():
    line: Any = Line()
    execution = Execution(line, "acme", "t", 1, 0)
    execution.heard = True
    execution.stop()
    await execution.run(line.execute)
    assert (line.calls, line.cancelled) == (["called"], [("acme", "t", 1)])
    assert [(event.begun, event.fault.reason) for event in line.posted] == [(True, Reason.CANCELLED)]


async def test_DLV_11_what_comes_after_the_word_to_stop_is_no_outcome():
    line: Any = Line()
    execution = Execution(line, "acme", "t", 1, 0)
    frames = [pb.ExecuteResponse(accept={}), pb.ExecuteResponse(result={"output": {"text": "x"}})]

    async def read() -> Any:
        if len(frames) == 1:
            execution.stop()
        return frames.pop(0) if frames else None

    line.read = read
    line.unkept = set()
    line.payload_limit = 1_000
    await execution.run(line.execute)
    _, end = line.posted
    assert (end.fault.reason, line.cancelled) == (Reason.CANCELLED, [("acme", "t", 1)])
    assert (line.unkept, execution.over) == (set(), True)


async def test_HLT_6_who_refuses_is_lost_before_what_it_refused_is_given_back():
    line: Any = Line()
    said: list[Any] = []
    line.lost, line.post = said.append, lambda event: said.append(event.released)

    async def read() -> None:
        raise Failed(None, lost="connection refused", unbegun=True)

    line.read = read
    await Execution(line, "acme", "t", 1, 0).run(line.execute)
    assert said == ["connection refused", "it was not delivered: connection refused"], "else it is given to it again"
