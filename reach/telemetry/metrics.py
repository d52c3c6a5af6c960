"""Metrics: plain integers that the hot path adds to, read when somebody scrapes.

One `Metrics` per process. Its methods are what happened, in the past tense; each costs 0.1 to 0.5 µs, takes no lock and
makes no object. All are called on the loop's thread, and so is `families`.

| method | metric |
|---|---|
| `delivered(outcome)` | agentreach_router_delivery_total{outcome} |
| `retried(reason)` | agentreach_router_retry_total{reason} |
| `dead_lettered(reason)` | agentreach_router_dead_letter_total{reason} |
| `transferred(moves)` | agentreach_router_transfer_total: attempts that moved to another instance |
| `refused(reason)` | agentreach_router_refusal_total{reason}: what was not accepted |
| `finished(capability, ms)` | agentreach_task_duration_seconds{capability}: from accepted to its end |
| `mismatched()` | agent_route_mismatch_total: asked intent ≠ executed intent |
| `beat(kind)` | agentreach_heartbeat_total{kind} |
| `gapped()` | agentreach_stream_gap_total: readers that were told of a gap |
| `webhook(outcome)` | agentreach_webhook_total{outcome}: `given_up` wants an operator |
| `committed(rows, ms)` | agentreach_store_commit_total, _row_total, _commit_duration_seconds |
| `called(method, code)` | agentreach_rpc_total{method, code} |
| `lagged(ms)` | agentreach_loop_lag_seconds; `watch_loop()` calls it |
| `sources.node` | agentreach_node_…: whether it is ready, in doubt, leads, and what it owns |
| `sources.…` | agentreach_router_queue_length, _inflight, _late_outcome_total, agentreach_agents{health}, |
| | agentreach_buffer_bytes, agentreach_sessions, _session_bytes, _evicted_total, _skew_ratio, _handoff_total |
| | agentreach_dead_letters, _store_bytes |
| | agentreach_streams_open{class}: asked when they are read |
| | agentreach_process_resident_bytes, _cpu_seconds_total, agentreach_gc_collection_total{generation}, |
| | agentreach_gc_pause_seconds_total |

Labels come from closed sets, or from the first 50 values that were seen, then `other` (G7): never from an id.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from reach.errors import Reason
from reach.telemetry.tracing import OUTCOMES

LABEL_CAP: Final = 50
"""Values of one label that is not a closed set."""

OTHER: Final = "other"
BEATS: Final = ("stream", "unary", "warm")
HEALTH: Final = ("STARTING", "HEALTHY", "SUSPECT", "UNHEALTHY", "OFFLINE")
ALERTS: Final = (
    "stalled", "deaf", "unready", "unreachable", "beats_gone", "self_reported_failures", "panic", "wake_failed",
    "circuit_open", "canary_rolled_back", "backlog", "in_doubt", "lease_lost", "replaced", "etcd_away", "node_lost",
)  # fmt: skip
WEBHOOKS: Final = ("delivered", "failed", "given_up")
SESSIONS: Final = ("known", "bytes", "evicted", "skew", "handoffs")
STREAMS: Final = ("control", "streams", "submits")
NODE: Final = (
    ("ready", "Whether this node takes new work."),
    ("in_doubt", "Whether what it owns may be another's: it sends nothing."),
    ("shards", "Shards that it owns."),
    ("drained", "Whether an operator has drained it."),
    ("lease_held", "Whether it surely is a member of its cluster."),
    ("etcd_behind_seconds", "Since when etcd is not heard."),
    ("leads", "Whether it places shards: the sum over all nodes is 1."),
    ("nodes", "Members of its cluster, as it knows."),
)
"""What a node says of itself, each a metric `agentreach_node_…`."""
CODES: Final = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
_DELIVERIES: Final = (*sorted(OUTCOMES), OTHER)
_TASK_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)
_COMMIT_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
_LAG_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Histogram:
    """Counts per bucket. `counts[i]` are values ≤ `bounds[i]` and over the bound before; the last is for the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Adds one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def quantile(self, share: float) -> float:
        """The value that `share` of all values stay under, linear within its bucket, as Prometheus does it; 0 if none.

        Above the last bound it is the last bound.
        """
        rank = share * sum(self.counts)
        below, lower = 0, 0.0
        for count, upper in zip(self.counts, self.bounds, strict=False):
            if count and below + count >= rank:
                return lower + (upper - lower) * (rank - below) / count
            below, lower = below + count, upper
        return lower if below < rank else 0.0


class Capped:
    """A map with at most LABEL_CAP keys of foreign origin; all later ones share `other`."""

    __slots__ = ("_make", "values")

    def __init__(self, make: Callable[[], Histogram]) -> None:
        self._make = make
        self.values: dict[str, Histogram] = {}

    def of(self, label: str) -> Histogram:
        """The histogram of a label."""
        found = self.values.get(label or "none")
        if found is not None:
            return found
        # What a scraper cannot read, or a short text that stands for many, must not become a series.
        label = label.encode(errors="replace").decode()[:64] or "none"
        if len(self.values) >= LABEL_CAP and label not in self.values:
            label = OTHER
        return self.values.setdefault(label, self._make())


class Sample(NamedTuple):
    """One series: the values of the labels, in the order of the family's, and what was counted."""

    labels: tuple[str, ...]
    value: float | Histogram


class Family(NamedTuple):
    """All series of one name, for whatever format."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...]
    samples: list[Sample]


def _nothing() -> int:
    return 0


def _no_counts() -> Mapping[str, int]:
    return {}


def _no_figures() -> Mapping[str, float]:
    return {}


@dataclass(slots=True)
class Sources:
    """What is asked for when metrics are read; `node.py` sets these. Each must be a quick look at a number."""

    queue_length: Callable[[], int] = _nothing
    """Tasks that wait, in all pools."""
    inflight: Callable[[], int] = _nothing
    """Attempts that are offered or run."""
    agents: Callable[[], Mapping[str, int]] = _no_counts
    """Instances by health; keys of HEALTH."""
    late_outcomes: Callable[[], int] = _nothing
    """Outcomes that came after the first one, and were dropped."""
    buffer_bytes: Callable[[], int] = _nothing
    """Bytes of payloads and events held for readers and agents."""
    sessions: Callable[[], Mapping[str, float]] = _no_figures
    """Of sessions: how many, what they take, how many had to go early, and how unevenly they lie; keys of SESSIONS."""
    dead_letters: Callable[[], int] = _nothing
    """Dead letters that are kept, as of some seconds ago."""
    store_bytes: Callable[[], int] = _nothing
    """Space of the store in use, as of some seconds ago."""
    node: Callable[[], Mapping[str, float]] = _no_figures
    """How this node does; keys of NODE."""
    streams: Callable[[], Mapping[str, int]] = _no_counts
    """Calls that are open, by admission class; keys of STREAMS."""


@dataclass(slots=True)
class Metrics:
    """See the module. The fields are the counters; use the methods."""

    sources: Sources = field(default_factory=Sources)
    deliveries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_DELIVERIES, 0))
    retries: list[int] = field(default_factory=lambda: [0] * (max(Reason) + 1))
    dead_letters: list[int] = field(default_factory=lambda: [0] * (max(Reason) + 1))
    refusals: list[int] = field(default_factory=lambda: [0] * (max(Reason) + 1))
    transfers: int = 0
    mismatches: int = 0
    gaps: int = 0
    webhooks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEBHOOKS, 0))
    cut_statuses: int = 0
    alerts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*ALERTS, OTHER), 0))
    beats: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*BEATS, OTHER), 0))
    durations: Capped = field(default_factory=lambda: Capped(lambda: Histogram(_TASK_BOUNDS)))
    rows: int = 0
    commits: Histogram = field(default_factory=lambda: Histogram(_COMMIT_BOUNDS))
    calls: dict[tuple[str, str], int] = field(default_factory=dict)
    lag: Histogram = field(default_factory=lambda: Histogram(_LAG_BOUNDS))
    _methods: set[str] = field(default_factory=set)
    _gc_began: float = 0.0
    _gc_paused: float = 0.0

    def delivered(self, outcome: str) -> None:
        """A task or an attempt ended so; `outcome` of tracing.OUTCOMES."""
        counts = self.deliveries
        counts[outcome if outcome in counts else OTHER] += 1

    def retried(self, reason: Reason) -> None:
        """An attempt failed so and another one is planned."""
        self.retries[reason] += 1

    def dead_lettered(self, reason: Reason) -> None:
        """A task was given up."""
        self.dead_letters[reason] += 1

    def refused(self, reason: Reason) -> None:
        """Something was not accepted."""
        self.refusals[reason] += 1

    def transferred(self, moves: int) -> None:
        """Attempts of a task moved to another instance so many times."""
        self.transfers += moves

    def mismatched(self) -> None:
        """An agent executed another intent than the one asked for."""
        self.mismatches += 1

    def gapped(self) -> None:
        """A reader was told that events are missing."""
        self.gaps += 1

    def webhook(self, outcome: str) -> None:
        """A try of a webhook was received, failed and is made again, or was the last one; `outcome` of WEBHOOKS."""
        self.webhooks[outcome] += 1

    def status_cut(self) -> None:
        """The status of an agent was over 2 KiB, and what it says of methods was left out."""
        self.cut_statuses += 1

    def alerted(self, kind: str) -> None:
        """Something that operators should look at; `kind` of ALERTS."""
        counts = self.alerts
        counts[kind if kind in counts else OTHER] += 1

    def beat(self, kind: str) -> None:
        """A sign of life came; `kind` of BEATS."""
        counts = self.beats
        counts[kind if kind in counts else OTHER] += 1

    def finished(self, capability: str, ms: float) -> None:
        """A task ended, `ms` after it was accepted. Without a capability: ""."""
        self.durations.of(capability).observe(ms / 1000)

    def committed(self, rows: int, ms: float) -> None:
        """A group commit with so many rows took so long."""
        self.rows += rows
        self.commits.observe(ms / 1000)

    def called(self, method: str, code: str) -> None:
        """A call ended. `method` of the contract ("DispatchService/Dispatch"): paths of others must not come here."""
        calls = self.calls
        key = (method, code)
        if key in calls:
            calls[key] += 1
            return
        if method not in self._methods:
            if len(self._methods) >= 2 * LABEL_CAP:
                method = OTHER
            self._methods.add(method)
        key = (method, code if code in CODES else OTHER)
        calls[key] = calls.get(key, 0) + 1

    def lagged(self, ms: float) -> None:
        """The loop came back so much later than asked."""
        self.lag.observe(ms / 1000)

    async def watch_loop(self, every_s: float = 0.5) -> None:
        """Measures the loop's lag until it is cancelled; the owner runs it as a task."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + every_s
            await asyncio.sleep(every_s)
            self.lagged(max(0.0, loop.time() - due) * 1000)

    def watch_gc(self) -> Callable[[], None]:
        """Begins to add up the pauses of the garbage collector; returns what ends it."""
        gc.callbacks.append(self._on_gc)
        return lambda: gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._gc_began = now
        elif self._gc_began:
            self._gc_paused += now - self._gc_began

    def families(self) -> list[Family]:
        """Everything as it is now."""
        return [*self._routing(), *self._service(), *self._process()]

    def _routing(self) -> Iterable[Family]:
        name = "agentreach_router_"
        yield _counters(name + "delivery_total", "Ends of tasks and attempts.", "outcome", self.deliveries.items())
        yield _reasons(name + "retry_total", "Attempts that failed and were tried again.", self.retries)
        yield _reasons(name + "dead_letter_total", "Tasks that were given up.", self.dead_letters)
        yield _reasons(name + "refusal_total", "What was not accepted.", self.refusals)
        yield _one(name + "transfer_total", "counter", "Attempts that moved to another instance.", self.transfers)
        late = self.sources.late_outcomes()
        yield _one(name + "late_outcome_total", "counter", "Outcomes after the first one: dropped.", late)
        yield _one(name + "queue_length", "gauge", "Tasks that wait.", self.sources.queue_length())
        yield _one(name + "inflight", "gauge", "Attempts that are offered or run.", self.sources.inflight())
        text = "Tasks whose executed intent was not the one asked for."
        yield _one("agent_route_mismatch_total", "counter", text, self.mismatches)
        durations = [Sample((label,), histogram) for label, histogram in self.durations.values.items()]
        text = "Time from accepted to ended."
        yield Family("agentreach_task_duration_seconds", "histogram", text, ("capability",), durations)

    def _service(self) -> Iterable[Family]:
        yield _gauges("agentreach_agents", "Instances by health.", "health", HEALTH, self.sources.agents())
        yield _counters("agentreach_alert_total", "What operators should look at.", "kind", self.alerts.items())
        yield _counters("agentreach_heartbeat_total", "Signs of life of agents.", "kind", self.beats.items())
        text = "Statuses of agents over 2 KiB that were cut."
        yield _one("agentreach_status_cut_total", "counter", text, self.cut_statuses)
        yield _gauges("agentreach_streams_open", "Calls that are open.", "class", STREAMS, self.sources.streams())
        yield _one("agentreach_stream_gap_total", "counter", "Readers that were told of a gap.", self.gaps)
        yield _counters("agentreach_webhook_total", "Tries of webhooks.", "outcome", self.webhooks.items())
        known = {**dict.fromkeys(SESSIONS, 0.0), **self.sources.sessions()}
        yield _one("agentreach_sessions", "gauge", "Conversations that are known.", known["known"])
        yield _one("agentreach_session_bytes", "gauge", "What their contexts take.", known["bytes"])
        text = "Conversations that had to go before their time, for there were too many."
        yield _one("agentreach_session_evicted_total", "counter", text, known["evicted"])
        text = "Most conversations of an instance, relative to the mean of its pool; the worst pool."
        yield _one("agentreach_session_skew_ratio", "gauge", text, known["skew"])
        yield _one("agentreach_session_handoff_total", "counter", "Moves of conversations.", known["handoffs"])
        yield _one("agentreach_buffer_bytes", "gauge", "Bytes held for others.", self.sources.buffer_bytes())
        yield _one("agentreach_store_commit_total", "counter", "Group commits.", sum(self.commits.counts))
        yield _one("agentreach_store_bytes", "gauge", "Space of the store in use.", self.sources.store_bytes())
        yield _one("agentreach_dead_letters", "gauge", "Dead letters that are kept.", self.sources.dead_letters())
        yield _one("agentreach_store_row_total", "counter", "Rows in them.", self.rows)
        commits = [Sample((), self.commits)]
        yield Family("agentreach_store_commit_duration_seconds", "histogram", "Time of a group commit.", (), commits)
        node = self.sources.node()
        for name, text in NODE if node else ():
            yield _one(f"agentreach_node_{name}", "gauge", text, node.get(name, 0.0))
        calls = [Sample(key, count) for key, count in self.calls.items()]
        yield Family("agentreach_rpc_total", "counter", "Calls that ended.", ("method", "code"), calls)

    def _process(self) -> Iterable[Family]:
        yield _one("agentreach_process_resident_bytes", "gauge", "Memory of the process.", resident_bytes())
        yield _one("agentreach_process_cpu_seconds_total", "counter", "CPU time of the process.", time.process_time())
        generations = [(str(number), stats["collections"]) for number, stats in enumerate(gc.get_stats())]
        yield _counters("agentreach_gc_collection_total", "Collections.", "generation", generations)
        yield _one("agentreach_gc_pause_seconds_total", "counter", "Time in the garbage collector.", self._gc_paused)
        lag = [Sample((), self.lag)]
        yield Family("agentreach_loop_lag_seconds", "histogram", "Lateness of the event loop.", (), lag)


def resident_bytes() -> int:
    """Memory of the process: now, where /proc tells it, else its peak."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _one(name: str, kind: Literal["counter", "gauge"], text: str, value: float) -> Family:
    return Family(name, kind, text, (), [Sample((), value)])


def _counters(name: str, text: str, label: str, counts: Iterable[tuple[str, int]]) -> Family:
    return Family(name, "counter", text, (label,), [Sample((key,), count) for key, count in counts])


def _reasons(name: str, text: str, counts: list[int]) -> Family:
    return _counters(name, text, "reason", [(reason.name, counts[reason]) for reason in Reason if counts[reason]])


def _gauges(name: str, text: str, label: str, keys: tuple[str, ...], counts: Mapping[str, int]) -> Family:
    return Family(name, "gauge", text, (label,), [Sample((key,), counts.get(key, 0)) for key in keys])
