"""A node: all that a real one is made of, in a process that stands still, dies, leaves and comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import dispatch_pb2, registry_pb2, result_pb2
from reach.cluster.base import ClusterError, NodeInfo
from reach.cluster.etcd import EtcdCluster
from reach.cluster.etcd_api import Access
from reach.cluster.leader import Leader
from reach.core.model import Fault, Instance, Task, TaskKey
from reach.core.placement import shard_of
from reach.errors import ReachError
from reach.rpc.access import SCOPES
from reach.rpc.agent import AgentServicer
from reach.rpc.dispatch import DispatchServicer
from reach.rpc.entrance import leaf_of
from reach.rpc.joining import join
from reach.rpc.peer_service import PeerServicer, behaviours
from reach.rpc.peers import Peers
from reach.rpc.principal import Principal, set_principal
from reach.rpc.proxy import Proxy
from reach.rpc.registry import RegistryServicer
from reach.rpc.result import ResultServicer
from reach.runtime.claims import Claims
from reach.runtime.faults import fault_of
from reach.runtime.host import Host
from reach.runtime.idle_pools import IdlePools
from reach.runtime.loading import restore
from reach.runtime.member import Member
from reach.runtime.reach_api import Reach
from reach.store.base import StoreError
from reach.telemetry.metrics import Metrics
from reach.telemetry.tracing import Tracing
from reach.testing.sim.calls import failure_of
from reach.testing.sim.link import ClientEnd, Stream
from reach.testing.sim.loop import Process, VirtualClock, VirtualReads, WallClock
from reach.testing.sim.nodes.calls import Handler, ServerCall
from reach.testing.sim.nodes.etcd import MEMBERS, address_of
from reach.testing.sim.nodes.journal import STORE, NodeJournal, NodeWriter
from reach.testing.sim.nodes.observed import NodeServices, ObservedAgents, ObservedCaller
from reach.testing.sim.nodes.ports import AgentPort, CallerPort, Port
from reach.testing.sim.nodes.process import NodeProcess
from reach.testing.sim.server import CODEC, COMMITS_ON_LOOP, IDLE_SECONDS, READER, Quiet
from reach.wire.status import status_of

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker
    from reach.testing.sim.nodes.world import NodesWorld

SECRET = b"the secret of a simulation"
DRAIN_S = 3.0
"""How long a node that stops lets work go on."""
LINK, CALL, LOCATE = (f"/agentreach.internal.v1.PeerService/{name}" for name in ("Link", "Call", "Locate"))


class OrderedSet(dict[Any, None]):
    """A set whose order is no chance."""

    def add(self, item: Any) -> None:
        """See set."""
        self[item] = None

    def discard(self, item: Any) -> None:
        """See set."""
        self.pop(item, None)


class Node:
    """One machine; on it one process of the node after the other."""

    def __init__(self, world: NodesWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.address = f"{name}:7411"
        self.wall = WallClock(world.loop)
        self.process = NodeProcess(world.loop, world.random, name)
        self.process.dead = True
        self.starts = 0
        self.ports: dict[Port, None] = {}
        self.leaving = False
        self.journal: NodeJournal
        self.host: Host
        self.claims: Claims
        self.member: Member
        self.cluster: EtcdCluster
        self.services: NodeServices
        self.peers: Peers
        self._writer: NodeWriter

    @property
    def checker(self) -> Checker:
        """Hears what leaves the node."""
        return self.world.checker

    @property
    def up(self) -> bool:
        """A process runs."""
        return not self.process.dead

    @property
    def takes_streams(self) -> bool:
        """Clients can open streams."""
        return self.up and not self.leaving

    @property
    def boot(self) -> str:
        """Names the process."""
        return f"{self.name}.{self.starts}"

    def tell(self, what: str, *details: Any) -> None:
        """A line of the story."""
        self.world.story.tell(self.name, what, *details)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process."""
        if self.up:
            return
        self.starts += 1
        self.leaving = False
        world = self.world
        self.process = NodeProcess(world.loop, world.random, self.name)
        world.processes.append(self.process)
        self.tell("starts (process {})", self.starts)
        world.loop.as_process(self.process, self._begin)

    def _begin(self) -> None:
        try:
            self._start()
        except StoreError as error:  # a real one ends, and is started again
            self.tell("cannot start: {}", error)
            self.process.die()
            self.world.loop.call_later(1.0, self.start)

    def _start(self) -> None:
        world, random, process = self.world, self.world.random, self.process
        here = random.choice(COMMITS_ON_LOOP)
        self._writer = NodeWriter(world.loop, process, world.commit_time, lambda: random.random() < here)
        reads = VirtualReads(world.loop, process, lambda: 0.0005 + 0.01 * random.random() ** 3)
        clock = VirtualClock(world.loop, random, self.wall)
        self.journal = NodeJournal(world.store, self.name, self.boot, self._reaches_store)
        self.journal.open()
        self.host = Host(
            self.journal,
            CODEC,
            Quiet(world.checker.fleet),
            clock,
            world.settings,
            self._broken,
            cast("Any", self._writer),
            reads,
        )
        self.host.level_1.default_retry = READER.default_retry
        self.reach = Reach(self.host, self.name)
        self.cluster = EtcdCluster(Access([address_of(member) for member in MEMBERS]), "sim")
        loads = VirtualReads(world.loop, process, lambda: 0.0005 + world.dice.load_time * random.random() ** 3)
        self.claims = Claims(self.host, self.journal, loads)
        info = NodeInfo(self.name, self.boot, "", 1)
        self.member = Member(self.host, self.claims, self.cluster, info)
        leader = Leader(self.cluster, clock.now_ms)
        restore(self.host, self.journal.load_shards(())._replace(agents=[]))
        self._serve()
        self.member.reached_at(self.address)
        process.create_task(self._take_part(leader), name="take part")
        self._drop_idle(IdlePools(self.host))

    def _serve(self) -> None:
        services = self.services = NodeServices(self.reach, READER, Tracing(), Metrics())
        services.sim = self
        services._streams = OrderedSet()  # type: ignore[assignment]  # noqa: SLF001
        door = SimpleNamespace(entrance=SimpleNamespace(proxy=None))
        peers = self.peers = join(services, cast("Any", door), self.member, SECRET)
        peers.branches = OrderedSet()  # type: ignore[assignment]
        peers._ends = OrderedSet()  # type: ignore[assignment]  # noqa: SLF001
        self.agents = AgentServicer(services)
        self.dispatch = DispatchServicer(services)
        self._proxy: Proxy = door.entrance.proxy
        methods = behaviours({
            dispatch_pb2.DESCRIPTOR: self.dispatch,
            registry_pb2.DESCRIPTOR: RegistryServicer(services),
            result_pb2.DESCRIPTOR: ResultServicer(services),
        })  # fmt: skip
        servicer = PeerServicer(services, peers, methods, self.agents.pings)
        handlers: dict[str, Handler] = {LINK: self._link, CALL: self._call, LOCATE: self._locate}
        self._servicer = servicer
        self.world.servers.serve(self.address, self.process, handlers)

    async def _take_part(self, leader: Leader) -> None:
        try:
            await self.cluster.start()
        except ClusterError as error:  # a real one ends, and is started again
            self.tell("cannot start: {}", error)
            self.world.loop.call_later(1.0, self.start)
            self.crash()
            return
        for name, work in (("member", self.member.run()), ("leader", leader.run())):
            self.process.create_task(work, name=name).add_done_callback(self._broke)

    def _broke(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.checker.violate("MEMBERS_LIVE", None, f"{task.get_name()} of {self.name} ends: {task.exception()!r}")

    def _drop_idle(self, idle: IdlePools) -> None:
        idle.drop()
        self.process.call_later(IDLE_SECONDS, self._drop_idle, idle)

    def _reaches_store(self, there: bool) -> bool:
        way = (self.name, STORE) if there else (STORE, self.name)
        return self.world.roads.open(*way)

    def _broken(self, error: StoreError) -> None:
        self.tell("ends: the store is broken ({})", error)
        self.crash()

    def crash(self, *, torn: bool = False) -> None:
        """The process dies at once. `torn`: a commit that is on its way is made, at once or later."""
        if not self.up:
            return
        world = self.world
        self.tell("dies{}", ", in the middle of a commit" if torn else "")
        if torn:
            world.loop.call_later(world.random.choice((0.0, 0.02, 3.0)), self._writer.outlives())
        self.process.die()
        world.servers.close(self.address, self.process)
        world.servers.died(self.process)
        self.checker.server_died()
        ports, self.ports = self.ports, {}
        for port in ports:
            if port.stream is not None:
                port.stream.break_now()

    def stop(self) -> None:
        """SIGTERM."""
        if self.takes_streams:
            self.tell("is asked to stop")
            self.leaving = True
            self.process.create_task(self._stop(), name="stop")

    async def _stop(self) -> None:
        """As `node.Node.stop`."""
        process = self.process
        self.reach.stopping = True
        self.world.servers.close(self.address, process)
        await self.member.leave()
        until = process.time() + DRAIN_S
        while process.time() < until and self._works():  # noqa: ASYNC110 - as there
            await asyncio.sleep(0.05)  # virtual time, as in all of this
        await self.claims.end()
        self.services.close_streams()
        await asyncio.sleep(0.3)  # what was said last arrives
        await self.peers.stop()
        with contextlib.suppress(TimeoutError):  # it ends all the same
            async with asyncio.timeout(1.0):
                await self.host.committer.drain()
        self.crash()

    def _works(self) -> bool:
        instances = (one for pool in self.host.pools() for one in pool.instances.values())
        return any(one.running and one.link is not None for one in instances)

    def hurry(self) -> None:
        """What this node has on its way to the store is there now."""
        if self.up:
            self._writer.hurry()

    # -- other nodes --------------------------------------------------------------------------------------------------

    async def _link(self, call: ServerCall) -> None:
        call.parse = peer_pb2.LinkRequest.FromString
        with _statuses():
            await self._servicer.Link(None, call)

    async def _call(self, call: ServerCall) -> None:
        with _statuses():
            async with contextlib.aclosing(
                self._servicer.Call(peer_pb2.CallRequest.FromString(call.request), call)  # type: ignore[type-var]
            ) as answers:
                async for answer in answers:
                    await call.write(answer)

    async def _locate(self, call: ServerCall) -> None:
        with _statuses():
            await call.write(await self._servicer.Locate(peer_pb2.LocateRequest.FromString(call.request), call))

    # -- clients ------------------------------------------------------------------------------------------------------

    def connect(self, client: Process, end: ClientEnd, port: Port) -> Stream:
        """A client opens a stream."""
        stream = Stream(self.world.network, client, self.process, end, port)
        port.stream = stream
        self.ports[port] = None
        return stream

    async def serve_agent(self, port: Port) -> None:
        """As `AgentServicer.Attach`."""
        assert isinstance(port, AgentPort)
        principal = Principal("acme", "sim", SCOPES)
        set_principal(principal)
        stream = ObservedAgents(self.services, principal, self.agents.pings)
        await self.services.pump(port, stream.out, stream.handle, stream.close, stream.closing, stream.number)

    async def serve_caller(self, port: Port, tenant: str) -> None:
        """As `callers.serve`."""
        assert isinstance(port, CallerPort)
        principal = Principal(tenant, "sim", SCOPES)
        set_principal(principal)
        stream = ObservedCaller(self.services, principal, "")
        await self.services.pump(port, stream.out, stream.handle, stream.close, stream.closing, settle=stream.settle)

    def ask(self, tenant: str, method: str, request: Any, then: Callable[[Any, Fault | None], None]) -> None:
        """A call of DispatchService with one request, which any node takes. `then` gets its answer, or why there is
        none, unless the process ends before."""
        behaviour = getattr(self.dispatch, method)
        response = getattr(dispatch_pb2, f"{method}Response")

        async def call() -> None:
            set_principal(Principal(tenant, "sim", SCOPES))
            anywhere = self._proxy.unary(f"/agentreach.v1.DispatchService/{method}", behaviour)
            try:
                answer = await anywhere(request, _Patient())
            except ReachError as error:
                then(None, fault_of(error))
            except StoreError:
                return
            else:
                then(response.FromString(answer) if isinstance(answer, bytes) else answer, None)

        self.process.create_task(call(), name=method)

    # -- what leaves it -----------------------------------------------------------------------------------------------

    def is_former(self, task: Task) -> bool:
        """Whether a task is another node's by now."""
        return task.pool is not None and self.world.truth.is_former(self.name, self.boot, task.pool.shard)

    def speaks(self, task: Task, what: str) -> None:
        """Something is said of a task that is in memory."""
        if task.pool is not None and task.pool.shard >= 0:
            self.world.truth.speaks(self.name, self.boot, task.pool.shard, task.key, what)

    def offers(self, task: Task, instance: Instance) -> None:
        """An offer leaves."""
        shard = shard_of(instance.pool_key)
        if self.world.truth.is_former(self.name, self.boot, shard):
            self.world.truth.speaks(self.name, self.boot, shard, task.key, f"offers #{task.attempt}")
            return
        self.checker.attempts.offered(task.key, task.attempt, instance.instance_id, task.checkpoint)

    def grants(self, key: TaskKey, attempt: int, instance: Instance) -> None:
        """A permission leaves."""
        shard = shard_of(instance.pool_key)
        if self.world.truth.is_former(self.name, self.boot, shard):
            self.world.truth.speaks(self.name, self.boot, shard, key, f"grants #{attempt}")
            self.checker.truth(key).given.add(attempt)
            return
        self.checker.attempts.granted(key, attempt, instance.instance_id)


class _Patient:
    """The context of such a call."""

    def time_remaining(self) -> float | None:
        """See ServicerContext."""
        return 20.0


@contextlib.contextmanager
def _statuses() -> Any:
    """As the interceptor: an error becomes a status."""
    try:
        yield
    except (ReachError, ExceptionGroup) as failure:
        error = leaf_of(failure)
        if not isinstance(error, ReachError):
            raise
        status = status_of(error)
        found = failure_of(status.code, status.details)
        for name, value in status.trailing_metadata or ():
            found.trailing_metadata().add(name, value)
        raise found from None
