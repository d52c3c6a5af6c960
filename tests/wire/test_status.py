"""The table from reason to gRPC code, and the two shapes in which errors travel."""

import re
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreach.v1 import error_pb2
from reach.errors import (
    AgentError,
    ErrorClass,
    Internal,
    InvalidRequest,
    ReachError,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from reach.wire import status

PROTO = Path(__file__).parents[2] / "protos" / "agentreach" / "v1" / "error.proto"
VALUE = re.compile(r"((?:^ *//.*\n)+) *ERROR_REASON_(\w+) = (\d+);", re.MULTILINE)
# The contract says of these that the task ends so and no call fails.
NO_CODE_IN_THE_CONTRACT = {"AGENT_FAILED", "AGENT_REJECTED"}


def comments() -> dict[str, str]:
    found = {
        name: " ".join(comment.replace("//", " ").split()) for comment, name, _ in VALUE.findall(PROTO.read_text())
    }
    found.pop("UNSPECIFIED")
    return found


def test_every_reason_is_in_the_table_and_in_the_contract_and_back():
    in_contract = {
        name.removeprefix("ERROR_REASON_"): number
        for name, number in error_pb2.ErrorReason.items()
        if name != "ERROR_REASON_UNSPECIFIED"
    }
    assert {reason.name: int(reason) for reason in Reason} == in_contract
    assert list(status.TABLE) == sorted(Reason)
    assert set(comments()) == set(in_contract)


def test_every_class_is_in_the_contract_and_back():
    assert {f"ERROR_CLASS_{kind.name}": int(kind) for kind in ErrorClass} | {"ERROR_CLASS_UNSPECIFIED": 0} == dict(
        error_pb2.ErrorClass.items()
    )


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_the_code_is_the_one_that_the_contract_names(reason):
    comment = comments()[reason.name]
    named = [code.name for code in grpc.StatusCode if re.search(rf"\b{code.name}\b", comment)]
    if reason.name in NO_CODE_IN_THE_CONTRACT:
        assert named == []
    else:
        assert named == [status.TABLE[reason].code.name]
    assert ("with RetryInfo" in comment) == (status.TABLE[reason].retry_after_ms is not None)


def test_what_a_client_did_wrong_is_never_unknown_or_internal():
    wrong = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
    assert [
        reason.name
        for reason, row in status.TABLE.items()
        if row.code in wrong and row.error_class is not ErrorClass.INTERNAL
    ] == []


class Call(grpc.GenericRpcHandler):
    """A server's one method, which fails with the given error."""

    def __init__(self, error: ReachError) -> None:
        self.error = error

    def service(self, handler_call_details):
        async def fail(request, context):
            await context.abort_with_status(status.status_of(self.error))

        return grpc.unary_unary_rpc_method_handler(fail)


async def through_grpc(error: ReachError) -> ReachError:
    """The error as a client gets it over a real connection."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Call(error),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary("/x/y", request_serializer=bytes)(b"")
            assert raised.value.code() is status.TABLE[error.reason].code
            return status.error_from_rpc(raised.value)
    finally:
        await server.stop(None)


async def test_an_error_comes_back_from_a_call_as_it_left():
    sent = ResourceExhausted("the queue is full", Reason.QUEUE_FULL, retry_after_ms=2500, pool="p", limit="10")
    got = await through_grpc(sent)
    assert type(got) is ResourceExhausted
    assert (got.reason, got.message, got.retry_after_ms, got.retryable) == (
        Reason.QUEUE_FULL,
        "the queue is full",
        2500,
        True,
    )
    assert got.metadata == {"pool": "p", "limit": "10"}


async def test_the_class_travels_apart_from_the_reason():
    """An agent may say UNAVAILABLE for a reason that usually is of another class."""
    got = await through_grpc(Unavailable("gone", Reason.AGENT_FAILED))
    assert type(got) is Unavailable
    assert got.reason is Reason.AGENT_FAILED


@pytest.mark.parametrize(
    "letter", ["x", "漢", "\x1b", "😀", "\ud800"], ids=["ascii", "han", "escape", "emoji", "surrogate"]
)
async def test_the_longest_error_still_arrives_as_itself(letter):
    """The C core refuses trailers over 8 KiB; the client would see RESOURCE_EXHAUSTED instead."""
    huge = letter * 100_000
    sent = InvalidRequest(huge, **{f"key_{i}_{huge[:90]}": huge for i in range(50)})
    got = await through_grpc(sent)
    assert got.reason is Reason.INVALID_FIELD
    assert len(got.message.encode()) <= status.STATUS_MESSAGE_LIMIT
    assert got.message.endswith("… [cut]")
    assert len(got.metadata) == 8


def plain(code: grpc.StatusCode, details: str = "", trailers=()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_status_without_our_details_becomes_an_error_of_its_code(code):
    error = status.error_from_rpc(plain(code, "why"))
    back = status.TABLE[error.reason].code
    assert error.message == "why"
    if code is grpc.StatusCode.ABORTED:
        assert back is grpc.StatusCode.UNAVAILABLE
    elif code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS):
        assert back is grpc.StatusCode.INTERNAL
    else:
        assert back is code


def test_a_message_over_the_limit_of_grpc_is_known_by_its_text():
    error = status.error_from_rpc(
        plain(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (5000000 vs. 4194304)")
    )
    assert error.reason is Reason.PAYLOAD_TOO_LARGE
    assert not error.retryable


def test_a_status_that_the_client_of_grpc_lost_may_be_asked_for_again():
    error = status.error_from_rpc(plain(grpc.StatusCode.INTERNAL, "Internal error from Core"))
    assert (type(error), error.retryable) == (Unavailable, True)


def test_details_of_others_and_broken_ones_are_passed_over():
    from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

    other = status_pb2.Status(code=5)
    other.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="example.org"))
    for details in (other.SerializeToString(), b"\xff\xff", b""):
        error = status.error_from_rpc(plain(grpc.StatusCode.NOT_FOUND, "no", [(status.DETAILS_KEY, details)]))
        assert error.reason is Reason.TASK_NOT_FOUND


def test_a_reason_of_a_newer_server_keeps_its_class_and_name():
    from google.rpc import error_details_pb2, status_pb2

    newer = status_pb2.Status(code=14)
    newer.details.add().Pack(
        error_details_pb2.ErrorInfo(
            reason="MOON_DOWN", domain="agentreach", metadata={"class": "UNAVAILABLE", "a": "b"}
        )
    )
    error = status.error_from_rpc(
        plain(grpc.StatusCode.UNAVAILABLE, "no moon", [(status.DETAILS_KEY, newer.SerializeToString())])
    )
    assert type(error) is Unavailable
    assert error.reason is Reason.AGENT_UNAVAILABLE
    assert error.metadata == {"a": "b", "unknown_reason": "MOON_DOWN"}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_an_error_comes_back_from_the_contract_as_it_left(reason):
    sent = Internal("text", reason, retry_after_ms=70, field="x")
    message = error_pb2.Error.FromString(status.error_to_proto(sent).SerializeToString())
    assert message.reason == error_pb2.ErrorReason.Value(f"ERROR_REASON_{reason.name}")
    got = status.error_from_proto(message)
    assert (type(got), got.reason, got.message, got.retry_after_ms, got.metadata) == (
        Internal,
        reason,
        "text",
        70,
        {"field": "x"},
    )


def test_what_a_peer_left_out_is_filled_in():
    assert type(status.error_from_proto(error_pb2.Error(reason=error_pb2.ERROR_REASON_AGENT_BUSY))) is ResourceExhausted
    assert type(status.error_from_proto(error_pb2.Error(error_class=error_pb2.ERROR_CLASS_AGENT_ERROR))) is AgentError
    assert status.error_from_proto(error_pb2.Error()).reason is Reason.INTERNAL_FAULT


def test_what_a_newer_or_hostile_peer_sends_does_no_harm():
    message = error_pb2.Error.FromString(error_pb2.Error(message="m").SerializeToString() + b"\x08\x63\x10\xe7\x07")
    for key in ("message", "reason", "self", "retry_after_ms", "error_class", "metadata"):
        message.metadata[key] = "v"
    message.retry_after.seconds = -(2**62)
    message.retry_after.nanos = -5
    error = status.error_from_proto(message)
    assert error.message == "m"
    assert error.retry_after_ms == 0
    assert error.metadata["message"] == "v"
    assert error.metadata["unknown_reason"] == "999"


@given(st.text(st.characters(categories=["Cc", "Cs", "L", "So"]), max_size=3000), st.integers(20, 2000))
def test_g3_texts_are_bounded_printable_and_utf8(text, limit):
    clean = status.bounded_text(text, limit)
    assert len(clean.encode()) <= limit
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean)
    if len(text.encode(errors="replace")) <= limit and text.isprintable():
        assert clean == text


def test_lines_stay_lines_in_messages_and_become_spaces_in_statuses():
    error = InvalidRequest("one\r\ntwo\tthree\rfour\x1b[31m")
    assert status.error_to_proto(error).message == "one\ntwo\tthree�four�[31m"
    assert status.status_of(error).details == "one two three�four�[31m"
