"""The task machine and the health machine, pair by pair."""

from itertools import product
from pathlib import Path

import pytest

from reach.core import health, states
from reach.core.instance_states import Health
from reach.core.model import FIRST_TERMINAL, TaskState
from reach.core.states import IGNORED, TRANSITIONS, TaskInput, next_state
from tools import states as drawing

ROOT = Path(__file__).resolve().parents[2]
TERMINAL = [state for state in TaskState if state >= FIRST_TERMINAL]


@pytest.mark.parametrize(("state", "event"), list(product(TaskState, TaskInput)))
def test_each_pair_is_either_a_transition_or_ignored_with_a_reason(state, event):
    assert ((state, event) in TRANSITIONS) is not ((state, event) in IGNORED)
    assert IGNORED.get((state, event), "a reason")
    assert next_state(state, event) is TRANSITIONS.get((state, event))


def test_the_tables_hold_nothing_else():
    assert len(TRANSITIONS) + len(IGNORED) == len(TaskState) * len(TaskInput)


@pytest.mark.parametrize(("state", "event"), list(product(TERMINAL, TaskInput)))
def test_terminal_states_absorb(state, event):
    assert next_state(state, event) is None


def test_each_input_leads_where_its_name_says():
    ends = {
        TaskInput.SUCCEED: TaskState.SUCCEEDED,
        TaskInput.FAIL: TaskState.FAILED,
        TaskInput.CANCEL: TaskState.CANCELLED,
        TaskInput.REJECT: TaskState.REJECTED,
        TaskInput.BURY: TaskState.DEAD_LETTERED,
        TaskInput.RETRY: TaskState.PENDING,
        TaskInput.ASSIGN: TaskState.DELIVERED,
        TaskInput.PAUSE: TaskState.WAITING,
    }
    for (_, event), target in TRANSITIONS.items():
        assert target is ends.get(event, TaskState.RUNNING)


@pytest.mark.parametrize("state", [state for state in TaskState if state < FIRST_TERMINAL])
@pytest.mark.parametrize("event", [TaskInput.CANCEL, TaskInput.FAIL, TaskInput.BURY])
def test_every_living_state_can_be_cancelled_failed_and_buried(state, event):
    assert next_state(state, event) is not None


def test_every_state_is_reached_and_every_living_one_can_still_succeed():
    def reachable(begin):
        found, ahead = {begin}, [begin]
        while ahead:
            state = ahead.pop()
            for event in TaskInput:
                target = next_state(state, event)
                if target is not None and target not in found:
                    found.add(target)
                    ahead.append(target)
        return found

    assert reachable(TaskState.PENDING) == set(TaskState)
    for state in TaskState:
        assert (TaskState.SUCCEEDED in reachable(state)) is (state < TaskState.FAILED)


@pytest.mark.parametrize(("state", "sign"), list(product(Health, health.Sign)))
def test_health_has_an_answer_to_every_sign(state, sign):
    assert (state, sign) in health.TRANSITIONS


def test_silence_never_makes_better_and_proof_always_heals():
    for (state, sign), target in health.TRANSITIONS.items():
        if state is Health.STARTING and sign not in (health.Sign.READY, health.Sign.LOST, health.Sign.GONE):
            assert target is Health.STARTING
        elif sign in (health.Sign.PROOF, health.Sign.READY):
            assert target is Health.HEALTHY
        elif sign is health.Sign.PARTLY:
            assert target is Health.SUSPECT
        else:
            assert target >= state
        if sign in (health.Sign.LOST, health.Sign.GONE):
            assert target is Health.OFFLINE
    assert states.TRANSITIONS is TRANSITIONS


def test_the_page_of_states_is_in_step():
    assert (ROOT / "docs" / "states.md").read_text() == drawing.page(), "run: python tools/states.py > docs/states.md"
