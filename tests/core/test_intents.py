"""Routes for intents (RTE-6): the longest prefix by whole parts wins."""

from hypothesis import given
from hypothesis import strategies as st

from reach.core.intents import Route, Routes, prefixes

ROUTES = Routes([Route("customer_service", "support"), Route("customer_service.refund", "refunds"), Route("qa", "qa")])


def test_RTE_6_the_longest_prefix_wins_by_whole_parts():
    def capability(intent: str) -> str:
        route = ROUTES.find(intent)
        return route.require_capability if route is not None else ""

    assert capability("customer_service.refund") == "refunds"
    assert capability("customer_service.refund.late") == "refunds"
    assert capability("customer_service.refunds") == "support"
    assert capability("customer_service") == "support"
    assert capability("customer") == ""
    assert capability("customer_services") == ""
    assert capability("qa.x.y.z") == "qa"
    assert capability("") == ""


def test_prefixes_are_the_longest_first():
    assert list(prefixes("a.b.c")) == ["a.b.c", "a.b", "a"]


parts = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4).map(".".join)


@given(st.sets(parts, max_size=8), parts)
def test_RTE_6_agrees_with_a_look_at_every_rule(known, intent):
    fitting = [prefix for prefix in known if intent == prefix or intent.startswith(prefix + ".")]
    found = Routes(Route(prefix, "x") for prefix in known).find(intent)
    assert (found.intent_prefix if found is not None else None) == max(fitting, key=len, default=None)
