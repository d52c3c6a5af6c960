"""The garbage collector stands aside while things are made that stay."""

import gc

import pytest

from reach.collector import made_to_stay


class Ring:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.self = self


def test_it_does_not_run_meanwhile_and_does_afterwards():
    before = gc.get_stats()[0]["collections"]
    with made_to_stay():
        kept: list[list[int]] = [[] for _ in range(100_000)]  # would be a hundred collections
        assert gc.get_stats()[0]["collections"] == before
    assert gc.isenabled()
    assert kept
    gc.unfreeze()


@pytest.mark.parametrize("on", [True, False])
def test_whether_it_runs_is_as_before_also_after_an_error(on):
    if not on:
        gc.disable()
    try:
        with pytest.raises(ZeroDivisionError), made_to_stay():
            1 / 0  # noqa: B018
        assert gc.isenabled() is on
    finally:
        gc.enable()
        gc.unfreeze()


def test_what_was_made_is_not_looked_through_later():
    gc.collect()
    with made_to_stay():
        frozen = gc.get_freeze_count()
        kept = [Ring() for _ in range(1_000)]
    try:
        assert gc.get_freeze_count() >= frozen + 1_000
        del kept
        assert gc.collect() < 1_000
    finally:
        gc.unfreeze()
        gc.collect()
