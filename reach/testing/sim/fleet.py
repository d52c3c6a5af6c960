"""What must be true of instances: who is drained gets nothing new (REG-7), and what was found out of a version stays so
over a restart (RTE-9)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from agentreach.v1 import agent_pb2
from reach.core.canary import Stage
from reach.core.model import Instance, TaskKey
from reach.core.rows import AgentRow, Writes
from reach.testing.sim.loop import WALL_EPOCH_MS

if TYPE_CHECKING:
    from reach.runtime.host import Host
    from reach.testing.sim.checker import Checker

DRAIN_MS: Final = 5_000
"""How long the sessions of an instance that an operator drains may stay."""
VERSIONS: Final = ("1", "2", "3")
SHARE: Final = 0.5
"""Of a version on trial: there are few tasks in a history."""
DECIDED: Final = {f"canary_{stage.name.lower()}": stage for stage in (Stage.PROMOTED, Stage.ROLLED_BACK)}


class Version(NamedTuple):
    """A version of an agent in a pool."""

    agent_type: str
    agent_id: str
    version: str


class FleetTruth:
    """The instances, as operators and the journal have them. Belongs to a `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._drained: dict[str, float] = {}
        """Instances that are drained for certain, and since when."""
        self._orders: dict[str, int] = {}
        self._rows: dict[str, AgentRow] = {}
        self._versions: dict[str, Version] = {}

    # -- draining -----------------------------------------------------------------------------------------------------

    def drain_asked(self, instance_id: str) -> int:
        """An operator asks to drain; returns what was ordered of the instance so far, for `drained`. Of one that is
        drained already the later deadline counts, and from when, only the answer tells."""
        if instance_id in self._drained:
            self._drained[instance_id] = inf
        return self._orders.get(instance_id, 0)

    def drained(self, instance_id: str, orders: int) -> None:
        """The server says that an instance is drained; `orders`: when that was asked."""
        if orders == self._orders.get(instance_id, 0):  # else it may work again by now
            self._drained[instance_id] = self._checker.now()

    def undrained(self, instance_id: str) -> None:
        """An operator asks that it may work again, or a new process of it begins."""
        self._orders[instance_id] = self._orders.get(instance_id, 0) + 1
        self._drained.pop(instance_id, None)

    def begun(self, key: TaskKey, number: int, instance_id: str, offered_wall_ms: int) -> None:
        """An attempt at an instance is durable. When it was decided counts: the journal may have taken long."""
        since = self._drained.get(instance_id)
        if since is None:
            return
        late = offered_wall_ms - WALL_EPOCH_MS - 1_000 * since > DRAIN_MS and not self._checker.keeping.clock_leaps
        if late or not self._checker.sessions.of(key):
            self._checker.violate("DRAINED_TAKES_NOTHING", key, f"#{number} begins at {instance_id}, which is drained")

    # -- versions -----------------------------------------------------------------------------------------------------

    def durable(self, writes: Writes) -> None:
        """A batch is durable."""
        for gone in writes.agents_gone:
            self._rows.pop(gone.instance_id, None)
            self._versions.pop(gone.instance_id, None)
        for row in writes.agents:
            before = self._rows.get(row.instance_id)
            if before is None or before.boot_id != row.boot_id:
                self.undrained(row.instance_id)  # a new process works, whatever was said of the one before
            self._rows[row.instance_id] = row
            said = agent_pb2.Registration.FromString(row.registration)
            self._versions[row.instance_id] = Version(row.agent_type, said.agent_id, said.version)

    def type_of(self, instance_id: str) -> str:
        """The pool of an instance, as the journal has it; empty if it is not there."""
        row = self._rows.get(instance_id)
        return row.agent_type if row is not None else ""

    def _standing(self) -> dict[Version, int]:
        """What is written of the trials of versions (`AgentRow.trial`)."""
        found: dict[Version, int] = {}
        for instance_id, row in self._rows.items():
            version = self._versions[instance_id]
            found[version] = max(row.trial, found.get(version, 0))
        return {version: trial for version, trial in found.items() if trial}

    def decided(self, kind: str, instance: Instance) -> None:
        """The server says that a trial is over."""
        version = Version(instance.pool_key.agent_type, instance.profile.agent_id, instance.profile.version)
        if version not in self._versions.values():
            return  # all of its instances are gone by now
        written = self._standing().get(version, 0)
        if kind in DECIDED and instance.instance_id in self._rows and written == 1 + Stage.TRIAL:
            self._checker.violate("DECISIONS_ARE_WRITTEN", None, f"{version} is {kind}, and on trial as written")

    def compare(self, host: Host) -> None:
        """A new process has brought back what is written; or nothing happens any more, and all should be written."""
        there = set(self._versions.values())  # of a version that nobody has, memory alone knows a while longer
        found = {
            version: 1 + trial.stage
            for pool in host.pools()
            for name, trial in pool.router.canary.trials.items()
            if (version := Version(pool.key.agent_type, *name)) in there
        }
        if found != self._standing():
            message = f"{found} are on trial as memory has it; {self._standing()} is written"
            self._checker.violate("DECISIONS_LAST", None, message)
