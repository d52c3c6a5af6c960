"""The nouns of the core: tasks, attempts, outcomes, instances. How instances do: `instance_states.py`.

Objects here are slotted and mutable, and owned by exactly one pool. Nothing in this package reads a clock, chance or
the network: times are arguments in milliseconds, `*_ms` on the monotonic clock of the process, `*_wall_ms` on the
clock of the store. `spec` is the caller's request as bytes; the core carries it and never looks inside.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from reach.core.documents import Document
from reach.core.endpoint import Endpoint
from reach.core.instance_states import Availability, Condition, Health
from reach.core.signals import MethodStats
from reach.errors import ErrorClass, Reason

Content = str | bytes
"""What a payload holds: text, or bytes."""

TaskKey = tuple[str, str]
"""(tenant, task_id): the name of a task."""


class TaskState(IntEnum):
    """Where a task stands (DLV-1). Numbers as in the contract."""

    PENDING = 1
    DELIVERED = 2
    RUNNING = 3
    WAITING = 4
    SUCCEEDED = 5
    FAILED = 6
    CANCELLED = 7
    REJECTED = 8
    DEAD_LETTERED = 9


PENDING, FIRST_TERMINAL = TaskState.PENDING, TaskState.SUCCEEDED
"""States from `FIRST_TERMINAL` on never change."""


class EffectKind(IntEnum):
    """What running a task twice would do to the world. Numbers as in the contract."""

    NONE = 1
    IDEMPOTENT = 2
    IRREVERSIBLE = 3


class PoolKey(NamedTuple):
    """Names a pool: the unit that is sharded. `partition` is always 0 for now."""

    tenant: str
    agent_type: str
    partition: int = 0


class Fault:
    """Why something failed: the parts of a `ReachError`, as data."""

    __slots__ = ("error_class", "message", "metadata", "reason", "retry_after_ms")

    def __init__(
        self,
        error_class: ErrorClass,
        reason: Reason,
        message: str,
        metadata: dict[str, str] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        self.error_class = error_class
        self.reason = reason
        self.message = message
        self.metadata = metadata
        self.retry_after_ms = retry_after_ms

    def __repr__(self) -> str:
        return f"Fault({self.error_class.name}, {self.reason.name}, {self.message!r})"


class Requirement(NamedTuple):
    """What an instance must have to take a task; tasks with equal requirements wait in one queue (DLV-9)."""

    agent_id: str = ""
    instance_id: str = ""
    capability: str = ""
    capability_version: str = ""
    method: str = ""
    required_tags: tuple[str, ...] = ()
    accepted_media_types: tuple[str, ...] = ()
    accepted_languages: tuple[str, ...] = ()
    input_media_type: str = ""
    tenant: str = ""
    excluded_instances: tuple[str, ...] = ()
    """Instances that must not take it, by the caller's wish."""
    region: str = ""
    """The region to prefer."""
    documents: tuple[tuple[str, int], ...] = ()
    """(key of a capability document, match in percent): one of them must be declared. Empty: any will do. Keys are
    digests of documents, or `schema_key`; the match says how well the document fits the request's text."""


class Outcome:
    """How a task ended. Everything a caller is told, except what the task itself says."""

    __slots__ = (
        "agent_id", "attempts", "content", "ended_wall_ms", "extra", "fault", "instance_id", "media_type",
        "queued_ms", "ran_ms", "sequence", "state", "transfers",
    )  # fmt: skip

    def __init__(
        self,
        state: TaskState,
        content: Content | None = None,
        media_type: str = "",
        fault: Fault | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.state = state
        self.content = content
        self.media_type = media_type
        self.fault = fault
        self.extra = extra
        """confidence, conflict_hint, usage, executed_intent, as the agent gave them."""
        self.agent_id = ""
        self.instance_id = ""
        self.attempts = self.transfers = 0
        self.queued_ms = 0
        self.ran_ms = 0
        self.sequence = 0
        self.ended_wall_ms = 0


class Task:
    """One unit of work and its current attempt.

    The attempt is inline: `attempt` is its number (0 before the first), `instance` where it is, `started_ms` when the
    instance took it up (0 before). `fencing_token` equals the attempt number.
    """

    __slots__ = (
        "accepted_ms", "accepted_wall_ms", "announce", "attempt", "attempt_sequence", "avoided", "checkpoint", "cost",
        "decision", "dialogue", "effect_granted", "effects", "fairness_key", "handle", "history", "hop", "instance",
        "instance_id", "key", "lease_until_ms", "log", "not_before_ms", "offered_ms", "outcome", "paced",
        "parent_task_id", "pending_reason", "pin_until_ms", "policy", "pool", "priority", "progressed_ms",
        "requirement", "reserved", "retries", "retry", "root_task_id", "row", "schedule_to_close_ms",
        "schedule_to_start_ms", "sequence", "session", "session_ttl_ms", "silence_ms", "size", "spec", "start_delay_ms",
        "start_to_close_ms", "started_ms", "state", "task_id", "tenant", "timer_slot", "trace", "transfers", "volatile",
        "waiters",
    )  # fmt: skip

    def __init__(self, tenant: str, task_id: str, spec: bytes, requirement: Requirement) -> None:
        self.tenant = tenant
        self.task_id = task_id
        self.key: TaskKey = (tenant, task_id)
        self.spec = spec
        self.size = len(spec)
        self.requirement = requirement
        self.row = self.hop = 0  # `hop`: how often it went to another pool
        self.pool: Any = None
        # What was asked
        self.priority = 3
        self.fairness_key = ""
        self.cost = 1
        self.effects: EffectKind | None = None
        self.volatile = False
        self.session = ""
        self.session_ttl_ms: int | None = None
        """How long its session is kept without activity; None: as the pool says."""
        self.schedule_to_start_ms: int | None = None
        self.start_to_close_ms: int | None = None
        self.schedule_to_close_ms: int | None = None
        self.silence_ms: int | None = None
        self.start_delay_ms = 0
        self.retry: Any = None
        self.policy = ""  # name of a routing policy; empty: the pool's
        self.parent_task_id = ""
        self.root_task_id = ""
        self.trace = ""
        """W3C traceparent of a sampled trace; empty if the trace is not recorded."""
        self.announce: tuple[tuple[str, str], ...] = ()  # (kind, lane) of each fact that its end is
        # Where it stands
        self.state = PENDING
        self.accepted_ms = 0
        self.accepted_wall_ms = 0
        self.not_before_ms = 0
        self.attempt = 0
        self.instance: Any = None
        self.instance_id = ""
        """The instance of the current or last attempt, also where the instance itself is not here (after a restart)."""
        self.offered_ms = 0
        self.started_ms = 0
        self.progressed_ms = 0
        self.lease_until_ms = 0
        self.attempt_sequence = 0
        self.avoided: tuple[str, ...] = ()
        """Instances that failed it: taken again only if nobody else can. What the caller bans is in `requirement`."""
        self.retries = 0
        self.paced = False
        """The next attempt is a retry that must have a token of the retry budget."""
        self.pin_until_ms = 0
        """Until when it waits for the full instance of its session; 0: it does not."""
        self.transfers = 0
        self.history: list[Any] | None = None
        """Its attempts that are over (`PastAttempt`), oldest first."""
        self.effect_granted = 0
        """Number of the attempt whose irreversible effect was granted; 0 if none."""
        self.checkpoint: bytes | None = None
        self.handle = ""  # where the current attempt can be asked about, at an agent that is dialled
        self.dialogue: Any = None  # what its agents asked and were told (a `Dialogue`); None while they asked nothing
        self.decision: Any = None  # why the current attempt is where it is (a `Verdict`)
        self.pending_reason = ""
        self.outcome: Outcome | None = None
        # Its events
        self.sequence = 0
        self.reserved = 0
        self.log: Any = None  # None while its events follow from the fields above (see core/stream.py)
        self.waiters: list[Any] | None = None
        """Readers that want nothing but the outcome."""
        self.timer_slot = 0

    def __repr__(self) -> str:
        return (
            f"Task({self.tenant}/{self.task_id} {self.state.name} attempt {self.attempt} @ {self.instance_id or '-'})"
        )


class Profile(NamedTuple):
    """The static part of a registration: what filters look at. Equal profiles are one object in a pool."""

    agent_id: str
    version: str
    capabilities: tuple[tuple[str, str], ...]
    """(canonical name, version) of each."""
    methods: tuple[str, ...]
    """Empty: any."""
    tags: tuple[str, ...]
    languages: tuple[str, ...]
    input_media_types: tuple[str, ...]
    output_media_types: tuple[str, ...]
    region: str
    allowed_tenants: tuple[str, ...]
    documents: tuple[Document, ...] = ()
    """What it declares of its capabilities, in the order of `capabilities`."""
    latencies: tuple[tuple[str, int], ...] = ()  # (method, usual time in ms) of those that declare it


UNHEARD: Final = -1
"""`Instance.hello` after a restart or a move: which hellos came before, nobody knows any more."""


class Instance:
    """One running process of an agent, as its pool sees it."""

    __slots__ = (
        "agent_id", "availability", "availability_until_ms", "awaited_until_ms", "beat_ms", "beats",
        "beats_expected_from_ms", "bit", "blocked_by", "boot_id", "circuit", "conditions", "dialled", "done",
        "drain_until_ms", "endpoint", "failed", "foreign", "frame_marks", "generation", "health", "health_since_ms",
        "heard", "heartbeat_ms", "hello", "history", "inflight", "instance_id", "lane", "last_probe_error",
        "latency_ms", "link", "load_seen_ms", "max_concurrency", "max_sessions", "methods", "missed_since_ms",
        "moved_ms", "pool_key", "priority", "probe_due_ms", "probe_loss", "probe_rtt_ms", "probe_status", "probed_ms",
        "probes", "profile", "ramp", "reach_score", "ready", "ready_ms", "registered_wall_ms", "registration",
        "reopened_ms", "revision", "running", "stale_boots", "started_ms", "status", "suspected", "timer_slot", "told",
        "unready_ms", "usual_load", "warnings", "weight",
    )  # fmt: skip

    def __init__(self, instance_id: str, profile: Profile, pool_key: PoolKey) -> None:
        self.instance_id = instance_id
        self.pool_key = pool_key
        self.agent_id = profile.agent_id
        self.profile = profile
        self.boot_id = ""
        self.generation = 0
        self.stale_boots: tuple[str, ...] = ()
        self.registration = b""
        """The registration as bytes, for those who ask."""
        self.registered_wall_ms = 0
        self.revision = 0
        self.warnings: tuple[str, ...] = ()
        self.weight = 10
        self.priority = 3
        self.max_concurrency = 1
        self.heartbeat_ms = 5_000
        self.link: Any = None
        """The transport that reaches it; None while there is none. Opaque to the core."""
        self.endpoint: Endpoint | None = None  # where it is dialled, if it is
        self.running: dict[TaskKey, Task] = {}
        self.inflight = 0
        """Slots that its running tasks take."""
        self.foreign = 0  # slots that it reports in use beyond ours: work of others
        self.max_sessions: int | None = None  # sessions it may hold; None: no limit
        self.health = Health.STARTING
        self.health_since_ms = 0
        self.availability = Availability.READY
        self.availability_until_ms = 0
        self.drain_until_ms = 0  # until when sessions that it has may stay while it drains (REG-7)
        self.ready: bool | None = None
        self.blocked_by = "starting"
        """Why it takes no new work; empty if it does."""
        self.beat_ms = 0
        """Last proof of life."""
        self.latency_ms = 0.0
        """Mean of its attempts, newest weighs most; 0 if unknown."""
        self.done = self.failed = 0
        self.methods: dict[str, MethodStats] = {}
        """What its attempts show, per method (HLT-5, RTE-14); bounded, see `signals.stats_of`."""
        self.awaited_until_ms = 0  # until when it is expected back, after a restart or a move of its pool
        self.moved_ms = 0
        """When one of its tasks last made progress or ended by its own doing, or it got work after it had none."""
        self.status: dict[str, Any] = {}
        self.history: list[tuple[int, str, str]] = []
        """(wall_ms, state, reason) of its latest changes."""
        self.dialled = False
        """We call it: it owes us no beats, and a good probe or check counts as one."""
        self.begin(0)
        # Its place in the routing index
        self.bit = -1
        """Its number; -1 while it is not in the index."""
        self.lane = 0
        """How much room it has, as the index knows it (see core/routing.py)."""
        self.usual_load = 0.0  # its load as a mean over about 30 s; kept while a policy weighs it
        self.load_seen_ms = 0
        """Since when its load is below the mean of its pool; 0: it is not."""
        self.circuit: Any = None
        """Its circuit breaker; None while nothing has failed."""
        self.timer_slot = 0

    def begin(self, now_ms: int) -> None:
        """A new process: nothing is known of it yet, and nothing is held against it."""
        self.started_ms = now_ms
        self.hello = 0
        """Number of the hello that came last; 0 if they are not counted, `UNHEARD` before the first after a restart."""
        self.conditions: dict[Condition, tuple[str, int]] = {}
        """Condition -> (evidence, since_ms)."""
        self.beats: list[int] = []
        self.beats_expected_from_ms = now_ms
        # What probes show (HLT-3); see core/reachability.py
        self.probes: list[float | None] = []
        """The last 10: round trip in ms, or None for one that was lost; oldest first."""
        self.probe_rtt_ms: float | None = None
        self.probe_loss: float | None = None
        """What they come to; None without any."""
        self.probe_status = "none"
        """`none`, `ok`, `failing`, `unreachable`."""
        self.last_probe_error = ""
        self.probe_due_ms = 0
        """When to probe next; 0: at once."""
        self.probed_ms = 0
        """Last good probe."""
        self.missed_since_ms = 0
        """First of the failed probes in a row; 0 if the last one was good."""
        self.reach_score: float | None = None
        """0 … 100, as of the last change; None before there is evidence (HLT-11)."""
        # How it came up (HLT-10); see core/conditions.py and core/warmup.py
        self.heard = 0
        """Beats that came."""
        self.ready_ms = 0
        """When it became ready; 0 while it is not."""
        self.unready_ms = 0
        """Since when it is not ready; 0 while it is."""
        self.ramp = 1.0
        """Share of what would be its due that it gets: grows to 1 in its slow start."""
        # What is held against it
        self.suspected = ""
        """Suspicion that would take it out of routing; empty if there is none, or if so many are suspected (HLT-13)."""
        self.frame_marks: tuple[int, int, int] = (0, 0, 0)
        """Frames that had been sent down its stream two beats ago and at the last beat, and when that was (HLT-9)."""
        self.reopened_ms = 0
        """When it was asked to open its stream anew; 0 if it was not."""
        self.told: set[str] = set()
        """Alerts that were given and whose cause still holds."""

    def __repr__(self) -> str:
        load = f"{self.inflight}/{self.max_concurrency}"
        return f"Instance({self.instance_id} gen {self.generation} {self.health.name} {load})"
