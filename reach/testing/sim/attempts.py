"""What runs in an agent, and what has ended there and is not acknowledged yet (`sdk.attempts` and `sdk.outcomes`)."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from reach.core.model import EffectKind, Fault, TaskKey
from reach.errors import ErrorClass, Reason
from reach.testing.sim.loop import Process
from reach.testing.sim.story import TaskName
from reach.testing.sim.work import CREDIT, Flow, Manners, Outcome, Run, steps_of

if TYPE_CHECKING:
    from reach.testing.sim.world import World

RESEND_S = 5.0
HELD = 40
"""Acknowledged outcomes that are held to answer repeated offers (1,000 in the SDK)."""
GONE = (Reason.STALE_ATTEMPT, Reason.UNKNOWN_ATTEMPT, Reason.STALE_GENERATION, Reason.TASK_NOT_FOUND)
LOST = (Reason.STALE_ATTEMPT, Reason.UNKNOWN_ATTEMPT, Reason.STALE_GENERATION)


class Attempts:
    """The attempts of one agent. The names of what the server says are those of its items."""

    def __init__(self, world: World, name: str, manners: Manners) -> None:
        self.world = world
        self.name = name
        self.manners = manners
        self.random: Random = world.random
        self.boots = 0
        self.process = Process(world.loop, self.random)
        self.process.dead = True
        self.leaving = False
        self.forget()

    @property
    def boot(self) -> str:
        """Names the process."""
        return f"{self.name}.{self.boots}"

    def forget(self) -> None:
        """A process knows nothing of the one before."""
        self.welcomed = False
        self.greeting = False
        """A hello is out. Pieces wait for its answer, which says where they go on."""
        self.running: dict[TaskKey, Run] = {}
        self.stopping: set[Run] = set()
        self.by_key: dict[TaskKey, Outcome] = {}
        self.unacknowledged: dict[TaskKey, Outcome] = {}
        self._held: deque[Outcome] = deque()

    def tell(self, what: str, *details: Any) -> None:
        """A line of the story."""
        self.world.story.tell(self.name, what, *details)

    def start(self) -> None:
        """A new process."""
        raise NotImplementedError  # each kind of agent has its own

    def _start_again(self) -> None:
        """Unless somebody else has done so: there is one process at a time."""
        if self.process.dead:
            self.start()

    def put(self, *item: Any) -> None:
        """Says something, if there is a stream that works."""
        raise NotImplementedError

    def restore(self, run: Run, asked: bool, new_stream: bool) -> None:
        """A hello was answered: says again what the server lacks."""
        flow = run.flow
        if flow is not None:
            pieces = flow.replay(0 if asked else flow.named)
            for number, delta in pieces or ():
                self.put("delta", run.key, run.attempt, number, delta)
            flow.mute = flow.mute or pieces is None
            flow.whole = pieces is None or (not asked and (flow.whole or new_stream))
            if new_stream:
                flow.granted = flow.spent + CREDIT
                self._go_on(run)
        if run.question:
            self.put("result", run.key, run.attempt, "waiting", run.question)
        if run.asked:
            self.put("effect", run.key, run.attempt)

    # -- what runs ----------------------------------------------------------------------------------------------------

    def on_offer(self, key: TaskKey, attempt: int, effects: EffectKind | None, limit: int | None) -> None:
        """Takes up an attempt, but for one that runs or is answered already."""
        known = self.by_key.get(key)
        if known is not None:
            if known.attempt >= attempt:
                if known.attempt == attempt:
                    self.send(known)
                return
            self.by_key.pop(key)
            self.unacknowledged.pop(key, None)
        older = self.running.get(key)
        if older is not None:
            if older.attempt >= attempt:
                return
            self._stop(older, silent=True)
        run = self.running[key] = Run(key, attempt, steps_of(self.random, self.manners, effects))
        if self.leaving:
            self.conclude(run, Outcome(key, attempt, ("released", "the agent leaves")))
            return
        self.tell("begins {} #{}", TaskName(key[1]), attempt)
        if self.random.random() < 0.8:
            self.put("accept", key, attempt)
        self._next(run)

    def _next(self, run: Run) -> None:
        if run.steps:
            self.process.call_later(run.steps[0][0], self._step, run)

    def _step(self, run: Run) -> None:
        if run.cancelled or run.ended:
            self._stopped(run)
            return
        _, what, detail = run.steps[0]
        if what == "piece":
            if not self._piece(run):
                return
        elif what == "effect":
            run.asked = True
            self.put("effect", run.key, run.attempt)
            return
        elif what == "ask":
            run.question = detail
            self.put("result", run.key, run.attempt, "waiting", detail)
            return
        elif what == "progress":
            self.put("progress", run.key, run.attempt, *detail)
        else:
            self._finish(run, what, detail)
            return
        del run.steps[0]
        self._next(run)

    def _piece(self, run: Run) -> bool:
        flow = run.flow
        if flow is None:
            flow = run.flow = Flow()
        if flow.spent >= flow.granted:
            run.paused = True
            return False
        text = f"<{run.key[1]}#{run.attempt}@{self.boot}:{flow.last + 1}>" * self.random.choice((1, 1, 9))
        delta = flow.add(text)
        self.world.streamed(run.key, run.attempt, self.boot, flow.text)
        if self.welcomed and not self.greeting and not flow.mute:
            self.put("delta", run.key, run.attempt, flow.last, delta)
        return True

    def _go_on(self, run: Run) -> None:
        if run.paused and run.flow is not None and run.flow.spent < run.flow.granted:
            run.paused = False
            self.process.call_soon(self._step, run)

    def _finish(self, run: Run, what: str, detail: Any) -> None:
        if what == "fail":
            outcome = Outcome(run.key, run.attempt, ("fault", detail))
        elif what == "released":
            outcome = Outcome(run.key, run.attempt, ("released", detail))
        else:
            outcome = self._answer(run, detail)
        self.conclude(run, outcome)

    def _answer(self, run: Run, how: str) -> Outcome:
        flow = run.flow
        if how == "folded" and flow is not None:
            self.world.checker.attempts.says(run.key, run.attempt, self.name, flow.text)
            if flow.whole or flow.mute:
                return Outcome(run.key, run.attempt, ("output", flow.text))
            return Outcome(run.key, run.attempt, ("folded", flow.last), flow.text)
        text = flow.text if flow is not None else f"{run.key[1]} done by {self.boot} in #{run.attempt}"
        self.world.checker.attempts.says(run.key, run.attempt, self.name, text)
        return Outcome(run.key, run.attempt, ("output", text))

    def conclude(self, run: Run, outcome: Outcome) -> None:
        """An attempt has come to an end."""
        run.ended = True
        if self.running.get(run.key) is run:
            del self.running[run.key]
        self.tell("concludes {} #{}: {}", TaskName(run.key[1]), run.attempt, outcome.content[0])
        self.by_key[run.key] = self.unacknowledged[run.key] = outcome
        self.send(outcome)

    def send(self, outcome: Outcome) -> None:
        """Sends an outcome, again too."""
        outcome.sent_at = self.world.loop.now
        if self.random.random() < self.manners.unary:
            self.world.unary.report(self, self.boot, outcome)
        else:
            self.put("result", outcome.key, outcome.attempt, *outcome.content)

    def cancel(self, key: TaskKey, attempt: int, *, silent: bool) -> None:
        """The server wants an attempt stopped. `silent`: and does not want to hear that it is."""
        run = self.running.get(key)
        if run is not None and run.attempt == attempt:
            self._stop(run, silent=silent)
        elif silent:
            self.on_acknowledge(key, attempt)

    def _stop(self, run: Run, *, silent: bool) -> None:
        """Its handler hears of it, and ends in its own time."""
        del self.running[run.key]
        self.stopping.add(run)
        run.cancelled, run.silent = True, silent
        self.process.call_later(self.random.choice((0.001, 0.01, 3.0)), self._stopped, run)

    def _stopped(self, run: Run) -> None:
        if run in self.stopping:
            self.stopping.discard(run)
            if not run.silent:
                fault = Fault(ErrorClass.INVALID_REQUEST, Reason.CANCELLED, "the attempt was cancelled")
                self.put("result", run.key, run.attempt, "fault", fault)

    # -- what the server says -----------------------------------------------------------------------------------------

    def on_stop(self, key: TaskKey, attempt: int) -> None:
        """The server wants an attempt stopped."""
        run = self.running.get(key)
        waits = run is not None and run.question  # who waits for an answer would wait for ever
        if waits or self.random.random() >= self.manners.stubborn:
            self.cancel(key, attempt, silent=False)

    def on_acknowledge(self, key: TaskKey, attempt: int) -> None:
        """The outcome is committed. It is held a while for repeated offers."""
        outcome = self.unacknowledged.get(key)
        if outcome is None or outcome.attempt != attempt:
            return
        del self.unacknowledged[key]
        outcome.whole = None
        self._held.append(outcome)
        if len(self._held) > HELD:
            old = self._held.popleft()
            if self.by_key.get(old.key) is old:
                del self.by_key[old.key]

    def on_refuse(self, key: TaskKey, attempt: int, fault: Fault) -> None:
        """Something about an attempt is refused."""
        run = self.running.get(key)
        if run is not None and run.attempt == attempt:
            if fault.reason in LOST and (run.asked or run.question or self.random.random() >= self.manners.stubborn):
                self._stop(run, silent=True)
            return
        outcome = self.unacknowledged.get(key)
        retryable = fault.error_class in (ErrorClass.RESOURCE_EXHAUSTED, ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT)
        if outcome is None or outcome.attempt != attempt or retryable:
            return
        if fault.reason is Reason.UNEXPECTED_FRAME:
            if outcome.whole is not None:
                outcome.make_whole()
                self.send(outcome)
            elif not outcome.folded:
                self.world.checker.attempts.refuses(key, attempt, self.boot)
        elif fault.reason in GONE or outcome.is_error:
            self.on_acknowledge(key, attempt)
        else:
            failure = Fault(ErrorClass.INTERNAL, Reason.AGENT_CRASHED, "the outcome was refused")
            outcome.content, outcome.is_error = ("fault", failure), True
            self.send(outcome)

    def on_grant(self, key: TaskKey, attempt: int, fault: Fault | None) -> None:
        """The answer to a request for an effect."""
        run = self.running.get(key)
        if run is None or run.attempt != attempt or not run.asked:
            return
        run.asked = False
        if fault is not None:
            self.conclude(run, Outcome(key, attempt, ("fault", fault)))
            return
        self.tell("acts for {} #{}", TaskName(key[1]), attempt)
        self.world.checker.attempts.acts(key, attempt, self.boot)
        del run.steps[0]
        self._next(run)

    def on_input(self, key: TaskKey, attempt: int, question: str) -> None:
        """The answer to a question; it may come again."""
        run = self.running.get(key)
        if run is not None and run.attempt == attempt and run.question == question:
            run.question = ""
            del run.steps[0]
            self._next(run)

    def on_credit(self, key: TaskKey, attempt: int, count: int) -> None:
        """Room for pieces."""
        run = self.running.get(key)
        if run is not None and run.attempt == attempt and run.flow is not None:
            run.flow.granted += count
            self._go_on(run)
