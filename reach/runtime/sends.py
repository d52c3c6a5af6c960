"""What turns ask to be sent, once they are durable: the last step of the shell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from reach.core import effects as fx
from reach.core.model import Fault, Task, TaskState
from reach.errors import ErrorClass, Reason
from reach.runtime.agents import moved, refuse, refuse_if_here
from reach.runtime.departures import Departed
from reach.runtime.taken import TAKEN, ask_again, undo

if TYPE_CHECKING:
    from reach.runtime.host import Host

log = logging.getLogger(__name__)

AT_WORK = (TaskState.DELIVERED, TaskState.RUNNING, TaskState.WAITING)


class Sends:
    """Performs the sends of a node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._kept_back: dict[Task, list[fx.Ended | fx.Events]] = {}
        """Ends that nobody is told of yet: their turns are on their way to the home of their session."""
        self.on_full: Callable[[fx.Full], None] = self._refused
        """Hears of tasks whose pool is full."""
        self._acts: dict[type, Callable[[Any], None]] = {
            fx.Offer: self._offer,
            fx.StopAttempt: lambda e: e.link.stop(e.tenant, e.task_id, e.attempt, e.reason),
            fx.Acknowledge: self._acknowledge,
            fx.RefuseItem: self._refuse_item,
            fx.GrantEffect: self._grant,
            fx.GiveInput: self._give_input,
            fx.CreditAttempt: lambda e: e.link.credit(e.tenant, e.task_id, e.attempt, e.bytes),
            fx.Welcome: lambda e: e.link.welcome(e),
            fx.CloseLink: lambda e: e.link.close(e.fault),
            fx.Wake: host.wakes.wake,
            fx.AskReopen: lambda e: e.link.reopen(),
            fx.DropLink: lambda e: e.link.drop(),
            fx.AskSnapshot: lambda e: e.link.prepare_handoff(e.tenant, e.session, e.timeout_ms),
            fx.DrainLink: lambda e: e.link.drain(e.deadline_ms),
            fx.Accepted: self._accepted,
            fx.Refused: self._refused,
            fx.Full: self._full,
            fx.Done: self._done,
            fx.Events: self._events,
            fx.Ended: self._ended,
            fx.AskJournal: host.past.asked,
            fx.Forget: self._forget,
            fx.Noted: self._noted,
            fx.Unplaced: lambda _: host.resettling.look_again_soon(),
            fx.Then: lambda e: e.act(),
            Departed: host.departures.departed,
        }

    def perform(self, turn: fx.Turn, taken: list[int]) -> None:
        """Sends what a turn asks for, once it is durable."""
        acts, host = self._acts, self._host
        if turn.shard is not None and turn.shard.gone:
            for send in turn.sends:
                moved(send)
            return
        if taken:
            undo(host, turn, taken)
        for send in turn.sends:
            try:
                acts[type(send)](send)
            except Exception:
                log.exception("a send failed: %s", type(send).__name__)
        if turn.writes.outbox or turn.writes.outbox_done:
            host.outbox.committed(turn.writes, taken)
        if host.task_watchers.open:
            host.task_watchers.saw(turn)

    def _accepted(self, effect: fx.Accepted) -> None:
        task, reader = effect.task, effect.reply
        if task.row == TAKEN:
            ask_again(self._host, effect, task)
        else:
            reader.sink.accepted(reader, task, effect.state, effect.deduplicated)

    def _offer(self, offer: fx.Offer) -> None:
        task, link = offer.task, offer.link
        current = task.attempt == offer.attempt and task.instance is offer.instance
        if current and offer.instance.link is link and task.row != TAKEN:
            trace = self._host.notes.began(task) if task.trace else ""
            if link is None:
                return
            if task.session:
                self._host.homeward.given(task, partial(self._offer_with, offer, trace))
            else:
                link.offer(task, offer.instance, trace)

    def _offer_with(self, offer: fx.Offer, trace: str, context: bytes) -> None:
        """The home of its session may have answered after a while."""
        task, link = offer.task, offer.link
        current = task.attempt == offer.attempt and task.instance is offer.instance and task.state in AT_WORK
        if current and offer.instance.link is link and self._host.tasks.get(task.key) is task:
            link.offer(task, offer.instance, trace, context)

    def _events(self, effect: fx.Events) -> None:
        if effect.task.row == TAKEN:
            ask_again(self._host, effect, effect.task)
        elif self._kept_back and (waiting := self._kept_back.get(effect.task)) is not None:
            waiting.append(effect)
        else:
            effect.reader.sink.events(effect.reader, effect.task, effect.events)

    def _acknowledge(self, effect: fx.Acknowledge) -> None:
        if effect.link is not None:
            effect.link.acknowledge(effect.tenant, effect.task_id, effect.attempt)

    def _refuse_item(self, effect: fx.RefuseItem) -> None:
        if effect.link is not None:
            effect.link.refuse(effect.tenant, effect.task_id, effect.attempt, effect.fault)

    def _grant(self, effect: fx.GrantEffect) -> None:
        """Permission is worth what holds when it leaves: while its commit ran, the attempt may have been given up."""
        task, fault = self._host.tasks.get((effect.tenant, effect.task_id)), effect.fault
        if fault is None and (task is None or task.attempt != effect.attempt or task.state not in AT_WORK):
            message = f"attempt {effect.attempt} of task {effect.task_id!r} is over"
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_ATTEMPT, message)
        if effect.link is not None:
            effect.link.grant(effect.tenant, effect.task_id, effect.attempt, effect.effect, fault)

    def _give_input(self, effect: fx.GiveInput) -> None:
        task, link = effect.task, effect.link
        if link is None or task.attempt != effect.attempt or task.instance is not effect.instance:
            return
        if task.session and effect.instance.endpoint is not None:  # it is called anew
            self._host.homeward.given(task, partial(self._give_input_with, effect))
        else:
            link.give_input(task, effect.input)

    def _give_input_with(self, effect: fx.GiveInput, context: bytes) -> None:
        task = effect.task
        current = task.attempt == effect.attempt and task.instance is effect.instance and task.state in AT_WORK
        if current and self._host.tasks.get(task.key) is task:
            effect.link.give_input(task, effect.input, context)

    def _refused(self, effect: fx.Refused) -> None:
        if effect.task is not None and effect.task.row == TAKEN:
            ask_again(self._host, effect, effect.task)
        elif effect.fault.reason is Reason.SEQUENCE_OUT_OF_RANGE:  # the reader may have more from the next owner
            self._host.certainly(lambda: refuse_if_here(self._host.shards, effect))
        else:
            refuse(effect.reply, effect.fault)

    def _full(self, effect: fx.Full) -> None:
        self.on_full(effect)

    def _done(self, effect: fx.Done) -> None:
        value = effect.value
        if isinstance(value, Task) and value.row == TAKEN:
            ask_again(self._host, effect, value)
        elif effect.reply is not None:
            effect.reply.done(effect.value)

    def _ended(self, effect: fx.Ended) -> None:
        if effect.task.row == TAKEN:
            ask_again(self._host, effect, effect.task)
            return
        if effect.task.root_task_id and effect.first:
            self._host.trees.left(effect.task)
        if effect.task.session and effect.first and not self._host.homeward.ended(effect.task, self._let_go):
            self._kept_back[effect.task] = [effect]
        elif self._kept_back and (waiting := self._kept_back.get(effect.task)) is not None:
            waiting.append(effect)
        else:
            self._tell_end(effect)

    def _tell_end(self, effect: fx.Ended) -> None:
        for reader in effect.readers:
            reader.sink.ended(reader, effect.task)
        if effect.first:
            self._host.notes.ended(effect.task)

    def _let_go(self, task: Task) -> None:
        """The turn of a task is where its session is: whoever hears of its end may go on at once."""
        for effect in self._kept_back.pop(task, ()):
            if isinstance(effect, fx.Ended):
                self._tell_end(effect)
            else:
                effect.reader.sink.events(effect.reader, effect.task, effect.events)

    def _forget(self, effect: fx.Forget) -> None:
        tasks = self._host.tasks
        for task in effect.tasks:
            if tasks.get(task.key) is task:
                del tasks[task.key]

    def _noted(self, note: fx.Noted) -> None:
        if note.kind == "removed" and note.instance is not None:
            self._host.directory.remove(note.instance.pool_key, note.instance.instance_id)
        self._host.notes.noted(note)
