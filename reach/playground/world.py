"""The run: the real core of one pool (`core.pool`) between modelled callers and instances, on a clock that jumps.

Nothing here is decided twice: routing, health, retries, circuits and sessions are those of a server. What a server adds
around the core (the wire, the journal) takes no time here. The same trace, policy and seed give the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from random import Random
from typing import Any

from reach.core import effects as fx
from reach.core import events as ev
from reach.core.joining import Joining
from reach.core.model import Fault, Instance, PoolKey, Profile, Requirement, Task, TaskState
from reach.core.policies import POLICIES, Policy
from reach.core.pool import Pool
from reach.core.retry import POLICIES as RETRIES
from reach.core.routing import Router
from reach.core.row_numbers import RowNumbers
from reach.core.stream import Interest, Reader
from reach.errors import ErrorClass, InvalidRequest, Reason
from reach.playground.instances import Process, Work
from reach.playground.report import InstanceFigures, Report, hot_spot, quantile
from reach.playground.trace import Happening, InstanceModel, Trace

TENANT = "playground"
BEFORE_MS = 60_000
"""How long the instances have been there when the first task comes: long enough for their slow start."""
AFTER_MS = 600_000
"""How long what has come may take to be finished."""
WALL_MS = 1_700_000_000_000
STOPPED_MS = 1
"""How soon an instance stops when it is told to."""


def simulate(trace: Trace, policy: str, seed: int = 1, policies: Mapping[str, Policy] = POLICIES) -> Report:
    """Plays a trace under a policy, which is named; `policies` are all that there are.

    Raises:
        InvalidRequest: INVALID_FIELD: there is no such policy.
    """
    if policy not in policies:
        known = ", ".join(sorted(policies))
        raise InvalidRequest(f"there is no policy {policy!r}; there is: {known}", Reason.INVALID_FIELD, field="policy")
    world = World(trace, policies[policy], seed)
    world.run()
    return world.report()


class World:
    """See the module."""

    def __init__(self, trace: Trace, policy: Policy, seed: int) -> None:
        self.trace = trace
        self.policy = policy.name
        self.seed = seed
        self.now_ms = 0
        router = Router(policy)
        key = PoolKey(TENANT, trace.name)
        self.pool = Pool(key, 0, RowNumbers(1), seed, lambda one, other: one == other, router=router)
        self.pool.heartbeat_ms = round(trace.heartbeat.ms)
        self.processes = [
            Process(model, f"{model.name}-{number}" if model.count > 1 else model.name, seed)
            for model in trace.instances
            for number in range(1, model.count + 1)
        ]
        self._by_name = {process.name: process for process in self.processes}
        self._agenda: list[tuple[int, int, Any, Any]] = []
        self._planned = 0
        self._events: list[Any] = []
        self._revision = 0
        self._came = 0
        self._open = 0
        self._efforts: dict[str, float] = {}
        self._latencies: list[float] = []
        self._ends: dict[TaskState, int] = {}
        self._transfers = self._retries = 0
        self._end_ms = round(BEFORE_MS + trace.duration.ms)
        self._plan_all()

    # -- what will happen ---------------------------------------------------------------------------------------------

    def _plan(self, at_ms: float, act: Any, subject: Any = None) -> None:
        self._planned += 1
        heappush(self._agenda, (max(self.now_ms, round(at_ms)), self._planned, act, subject))

    def _plan_all(self) -> None:
        for number, process in enumerate(self.processes):
            joins = process.model.joins
            self._plan(0 if joins is None else BEFORE_MS + joins.ms, self._start, process)
            # Beats of real agents do not come all at once either.
            self._plan(self.trace.heartbeat.ms * (number + 1) / len(self.processes), self._beat, process)
            for one in process.model.happens:
                self._plan(BEFORE_MS + one.at.ms, self._happen, (process, one))
        for number, stream in enumerate(self.trace.tasks):
            chance = Random(f"{self.seed} stream {number}")
            at = stream.begin.ms
            end = min(self.trace.duration.ms, stream.end.ms if stream.end is not None else self.trace.duration.ms)
            while True:
                gap = 1_000.0 / stream.rate
                at += chance.expovariate(1.0) * gap if stream.arrivals == "poisson" else gap
                if at >= end:
                    break
                session = f"app:user:{chance.randrange(stream.sessions)}" if stream.sessions else ""
                self._plan(BEFORE_MS + at, self._submit,
                           (stream.capability, session, stream.timeout.ms, stream.retry, 1.0))  # fmt: skip
        for row in self.trace.recorded:
            session = f"app:user:{row.session}" if row.session else ""
            asked = (row.capability, session, row.timeout.ms, "ladder", row.work)
            self._plan(BEFORE_MS + row.at.ms, self._submit, asked)

    def run(self) -> None:
        """Goes on until all that has come has ended, or takes too long."""
        while True:
            times = [self._agenda[0][0]] if self._agenda else []
            wake = self.pool.next_wake_ms()
            if wake is not None:
                times.append(wake)
            if not times or min(times) > self._end_ms + AFTER_MS or (min(times) > self._end_ms and not self._open):
                return
            self.now_ms = max(self.now_ms, min(times))
            while self._agenda and self._agenda[0][0] <= self.now_ms:
                _, _, act, subject = heappop(self._agenda)
                act(subject)
            self._step()

    def _step(self) -> None:
        events, self._events = self._events, []
        turn = fx.Turn(self.now_ms, WALL_MS + self.now_ms)
        self.pool.step(events, turn)
        for send in turn.sends:
            kind = type(send)
            if kind is fx.Offer:
                self._offered(send)
            elif kind is fx.Ended:
                if send.first:
                    self._ended(send.task)
            elif kind is fx.StopAttempt:
                self._stopped(send)
            elif kind is fx.Welcome:
                self._by_name[send.instance.instance_id].instance = send.instance
            elif kind is fx.Noted and send.kind == "retry":
                self._retries += 1
        if self._events:
            self._plan(self.now_ms, _nothing)

    # -- instances ----------------------------------------------------------------------------------------------------

    def _start(self, process: Process) -> None:
        process.begin(self.now_ms)
        model = process.model
        joining = Joining(process.name, f"boot {process.boot}", profile_of(model), b"")
        joining.max_concurrency, joining.weight = model.slots, model.weight
        joining.ready = self.now_ms >= process.ready_ms
        self._revision += 1
        self._events.append(ev.Joined(joining, self._revision, process.link))
        if not joining.ready:
            self._plan(process.ready_ms, self._tell, process)

    def _beat(self, process: Process) -> None:
        self._tell(process)
        self._plan(self.now_ms + self.trace.heartbeat.ms, self._beat, process)

    def _tell(self, process: Process) -> None:
        if process.link is not None and process.instance is not None and self.now_ms >= process.frozen_until_ms:
            self._events.append(ev.Beat(process.instance, process.status(self.now_ms)))

    def _happen(self, what: tuple[Process, Happening]) -> None:
        process, one = what
        if one.restart is not None or one.stop:
            self._lose(process)
            if one.restart is not None:
                self._plan(self.now_ms + one.restart.ms, self._start, process)
        elif one.freeze is not None:
            process.frozen_until_ms = self.now_ms + one.freeze.ms
        elif one.slow is not None:
            process.slow = one.slow
        elif one.fail is not None:
            process.fail = one.fail
        elif one.hang is not None:
            process.hangs = one.hang

    def _lose(self, process: Process) -> None:
        if process.link is not None and process.instance is not None:
            self._events.append(ev.LinkEnded(process.instance, process.link, False))
        process.end()

    def _offered(self, offer: Any) -> None:
        process = self._by_name[offer.instance.instance_id]
        if process.link is None or offer.task.attempt != offer.attempt:
            return
        work = Work(offer.task, process)
        process.attempts += 1
        process.waiting.append(work)
        process.peak = max(process.peak, process.held)
        self._work(process)

    def _work(self, process: Process) -> None:
        """Begins what it has slots for."""
        while process.waiting and len(process.working) < process.model.slots:
            work = process.waiting.popleft()
            process.working[work.task.task_id, work.attempt] = work
            self._events.append(ev.TakenUp(self._who(process), TENANT, work.task.task_id, work.attempt))
            takes = process.service_ms(work, self._efforts[work.task.task_id], self.now_ms)
            if takes is not None:
                work.ends_ms = self.now_ms + takes
                process.busy_ms += takes
                self._plan(work.ends_ms, self._finish, work)
        if self._events:
            self._plan(self.now_ms, _nothing)

    def _who(self, process: Process) -> Instance:
        assert process.instance is not None
        return process.instance

    def _finish(self, work: Work) -> None:
        process = work.process
        key = (work.task.task_id, work.attempt)
        if process.boot != work.boot or process.working.get(key) is not work:
            return
        if self.now_ms < process.frozen_until_ms:
            self._plan(process.frozen_until_ms, self._finish, work)
            return
        del process.working[key]
        report = ev.Reported(self._who(process), TENANT, *key)
        if work.fails:
            process.failed += 1
            report.fault = Fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the model says so")
        else:
            process.done += 1
            process.leaked += process.model.leak
            report.content = ""
        self._events.append(report)
        self._work(process)

    def _stopped(self, stop: fx.StopAttempt) -> None:
        name = stop.link[0] if stop.link is not None else ""
        process = self._by_name.get(name)
        if process is None or process.link != stop.link:
            return
        key = (stop.task_id, stop.attempt)
        work = process.working.pop(key, None)
        if work is not None and work.ends_ms:
            process.busy_ms -= max(0, work.ends_ms - self.now_ms)
        process.forget(key)
        self._plan(self.now_ms + STOPPED_MS, self._has_stopped, (process, process.boot, key))

    def _has_stopped(self, what: tuple[Process, int, tuple[str, int]]) -> None:
        process, boot, key = what
        if process.boot == boot and process.link is not None:
            report = ev.Reported(self._who(process), TENANT, *key)
            report.fault = Fault(ErrorClass.INVALID_REQUEST, Reason.CANCELLED, "stopped")
            self._events.append(report)
            self._work(process)

    # -- callers ------------------------------------------------------------------------------------------------------

    def _submit(self, asked: tuple[str, str, float, str, float]) -> None:
        capability, session, timeout, retry, work = asked
        self._came += 1
        self._open += 1
        task = Task(TENANT, f"t{self._came}", b"", Requirement(capability=capability))
        task.session, task.volatile = session, True
        task.start_to_close_ms, task.retry = round(timeout), RETRIES[retry]
        self._efforts[task.task_id] = work
        self._events.append(ev.Submitted(task, Reader(None, self._came, Interest.ACCEPTANCE, 0)))

    def _ended(self, task: Task) -> None:
        self._open -= 1
        self._ends[task.state] = self._ends.get(task.state, 0) + 1
        self._transfers += task.transfers
        self._efforts.pop(task.task_id, None)
        if task.state is TaskState.SUCCEEDED:
            self._latencies.append(self.now_ms - task.accepted_ms)

    # -- figures ------------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """What the run showed."""
        ordered = sorted(self._latencies)
        succeeded = len(ordered)
        failed = sum(self._ends.values()) - succeeded
        mean = sum(ordered) / succeeded if succeeded else 0.0
        return Report(
            self.trace.name, self.policy, self.seed, self._came, succeeded, failed, self._open, self._retries,
            self._transfers, quantile(ordered, 0.50), quantile(ordered, 0.95), quantile(ordered, 0.99), mean,
            tuple(self._figures()),
        )  # fmt: skip

    def _figures(self) -> list[InstanceFigures]:
        attempts = sum(process.attempts for process in self.processes)
        slots = sum(process.model.slots for process in self.processes)
        rows = []
        for one in self.processes:
            share = one.attempts / attempts if attempts else 0.0
            fair = one.model.slots / slots
            busy = one.busy_ms / (one.model.slots * self.trace.duration.ms)
            hot = hot_spot(share, fair, one.peak, one.model.slots, alone=len(self.processes) == 1)
            rows.append(InstanceFigures(one.name, one.attempts, share, fair, one.done, one.failed, one.peak,
                                        one.model.slots, busy, hot))  # fmt: skip
        return rows


def profile_of(model: InstanceModel) -> Profile:
    """What a modelled instance registers."""
    return Profile(
        agent_id=model.name,
        version=model.version,
        capabilities=tuple((name, "1") for name in model.capabilities),
        methods=(),
        tags=(),
        languages=(),
        input_media_types=(),
        output_media_types=(),
        region="",
        allowed_tenants=(),
    )


def _nothing(_: Any) -> None:
    """What happened in this very step goes into the next."""
