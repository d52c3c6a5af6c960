"""The log of changes (REG-9): each instance once, as it is now; tombstones have an end."""

import pytest

from reach.core import changes
from reach.core.changes import ChangeLog, looks, visible_to
from reach.core.instance_states import Availability, Condition, Health
from tests.core.harness import TENANT, instance_of, profile


def registered(name: str = "one", **parts):
    made = instance_of(name, **parts)
    made.bit = 0
    return made


def test_REG_9_a_change_is_one_entry_however_often_it_changed():
    log, one, two = ChangeLog(), registered("one"), registered("two")
    assert log.look(one)
    assert log.look(two)
    seen = log.number
    for inflight in range(100):
        one.inflight = inflight + 1
        assert log.look(one)
    records, gone = log.since(seen)
    assert [record.instance for record in records] == [one]
    assert gone == []
    assert len(log.records) == 2
    assert log.since(log.number) == ([], [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("revision", 9),
        ("generation", 2),
        ("health", Health.SUSPECT),
        ("availability", Availability.BUSY),
        ("blocked_by", "draining"),
        ("inflight", 1),
        ("max_concurrency", 7),
        ("probe_status", "failing"),
        ("last_probe_error", "refused"),
        ("reach_score", 83.54),
        ("conditions", {Condition.STALLED: ("stuck", 1)}),
    ],
)
def test_REG_9_what_makes_a_difference(field, value):
    log, one = ChangeLog(), registered()
    log.look(one)
    assert not log.look(one)
    setattr(one, field, value)
    assert log.look(one)


def test_REG_9_a_beat_alone_is_no_news_and_a_score_only_if_it_moves_by_a_point():
    log, one = ChangeLog(), registered()
    one.reach_score = 83.2
    log.look(one)
    one.beat_ms, one.reach_score, one.status = 5, 83.9, {"memory_watermark": 0.4}
    assert not log.look(one)
    one.reach_score = 84.1
    assert log.look(one)


def test_REG_9_one_that_left_is_a_tombstone_until_it_comes_back():
    log, one = ChangeLog(), registered()
    log.look(one)
    one.bit = -1
    assert log.look(one)
    assert [key for key, _ in log.since(1)[1]] == [(TENANT, "one")]
    assert not log.look(one), "it is told once"
    again = registered()
    assert log.look(again)
    assert not log.look(one), "the former process is no more"
    assert (log.since(1)[0][0].instance, log.since(1)[1]) == (again, [])


def test_REG_9_what_a_sweep_does_not_find_is_gone():
    log, one, two = ChangeLog(), registered("one"), registered("two")
    log.look(one)
    log.look(two)
    assert not log.swept()
    log.look(two)
    assert log.swept()
    assert [key for key, _ in log.since(2)[1]] == [(TENANT, "one")]
    log.look(two)
    assert not log.swept()


def test_REG_9_tombstones_are_bounded_and_who_missed_one_is_behind_the_horizon(monkeypatch):
    monkeypatch.setattr(changes, "TOMBSTONES", 3)
    log = ChangeLog()
    for number in range(5):
        one = registered(f"i{number}")
        log.look(one)
        one.bit = -1
        log.look(one)
    assert list(log.gone) == [(TENANT, f"i{number}") for number in (2, 3, 4)]
    assert log.horizon == 4, "of the second removal, the last that is forgotten"


def test_REG_9_the_audience_grows_with_those_who_were_allowed_and_has_an_end(monkeypatch):
    monkeypatch.setattr(changes, "AUDIENCE", 2)
    log, one = ChangeLog(), registered(allowed_tenants=("a",))
    log.look(one)
    one.profile, one.revision = profile(allowed_tenants=("b",)), 2
    log.look(one)
    assert (sorted(log.records[TENANT, "one"].audience), log.horizon) == (["a", "b"], 0)
    one.profile, one.revision = profile(allowed_tenants=("c",)), 3
    log.look(one)
    assert (sorted(log.records[TENANT, "one"].audience), log.horizon) == (["c"], 3)


def test_GOV_1_who_may_see_an_instance():
    one = registered(allowed_tenants=("friend",))
    assert [visible_to(one, tenant) for tenant in (TENANT, "friend", "stranger")] == [True, True, False]
    assert looks(one) == looks(registered())
