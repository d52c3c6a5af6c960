"""Decisions as bytes: what the journal keeps with each attempt (RTE-13).

A record has at most 512 bytes. It is made in the writer's thread, of what a decision refers to and nobody changes; the
sums and names are made when somebody asks. What is the same for all decisions under a policy is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from reach.core.decision import Verdict, of_the_task, told
from reach.core.decision import score_of as score
from reach.core.decision_record import Record, Told
from reach.core.model import Instance
from reach.core.policies import OF_THE_TASK, SIGNALS, Policy, Way
from reach.core.signals import load as load_ratio

RECORD_BYTES: Final = 512
FORM: Final = 1
"""Of the bytes. A record of another form is one that is no longer known."""
MAX_POLICIES: Final = 256
"""Policies whose beginning is kept ready."""
_SEEDS: Final = (1 << 64) - 1

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_Extra = Callable[[Verdict, Instance], Any]
_Head = tuple[msgspec.Raw, _Extra | None]
_heads: dict[Policy, _Head] = {}


def pack(verdict: Verdict) -> bytes:
    """A decision as bytes. If it is too long, those that were not chosen are left out one by one, then counts. What
    cannot be said at all is nothing, rather than a task that cannot be kept."""
    looked, policy = verdict.looked, verdict.policy
    head, extra = _heads.get(policy) or _head(policy)
    try:
        if extra is None and looked and looked[0] is verdict.chosen:  # as nearly always
            one = looked[0]
            names: Any = (
                ((one.instance_id, one.max_concurrency),)
                if len(looked) == 1
                else [(one.instance_id, one.max_concurrency) for one in looked]
            )
            data = _encode((FORM, head, verdict.cause, verdict.seed & _SEEDS, verdict.revision, verdict.moved_from,
                            verdict.static.dropped, verdict.dropped, 0, names, verdict.loads, verdict.known,
                            (), verdict.static.matched_by))  # fmt: skip
            if len(data) <= RECORD_BYTES:
                return data
        count = len(looked)
        data = _some(verdict, count)
        while len(data) > RECORD_BYTES and count > 1:
            count -= 1
            data = _some(verdict, count)
        if len(data) > RECORD_BYTES:  # names of hundreds of bytes
            data = _some(verdict, count, bare=True)
    except (UnicodeEncodeError, OverflowError):
        return b""
    return data if len(data) <= RECORD_BYTES else b""


def _some(verdict: Verdict, count: int, *, bare: bool = False) -> bytes:
    """A decision with so many of those that it looked at, the chosen one first; `bare`: and without counts."""
    order = sorted(range(len(verdict.looked)), key=lambda at: verdict.looked[at] is not verdict.chosen)[:count]
    looked = [verdict.looked[at] for at in order]
    head, extra = _heads.get(verdict.policy) or _head(verdict.policy)
    return _encode((
        FORM, head, verdict.cause, verdict.seed & _SEEDS, verdict.revision, "" if bare else verdict.moved_from,
        () if bare else verdict.static.dropped, () if bare else verdict.dropped,
        0 if looked and looked[0] is verdict.chosen else -1,
        [(one.instance_id, one.max_concurrency) for one in looked],
        [verdict.loads[at] for at in order], [verdict.known[at] for at in order],
        [extra(verdict, one) for one in looked] if extra is not None else (), verdict.static.matched_by,
    ))  # fmt: skip


def _head(policy: Policy) -> _Head:
    """What all decisions under a policy begin with, and what they say of each instance beyond its signals."""
    if len(_heads) >= MAX_POLICIES:
        _heads.clear()
    weighed = [SIGNALS.index(name) for name in policy.weights]
    head = _encode((policy.name, policy.digest, int(policy.way), weighed, list(policy.weights.values())))
    extra: _Extra | None = None
    if policy.way is Way.LEAST_CONNECTIONS:
        extra = _weight
    elif not OF_THE_TASK.isdisjoint(policy.weights):
        extra = of_the_task
    _heads[policy] = made = msgspec.Raw(head), extra
    return made


def _weight(verdict: Verdict, instance: Instance) -> int:
    return instance.weight


def unpack_all(kept: Mapping[int, bytes]) -> dict[int, Record]:
    """The decisions of the attempts of one task, as far as they are known."""
    found = {number: unpack(data) for number, data in kept.items()}
    return {number: record for number, record in found.items() if record is not None}


def unpack(data: bytes) -> Record | None:
    """A decision as it was kept; None if it is of a form that this build does not know."""
    try:
        form, head, *rest = _decode(data)
        if form != FORM:
            return None
        return _unpack(head, *rest)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return None


def _unpack(
    head: list[Any], cause: str, seed: int, revision: int, moved_from: str, static: list[Any], later: list[Any],
    first: int, looked: list[Any], loads: list[int], known: list[Any], extra: list[Any],
    matched_by: str = "",
) -> Record:  # fmt: skip
    name, digest, way, weighed, shares = head
    policy = Policy(name, {SIGNALS[at]: share for at, share in zip(weighed, shares, strict=True)}, way=Way(way))
    rows = []
    for at, (instance_id, slots) in enumerate(looked):
        asked = extra[at] if extra and policy.way is not Way.LEAST_CONNECTIONS else {}
        weight = extra[at] if extra and policy.way is Way.LEAST_CONNECTIONS else 1
        signals = told(policy, known[at], load_ratio(loads[at], slots), asked)
        rows.append(Told(instance_id, score(policy, signals, loads[at], slots, weight), signals))
    chosen = rows[0].instance_id if rows and first == 0 else ""
    rows.sort(key=lambda row: (row.instance_id != chosen, -row.score, row.instance_id))
    dropped: dict[str, int] = {}
    for reason, number in (*static, *later):
        dropped[reason] = dropped.get(reason, 0) + number
    return Record(policy, digest, revision, seed, chosen, cause, moved_from, tuple(rows), dropped, matched_by)
