"""Tasks that wait for input: an agent asks, its slot is freed, a caller answers, the same attempt goes on (DLV-1).

While a task waits, nothing of it runs: it takes no slot, all its time limits stand still, and the question has a limit
of its own. Its place stays: the attempt, its instance and the pin of its session. When the answer comes it takes its
slots at once, before everybody who waits in the queue, and goes on as soon as the instance has room for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reach.core.dialogue import Ask, Dialogue, Input, Question, known_input
from reach.core.effects import Acknowledge, AskJournal, Done, GiveInput, Noted, Refused, RefuseItem, StopAttempt, Turn
from reach.core.leases import lost
from reach.core.model import FIRST_TERMINAL, Fault, Instance, Task, TaskKey, TaskState
from reach.core.pieces import Kind, size_in_bytes
from reach.core.rows import InputRow, QuestionRow
from reach.core.states import TaskInput, next_state
from reach.core.stream import emit
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.events import InputCame, Reported
    from reach.core.pool import Pool

QUESTIONS = 64
"""Questions of one task that are answered; an agent that asks more often is taken for broken."""
PROMPT_BYTES = 64 << 10
INPUT_BYTES = 256 << 10
"""One answer."""
INPUTS_BYTES = 1 << 20
"""All answers of a task together: every later attempt gets them with its offer."""
WAIT_MS = 3_600_000
"""How long a question may wait for its answer, if nobody says otherwise."""
RESUME_MS = 300_000
"""How long an answered task waits for a slot of its instance; then it moves to another one, with its answers."""


class Questions:
    """The tasks of one pool that wait for input."""

    __slots__ = ("_paused", "limit_ms", "pool", "resuming")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.limit_ms = WAIT_MS
        self._paused: dict[TaskKey, Task] = {}
        """Those without slots. Bounded: each was given a slot once, and has a time limit."""
        self.resuming: dict[TaskKey, Task] = {}
        """Those that are answered and took slots which are not free yet, in order of their answers."""

    def paused(self) -> Iterable[Task]:
        """Those that wait and have no slots."""
        return self._paused.values()

    # -- asking -------------------------------------------------------------------------------------------------------

    def asked(self, task: Task, event: Reported, turn: Turn) -> None:
        """An agent asks. A question that is said again is acknowledged again, and changes nothing."""
        ask: Ask = event.waiting
        dialogue: Dialogue | None = task.dialogue
        question = dialogue.question if dialogue is not None else None
        same = question is not None and question.attempt == task.attempt and question.ask.name == ask.name
        if task.state is TaskState.WAITING and not same and ask.name:
            message = f"task {task.task_id!r} waits for another answer already: ask one question at a time"
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.WRONG_STATE, message)
            turn.sends.append(RefuseItem(event.asker, event.tenant, event.task_id, event.attempt, fault))
            return
        turn.sends.append(Acknowledge(event.asker, event.tenant, event.task_id, event.attempt))
        if task.state is TaskState.WAITING:
            return
        if same and ask.name and dialogue is not None and dialogue.given_ms:
            turn.sends.append(GiveInput(task, dialogue.inputs[-1]))  # it did not hear the answer
        elif dialogue is not None and len(dialogue.inputs) >= QUESTIONS:
            self.pool.delivery.stop_attempt(task, Reason.PROTOCOL_VIOLATION, turn)
            message = f"the agent asked more than {QUESTIONS} questions"
            fault = Fault(ErrorClass.INTERNAL, Reason.PROTOCOL_VIOLATION, message)
            self.pool.delivery.give_up_attempt(task, fault, turn)
        else:
            self._pause(task, ask, turn)

    def _pause(self, task: Task, ask: Ask, turn: Turn) -> None:
        pool, instance = self.pool, task.instance
        state = next_state(task.state, TaskInput.PAUSE)
        assert state is not None, task
        assert instance is not None, task
        if not task.started_ms:
            task.started_ms = task.offered_ms
            emit(task, Kind.STARTED, None, turn)
            if task.session:
                pool.handoffs.taken_up(task, turn)
        task.state = state
        if task.dialogue is None:
            task.dialogue = Dialogue()
        dialogue: Dialogue = task.dialogue
        wait_ms = self.limit_ms if ask.timeout_ms is None else min(self.limit_ms, ask.timeout_ms)
        question = Question(len(dialogue.inputs) + 1, task.attempt, ask, turn.now_ms, turn.now_ms + wait_ms,
                            turn.wall_ms + wait_ms)  # fmt: skip
        dialogue.question, dialogue.given_ms, dialogue.resume_by_ms = question, 0, 0
        instance.moved_ms = turn.now_ms
        self._give_back(task, instance)
        self._paused[task.key] = task
        if pool.circuits.probes:
            pool.circuits.released(task)
        self._hold_pin(task, wait_ms, turn)
        if not task.volatile:
            turn.writes.questions.append(question_row(task, pool.shard, question, turn.wall_ms))
        emit(task, Kind.WAITING, question, turn)
        pool.delivery.touch(task)
        pool.deadlines.arm(task, turn)

    def _hold_pin(self, task: Task, wait_ms: int, turn: Turn) -> None:
        """The conversation stays where it is asked, for as long as the answer may take."""
        pins = self.pool.pins
        pin = pins.look((task.tenant, task.session), turn.now_ms) if task.session else None
        if pin is not None and pin.instance_id == task.instance_id and pin.expires_ms < turn.now_ms + wait_ms:
            pins.set((task.tenant, task.session), task.instance_id, turn.now_ms, max(wait_ms, pin.ttl_ms))

    # -- answering ----------------------------------------------------------------------------------------------------

    def answered(self, event: InputCame, turn: Turn) -> None:
        """A caller answers."""
        task = self.pool.find(event.tenant, event.task_id)
        if task is None:
            turn.sends.append(AskJournal(None, event.tenant, event.task_id, 0, event.reply, event.input))
            return
        dialogue: Dialogue | None = task.dialogue
        known = known_input(dialogue.inputs if dialogue is not None else (), event.input)
        if known is None:
            known = self._misplaced(task, event.input, event.question)
        if isinstance(known, Fault):
            turn.sends.append(Refused(event.reply, known, task, given=event.input))
            return
        if not known:
            assert dialogue is not None
            self._take(task, dialogue, event.input, turn)
        turn.sends.append(Done(event.reply, (task, known)))

    def _misplaced(self, task: Task, given: Input, question: str) -> Fault | bool:
        """Why an answer cannot be taken; False if it can."""
        dialogue: Dialogue | None = task.dialogue
        if task.state >= FIRST_TERMINAL:
            return wrong_state(f"task {task.task_id!r} has ended ({task.state.name})")
        if task.state is not TaskState.WAITING or dialogue is None or dialogue.question is None:
            return wrong_state(f"task {task.task_id!r} asks for nothing now ({task.state.name})")
        if dialogue.given_ms:
            return wrong_state(f"the question of task {task.task_id!r} is answered already")
        if question and question != dialogue.question.ask.name:
            message = f"task {task.task_id!r} asks {dialogue.question.ask.name!r} now, not {question!r}"
            return wrong_state(message)
        size = dialogue.size() + size_in_bytes(given.content)
        if size > INPUTS_BYTES:
            message = f"the answers of task {task.task_id!r} come to {size} bytes, at most {INPUTS_BYTES} are kept"
            return Fault(ErrorClass.INVALID_REQUEST, Reason.PAYLOAD_TOO_LARGE, message, {"limit": str(INPUTS_BYTES)})
        return False

    def _take(self, task: Task, dialogue: Dialogue, given: Input, turn: Turn) -> None:
        pool, instance = self.pool, task.instance
        assert dialogue.question is not None
        given = given._replace(question=dialogue.question.ask.name)
        dialogue.inputs.append(given)
        dialogue.given_ms = max(1, turn.now_ms)
        if not task.volatile:
            number = dialogue.question.number
            row = InputRow(task.row, pool.shard, number, given.input_id, given.question, given.media_type,
                           given.content, turn.wall_ms)  # fmt: skip
            turn.writes.inputs.append(row)
        emit(task, Kind.INPUT_GIVEN, (given.input_id, given.question), turn)
        pool.delivery.touch(task)
        if instance is not None:
            self._reserve(task, instance)
            self._go_on(task, instance, turn)
        pool.deadlines.arm(task, turn)

    # -- going on -----------------------------------------------------------------------------------------------------

    def _reserve(self, task: Task, instance: Instance) -> None:
        """Takes the slots, also if they are not free: who comes later does not overtake."""
        if self._paused.pop(task.key, None) is not None:
            instance.running[task.key] = task
            instance.inflight += task.cost
            self.pool.router.place(instance)

    def _go_on(self, task: Task, instance: Instance, turn: Turn) -> bool:
        """Gives the answer to the agent, if it is there and has room."""
        dialogue: Dialogue = task.dialogue
        behind = sum(one.cost for one in self.resuming.values() if one.instance is instance and one is not task)
        alone = instance.inflight - task.cost - behind <= 0
        if instance.link is None or not (alone or instance.inflight - behind <= instance.max_concurrency):
            if task.key not in self.resuming:
                self.resuming[task.key] = task
                dialogue.resume_by_ms = turn.now_ms + RESUME_MS
            return False
        self.resuming.pop(task.key, None)
        dialogue.resume_by_ms = 0
        state = next_state(task.state, TaskInput.RESUME)
        assert state is not None, task
        task.state = state
        task.progressed_ms = turn.now_ms
        dialogue.waited(task, turn.now_ms)
        if task.session:
            self.pool.pins.set((task.tenant, task.session), task.instance_id, turn.now_ms, task.session_ttl_ms)
        turn.sends.append(GiveInput(task, dialogue.inputs[-1]))
        self.pool.deadlines.arm(task, turn)
        return True

    def resume(self, turn: Turn) -> None:
        """Slots were freed: who was answered first goes on first."""
        full: set[int] = set()
        for key, task in list(self.resuming.items()):
            instance = task.instance
            if task.state is not TaskState.WAITING or instance is None or key not in instance.running:
                del self.resuming[key]  # it is over, or waits for something else by now
            elif id(instance) not in full and not self._go_on(task, instance, turn):
                full.add(id(instance))

    # -- what becomes of the instance ---------------------------------------------------------------------------------

    def of(self, instance: Instance) -> list[Task]:
        """The tasks without slots that wait with an instance."""
        return [task for task in self._paused.values() if task.instance is instance] if self._paused else []

    def restored(self, task: Task, instance: Instance, turn: Turn) -> None:
        """A task from the journal waits without slots, for its answer and for its instance."""
        task.state = TaskState.WAITING
        task.started_ms = task.progressed_ms = turn.now_ms
        task.instance = instance
        self._paused[task.key] = task

    def released(self, task: Task) -> None:
        """The attempt of a task without slots is over."""
        self._paused.pop(task.key, None)

    def attached(self, instance: Instance, named: set[TaskKey], turn: Turn) -> None:
        """An instance said hello. What it named goes on waiting, or hears its answer again; what it did not name is
        gone, unless it is dialled: then it is called again when there is an answer."""
        for task in self.of(instance):
            if task.key in named or instance.dialled:
                task.lease_until_ms = 0
                self.pool.deadlines.arm(task, turn)
            else:
                fault = lost(f"instance {instance.instance_id!r} came back without this attempt")
                self.pool.delivery.give_up_attempt(task, fault, turn, lost=True)
        for task in list(instance.running.values()):
            dialogue: Dialogue | None = task.dialogue
            if dialogue is None or dialogue.question is None or dialogue.question.attempt != task.attempt:
                continue
            task.lease_until_ms = 0
            if task.state is TaskState.WAITING:
                self._go_on(task, instance, turn)
            elif not dialogue.given_ms:
                self._wait_again(task, instance)
            elif not instance.dialled:
                turn.sends.append(GiveInput(task, dialogue.inputs[-1]))
            self.pool.deadlines.arm(task, turn)

    def _wait_again(self, task: Task, instance: Instance) -> None:
        """An attempt that was given up while it waited is back, and nobody has answered it."""
        state = next_state(task.state, TaskInput.PAUSE)
        assert state is not None, task
        task.state = state
        self._give_back(task, instance)
        self._paused[task.key] = task

    def _give_back(self, task: Task, instance: Instance) -> None:
        if instance.running.pop(task.key, None) is not None:
            instance.inflight -= task.cost
            self.pool.router.place(instance)
            self.pool.slot_freed = True

    # -- time ---------------------------------------------------------------------------------------------------------

    def limit_of(self, task: Task) -> int:
        """When something is due of a waiting task: its answer, its slot, or a sign of life of its instance."""
        dialogue: Dialogue = task.dialogue
        assert dialogue.question is not None
        until = dialogue.resume_by_ms if dialogue.given_ms else dialogue.question.until_ms
        return min(until or self.pool.leases.until_ms(task), self.pool.leases.until_ms(task))

    def due(self, task: Task, turn: Turn) -> None:
        """A time limit of a waiting task may have come."""
        dialogue: Dialogue = task.dialogue
        question = dialogue.question
        assert question is not None
        if turn.now_ms >= self.pool.leases.until_ms(task):
            self.pool.leases.expired(task, turn)
        elif not dialogue.given_ms and turn.now_ms >= question.until_ms:
            message = f"nobody answered within {question.until_ms - question.asked_ms} ms what the agent asked"
            turn.sends.append(Noted("input_expired", "", task))
            self.pool.deadlines.fail(task, Reason.INPUT_EXPIRED, message, turn)
        elif dialogue.given_ms and dialogue.resume_by_ms and turn.now_ms >= dialogue.resume_by_ms:
            message = f"instance {task.instance_id!r} had no slot for the answered task within {RESUME_MS} ms"
            self.pool.delivery.stop_attempt(task, Reason.AGENT_BUSY, turn)
            fault = Fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, message)
            self.pool.delivery.give_up_attempt(task, fault, turn)
        else:
            self.pool.deadlines.arm(task, turn)

    def stop(self, task: Task, instance: Instance, reason: Reason, turn: Turn) -> bool:
        """Tells the instance to forget a task that waits without slots; False if it has some."""
        if task.key not in self._paused:
            return False
        turn.sends.append(StopAttempt(instance.link, task.tenant, task.task_id, task.attempt, reason))
        return True


def over(task_id: str, attempt: int) -> Fault:
    """The answer to an agent that goes on with what has ended."""
    message = f"attempt {attempt} of task {task_id!r} is over"
    return Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_ATTEMPT, message)


def wrong_state(message: str) -> Fault:
    """The task does not wait for this."""
    return Fault(ErrorClass.INVALID_REQUEST, Reason.WRONG_STATE, message)


def question_row(task: Task, shard: int, question: Question, wall_ms: int) -> QuestionRow:
    """A question as the journal keeps it."""
    ask = question.ask
    return QuestionRow(task.row, shard, question.attempt, question.number, ask.kind, ask.media_type, ask.content,
                       ask.name, wall_ms, question.until_wall_ms)  # fmt: skip
