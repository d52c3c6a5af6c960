"""The nouns of the core: tasks, attempts, outcomes, instances, and the words for their states.

Objects here are slotted and mutable, and owned by exactly one pool. Nothing in this package reads a clock, chance or
the network: times are arguments in milliseconds, `*_ms` on the monotonic clock of the process, `*_wall_ms` on the
clock of the store. `spec` is the caller's request as bytes; the core carries it and never looks inside.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

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


FIRST_TERMINAL = TaskState.SUCCEEDED
"""States from here on never change."""


class EffectKind(IntEnum):
    """What running a task twice would do to the world. Numbers as in the contract."""

    NONE = 1
    IDEMPOTENT = 2
    IRREVERSIBLE = 3


class Health(IntEnum):
    """What we think of an instance's life (HLT-6). Numbers as in the contract."""

    STARTING = 1
    HEALTHY = 2
    SUSPECT = 3
    UNHEALTHY = 4
    OFFLINE = 5


class Availability(IntEnum):
    """What an instance says of itself. Numbers as in the contract."""

    READY = 1
    BUSY = 2
    DRAINING = 3
    UNAVAILABLE = 4


class Condition(IntEnum):
    """Circumstances that bear on routing. Numbers as in the contract."""

    WARMING = 1
    NOT_READY = 2
    UNREACHABLE = 3
    STALLED = 4
    DEAF = 5
    SELF_REPORTED_FAILURES = 6
    CIRCUIT_OPEN = 7


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
        self.attempts = 0
        self.transfers = 0
        self.queued_ms = 0
        self.ran_ms = 0
        self.sequence = 0
        self.ended_wall_ms = 0


class PastAttempt:
    """One delivery that is over, for the history of a task."""

    __slots__ = ("agent_id", "ended_wall_ms", "fault", "generation", "instance_id", "number", "offered_wall_ms")

    def __init__(
        self,
        number: int,
        instance_id: str,
        agent_id: str,
        generation: int,
        offered_wall_ms: int,
        ended_wall_ms: int,
        fault: Fault | None,
    ) -> None:
        self.number = number
        self.instance_id = instance_id
        self.agent_id = agent_id
        self.generation = generation
        self.offered_wall_ms = offered_wall_ms
        self.ended_wall_ms = ended_wall_ms
        self.fault = fault


class Task:
    """One unit of work and its current attempt.

    The attempt is inline: `attempt` is its number (0 before the first), `instance` where it is, `started_ms` when the
    instance took it up (0 before). `fencing_token` equals the attempt number.
    """

    __slots__ = (
        "accepted_ms", "accepted_wall_ms", "attempt", "attempt_sequence", "cancel_reason", "checkpoint", "cost",
        "effect_granted", "effects", "excluded", "fairness_key", "history", "instance", "instance_id", "key",
        "lease_until_ms", "log", "match", "not_before_ms", "offered_ms", "outcome", "paced", "parent_task_id",
        "pending_reason", "pin_until_ms", "policy", "pool", "priority", "progressed_ms", "requirement", "reserved",
        "retries", "retry", "root_task_id", "row", "schedule_to_close_ms", "schedule_to_start_ms", "sequence",
        "session", "session_ttl_ms", "silence_ms", "size", "spec", "start_delay_ms", "start_to_close_ms", "started_ms",
        "state", "task_id", "tenant", "timer_slot", "trace", "transfers", "volatile", "waiters",
    )  # fmt: skip

    def __init__(self, tenant: str, task_id: str, spec: bytes, requirement: Requirement) -> None:
        self.tenant = tenant
        self.task_id = task_id
        self.key: TaskKey = (tenant, task_id)
        self.spec = spec
        self.size = len(spec)
        self.requirement = requirement
        self.row = 0
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
        self.policy = ""
        """Name of a routing policy; empty: the pool's."""
        self.match: dict[str, float] | None = None
        """How well each agent matches the text of the task, by agent id; None: it has no text."""
        self.parent_task_id = ""
        self.root_task_id = ""
        self.trace = ""
        """W3C traceparent of a sampled trace; empty if the trace is not recorded."""
        # Where it stands
        self.state = TaskState.PENDING
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
        self.excluded: tuple[str, ...] = ()
        self.retries = 0
        self.paced = False
        """The next attempt is a retry that must have a token of the retry budget."""
        self.pin_until_ms = 0
        """Until when it waits for the full instance of its session; 0: it does not."""
        self.transfers = 0
        self.history: list[PastAttempt] | None = None
        self.effect_granted = 0
        """Number of the attempt whose irreversible effect was granted; 0 if none."""
        self.checkpoint: bytes | None = None
        self.cancel_reason = ""
        self.pending_reason = ""
        self.outcome: Outcome | None = None
        # Its events
        self.sequence = 0
        self.reserved = 0
        self.log: Any = None
        """Its event log; None while its events follow from the fields above (see core/stream.py)."""
        self.waiters: list[Any] | None = None
        """Readers that want nothing but the outcome."""
        self.timer_slot = 0

    def __repr__(self) -> str:
        return (
            f"Task({self.tenant}/{self.task_id} {self.state.name} attempt {self.attempt} @ {self.instance_id or '-'})"
        )


class Document(NamedTuple):
    """What an agent says of one capability (REG-4), as far as routing looks at it."""

    declared: str
    """The name as the agent gave it."""
    name: str
    """The canonical name: the vocabulary's word for it."""
    version: str = ""
    schema: str = ""
    """JSON Schema of the parameters as text; empty: anything."""
    schema_id: str = ""
    """Digest of the schema; empty if there is none."""
    digest: str = ""
    """Digest of the whole document, as declared."""
    description: str = ""
    examples: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    input_media_types: tuple[str, ...] = ()
    output_media_types: tuple[str, ...] = ()


def schema_key(capability: str, schema_id: str) -> str:
    """The key of all documents of a capability (canonical name) that have this schema."""
    return f"{capability}\0{schema_id}"


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


class Instance:
    """One running process of an agent, as its pool sees it."""

    __slots__ = (
        "agent_id", "availability", "availability_until_ms", "base", "beat_ms", "beats", "beats_expected_from_ms",
        "bit", "blocked_by", "boot_id", "bucket", "conditions", "done", "failed", "generation", "health",
        "health_since_ms", "heartbeat_ms", "history", "inflight", "instance_id", "latency_ms", "link",
        "max_concurrency", "pool_key", "priority", "profile", "ready", "registered_wall_ms", "registration", "revision",
        "running", "stale_boots", "status", "timer_slot", "warnings", "weight",
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
        self.running: dict[TaskKey, Task] = {}
        self.inflight = 0
        """Slots that its running tasks take."""
        self.health = Health.STARTING
        self.health_since_ms = 0
        self.availability = Availability.READY
        self.availability_until_ms = 0
        self.ready: bool | None = None
        self.conditions: dict[Condition, tuple[str, int]] = {}
        """Condition -> (evidence, since_ms)."""
        self.blocked_by = "starting"
        """Why it takes no new work; empty if it does."""
        self.beat_ms = 0
        """Last proof of life."""
        self.beats: list[int] = []
        self.beats_expected_from_ms = 0
        self.latency_ms = 0.0
        """Mean of its attempts, newest weighs most; 0 if unknown."""
        self.done = 0
        self.failed = 0
        self.status: dict[str, Any] = {}
        self.history: list[tuple[int, str, str]] = []
        """(wall_ms, state, reason) of its latest changes."""
        # Its place in the routing index
        self.bit = -1
        """Its number; -1 while it is not in the index."""
        self.bucket = -1
        self.base = 0.0
        """The part of its score that does not change with its load."""
        self.timer_slot = 0

    def __repr__(self) -> str:
        load = f"{self.inflight}/{self.max_concurrency}"
        return f"Instance({self.instance_id} gen {self.generation} {self.health.name} {load})"
