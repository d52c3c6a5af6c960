"""Decisions as bytes: what the journal keeps with each attempt (RTE-13).

A record has at most 512 bytes. It is made in the writer's thread, of what a decision refers to and nobody changes; the
sums and names are made when somebody asks. What is the same for all decisions under a policy is encoded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from reach.core.decision import Verdict, of_the_task, told
from reach.core.decision import score_of as score
from reach.core.decision_record import Record, Told
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
_heads: dict[Policy, msgspec.Raw] = {}


def pack(verdict: Verdict) -> bytes:
    """A decision as bytes. If it is too long, those that were not chosen are left out one by one, then counts. What
    cannot be said at all is nothing, rather than a task that cannot be kept."""
    try:
        data = _pack(verdict, len(verdict.looked))
        count = len(verdict.looked)
        while len(data) > RECORD_BYTES and count > 1:
            count -= 1
            data = _pack(verdict, count)
        if len(data) > RECORD_BYTES:  # names of hundreds of bytes
            data = _pack(verdict, count, bare=True)
    except (UnicodeEncodeError, OverflowError):
        return b""
    return data if len(data) <= RECORD_BYTES else b""


def _pack(verdict: Verdict, count: int, *, bare: bool = False) -> bytes:
    looked, loads, known, policy = verdict.looked, verdict.loads, verdict.known, verdict.policy
    first = 0
    if count < len(looked) or (looked and looked[0] is not verdict.chosen):
        order = _order(verdict, count)
        looked, loads = [looked[at] for at in order], [loads[at] for at in order]
        known = [known[at] for at in order]
        first = 0 if verdict.chosen is not None and looked[0] is verdict.chosen else -1
    head = _heads.get(policy) or _head(policy)
    extra: Any = ()
    if policy.way is Way.LEAST_CONNECTIONS:
        extra = [one.weight for one in looked]
    elif not OF_THE_TASK.isdisjoint(policy.weights):
        extra = [of_the_task(verdict, one) for one in looked]
    moved_from, static, dropped = verdict.moved_from, verdict.static.dropped, verdict.dropped
    if bare:
        moved_from, static, dropped = "", (), ()
    names = [(one.instance_id, one.max_concurrency) for one in looked]
    return _encode((FORM, head, verdict.cause, verdict.seed & _SEEDS, verdict.revision, moved_from, static, dropped,
                    first, names, loads, known, extra))  # fmt: skip


def _order(verdict: Verdict, count: int) -> list[int]:
    """The positions that are kept, the chosen one first."""
    order = sorted(range(len(verdict.looked)), key=lambda at: verdict.looked[at] is not verdict.chosen)
    return order[:count]


def _head(policy: Policy) -> msgspec.Raw:
    """What all decisions under a policy begin with."""
    if len(_heads) >= MAX_POLICIES:
        _heads.clear()
    weighed = [SIGNALS.index(name) for name in policy.weights]
    head = (policy.name, policy.digest, int(policy.way), weighed, list(policy.weights.values()))
    _heads[policy] = made = msgspec.Raw(_encode(head))
    return made


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
    return Record(policy, digest, revision, seed, chosen, cause, moved_from, tuple(rows), dropped)
