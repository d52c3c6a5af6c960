"""The other nodes of the cluster, as this one calls them: connections, proofs, calls; links are in `tunnel.py`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import grpc

from agentreach.internal.v1 import peer_pb2, peer_pb2_grpc
from agentreach.v1 import dispatch_pb2, task_pb2
from reach.cancelling import heed_cancellation
from reach.core.model import TaskKey
from reach.core.placement import SHARDS
from reach.errors import ReachError, Reason, ResourceExhausted
from reach.rpc import peer_version
from reach.rpc.peer_messages import Unreachable, identity_of, placing_from, pool_name, unavailable
from reach.rpc.peer_secret import KEY, PeerSecret
from reach.rpc.principal import Principal, credentials_ended
from reach.rpc.rechecking import Recheck
from reach.rpc.tunnel import UNREAD_BYTES, Tunnel
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import NOBODY, Owners, Peer
from reach.runtime.rooms import Rooms
from reach.wire.handshakes import advice
from reach.wire.peer_frames import summary_item
from reach.wire.status import error_from_rpc, is_answer

if TYPE_CHECKING:
    from reach.core.model import Task
    from reach.rpc.branches import Branches
    from reach.rpc.link_end import LinkEnd
    from reach.rpc.services import Services

log = logging.getLogger(__name__)

CALLS: Final = 800
"""Calls to one node that are open at the same time: a connection holds 1,000 streams."""
PEERS: Final = 1_000
"""Nodes whose connections are kept."""
TELL_SECONDS: Final = 0.4
"""How often nodes tell each other of the room in their pools: what one knows is at most a second old (CLU-5)."""
BRING_SECONDS: Final = 10.0
"""How long a short call may take that is a part of another one."""
DISPATCH: Final = "/agentreach.v1.DispatchService/Dispatch"
HINT_SECONDS: Final = 0.002
"""How long what goes to one node is gathered, before it is told to look."""
LOCATE_SECONDS: Final = 1.0
"""How long a node may take to say whether it has a task."""
CHANNEL: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Connection:
    """One node, and the connection to it."""

    def __init__(self, peer: Peer, channel: grpc.aio.Channel) -> None:
        self.peer = peer
        self.channel = channel
        self.stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
        self.calls = 0


class Peers:
    """See the module.

    Args:
        services: Of this node.
        owners: Who owns what.
        secret: Proves this node to the others.
        credentials: Of TLS: which authority signs the certificates of nodes, and the one of this node; None: nodes
            speak without TLS.
    """

    def __init__(
        self,
        services: Services,
        owners: Owners,
        secret: PeerSecret,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.services = services
        self.owners = owners
        self.secret = secret
        self._credentials = credentials
        self._connections: dict[Peer, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._told: set[tuple[Peer, str]] = set()
        self._tunnels: dict[Peer, Tunnel] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.branches: WeakSet[Branches] = WeakSet()
        """What streams of this node have on others, to be told when a shard moves."""
        self.rooms = Rooms(services.host)
        self._ends: set[LinkEnd] = set()
        self._hinting: set[Peer] = set()
        """Nodes that are told in a moment that something came to them."""
        self.on_broken: Callable[[Peer], None] = lambda peer: None
        """Hears of each link that breaks on which a node had answered."""
        owners.watch(self._moved)

    def connection(self, peer: Peer) -> Connection:
        """The connection to a node, made when it is first needed.

        Raises:
            Unreachable: Nobody is there, as far as we know.
        """
        if not peer.address:
            raise Unreachable("nobody owns it just now")
        found = self._connections.get(peer)
        if found is None:
            if len(self._connections) >= PEERS:
                self.forget(next(iter(self._connections.values())))
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(peer.address, options=CHANNEL)
            else:
                channel = grpc.aio.secure_channel(peer.address, self._credentials, options=CHANNEL)
            found = self._connections[peer] = Connection(peer, channel)
        return found

    def forget(self, connection: Connection) -> None:
        """Closes a connection: the next one begins anew, without what this one waits for."""
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            closing = asyncio.create_task(connection.channel.close(), name="peer-close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    # -- links --------------------------------------------------------------------------------------------------------

    def tunnel(self, peer: Peer) -> Tunnel:
        """The link to a node, made when it is first needed.

        Raises:
            Unreachable: Nobody is there, as far as we know.
        """
        found = self._tunnels.get(peer)
        if found is None:
            found = self._tunnels[peer] = Tunnel(self, self.connection(peer))
            running = asyncio.create_task(found.run(), name="link")
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        return found

    def broken(self, tunnel: Tunnel) -> None:
        """A link is no more."""
        if tunnel.answered.is_set():
            self.on_broken(tunnel.peer)
        self._tunnels.pop(tunnel.peer, None)

    async def answers(self, peer: Peer) -> bool:
        """Whether a node can be reached: there is a link to it, and it says something."""
        try:
            tunnel = self.tunnel(peer)
        except Unreachable:
            return False
        await tunnel.answered.wait()
        return not tunnel.broken and tunnel.out.queued_bytes <= UNREAD_BYTES

    def start(self) -> None:
        """Has links to all other nodes from now on, and tells those that have one to this node what room there is
        (CLU-5)."""
        informing = asyncio.create_task(self._keep_informed(), name="keep-informed")
        self._running.add(informing)
        informing.add_done_callback(self._running.discard)

    async def _keep_informed(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            try:
                self._inform()
            except Exception:
                log.exception("other nodes cannot be told of the room here")

    def _inform(self) -> None:
        others = self.owners.others()
        self.services.nodes.hear(peer.address for peer in others if peer.address)
        for peer in others:
            with contextlib.suppress(Unreachable):
                self.tunnel(peer)
        if self._ends and (item := summary_item(self.rooms.changes())):
            for end in self._ends:
                end.out.later(item)

    def tell_cancelled(self, key: TaskKey, mark: bool) -> None:
        """Tells all nodes of a task that is cancelled with all that it asked for (DLV-11)."""
        for peer in self.owners.others():
            with contextlib.suppress(Unreachable):  # it is told again, some times
                tenant, task_id = key
                self.tunnel(peer).say(trees=[{"tenant": tenant, "task_id": task_id, "mark": mark}])

    def begins(self, end: LinkEnd) -> None:
        """Another node has a link to this one: it is told all, then what changes."""
        self._ends.add(end)
        if item := summary_item(list(self.rooms.told.items())):
            end.out.put(item)

    def ends(self, end: LinkEnd) -> None:
        """That link is no more."""
        self._ends.discard(end)

    def _moved(self, shard: int) -> None:
        for branches in list(self.branches):
            branches.moved(shard)
        for tunnel in list(self._tunnels.values()):
            tunnel.homes.moved(shard)

    def proof(self, peer: Peer) -> tuple[tuple[str, str], ...]:
        """The metadata of a call to a node."""
        return ((KEY, self.secret.proof(peer.node_id)), (peer_version.KEY, peer_version.VERSION))

    def check_whole(self) -> None:
        """Whether each shard has an owner that can be asked. Raises Unavailable: what is told of all would lack a
        part."""
        for shard in range(SHARDS):
            if self.owners.node_of(shard) == NOBODY:
                raise unavailable(f"nobody owns shard {shard} just now")

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call(
        self, peer: Peer, request: peer_pb2.CallRequest, left_s: float | None, principal: Principal
    ) -> AsyncGenerator[bytes, None]:
        """Makes a call of the contract at its owner: the messages of its answer.

        Args:
            peer: The owner.
            request: The call.
            left_s: What is left of its time, in seconds.
            principal: Who makes it. When his credentials end, so does the call.

        Raises:
            Elsewhere: It was not at home there, and nothing was done; the pool is known, or the place that was tried.
            Unreachable: There is no answer.
            ReachError: What the call ended with.
        """
        connection = self.connection(peer)
        if connection.calls >= CALLS:
            message = f"node {peer.node_id!r} answers {CALLS} calls of this one already"
            raise ResourceExhausted(message, Reason.RATE_LIMITED, retry_after_ms=500)
        connection.calls += 1
        call = connection.stub.Call(request, metadata=self.proof(peer), timeout=left_s)
        recheck = Recheck(principal, call.cancel)
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                if answer.misplaced:
                    placing = placing_from(answer, brought=False)
                    raise Elsewhere(peer, placing.pool if placing is not None else None, placing)
                yield answer.message
        except grpc.aio.AioRpcError as failure:
            heed_cancellation()
            raise self.failed(connection, failure) from None
        except asyncio.CancelledError:
            heed_cancellation()  # else it is only the call, whose connection was closed (`forget`)
            if recheck.ended:
                raise credentials_ended() from None
            raise Unreachable(f"the connection to node {peer.node_id!r} was given up") from None
        finally:
            recheck.stop()
            connection.calls -= 1
            call.cancel()

    async def bring(self, where: Elsewhere, method: str, request: Any, principal: Principal) -> bytes:
        """Makes a short call at its owner, once: its answer. For parts of calls; whole ones go through `proxy.py`.

        Raises:
            ReachError: What the call ended with, or that nobody answers for it now.
        """
        call = peer_pb2.CallRequest(
            method=method,
            identity=identity_of(principal),
            pool=pool_name(where.pool),
            request=request.SerializeToString(),
        )
        try:
            async with contextlib.aclosing(self.call(where.peer, call, BRING_SECONDS, principal)) as answers:
                async for answer in answers:
                    return answer
        except (Elsewhere, Unreachable) as failure:
            raise unavailable(str(failure)) from None
        raise unavailable("there was no answer")

    async def has(self, peer: Peer, tenant: str, task_id: str, *, came: bool = False) -> bool:
        """Whether a node has a task in memory; `came`: it is to look for what came to its shards.

        Raises:
            OSError: It does not answer.
        """
        try:
            connection = self.connection(peer)
        except Unreachable as failure:
            raise OSError(str(failure)) from None
        request = peer_pb2.LocateRequest(tenant=tenant, task_id=task_id, came=came)
        try:
            answer = await connection.stub.Locate(request, metadata=self.proof(peer), timeout=LOCATE_SECONDS)
        except grpc.aio.AioRpcError as failure:
            heed_cancellation()
            raise OSError(str(self.failed(connection, failure))) from None
        except asyncio.CancelledError:
            heed_cancellation()
            raise OSError(f"the connection to node {peer.node_id!r} was given up") from None
        return bool(answer.here)

    def came(self, where: Elsewhere) -> None:
        """Has a node look for tasks that have just come to its shards; one word for all that come meanwhile."""
        if where.peer not in self._hinting:
            self._hinting.add(where.peer)
            self.begin(self._hint(where.peer))

    async def _hint(self, peer: Peer) -> None:
        await asyncio.sleep(HINT_SECONDS)
        self._hinting.discard(peer)
        with contextlib.suppress(OSError):  # it looks by itself, a little later
            await self.has(peer, "", "", came=True)

    def bring_task(self, where: Elsewhere, task: Task, then: Callable[[bool], None]) -> None:
        """Brings a task that has no row to the owner of its pool."""
        self.begin(self._bring_task(where, task, then))

    async def _bring_task(self, where: Elsewhere, task: Task, then: Callable[[bool], None]) -> None:
        there = False
        try:
            asked = dispatch_pb2.DispatchRequest(task=task_pb2.TaskSpec.FromString(task.spec))
            await self.bring(where, DISPATCH, asked, Principal(task.tenant, "", frozenset({"caller"})))
            there = True
        except ReachError as failure:
            log.warning("a volatile task did not get to another node: %s", failure)
        finally:
            then(there)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Work with other nodes, which ends when this one stops."""
        running = asyncio.create_task(work, name="peer-work")
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def failed(self, connection: Connection, failure: grpc.aio.AioRpcError) -> Exception:
        """What a call to another node failed with: its answer, or that there is none."""
        peer, error = connection.peer, error_from_rpc(failure)
        if failure.code() is grpc.StatusCode.UNAVAILABLE and not is_answer(failure):
            self.forget(connection)
        if error.reason in (Reason.OWNER_UNAVAILABLE, Reason.SHUTTING_DOWN):
            if self._credentials is not None and (what_to_do := advice(failure.details() or "")):
                self._tell_once(peer, "no TLS connection to another node", what_to_do)
            return Unreachable(f"node {peer.node_id!r}: {error.message}")
        if error.reason is Reason.UNAUTHENTICATED:  # clients are authenticated here: it is us who are not known there
            self._tell_once(peer, "another node refuses this one", error.reason.name)
            return Unreachable(f"node {peer.node_id!r} does not take our secret")
        if error.reason is Reason.VERSION_NOT_SUPPORTED:  # nor is this ever said to clients here
            self._tell_once(peer, "another node does not understand this one", error.message)
            return Unreachable(f"node {peer.node_id!r}: {error.message}")
        return error

    def _tell_once(self, peer: Peer, message: str, why: str) -> None:
        if (peer, message) not in self._told and len(self._told) < PEERS:
            self._told.add((peer, message))
            log.error(message, extra={"node": peer.node_id, "address": peer.address, "reason": why})

    async def stop(self) -> None:
        """Closes all links and connections."""
        await asyncio.gather(*(tunnel.finish() for tunnel in list(self._tunnels.values())))
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for connection in list(self._connections.values()):
            self.forget(connection)
        await asyncio.gather(*self._closing, return_exceptions=True)
