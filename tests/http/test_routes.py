"""The table of paths: nothing of the contract is forgotten, and each row says what can be done."""

from collections import Counter

import pytest

from reach.http.messages import field_named
from reach.http.routes import ROWS, UNROUTED, descriptor_of, find
from reach.rpc.access import TABLE
from tests.rpc.hostile import METHODS

NAMES = {method.rpartition(".")[2] for method in METHODS}


def test_API_2_each_method_has_a_path_or_a_reason_why_it_has_none():
    routed = {row.rpc for row in ROWS}
    assert routed | UNROUTED.keys() == NAMES
    assert not routed & UNROUTED.keys()
    assert all(len(why) > 20 for why in UNROUTED.values())
    for name in UNROUTED:
        assert descriptor_of(name).client_streaming if not name.startswith("Agent") else True


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.verb} {row.path}")
def test_a_row_fills_fields_that_there_are(row):
    assert row.method in TABLE
    for path in (*row.filled, *filter(None, (row.key, row.flat, row.resume))):
        here = row.request.DESCRIPTOR
        for step in path.split("."):
            field = field_named(here, step)
            assert field is not None, path
            here = field.message_type
    if row.flat:
        inner = {field.name for field in row.request.DESCRIPTOR.fields_by_name[row.flat].message_type.fields}
        assert inner.isdisjoint(row.request.DESCRIPTOR.fields_by_name), "one name, two parameters"
    steps = [f"a {step}" if step.startswith("{") else step for step in row.steps]
    found = find(row.verb, steps)
    assert found.row is row
    assert list(found.given.values()) == [step for step in steps if step.startswith("a {")]


def test_no_two_rows_are_one():
    assert Counter((row.verb, row.path) for row in ROWS).most_common(1)[0][1] == 1
    assert find("PUT", ["tasks"]).verbs == ("POST", "GET")
    assert find("GET", ["nothing"]) == (None, {}, ())
