"""Circuit breakers: an instance that fails too often gets nothing but a probe now and then (RTE-10).

Open: at least half of at least 5 calls of the last minute failed, or 5 in a row. From then on one task every 5 s, and
never two at once, shows whether it works again; three good ones in a row close it, with a clean history. After Nygard,
"Release It!", 2007.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core.conditions import clear, mark
from reach.core.effects import Turn
from reach.core.instance_states import Condition
from reach.core.model import Fault, Instance, Task
from reach.core.picking import bits
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.pool import Pool

CALLS_AT_LEAST = 5
SHARE = 0.5
IN_A_ROW = 5
PROBE_MS = 5_000
UNPROBED_MS = 60_000
"""How long a probe may be due before a task with an irreversible effect may be one, for no other comes."""
GOOD_PROBES = 3
PART_MS = 10_000
PARTS = 6
"""The minute is counted in parts of 10 s, so that it is 50 to 60 s long."""
COUNTED = frozenset({ErrorClass.AGENT_ERROR, ErrorClass.INTERNAL, ErrorClass.TIMEOUT, ErrorClass.UNAVAILABLE})
"""Failures that say something about the instance. A bad request, a cancelled task or a full instance does not."""
BLOCKED = "circuit_open"


def counts(fault: Fault) -> bool:
    """Whether a failure counts against its instance."""
    return fault.error_class in COUNTED and fault.reason is not Reason.NOT_IMPLEMENTED


class Circuit:
    """How the latest calls of one process of an instance went."""

    __slots__ = ("_bad", "_good", "_part", "_part_until_ms", "generation", "good_probes", "in_a_row", "instance",
                 "next_probe_ms", "opened_ms", "probe", "timer_slot")  # fmt: skip

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.timer_slot = 0
        self.next_probe_ms = 0
        self.clean()

    def clean(self) -> None:
        """Forgets all: it is closed, or another process has taken its place."""
        self.generation = self.instance.generation
        self.in_a_row = 0
        self.good_probes = 0
        self.opened_ms = 0
        """When it opened; 0 while it is closed."""
        self.probe: Task | None = None
        """The task that shows whether it works again."""
        self._good, self._bad = [0] * PARTS, [0] * PARTS
        self._part = self._part_until_ms = 0

    def _rotate(self, now_ms: int) -> None:
        """Begins a new part of the minute, and forgets those that are over."""
        behind = (now_ms - self._part_until_ms) // PART_MS + 1 if self._part_until_ms else 1
        for _ in range(min(behind, PARTS)):
            self._part = (self._part + 1) % PARTS
            self._good[self._part] = self._bad[self._part] = 0
        self._part_until_ms = now_ms - now_ms % PART_MS + PART_MS

    def went_well(self, now_ms: int) -> None:
        """A call succeeded."""
        if now_ms >= self._part_until_ms:
            self._rotate(now_ms)
        self._good[self._part] += 1
        self.in_a_row = 0

    def went_wrong(self, now_ms: int) -> str:
        """A call failed. Returns why the circuit should open; empty if it should not."""
        if now_ms >= self._part_until_ms:
            self._rotate(now_ms)
        self._bad[self._part] += 1
        self.in_a_row += 1
        bad = sum(self._bad)
        calls = bad + sum(self._good)
        if self.in_a_row >= IN_A_ROW:
            return f"{self.in_a_row} calls in a row failed"
        if calls >= CALLS_AT_LEAST and bad >= SHARE * calls:
            return f"{bad} of {calls} calls of the last minute failed"
        return ""


class Circuits:
    """The breakers of one pool."""

    __slots__ = ("pool", "probes")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.probes: dict[int, Circuit] = {}
        """Circuits by the task (its `id`) that probes them now: at most one for each instance."""

    def _of(self, instance: Instance) -> Circuit:
        circuit: Circuit | None = instance.circuit
        if circuit is None:
            circuit = instance.circuit = Circuit(instance)
        elif circuit.generation != instance.generation:
            self._clean(circuit)
        return circuit

    def renewed(self, instance: Instance) -> None:
        """Another process has taken the place of the one that failed."""
        if instance.circuit is not None:
            self.pool.router.may_probe(instance, False)
            self._of(instance)

    def _clean(self, circuit: Circuit) -> None:
        if circuit.probe is not None:
            self.probes.pop(id(circuit.probe), None)
        self.pool.wheel.disarm(circuit)
        circuit.clean()

    def succeeded(self, task: Task, instance: Instance, turn: Turn) -> None:
        """An attempt went well."""
        circuit = self._of(instance)
        if not circuit.opened_ms:
            circuit.went_well(turn.now_ms)
        elif task.offered_ms > circuit.opened_ms:
            circuit.good_probes += 1
            if circuit.good_probes >= GOOD_PROBES:
                self._close(circuit, turn)

    def failed(self, task: Task, instance: Instance, fault: Fault, turn: Turn) -> None:
        """An attempt failed."""
        if not counts(fault):
            return
        circuit = self._of(instance)
        if circuit.opened_ms:
            if task.offered_ms > circuit.opened_ms:
                circuit.good_probes = 0
            return
        why = circuit.went_wrong(turn.now_ms)
        if why:
            self._open(circuit, f"{why}; the last: {fault.reason.name}", turn)

    def _open(self, circuit: Circuit, why: str, turn: Turn) -> None:
        instance = circuit.instance
        circuit.opened_ms = turn.now_ms
        circuit.good_probes = 0
        mark(instance, Condition.CIRCUIT_OPEN, why, turn)
        self.pool.admission.place(instance, turn)
        self._later(circuit, turn.now_ms + PROBE_MS)

    def _close(self, circuit: Circuit, turn: Turn) -> None:
        instance = circuit.instance
        self._clean(circuit)
        self.pool.router.may_probe(instance, False)
        clear(instance, Condition.CIRCUIT_OPEN, f"{GOOD_PROBES} probes in a row went well", turn)
        self.pool.admission.place(instance, turn)
        self.pool.slot_freed = True

    def nobody_probes(self) -> bool:
        """Whether a probe has been due for so long that any task has to do."""
        router = self.pool.router
        due = [one.circuit for bit in bits(router.probing) if (one := router.instances[bit]) is not None]
        return any(circuit.next_probe_ms + UNPROBED_MS <= router.now_ms for circuit in due if circuit is not None)

    # -- probes -------------------------------------------------------------------------------------------------------

    def _later(self, circuit: Circuit, at_ms: int) -> None:
        circuit.next_probe_ms = at_ms
        self.pool.wheel.arm(circuit, at_ms)

    def due(self, circuit: Circuit) -> None:
        """It is time for a probe."""
        instance = circuit.instance
        if instance.bit < 0 or instance.circuit is not circuit:
            return
        if Condition.CIRCUIT_OPEN not in instance.conditions or circuit.generation != instance.generation:
            self.pool.router.may_probe(instance, False)
            self._clean(circuit)
        elif circuit.probe is None:
            self.pool.router.may_probe(instance, True)
            self.pool.slot_freed = True

    def began(self, task: Task, instance: Instance, turn: Turn) -> None:
        """A task goes to an open instance as its probe: the next one may go 5 s later."""
        self.pool.router.may_probe(instance, False)
        circuit: Circuit | None = instance.circuit
        if circuit is None:
            return
        circuit.probe = task
        self.probes[id(task)] = circuit
        self._later(circuit, turn.now_ms + PROBE_MS)

    def released(self, task: Any) -> None:
        """The attempt of a probe is over, whatever became of it: its place is free."""
        circuit = self.probes.pop(id(task), None)
        if circuit is None or circuit.probe is not task:
            return
        circuit.probe = None
        if circuit.opened_ms and not circuit.timer_slot:
            self.due(circuit)
