"""Traces: which tasks come, and how the instances behave that could take them.

A trace is a small YAML or JSON file. Every key is explained below; unknown ones are errors, and each error names where
it is. Times are written `200ms`, `1.5s`, `2m`; a bare number is seconds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from reach.errors import InvalidRequest, Reason

STORIES = Path(__file__).parent / "stories"
MOST_BYTES = 16 << 20
MOST_TASKS = 1_000_000
MOST_INSTANCES = 10_000

_TIME = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|min|h)?")
_UNITS = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "min": 60_000.0, "h": 3_600_000.0}


class Time:
    """A duration or a point of a trace, in milliseconds."""

    __slots__ = ("ms",)

    def __init__(self, ms: float) -> None:
        self.ms = ms


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_INSTANCES)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What all parts have in common."""


class Service(_Part, frozen=True, kw_only=True):
    """How long a task takes once an instance works on it."""

    median: Time = Time(100)
    sigma: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.25
    """Spread of the logarithm (a log-normal distribution); 0: always the median."""


class Happening(_Part, frozen=True, kw_only=True):
    """Something that happens to an instance. Exactly one of the others is given beside `at`."""

    at: Time
    restart: Time | None = None
    """Its process ends, and another one is there after this time, cold."""
    stop: bool = False
    """Its process ends, for good."""
    freeze: Time | None = None
    """It stands still for this time: no beats, no progress, its connection stays."""
    slow: Factor | None = None
    """From now on everything takes this many times as long."""
    fail: Share | None = None
    """From now on this share of its tasks fails."""
    hang: bool | None = None
    """From now on it takes tasks and never answers, though it beats; or it goes on again."""


class InstanceModel(_Part, frozen=True, kw_only=True):
    """One instance, or several that are alike."""

    name: Name
    count: Count = 1
    slots: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 4
    service: Service = Service()
    fail: Share = 0.0
    """Share of its tasks that fails."""
    fail_in: Time | None = None
    """How soon a failure shows; as long as the work would have taken, if it is not given."""
    leak: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """How much slower each task makes all later ones, as a share, until it restarts. Its beats look fine."""
    ready_after: Time = Time(0)
    """How long a new process says that it is not ready."""
    cold: Factor = 1.0
    """How many times longer its first tasks take; falls to 1 over `cold_for`, from when it is ready."""
    cold_for: Time = Time(10_000)
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    capabilities: list[Name] = []
    version: str = "1"
    joins: Time | None = None
    """When it comes; if it is not given, it has been there for long."""
    happens: list[Happening] = []


class TaskStream(_Part, frozen=True, kw_only=True):
    """Tasks that come at a rate."""

    rate: Annotated[float, msgspec.Meta(gt=0, le=100_000)]
    """Tasks a second."""
    arrivals: Literal["poisson", "even"] = "poisson"
    begin: Time = Time(0)
    end: Time | None = None
    """At the end of the trace, if it is not given."""
    capability: str = ""
    sessions: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """How many sessions the tasks belong to, at random; 0: none."""
    timeout: Time = Time(30_000)
    """Longest time of one attempt."""
    retry: Literal["ladder", "exponential", "quick", "patient", "never"] = "ladder"


class Recorded(_Part, frozen=True, kw_only=True):
    """One task as it was recorded."""

    at: Time
    capability: str = ""
    session: str = ""
    work: Factor = 1.0
    """How long it takes, relative to what its instance usually needs."""
    timeout: Time = Time(30_000)


class Trace(_Part, frozen=True, kw_only=True):
    """A whole trace."""

    name: Name
    about: str = ""
    """What it shows."""
    duration: Time = Time(60_000)
    """For how long tasks come. What has come by then is finished."""
    heartbeat: Time = Time(5_000)
    instances: Annotated[list[InstanceModel], msgspec.Meta(min_length=1)]
    tasks: list[TaskStream] = []
    recorded: list[Recorded] = []


def stories() -> list[str]:
    """The names of the traces that come with the package."""
    return sorted(path.stem for path in STORIES.glob("*.yaml"))


def load(name: str) -> Trace:
    """A trace from a file, or one of the package by its name.

    Raises:
        InvalidRequest: INVALID_FIELD: there is no such file, or it is wrong; the message says where.
    """
    path = STORIES / f"{name}.yaml" if name in stories() else Path(name)
    try:
        raw = path.read_bytes() if path.stat().st_size <= MOST_BYTES else None
    except OSError as error:
        known = ", ".join(stories())
        raise _wrong(name, f"cannot be read ({error.strerror}); the package has: {known}") from error
    if raw is None:
        raise _wrong(name, f"is larger than {MOST_BYTES >> 20} MiB")
    return read(raw, name)


def read(raw: bytes, name: str) -> Trace:
    """A trace from its text; `name` is for messages.

    Raises:
        InvalidRequest: INVALID_FIELD, with the line or the path of what is wrong.
    """
    try:
        trace = msgspec.convert(yaml.safe_load(raw), Trace, dec_hook=_time)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise _wrong(name, f"{where}{getattr(error, 'problem', None) or 'is not YAML'}") from error
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(name, str(error)) from error
    _check(trace, name)
    return trace


def _time(kind: type, value: Any) -> Any:
    if kind is not Time:
        raise NotImplementedError(kind)  # what msgspec wants of a hook for what it does not know
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return Time(value * 1_000.0)
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is not a time such as 200ms, 1.5s or 2m")
    return Time(float(found[1]) * _UNITS[found[2] or "s"])


def _check(trace: Trace, name: str) -> None:
    """What follows from more than one field."""
    if trace.duration.ms <= 0 or not 1_000 <= trace.heartbeat.ms <= 60_000:
        raise _wrong(name, "`duration` must be more than 0, and `heartbeat` 1s … 60s")
    if not trace.tasks and not trace.recorded:
        raise _wrong(name, "has neither `tasks` nor `recorded`: nothing would happen")
    if sum(model.count for model in trace.instances) > MOST_INSTANCES:
        raise _wrong(name, f"has more than {MOST_INSTANCES} instances")
    names = [model.name for model in trace.instances]
    if len(set(names)) < len(names):
        raise _wrong(name, "two instances have one name: use `count` for those that are alike")
    expected = len(trace.recorded)
    for number, stream in enumerate(trace.tasks):
        end = trace.duration.ms if stream.end is None else stream.end.ms
        if stream.begin.ms >= end:
            raise _wrong(name, f"`begin` must come before the end - at `$.tasks[{number}]`")
        expected += int(stream.rate * (end - stream.begin.ms) / 1_000)
    if expected > MOST_TASKS:
        raise _wrong(name, f"means about {expected} tasks; at most {MOST_TASKS} can be played")
    for row, model in enumerate(trace.instances):
        for number, one in enumerate(model.happens):
            given = [one.restart, one.freeze, one.slow, one.fail, one.hang, one.stop or None]
            if sum(value is not None for value in given) != 1:
                where = f"$.instances[{row}].happens[{number}]"
                raise _wrong(name, f"names not exactly one of restart, stop, freeze, slow, fail, hang - at `{where}`")


def _wrong(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"trace {name}: {why}", Reason.INVALID_FIELD, field="trace")
