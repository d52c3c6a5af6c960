"""What happens to every call around its servicer: credentials, scopes, room, errors and traces; real connections."""

import asyncio
import logging
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc.aio import Metadata
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from agentreach.v1 import dispatch_pb2, heartbeat_pb2
from reach.errors import AgentError, InvalidRequest, Reason, Timeout, Unavailable
from reach.rpc import access
from reach.rpc.access import TABLE, Admission
from reach.rpc.interceptors import Interceptor
from reach.rpc.principal import (
    KeyAuthentication,
    NoAuthentication,
    Principal,
    credentials_ended,
    principal_of,
)
from reach.store import key_rules
from reach.store.keys import SqliteKeyStore
from reach.telemetry import tracing
from reach.telemetry.tracing import Tracing
from reach.wire.status import TABLE as CODES
from reach.wire.status import error_from_rpc
from tests import contract_text
from tests.rpc.acting import acting_as

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-00"
DISPATCH = "/agentreach.v1.DispatchService/Dispatch"
RUN = "/agentreach.v1.DispatchService/Run"
DISPATCH_STREAM = "/agentreach.v1.DispatchService/DispatchStream"
HEARTBEAT = "/agentreach.v1.HeartbeatService/Heartbeat"
REPORT_STREAM = "/agentreach.v1.ResultService/ReportResultStream"

METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for service in contract_text.services()
    if service.name != "AgentEndpointService"  # served by agents
    for method in service.methods
}


class Fleet:
    """Servicers for all methods of the contract, which do what a test wants."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Principal, str]] = []
        self.raising: BaseException | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.open = 0
        self.closed = 0

    async def act(self, name, context):
        self.seen.append((name, principal_of(context), tracing.current_trace_id()))
        self.open += 1
        try:
            await self.hold.wait()
            if self.raising is not None:
                raise self.raising
        finally:
            self.open -= 1
            self.closed += 1

    def handler(self, name: str, method: MethodDescriptor) -> grpc.RpcMethodHandler:
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

        async def unary_unary(message, context):
            await self.act(name, context)
            return response()

        async def unary_stream(message, context):
            yield response()
            await self.act(name, context)
            yield response()

        async def stream_unary(messages, context):
            async for _ in messages:
                pass
            await self.act(name, context)
            return response()

        async def stream_stream(messages, context):
            """The other style: a coroutine that writes."""
            async for _ in messages:
                await context.write(response())
            await self.act(name, context)

        kinds = {
            (False, False): (grpc.unary_unary_rpc_method_handler, unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, stream_stream),
        }
        make, behaviour = kinds[method.client_streaming, method.server_streaming]
        return make(behaviour, request.FromString, response.SerializeToString)

    def add_to(self, server) -> None:
        for service in contract_text.services():
            handlers = {
                method.name: self.handler(f"/{service.full_name}/{method.name}", method) for method in service.methods
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


class Server:
    """A running server and a channel to it."""

    def __init__(self, fleet: Fleet, interceptor: Interceptor, channel: grpc.aio.Channel, calls: list) -> None:
        self.fleet = fleet
        self.interceptor = interceptor
        self.channel = channel
        self.calls = calls

    def call(self, path: str, *metadata: tuple[str, str], raw: bytes = b"", requests: int = 1):
        """The call object of any method, with empty or raw messages."""
        method = METHODS[path]

        async def several():
            for _ in range(requests):
                yield raw

        kind = ("stream" if method.client_streaming else "unary") + "_" + (
            "stream" if method.server_streaming else "unary"
        )  # fmt: skip
        make = getattr(self.channel, kind)
        request = several() if method.client_streaming else raw
        return make(path, request_serializer=bytes, response_deserializer=bytes)(request, metadata=metadata)

    async def end(self, path: str, *metadata: tuple[str, str], raw: bytes = b""):
        """Makes a call to its end, whatever that is; the call object."""
        while True:
            call = self.call(path, *metadata, raw=raw)
            with suppress(grpc.aio.AioRpcError):
                await read(call)
            if await call.details() != "Internal error from Core":
                return call
            self.calls.clear()  # the client lost the status, see error_from_rpc; so once more

    async def finish(self, path: str, *metadata: tuple[str, str], raw: bytes = b"") -> tuple[str, Any]:
        """Makes a call to its end: the code, and the error that a client would raise."""
        call = await self.end(path, *metadata, raw=raw)
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return "OK", None
        trailing = await call.trailing_metadata()
        return code.name, error_from_rpc(grpc.aio.AioRpcError(code, Metadata(), trailing, await call.details()))


async def read(call) -> None:
    """Reads a call of any kind to its end."""
    if hasattr(call, "__aiter__"):
        async for _ in call:
            pass
    else:
        await call


LIMITS = dict.fromkeys(Admission, 100)


@asynccontextmanager
async def serving(authenticator=None, limits=None, tracing=None, credentials=None, channel_credentials=None):
    calls: list[tuple[str, str]] = []
    interceptor = Interceptor(
        authenticator or NoAuthentication(),
        tracing or Tracing(),
        limits or LIMITS,
        lambda method, code: calls.append((method, code)),
    )
    server = grpc.aio.server(interceptors=(interceptor,), options=[("grpc.so_reuseport", 0)])
    fleet = Fleet()
    fleet.add_to(server)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    reflection.enable_server_reflection(["agentreach.v1.DispatchService"], server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    address = f"127.0.0.1:{port}"
    channel = (
        grpc.aio.insecure_channel(address)
        if channel_credentials is None
        else grpc.aio.secure_channel(address, channel_credentials)
    )
    try:
        async with channel:
            yield Server(fleet, interceptor, channel, calls)
    finally:
        fleet.hold.set()
        await server.stop(None)


class Keys:
    """API keys of a test: one for each set of scopes."""

    def __init__(self, folder) -> None:
        self.store = SqliteKeyStore(folder)

    def token(self, *scopes: str, tenant: str = "acme") -> str:
        return self.store.create(tenant, "billing", scopes)[1]

    def header(self, *scopes: str) -> tuple[str, str]:
        return ("authorization", f"Bearer {self.token(*scopes)}")


@pytest.fixture
def keys(tmp_path):
    made = Keys(tmp_path)
    with closing(made.store):
        yield made


async def until(condition, timeout: float = 5.0) -> None:
    """Waits for what another task does; there is nothing to wait on."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


# -- the table --------------------------------------------------------------------------------------------------------


def test_every_method_of_the_contract_is_in_the_table_and_back():
    ours = {path for path in TABLE if path.startswith("/agentreach.")}
    assert ours == set(METHODS)


def test_the_standard_services_that_are_served_are_in_the_table():
    for module in (health_pb2, reflection_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"/{service.full_name}/{method.name}" in TABLE


def test_scopes_are_the_same_everywhere():
    assert access.SCOPES == key_rules.SCOPES
    assert {scope for row in TABLE.values() for scope in row.scopes} == access.SCOPES
    assert {path for path, row in TABLE.items() if not row.scopes} == {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
    }


@pytest.mark.parametrize("path", METHODS)
def test_a11_calls_that_stay_open_are_streams_unless_they_keep_agents_alive(path):
    method, row = METHODS[path], TABLE[path]
    streams = method.server_streaming or method.client_streaming
    waits = method.name == "WaitForResult"
    assert (row.admission is Admission.STREAMS) == ((streams or waits) and method.name != "StreamHeartbeats")
    if row.scopes == {"agent"} and not streams:
        assert row.admission is Admission.CONTROL


# -- who may what -----------------------------------------------------------------------------------------------------


async def test_gov_2_every_method_is_closed_without_the_right_credentials(keys):
    """Default deny, walked: no credentials, wrong ones, every single scope."""
    each = {scope: keys.header(scope) for scope in sorted(access.SCOPES)}
    revoked = keys.token(*access.SCOPES)
    keys.store.revoke(revoked.split("_")[1])
    wrong = [
        [],
        [("authorization", "")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer nonsense")],
        [("authorization", "Basic YTpi")],
        [("authorization", keys.token(*access.SCOPES))],
        [("authorization", f"Bearer {revoked}")],
        [("authorization", "Bearer " + "x" * 5000)],
        [("x-api-key", keys.token(*access.SCOPES))],
    ]
    async with serving(KeyAuthentication(keys.store)) as server:
        for path in METHODS:
            for metadata in wrong:
                code, error = await server.finish(path, *metadata)
                assert (path, code, error.reason) == (path, "UNAUTHENTICATED", Reason.UNAUTHENTICATED)
            for scope, header in each.items():
                code, error = await server.finish(path, header)
                if scope in TABLE[path].scopes:
                    assert (path, scope, code) == (path, scope, "OK")
                else:
                    assert (path, scope, code) == (path, scope, "PERMISSION_DENIED")
                    assert error.reason is Reason.PERMISSION_DENIED
        assert {path for path, _, _ in server.fleet.seen} == set(METHODS)
        assert {(who.tenant, who.app_id) for _, who, _ in server.fleet.seen} == {("acme", "billing")}
        await until(lambda: set(server.interceptor.open_calls().values()) == {0})


async def test_the_servicer_knows_who_calls(keys):
    key, token = keys.store.create("acme", "billing", ["caller", "reader"])
    async with serving(KeyAuthentication(keys.store)) as server:
        await server.finish(DISPATCH, ("authorization", f"bearer {token}"))
        ((_, principal, _),) = server.fleet.seen
        assert (principal.tenant, principal.app_id, principal.key_id) == ("acme", "billing", key.key_id)
        assert principal.scopes == frozenset({"caller", "reader"})
        assert token not in repr(principal)


async def test_without_authentication_everybody_is_the_local_principal():
    async with serving() as server:
        for path in METHODS:
            assert (path, *await server.finish(path, ("authorization", "Bearer whatever"))) == (path, "OK", None)
        assert {(who.tenant, who.app_id, who.key_id) for _, who, _ in server.fleet.seen} == {("default", "local", "")}
        assert server.fleet.seen[0][1].scopes == access.SCOPES
        assert server.fleet.seen[0][1].still_valid()


async def test_a_key_that_ends_is_noticed_by_calls_that_are_open(keys):
    key, token = keys.store.create("acme", "billing", ["caller"])
    async with serving(KeyAuthentication(keys.store)) as server:
        server.fleet.hold.clear()
        call = server.call(RUN, ("authorization", f"Bearer {token}"))
        await until(lambda: server.fleet.seen)
        principal = server.fleet.seen[0][1]
        assert principal.still_valid()
        keys.store.revoke(key.key_id)
        assert not principal.still_valid()
        server.fleet.raising = credentials_ended()
        server.fleet.hold.set()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read(call)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_method_that_is_served_but_not_in_the_table_is_open_to_nobody(monkeypatch):
    monkeypatch.delitem(TABLE, DISPATCH)
    async with serving() as server:
        code, error = await server.finish(DISPATCH)
        assert (code, error.reason) == ("PERMISSION_DENIED", Reason.PERMISSION_DENIED)
        assert server.fleet.seen == []


@pytest.mark.parametrize("path", ["/x/y", "/agentreach.v1.DispatchService/Nothing", "/agentreach.v1.Nothing/Dispatch"])
async def test_a_method_that_nobody_knows_is_not_implemented_and_not_remembered(path):
    async with serving() as server:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await server.channel.unary_unary(path, request_serializer=bytes)(b"")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert error_from_rpc(raised.value).reason is Reason.NOT_IMPLEMENTED
        assert server.interceptor._handlers == {}
        assert server.calls == []


async def reflect(channel, *metadata):
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")

    async def requests():
        yield request

    return [answer async for answer in stub.ServerReflectionInfo(requests(), metadata=metadata)]


async def test_g9_reflection_needs_an_operator_where_there_is_authentication(keys):
    async with serving(KeyAuthentication(keys.store)) as server:
        for metadata, code in (((), "UNAUTHENTICATED"), ((keys.header("caller"),), "PERMISSION_DENIED")):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await reflect(server.channel, *metadata)
            assert raised.value.code().name == code
        (answer,) = await reflect(server.channel, keys.header("operator"))
        assert answer.list_services_response.service
    async with serving() as server:
        assert len(await reflect(server.channel)) == 1


async def test_health_is_open_and_says_nothing_else(keys):
    async with serving(KeyAuthentication(keys.store)) as server:
        stub: Any = health_pb2_grpc.HealthStub(server.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer == health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Check(health_pb2.HealthCheckRequest(service="nothing"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        # That servicer ends the call itself, so it is counted when the client may know of it already.
        await until(lambda: ("Health/Check", "NOT_FOUND") in server.calls)


def test_servicers_can_be_called_without_a_server():
    context: Any = None
    principal = Principal("acme", "test", frozenset({"caller"}))
    with acting_as(principal):
        assert principal_of(context) is principal
    with pytest.raises(LookupError):
        principal_of(context)


# -- room -------------------------------------------------------------------------------------------------------------


async def test_a11_one_stream_too_many_is_refused_until_another_one_ends():
    async with serving(limits=LIMITS | {Admission.STREAMS: 10}) as server:
        server.fleet.hold.clear()
        opened = [server.call(RUN) for _ in range(10)]
        for call in opened:
            await call.read()
        assert server.interceptor.open_calls() == {"control": 0, "streams": 10, "submits": 0, "peers": 0}
        code, error = await server.finish(RUN)
        assert (code, error.reason, error.retryable) == ("RESOURCE_EXHAUSTED", Reason.TOO_MANY_STREAMS, True)
        assert error.retry_after_ms == 1000
        opened[0].cancel()
        await until(lambda: server.interceptor.open_calls()["streams"] == 9)
        server.fleet.hold.set()
        assert (await server.finish(RUN))[0] == "OK"


async def test_a11_beats_health_and_submits_answer_while_streams_are_full():
    async with serving(limits=LIMITS | {Admission.STREAMS: 10}) as server:
        server.fleet.hold.clear()
        opened = [server.call(path) for path in (RUN, DISPATCH_STREAM) * 5]
        await until(lambda: server.fleet.open == len(opened))
        holding, server.fleet.hold = server.fleet.hold, asyncio.Event()
        server.fleet.hold.set()
        async with asyncio.timeout(5):
            assert (await server.finish(HEARTBEAT))[0] == "OK"
            assert (await server.finish(DISPATCH))[0] == "OK"
            stub: Any = health_pb2_grpc.HealthStub(server.channel)
            await stub.Check(health_pb2.HealthCheckRequest())
        assert (await server.finish(RUN))[0] == "RESOURCE_EXHAUSTED"
        holding.set()


async def test_a_class_that_is_full_refuses_only_itself():
    async with serving(limits=dict.fromkeys(Admission, 0) | {Admission.CONTROL: 1}) as server:
        assert (await server.finish(HEARTBEAT))[0] == "OK"
        assert (await server.finish(DISPATCH))[0] == "RESOURCE_EXHAUSTED"
        assert (await server.finish(DISPATCH_STREAM))[0] == "RESOURCE_EXHAUSTED"


async def test_refusals_and_failures_give_their_place_back():
    async with serving(limits=LIMITS | {Admission.SUBMITS: 1}) as server:
        server.fleet.raising = Unavailable("no")
        for _ in range(5):
            assert (await server.finish(DISPATCH))[0] == "UNAVAILABLE"
            assert (await server.finish(DISPATCH, raw=b"\xff"))[0] == "INVALID_ARGUMENT"
        server.fleet.raising = None
        assert (await server.finish(DISPATCH))[0] == "OK"


# -- errors -----------------------------------------------------------------------------------------------------------

EACH_KIND = [DISPATCH, RUN, REPORT_STREAM, DISPATCH_STREAM]


@pytest.mark.parametrize("path", EACH_KIND)
@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("bad", field="x"),
        Unavailable("down", Reason.SHUTTING_DOWN, retry_after_ms=70),
        Timeout("late", Reason.WAIT_EXPIRED),
        AgentError("cannot"),
    ],
)
async def test_an_error_of_ours_arrives_as_itself(path, error):
    async with serving() as server:
        server.fleet.raising = error
        code, got = await server.finish(path)
        assert code == CODES[error.reason].code.name
        assert (type(got), got.reason, got.message, got.metadata) == (
            type(error),
            error.reason,
            error.message,
            error.metadata,
        )
        if error.retry_after_ms is not None:
            assert got.retry_after_ms == error.retry_after_ms
        assert server.calls == [(path.rpartition(".")[2], code)]


@pytest.mark.parametrize("path", EACH_KIND)
async def test_an_error_of_ours_in_a_task_group_is_found(path):
    async with serving() as server:
        inner = ExceptionGroup("inner", [ValueError("x"), InvalidRequest("bad", Reason.UNEXPECTED_FRAME)])
        server.fleet.raising = ExceptionGroup("outer", [inner])
        assert (await server.finish(path))[1].reason is Reason.UNEXPECTED_FRAME


@pytest.mark.parametrize("path", EACH_KIND)
@pytest.mark.parametrize("group", [False, True])
async def test_what_nobody_expected_is_logged_once_and_told_by_its_id_only(path, group, caplog):
    canary = "C4N4RY in a payload"
    async with serving() as server:
        failure: Exception = KeyError(canary)
        server.fleet.raising = ExceptionGroup("g", [failure]) if group else failure
        with caplog.at_level(logging.DEBUG):
            code, error = await server.finish(path)
        assert (code, error.reason) == ("INTERNAL", Reason.INTERNAL_FAULT)
        (record,) = [item for item in caplog.records if item.levelno >= logging.WARNING]
        error_id = error.metadata["error_id"]
        assert record.error_id == error_id
        assert error_id in error.message
        assert (record.error, record.method) == ("KeyError", path.rpartition(".")[2])
        assert record.frames[-1].endswith(" act")
        assert "test_interceptors.py" in record.frames[-1]
        assert canary not in str([vars(item) for item in caplog.records])
        assert canary not in error.message


async def test_a_servicer_that_aborts_by_itself_is_left_alone():
    async with serving() as server:

        async def aborting(request, context):
            await context.abort(grpc.StatusCode.ABORTED, "by hand")

        handler: grpc.RpcMethodHandler = grpc.unary_unary_rpc_method_handler(aborting)
        server.interceptor._handlers[DISPATCH] = server.interceptor._wrapped("X/Y", TABLE[DISPATCH], handler)
        assert (await server.finish(DISPATCH))[0] == "ABORTED"
        await until(lambda: server.calls == [("X/Y", "ABORTED")])


async def test_bytes_that_do_not_decode_are_the_clients_fault_on_every_method(caplog):
    async with serving() as server:
        for path in METHODS:
            for raw in (b"\xff\xff\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe"):
                code, error = await server.finish(path, raw=raw)
                if code != "OK":  # a short field may be an unknown one, which is fine
                    assert (path, code, error.reason) == (path, "INVALID_ARGUMENT", Reason.MALFORMED_MESSAGE)
            assert (await server.finish(path, raw=b"\xff\xff\xff"))[0] == "INVALID_ARGUMENT"
        assert server.fleet.open == 0
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_text_that_is_not_utf8_is_the_clients_fault():
    raw = dispatch_pb2.GetTaskRequest(task_id="xx").SerializeToString().replace(b"xx", b"\xff\xfe")
    async with serving() as server:
        code, error = await server.finish("/agentreach.v1.DispatchService/GetTask", raw=raw)
        assert (code, error.reason) == ("INVALID_ARGUMENT", Reason.MALFORMED_MESSAGE)


async def test_a_servicer_that_would_block_the_loop_is_refused_at_once():
    async with serving() as server:
        handler: grpc.RpcMethodHandler = grpc.unary_unary_rpc_method_handler(lambda request, context: empty_pb2.Empty())
        with pytest.raises(TypeError, match="coroutine"):
            server.interceptor._wrapped("X/Y", TABLE[DISPATCH], handler)


@pytest.mark.parametrize("path", EACH_KIND)
async def test_a17_a_client_that_leaves_ends_its_servicer(path):
    async with serving() as server:
        server.fleet.hold.clear()
        call = server.call(path)
        await until(lambda: server.fleet.open == 1)
        call.cancel()
        await until(lambda: server.fleet.open == 0)
        await until(lambda: (path.rpartition(".")[2], "CANCELLED") in server.calls)
        assert set(server.interceptor.open_calls().values()) == {0}


async def test_a17_a_generator_is_closed_when_its_reader_leaves_in_the_middle_of_a_write():
    closed = asyncio.Event()

    async def endless(request, context):
        try:
            while True:
                yield b"x" * 100_000
        finally:
            closed.set()

    async with serving() as server:
        handler: grpc.RpcMethodHandler = grpc.unary_stream_rpc_method_handler(endless)
        server.interceptor._handlers[RUN] = server.interceptor._wrapped("X/Y", TABLE[RUN], handler)
        call = server.call(RUN)
        await call.read()
        call.cancel()
        async with asyncio.timeout(1):
            await closed.wait()


# -- traces -----------------------------------------------------------------------------------------------------------


def sent_back(metadata) -> list[str]:
    return [str(value) for key, value in metadata if key == "x-trace-id"]


@pytest.mark.parametrize("path", EACH_KIND)
async def test_obs_1_the_trace_id_comes_back(path):
    async with serving() as server:
        call = server.call(path, ("traceparent", TRACEPARENT))
        await read(call)
        streams = METHODS[path].server_streaming
        assert sent_back(await (call.initial_metadata() if streams else call.trailing_metadata())) == [TRACE]
        assert server.fleet.seen[0][2] == TRACE


@pytest.mark.parametrize("header", [None, "nonsense", "00-" + "0" * 32 + "-00f067aa0ba902b7-01"])
async def test_obs_1_a_call_without_a_trace_begins_one(header):
    async with serving() as server:
        metadata = [("traceparent", header)] if header else []
        calls = [server.call(DISPATCH, *metadata) for _ in range(3)]
        await asyncio.gather(*calls)
        ids = [sent_back(await call.trailing_metadata())[0] for call in calls]
        assert len({*ids, TRACE}) == 4
        assert sorted(trace for _, _, trace in server.fleet.seen) == sorted(ids)


@pytest.mark.parametrize("path", EACH_KIND)
async def test_obs_1_a_refusal_has_a_trace_id_too(path, keys):
    async with serving(KeyAuthentication(keys.store)) as server:
        call = await server.end(path, ("traceparent", TRACEPARENT))
        assert sent_back(await call.trailing_metadata()) == [TRACE]


async def test_obs_2_calls_are_counted_by_method_and_code():
    async with serving() as server:
        await server.finish(DISPATCH)
        await server.finish(HEARTBEAT, raw=b"\xff")
        await server.finish(RUN)
        assert server.calls == [
            ("DispatchService/Dispatch", "OK"),
            ("HeartbeatService/Heartbeat", "INVALID_ARGUMENT"),
            ("DispatchService/Run", "OK"),
        ]


async def test_the_typed_stub_works_through_it():
    async with serving() as server:
        call = server.channel.unary_unary(
            HEARTBEAT,
            request_serializer=heartbeat_pb2.HeartbeatRequest.SerializeToString,
            response_deserializer=heartbeat_pb2.HeartbeatResponse.FromString,
        )
        assert await call(heartbeat_pb2.HeartbeatRequest()) == heartbeat_pb2.HeartbeatResponse()
