"""The one door. Every face (gRPC, HTTP, A2A, MCP) converts and calls here; nothing else reaches the shards.

Calls that are hot return at once and are answered through a `Sink`, a link or a `Reply`. Calls that read suspend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from reach.core import events as ev
from reach.core.changes import visible_to
from reach.core.dialogue import Input
from reach.core.directory import UNRESOLVED
from reach.core.joining import Joining
from reach.core.model import Fault, Instance, PoolKey, Task
from reach.core.pool import Pool
from reach.core.preview import Preview, preview
from reach.core.resolving import Selector, unknown_skill
from reach.core.spread import Placing
from reach.core.stream import Reader
from reach.errors import InvalidRequest, ReachError, Reason, ResourceExhausted, Unavailable
from reach.runtime.asked_first import AskedFirst
from reach.runtime.committer import certain
from reach.runtime.elsewhere import Elsewhere, Whereabouts
from reach.runtime.faults import fault_of
from reach.runtime.host import Host
from reach.runtime.patience import Patience
from reach.runtime.retention import Tending
from reach.runtime.session_views import SessionViews
from reach.runtime.spilling import Spilling
from reach.runtime.task_views import TaskViews
from reach.runtime.texts import Texts
from reach.runtime.watching import AgentChanges
from reach.store.base import StoredFact, StoreFull

WARNINGS = 8
"""Warnings that one registration gets."""


class Reach:
    """What a node can do for agents and callers. All arguments are checked already but for meaning."""

    def __init__(self, host: Host, node_id: str) -> None:
        self.host = host
        self.node_id = node_id
        self.texts = Texts()
        self._first = AskedFirst(host, self.texts)
        self.patience = Patience(host, self.check_store)
        self.stopping = False
        """No new work is taken; what is accepted goes on."""
        self.tending = Tending(host.committer)
        """Does what is to be done in the writer of the journal."""
        self.started_ms = host.clock.now_ms()
        self.sessions = SessionViews(host)
        self.tasks = TaskViews(host, self.tending)
        self.abroad: Whereabouts | None = None
        """What other nodes have to do; None on a node that is alone."""
        self._spilling = Spilling(host, self.submit)
        self.changes = AgentChanges(host)
        """For those who watch the registry."""
        self.post = host.post
        """Something an agent said."""

    # -- callers ------------------------------------------------------------------------------------------------------

    def submit(self, task: Task, selector: Selector, reader: Reader, placing: Placing | None = None,
               until_ms: int = 0) -> None:  # fmt: skip
        """Takes a task. The sink of `reader` hears `accepted`, `refused` or `elsewhere`, then what its interest says.

        Args:
            task: The task.
            selector: What it asks for.
            reader: Who is told.
            placing: Where another node has placed it, so that it is not chosen again, and which pools were full.
            until_ms: Until when it waits for the store, if it has waited already.
        """
        host = self.host
        known = host.tasks.get(task.key)
        if known is None:
            if selector.text or task.root_task_id:
                again = partial(self.submit, task, selector, reader, placing)
                if selector.text and self._first.meaning(task, selector, again):
                    return
                if task.root_task_id and self._first.parent(task, reader, again):
                    return
            try:
                task.pool = pool = self._admit(task, selector, reader, placing)
                if pool is None:
                    return
            except ReachError as error:
                refuse = partial(reader.sink.refused, reader)
                again = partial(self.submit, task, selector, reader, placing)
                if not self.patience.takes(error, len(task.spec), until_ms, reader, again, refuse):
                    refuse(fault_of(error))
                return
            except Elsewhere as where:
                if where.pool is not None:
                    where.placing = self._spilling.along(task, selector, where.pool, placing)
                reader.sink.elsewhere(reader, task.task_id, task.spec, where)
                return
            host.tasks[task.key] = task
            if task.root_task_id:
                host.trees.joined(task)
            host.post(pool, ev.Submitted(task, reader) if placing is None else ev.Placed(task, reader, placing))
            return
        pool = known.pool
        repeated = ev.Repeated(task, reader, partial(self.submit, task, selector, reader, placing))
        if host.committer.held is not None and not task.volatile:
            post = partial(self._come, pool, reader, repeated)
            host.past.answer(reader, task.tenant, task.task_id, task.spec, post)
            return
        host.post(pool, repeated)

    def _admit(self, task: Task, selector: Selector, reader: Reader, placing: Placing | None) -> Pool | None:
        """The pool that takes a task; None: it waits to hear where its session is, and comes again."""
        if self.stopping:
            message = "the server is shutting down"
            raise Unavailable(message, Reason.SHUTTING_DOWN, retry_after_ms=1_000)
        if self.abroad is None:
            if self.host.committer.held is not None or self.host.committer.doubt is not certain:
                self.check_store(task.volatile)
            return self.host.home(self.host.level_1.place(task, selector, placing=placing))
        if task.session and placing is None:
            again = partial(self.submit, task, selector, reader)
            if self._first.pins(task, selector, again):
                return None
        key = self.host.level_1.place(task, selector, placing=placing)
        self.abroad.check(key)
        self.check_store(task.volatile)  # of others we do not know whether they can keep anything
        return self.host.home(key)

    def check_store(self, volatile: bool = False) -> None:
        """Whether the store can keep anything now, and this node knows what it owns. Raises ReachError."""
        if self.host.committer.doubt():
            message = "this node cannot confirm what it owns: the store cannot be reached from here"
            raise Unavailable(message, Reason.STORE_UNAVAILABLE, retry_after_ms=2_000)
        held = self.host.committer.held
        if held is None or volatile:
            return
        if isinstance(held, StoreFull):
            message = "the store has no space: free some, and intake resumes by itself"
            raise ResourceExhausted(message, Reason.STORE_FULL, retry_after_ms=2_000)
        raise Unavailable("the store cannot be reached", Reason.STORE_UNAVAILABLE, retry_after_ms=2_000)

    def warnings(self, tenant: str, selector: Selector) -> tuple[str, ...]:
        """What is odd about a request that was taken, for people."""
        resolved = self.host.directory.resolve(tenant, selector)
        skill, lack = resolved.unknown_skill, resolved.lack
        odd = f"skill {skill!r} is not in the vocabulary" if skill else ""
        return tuple(filter(None, (odd, lack.message if lack is not None else "")))

    def lack(self, tenant: str, selector: Selector) -> Fault | None:
        """What is missing, if nobody could take what a selector asks for."""
        return self.host.directory.resolve(tenant, selector).lack

    def cancel(self, tenant: str, task_id: str, reason: str, reply: Any, until_ms: int = 0) -> None:
        """Cancels a task; `reply.done` gets the task as it ended. None: nobody waits for it."""
        again = partial(self.cancel, tenant, task_id, reason, reply)
        if self._first.hurry((tenant, task_id), again):
            return
        host, pool = self.host, self._pool_of(tenant, task_id)
        if reply is not None and host.by_shard:
            durable = pool is not None and not host.tasks[tenant, task_id].volatile
            if durable and self._waits_for_store(0, reply, again, until_ms):
                return
            reply = self.patience.reply(reply, again, until_ms)
        host.trees.cancel((tenant, task_id))  # it is marked before its children are listed
        if pool is None and self.abroad is not None:
            self.abroad.ask(tenant, task_id, reply)
        else:
            self.host.post(pool or self._anywhere(tenant), ev.Cancelled(tenant, task_id, reason, reply))

    def send_input(self, tenant: str, task_id: str, given: Input, question: str, reply: Any,
                   until_ms: int = 0) -> None:  # fmt: skip
        """Answers what a waiting task asked; `reply.done` gets (the task, whether the answer was known already)."""
        if self.host.committer.held is not None:  # an answer that cannot be kept is not taken
            again = partial(self.send_input, tenant, task_id, given, question, reply)
            if self._waits_for_store(len(given.content), reply, again, until_ms):
                return
        pool = self._pool_of(tenant, task_id)
        if pool is None and self.abroad is not None:
            self.abroad.ask(tenant, task_id, reply, given)
        else:
            self.host.post(pool or self._anywhere(tenant), ev.InputCame(tenant, task_id, given, question, reply))

    def _waits_for_store(self, size: int, reply: Any, again: Callable[[int], None], until_ms: int) -> bool:
        """Whether something that is to be kept waits until the store takes it, or is refused."""
        try:
            self.check_store()
        except ReachError as error:
            if not self.patience.takes(error, size, until_ms, reply, again, reply.refused):
                reply.refused(fault_of(error))
            return True
        return False

    def subscribe(self, tenant: str, task_id: str, reader: Reader) -> None:
        """Reads a task from the position that the reader has."""
        reader.reads = True
        if self._first.hurry((tenant, task_id), partial(self.subscribe, tenant, task_id, reader)):
            return
        host, pool = self.host, self._pool_of(tenant, task_id)
        if pool is None and self.abroad is not None:
            self.abroad.read(reader, tenant, task_id)
        elif pool is None:
            host.past.answer(reader, tenant, task_id, None)
        elif host.committer.held is not None:
            post = partial(self._come, pool, reader, ev.Subscribed(tenant, task_id, reader))
            host.past.answer(reader, tenant, task_id, None, post)
        else:
            host.post(pool, ev.Subscribed(tenant, task_id, reader))

    def _come(self, pool: Pool, reader: Reader, event: Any) -> None:
        """What waited for a look into the journal, unless its reader was let go meanwhile: it would never leave."""
        if not reader.left:
            self.host.post(pool, event)

    def unsubscribe(self, reader: Reader, tenant: str, task_id: str) -> None:
        """Lets a reader go, also one that its task does not know yet: it leaves right after it has come."""
        reader.left = True
        self.patience.let_go(reader)
        if self._first.hurry((tenant, task_id), partial(self.unsubscribe, reader, tenant, task_id)):
            return
        pool = reader.task.pool if reader.task is not None else self._pool_of(tenant, task_id)
        if pool is not None:
            self.host.post(pool, ev.Unsubscribed(reader))

    def credit(self, reader: Reader, count: int) -> None:
        """A reader can take `count` more bytes."""
        if reader.task is None:
            reader.credit += count  # what it reads is still looked for
        elif reader.task.pool is not None:
            self.host.post(reader.task.pool, ev.Credited(reader, count))

    def _pool_of(self, tenant: str, task_id: str) -> Pool | None:
        """Where a task is that is in memory."""
        task = self.host.tasks.get((tenant, task_id))
        return task.pool if task is not None else None

    def _anywhere(self, tenant: str) -> Pool:
        return self.host.pool(PoolKey(tenant, UNRESOLVED))

    async def facts(self, kind: str, lane: str, after: int, limit: int) -> list[StoredFact]:
        """Facts of the outbox that nobody took, such as failed deliveries, in order."""
        found: list[StoredFact] = await self.host.read(self.host.past.facts, kind, lane, after, limit)
        return found

    def preview(self, task: Task, selector: Selector, placing: Placing | None = None) -> tuple[Pool, Preview]:
        """Where a task would go, by the code that would send it: the pool, and every instance of it. May raise
        Elsewhere."""
        key = self.host.level_1.place(task, selector, send=False, placing=placing)
        self.check_here(key)
        pool = self.host.look_at(key)
        return pool, preview(pool, task, self.host.clock.now_ms())

    # -- agents -------------------------------------------------------------------------------------------------------

    def register(self, tenant: str, agent_type: str, joining: Joining, reply: Any) -> None:
        """Registers an instance without a link; `reply.done` gets the instance."""
        self.check_type(tenant, joining, agent_type)
        self._check_skills(joining)
        event = ev.Joined(joining, self.host.next_revision(), reply=reply)
        self.host.join(PoolKey(tenant, agent_type), event)

    def hello(self, tenant: str, agent_type: str, joining: Joining, link: Any,
              running: list[tuple[str, str, int, int]], status: dict[str, Any]) -> Pool:  # fmt: skip
        """Opens a link; `link.welcome` hears when it is open."""
        self.check_type(tenant, joining, agent_type)
        self._check_skills(joining)
        joining.endpoint, joining.dialled = None, False  # it is here: whoever holds a stream is not dialled
        event = ev.Joined(joining, self.host.next_revision(), link, running, status)
        key = PoolKey(tenant, agent_type)
        if not running:
            return self.host.join(key, event)
        pool = self.host.pool(key)  # what it runs and nobody knows of is stopped: so nobody else must own this by now
        self.host.certainly(lambda: self._join(pool, event))
        return pool

    def _join(self, pool: Pool, event: ev.Joined) -> None:
        """An agent with work comes, unless its pool has moved meanwhile."""
        if pool.shard in self.host.shards:
            self.host.join(pool.key, event)
        else:
            event.link.reopen()

    def check_here(self, key: PoolKey) -> None:
        """Raises Elsewhere for what is another node's."""
        if self.abroad is not None:
            self.abroad.check(key)

    def check_type(self, tenant: str, joining: Joining, agent_type: str) -> None:
        """Whether an instance may register now, with this type, and here. Raises ReachError, Elsewhere."""
        self.check_here(PoolKey(tenant, agent_type))
        instance_id = joining.instance_id
        if self.stopping:
            raise Unavailable("the server is shutting down", Reason.SHUTTING_DOWN, retry_after_ms=1_000)
        known = self.host.directory.where(tenant, instance_id)
        if known is not None and known.agent_type != agent_type:
            message = f"instance {instance_id!r} is registered with type {known.agent_type!r}: deregister it first"
            raise InvalidRequest(message, Reason.INVALID_FIELD)
        one = self.host.pool(known).instances.get(instance_id) if known is not None else None
        if one is not None and joining.boot_id in one.stale_boots:  # before it changes what instances are found by
            message = f"a newer process of {instance_id!r} has registered; this one is stale"
            raise InvalidRequest(message, Reason.STALE_GENERATION, instance_id=instance_id)
        held = self.host.committer.held
        if held is not None and known is None:
            self.check_store(False)

    def _check_skills(self, joining: Joining) -> None:
        """Skills that the vocabulary does not have are refused if the server is strict, else a warning (REG-5)."""
        directory = self.host.directory
        vocabulary = directory.vocabulary
        for document in joining.profile.documents:
            if not vocabulary.knows(document.declared):
                fault = unknown_skill(document.declared, vocabulary)
                if directory.strict:
                    raise InvalidRequest(fault.message, fault.reason, skill=document.declared)
                if len(joining.warnings) < WARNINGS:
                    joining.warnings = (*joining.warnings, fault.message)

    def instance(self, tenant: str, instance_id: str, boot_id: str = "") -> tuple[Pool, Instance]:
        """An instance that the tenant owns.

        Raises:
            InvalidRequest: AGENT_NOT_FOUND, or STALE_GENERATION if `boot_id` is another than the current one.
            Elsewhere: another node has it.
        """
        key = self.host.directory.where(tenant, instance_id)
        if key is not None:
            self.check_here(key)
        pool = self.host.pool(key) if key is not None else None
        instance = pool.instances.get(instance_id) if pool is not None else None
        if pool is None or instance is None:
            message = f"there is no instance {instance_id!r}: register it"
            raise InvalidRequest(message, Reason.AGENT_NOT_FOUND, instance_id=instance_id)
        if boot_id and boot_id != instance.boot_id:
            message = f"boot_id {boot_id!r} of instance {instance_id!r} is not the current one"
            raise InvalidRequest(message, Reason.STALE_GENERATION, instance_id=instance_id)
        return pool, instance

    def instances(self, tenant: str) -> list[tuple[Pool, Instance]]:
        """All instances that the tenant owns, by id."""
        rows = [
            (pool, one) for pool in self.host.pools() if pool.key.tenant == tenant for one in pool.instances.values()
        ]
        return sorted(rows, key=lambda row: row[1].instance_id)

    def visible(self, tenant: str) -> Iterator[tuple[Pool, Instance]]:
        """All instances that the tenant owns or may call (GOV-1), in no order."""
        for key in self.host.directory.pools_for(tenant):
            if self.abroad is not None and not self.abroad.is_here(key):
                continue
            pool = self.host.pool(key)
            for one in pool.instances.values():
                if visible_to(one, tenant):
                    yield pool, one

    def visible_instance(self, tenant: str, instance_id: str) -> tuple[Pool, Instance]:
        """An instance that the tenant owns, else one that it may call.

        Raises:
            InvalidRequest: AGENT_NOT_FOUND; "not yours" and "not there" answer alike.
        """
        own = self.host.directory.where(tenant, instance_id)
        if own is None:
            for key in self.host.directory.pools_of(tenant, Selector(instance_id=instance_id)):
                self.check_here(key)
                pool = self.host.pool(key)
                one = pool.instances.get(instance_id)
                if one is not None and visible_to(one, tenant):
                    return pool, one
        return self.instance(tenant, instance_id)
