"""What the agents of a task asked, what they were told, and how long they waited for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from reach.core.model import Content, Fault, Task
from reach.core.pieces import size_in_bytes
from reach.errors import ErrorClass, Reason


class Ask(NamedTuple):
    """What an agent asks, as it says."""

    kind: int
    """1: input, 2: credentials."""
    media_type: str
    content: Content
    name: str = ""
    timeout_ms: int | None = None


class Question(NamedTuple):
    """What was asked, and until when the answer may come."""

    number: int
    """Of the task, from 1: answers so far, and one."""
    attempt: int
    ask: Ask
    asked_ms: int
    until_ms: int
    until_wall_ms: int


class Input(NamedTuple):
    """An answer."""

    input_id: str
    question: str
    """Name of the question, as the agent gave it."""
    media_type: str
    content: Content


class Dialogue:
    """What the agents of one task asked, and what they were told. Made with the first question."""

    __slots__ = ("attempt", "attempt_waited_ms", "given_ms", "inputs", "question", "resume_by_ms", "waited_ms")

    def __init__(self) -> None:
        self.question: Question | None = None
        """The latest one."""
        self.inputs: list[Input] = []
        """Oldest first, of all attempts."""
        self.given_ms = 0
        """When the latest question was answered; 0: it is open."""
        self.resume_by_ms = 0
        """The answer is there and no slot: until when it may wait for one."""
        self.waited_ms = 0
        """Time in WAITING, but for the current question."""
        self.attempt = 0
        self.attempt_waited_ms = 0
        """The same of this attempt, since it began or came back after a restart: its own limits began anew then."""

    def size(self) -> int:
        """Bytes of all answers."""
        return sum(size_in_bytes(one.content) for one in self.inputs)

    def waited(self, task: Task, now_ms: int) -> None:
        """The wait for the latest answer is over."""
        assert self.question is not None
        asked_ms = self.question.asked_ms
        self.waited_ms += now_ms - asked_ms
        if self.attempt != task.attempt:
            self.attempt, self.attempt_waited_ms = task.attempt, 0
        self.attempt_waited_ms += now_ms - max(asked_ms, task.started_ms)


def known_input(inputs: Any, given: Input) -> Fault | bool | None:
    """Whether an answer was taken before: True, or why that name cannot be used again; None if it was not."""
    for one in inputs:
        if one.input_id == given.input_id:
            if one.content == given.content:
                return True
            message = f"input id {given.input_id!r} was used for another answer of this task"
            metadata = {"input_id": given.input_id}
            return Fault(ErrorClass.INVALID_REQUEST, Reason.INPUT_ID_REUSED, message, metadata)
    return None


def waited_ms(task: Task) -> int:
    """How long a task has waited for answers: its time limits stood still meanwhile."""
    dialogue: Dialogue | None = task.dialogue
    return dialogue.waited_ms if dialogue is not None else 0


def attempt_waited_ms(task: Task) -> int:
    """The same of its current attempt, since its limits began."""
    dialogue: Dialogue | None = task.dialogue
    return dialogue.attempt_waited_ms if dialogue is not None and dialogue.attempt == task.attempt else 0
