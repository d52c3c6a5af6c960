"""How a node says it does, in each state that probes, metrics and `reach cluster` tell of."""

import pytest

from reach.core.node_state import NodeFacts, NodeState, is_ready, problems_of, state_of

MEMBER = NodeFacts(is_open=True, membership="member", owned=21)


@pytest.mark.parametrize(
    ("facts", "state", "ready", "problem"),
    [
        (NodeFacts(is_open=True, owned=64), NodeState.SERVING, True, ""),
        (NodeFacts(is_open=False), NodeState.STARTING, False, ""),
        (MEMBER, NodeState.SERVING, True, ""),
        (MEMBER._replace(settled=False, owned=0), NodeState.STARTING, False, "does not own yet"),
        (MEMBER._replace(held="StoreFull"), NodeState.SERVING, False, "takes nothing (StoreFull)"),
        (MEMBER._replace(in_doubt=True), NodeState.IN_DOUBT, False, "cannot confirm"),
        (MEMBER._replace(in_doubt=True, settled=False), NodeState.IN_DOUBT, False, "cannot confirm"),
        (MEMBER._replace(behind_ms=12_300), NodeState.SERVING, True, "12.3 s: nothing moves"),
        (MEMBER._replace(membership="lost"), NodeState.SERVING, True, "lease may have lapsed"),
        (MEMBER._replace(membership="replaced", owned=0), NodeState.REPLACED, False, "--node-id"),
        (MEMBER._replace(membership="out"), NodeState.SERVING, True, "has not joined"),
        (MEMBER._replace(drained=True), NodeState.DRAINING, True, ""),
        (MEMBER._replace(drained=True, owned=0), NodeState.DOOR, True, ""),
        (MEMBER._replace(weight=0, owned=0), NodeState.DOOR, True, ""),
        (MEMBER._replace(weight=0, owned=0, in_doubt=True), NodeState.IN_DOUBT, False, "cannot confirm"),
        (MEMBER._replace(stopping=True, membership="out"), NodeState.STOPPING, False, ""),
    ],
)
def test_CLU_4_each_state_has_its_name_its_readiness_and_its_problem(facts, state, ready, problem):
    assert (state_of(facts), is_ready(facts)) == (state, ready)
    told = problems_of(facts)
    assert len(told) == bool(problem) + (not facts.settled and facts.in_doubt)
    assert not problem or problem in told[0]
