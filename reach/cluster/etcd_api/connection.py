"""How etcd is reached: one channel per endpoint, rotated by us, because gRPC's round robin keeps hitting a frozen
member.

Three ends of a call are told apart. *Done*: it returns. *Surely not done*: it was not sent, or etcd said so; the next
endpoint is
tried. *Unknown*: sent and not answered; reads go on to the next endpoint, a write raises
ClusterUnavailable(unknown=True).

No keepalive pings: more than one in 5 s gets GOAWAY from etcd. A frozen member is noticed by deadlines of calls and
of streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from agentreach.internal.etcd.v3 import etcd_pb2 as pb
from reach.cancelling import cancellations, heed_cancellation
from reach.cluster.base import ClusterRefused, ClusterUnavailable

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

TRY_S = 1.0
"""For one endpoint's answer: an election in etcd takes about this long."""
CALL_S = 5.0
"""For all endpoints together."""
BETWEEN_S = 0.05
"""Between rounds through all endpoints."""
LARGEST_ANSWER = 64 << 20
_OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_CODE = grpc.StatusCode
_NOT_DONE = (
    "failed to connect to all addresses",
    "etcdserver: no leader",
    "etcdserver: not leader",
    "etcdserver: too many requests",
    "etcdserver: server stopped",
)
"""Texts under UNAVAILABLE and RESOURCE_EXHAUSTED that say so; all others of these codes mean *unknown*."""
_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")
_REFUSED = {
    _CODE.PERMISSION_DENIED,
    _CODE.UNAUTHENTICATED,
    _CODE.INVALID_ARGUMENT,
    _CODE.RESOURCE_EXHAUSTED,
    _CODE.FAILED_PRECONDITION,
    _CODE.UNIMPLEMENTED,
}


class Access(NamedTuple):
    """Where etcd is and how to get in."""

    endpoints: Sequence[str]
    """host:port of each member."""
    user: str = ""
    password: str = ""
    ca: bytes | None = None
    """PEM; giving it, or a certificate, means TLS."""
    certificate: bytes | None = None
    key: bytes | None = None
    server_name: str = ""
    """Expected name in the members' certificates, where it is not their host."""

    @property
    def tls(self) -> bool:
        """TLS is used."""
        return self.ca is not None or self.certificate is not None


class Answered(Exception):
    """etcd answered with an error that the caller of `call` knows how to read."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


class Connection:
    """All endpoints of one etcd."""

    def __init__(self, access: Access) -> None:
        if not access.endpoints:
            raise ValueError("etcd needs at least one endpoint")
        self._access = access
        self._channels = [_channel(access, endpoint) for endpoint in access.endpoints]
        self._at = 0
        self._token = ""
        self._token_lock = asyncio.Lock()

    async def close(self) -> None:
        """Ends all calls."""
        for channel in self._channels:
            await channel.close(None)

    @property
    def endpoint(self) -> str:
        """The one that is used now."""
        return self._access.endpoints[self._at]

    def rotate(self, at: int | None = None) -> None:
        """Uses the next endpoint from now on, unless somebody has left the one at `at` already."""
        if at is None or at == self._at:
            self._at = (self._at + 1) % len(self._channels)

    @property
    def at(self) -> int:
        """Number of the endpoint that is used now."""
        return self._at

    async def call(
        self,
        path: str,
        request: Message,
        answer: type[A],
        *,
        read: bool = False,
        try_s: float = TRY_S,
        call_s: float = CALL_S,
    ) -> A:
        """One unary call. Raises ClusterUnavailable, ClusterRefused, Answered (NOT_FOUND and OUT_OF_RANGE)."""
        end = time.monotonic() + call_s
        authenticated = False
        tries = 0
        before = cancellations()
        while True:
            at = self._at
            left = max(0.01, min(try_s, end - time.monotonic()))
            try:
                if self._access.user and not self._token:
                    await self._authenticate(left)
                method = self._channels[at].unary_unary(
                    path, request_serializer=_bytes_of, response_deserializer=answer.FromString
                )
                return await method(request, timeout=left, metadata=self._metadata())
            except grpc.aio.AioRpcError as error:
                heed_cancellation(before)
                code, details = error.code(), error.details() or ""
                if not authenticated and self._access.user and any(text in details for text in _TOKEN):
                    authenticated = True
                    self._token = ""
                    continue
                unknown = _judge(code, details)
                self.rotate(at)
                if (unknown and not read) or time.monotonic() >= end:
                    raise ClusterUnavailable(
                        f"etcd at {self._access.endpoints[at]}: {details}", unknown=unknown
                    ) from error
            tries += 1
            if tries % len(self._channels) == 0:
                await asyncio.sleep(BETWEEN_S)

    async def _authenticate(self, timeout: float) -> None:
        async with self._token_lock:
            if self._token:
                return
            request = pb.AuthenticateRequest(name=self._access.user, password=self._access.password)
            method = self._channels[self._at].unary_unary(
                "/etcdserverpb.Auth/Authenticate",
                request_serializer=_bytes_of,
                response_deserializer=pb.AuthenticateResponse.FromString,
            )
            try:
                self._token = (await method(request, timeout=timeout)).token
            except grpc.aio.AioRpcError as error:
                details = error.details() or ""
                if "authentication is not enabled" in details:
                    raise ClusterRefused("etcd has no authentication, but a user is configured") from error
                if error.code() is _CODE.INVALID_ARGUMENT:
                    raise ClusterRefused(f"etcd refuses the user: {details}") from error
                raise

    def _metadata(self) -> list[tuple[str, str]]:
        # With hasleader a member that was cut off from the others ends our streams instead of saying nothing.
        metadata = [("hasleader", "true")]
        return [*metadata, ("token", self._token)] if self._token else metadata

    async def open(self, path: str, request: type[Q], answer: type[A], timeout: float = TRY_S) -> Stream[Q, A]:
        """A stream to the endpoint that is used now."""
        if self._access.user and not self._token:
            try:
                await self._authenticate(timeout)
            except grpc.aio.AioRpcError as error:
                self.rotate()
                raise ClusterUnavailable(f"etcd: {error.details()}") from error
        method: grpc.aio.StreamStreamMultiCallable[Q, A] = self._channels[self._at].stream_stream(
            path, request_serializer=_bytes_of, response_deserializer=answer.FromString
        )
        return Stream(self, self._at, method(metadata=self._metadata()))

    def forget_token(self) -> None:
        """It was refused: the next call asks for another."""
        self._token = ""


class Stream(Generic[Q, A]):
    """One bidirectional stream.

    Every failure is ClusterUnavailable and turns to the next endpoint. Close it in `finally`.
    """

    def __init__(self, connection: Connection, at: int, call: grpc.aio.StreamStreamCall[Q, A]) -> None:
        self._connection = connection
        self._at = at
        self._call = call
        self._reading: asyncio.Future[A] | None = None

    async def send(self, request: Q, timeout: float) -> None:
        """Also waits for the connection; a member that is frozen never makes one."""
        before = cancellations()
        try:
            async with asyncio.timeout(timeout):
                await self._call.write(request)
        except (grpc.RpcError, TimeoutError, asyncio.InvalidStateError) as error:
            heed_cancellation(before)
            raise self._broken(error) from error

    async def receive(self, timeout: float) -> A | None:
        """The next answer; None if there is none in time: it can be asked again.

        A read is never cancelled, it would end the call.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())  # type: ignore[arg-type]
        done, _ = await asyncio.wait({self._reading}, timeout=timeout)
        if not done:
            return None
        reading, self._reading = self._reading, None
        try:
            answer = reading.result()
        except (grpc.RpcError, asyncio.CancelledError) as error:
            raise self._broken(error) from error
        if not isinstance(answer, Message):  # grpc.aio.EOF
            raise self._broken(None)
        return answer

    def left(self, text: str = "no answer in time") -> ClusterUnavailable:
        """Turns to the next endpoint; the error to raise."""
        return self._broken(None, text)

    def _broken(self, error: BaseException | None, text: str = "the stream ended") -> ClusterUnavailable:
        self._connection.rotate(self._at)
        if isinstance(error, grpc.aio.AioRpcError):
            text = error.details() or text
            if any(known in text for known in _TOKEN):
                self._connection.forget_token()
        return ClusterUnavailable(f"etcd: {text}", unknown=True)

    async def close(self) -> None:
        """Ends the call."""
        self._call.cancel()
        if self._reading is not None:
            reading, self._reading = self._reading, None
            await asyncio.wait({reading})
            with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                reading.result()


def _channel(access: Access, endpoint: str) -> grpc.aio.Channel:
    options = [*_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    if not access.tls:
        return grpc.aio.insecure_channel(endpoint, options=options)
    if access.server_name:
        options.append(("grpc.ssl_target_name_override", access.server_name))  # type: ignore[arg-type]
    credentials = grpc.ssl_channel_credentials(access.ca, access.key, access.certificate)
    return grpc.aio.secure_channel(endpoint, credentials, options=options)


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()


def _judge(code: grpc.StatusCode, details: str) -> bool:
    """Whether it may have been done all the same. Raises where trying elsewhere is of no use."""
    if code in (_CODE.NOT_FOUND, _CODE.OUT_OF_RANGE):
        raise Answered(code, details)
    if any(text in details for text in _NOT_DONE):
        return False
    if code in _REFUSED:
        raise ClusterRefused(f"etcd: {details}")
    return True
