"""Decisions as bytes tell what the decisions told (RTE-13)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core.decision_record import record_of
from reach.core.model import Requirement
from reach.core.policies import POLICIES, own_policy
from reach.core.routing import Router
from reach.store.decision_bytes import FORM, RECORD_BYTES, pack, unpack
from tests.core.harness import instance_of

OWN = own_policy("mine", {"region": 1, "latency": 2, "match": 1, "load": 1})
ANY_POLICY = st.sampled_from([*POLICIES.values(), OWN])


def verdict_of(policy, loads, seed=1, name="i{}", requirement=None, avoided=()):
    router = Router(policy, 1.5, {**POLICIES, "mine": OWN})
    for number, (inflight, slots, latency) in enumerate(loads):
        one = instance_of(name.format(number), slots, inflight, region="eu" if number % 2 else "us")
        one.latency_ms, one.weight = latency, 10 + number
        one.blocked_by = "unhealthy" if number % 7 == 6 else ""
        router.add(one)
        router.place(one)
    return router.pick(requirement or Requirement(region="eu"), avoided, 1, seed)


@given(
    ANY_POLICY,
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.floats(0, 9_000)), max_size=12),
    st.integers(0, 1 << 70),
)
def test_RTE_13_bytes_tell_what_the_decision_told(policy, loads, seed):
    verdict = verdict_of(policy, loads, seed)
    verdict.moved_from = "somebody" if seed % 2 else ""
    data, told = pack(verdict), record_of(verdict)
    assert len(data) <= RECORD_BYTES
    kept = unpack(data)
    assert kept is not None
    assert (kept.policy.name, kept.policy.weights, kept.policy_hash) == (policy.name, policy.weights, policy.digest)
    assert kept.seed == told.seed & ((1 << 64) - 1)
    assert kept[2:3] + kept[4:7] + kept[8:] == told[2:3] + told[4:7] + told[8:]
    assert all(row in told.candidates for row in kept.candidates)
    assert kept.candidates[:1] == told.candidates[:1]
    if len(loads) <= 6:
        assert kept.candidates == told.candidates


@pytest.mark.parametrize("length", [1, 20, 60, 120, 256])
@pytest.mark.parametrize("policy", [*POLICIES.values(), OWN], ids=[*POLICIES, "mine"])
def test_RTE_13_however_long_the_names_the_chosen_one_is_kept_in_512_bytes(length, policy):
    name = "é" * (length // 2) + "{}"
    verdict = verdict_of(policy, [(0, 9, 10.0)] * 14, name=name[-length:] if length > 1 else "{}")
    verdict.moved_from = "x" * length
    data = pack(verdict)
    assert 0 < len(data) <= RECORD_BYTES
    kept = unpack(data)
    assert kept is not None
    assert kept.chosen == verdict.chosen.instance_id == kept.candidates[0].instance_id


def test_what_was_not_chosen_is_left_out_first():
    verdict = verdict_of(POLICIES["balanced"], [(0, 9, 10.0)] * 6, 1, "i{}" + "x" * 50, Requirement())
    kept = unpack(pack(verdict))
    assert kept is not None
    assert len(verdict.looked) > len(kept.candidates) >= 2


def test_a_name_that_cannot_be_said_costs_the_record_and_not_the_task():
    assert pack(verdict_of(POLICIES["balanced"], [(0, 9, 10.0)], name="\ud800{}")) == b""


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x93\x01\x02", bytes([0x9D, FORM + 1]) + b"\xc0" * 12, b"\xc0"])
def test_bytes_of_another_form_are_no_longer_known(data):
    assert unpack(data) is None
