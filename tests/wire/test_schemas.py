"""JSON Schemas of capabilities (REG-4): bounded when they come, and what a mismatch says."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.errors import InvalidRequest, Reason
from reach.wire import schemas
from reach.wire.schemas import PAYLOAD_BYTES, SCHEMA_BYTES, check_schema, compiled, mismatches, schema_id


def text_of(schema: Any) -> str:
    return json.dumps(schema)


def mismatch(schema: Any, given: Any, media_type: str = "application/json") -> tuple[str, str] | None:
    content = given if isinstance(given, str | bytes) else json.dumps(given)
    return mismatches(media_type, content, (("one", text_of(schema)),)).get("one")


PARAMETERS = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["text"],
    "additionalProperties": False,
}


def doubling(levels: int) -> dict[str, Any]:
    """Each level is looked at twice by the one before it."""
    parts: dict[str, Any] = {
        f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}, {"$ref": f"#/$defs/a{at + 1}"}]} for at in range(levels)
    }
    return {"$defs": {**parts, f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


BAD = [
    ("{", "is not JSON"),
    ("[" * 5_000, "is not JSON"),
    ("3", "must be an object, true or false"),
    (text_of({"type": "nope"}), "/type"),
    (text_of({"properties": {"a": {"minimum": "x"}}}), "/properties/a/minimum"),
    (text_of({"description": "x" * SCHEMA_BYTES}), "has more than 65536 bytes"),
    (text_of({"allOf": [{} for _ in range(6_000)]}), "has more than 5000 parts"),
    (text_of(nested(40)), "nested more than 32 levels"),
    (text_of({"$ref": "http://127.0.0.1:1/x"}), "only places within the schema"),
    (text_of({"$ref": "file:///etc/passwd"}), "only places within the schema"),
    (text_of({"$ref": "other.json#/a"}), "only places within the schema"),
    (text_of({"$ref": "#/$defs/none"}), "which is not there"),
    (text_of({"$ref": "#none"}), "which is no schema"),
    (text_of({"$ref": "#"}), "which never ends"),
    (text_of({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "which never ends"),
    (text_of({"$dynamicRef": "#x"}), "$dynamicRef"),
    (text_of({"properties": {"a": {"$id": "http://x/y"}}}), "$id of its own"),
    (text_of({"$schema": "http://example.com/own"}), "Unknown meta-schema"),
    (text_of({"pattern": r"(a)\1"}), "look-around"),
    (text_of({"pattern": r"(?=a)b"}), "look-around"),
    (text_of({"pattern": r"(\w{1000}){1000}"}), "not too large"),
    (text_of({"patternProperties": {"(?<!x)y": True}}), ""),
    (text_of(doubling(30)), "too many alternatives"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_REG_4_what_is_no_schema_or_too_much_of_one_is_refused_with_words(text, words):
    with pytest.raises(InvalidRequest) as refused:
        check_schema("registration.capabilities.parameter_schema", text)
    assert refused.value.reason is Reason.INVALID_FIELD
    assert words in refused.value.message
    assert len(refused.value.message) < 600


GOOD = [
    {},
    PARAMETERS,
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
    {"$id": "http://example.com/mine", "$anchor": "top", "properties": {"again": {"$ref": "#top"}}},
    {"properties": {"default": {"type": "string"}, "enum": {"$ref": "#/properties/default"}, "items": {}, "id": {}}},
    {"examples": [{"id": "abc"}], "properties": {"a/b": {}, "c": {"$ref": "#/properties/a~1b"}}},
    doubling(10),
]


@pytest.mark.parametrize("schema", GOOD)
def test_usual_schemas_are_taken(schema):
    assert check_schema("x", text_of(schema)) == schema_id(text_of(schema)) != ""
    assert check_schema("x", "") == ""


def test_REG_4_a_mismatch_names_the_place_and_tells_no_value():
    assert mismatch(PARAMETERS, {"text": "hello", "tags": [1, 2]}) is None
    path, words = mismatch(PARAMETERS, {"text": "hello", "tags": [1, "secret"]}) or ("", "")
    assert (path, words) == ("/tags/1", 'the value is not of type "integer"')
    assert mismatch(PARAMETERS, {}) == ("", '"text" is a required property')
    path, words = mismatch({"properties": {"a/b~": {"const": 1}}}, {"a/b~": "secret"}) or ("", "")
    assert path == "/a~1b~0"
    assert "secret" not in words


def test_REG_4_what_counts_as_json():
    assert mismatch({"type": "object"}, '{"a": 1}', "") is None
    assert mismatch({"type": "object"}, b'{"a": 1}', "application/vnd.x+json; charset=utf-8") is None
    assert mismatch({"type": "string"}, "plain words", "") is None
    assert mismatch({"type": "string"}, "42", "text/plain") is None
    assert mismatch({"type": "integer"}, "42", "") is None
    for media_type, content, words in (
        ("application/json", "{", "not JSON"),
        ("application/json", "\ud800", "not JSON"),
        ("application/json", b"\xff", "not JSON"),
        ("application/json", "", "not JSON"),
        ("application/json", "1e999", "not JSON"),
        ("image/png", b"\x89PNG", "the payload is 'image/png', not JSON"),
        ("", b"\x00", "not JSON"),
        ("text/plain", "words", 'not of type "object"'),
        ("application/json", "[" * 100_000, "nested too deeply"),
    ):
        path, told = mismatch({"type": "object"}, content, media_type) or ("", "")
        assert (path, words in told) == ("", True), told


def test_each_schema_is_asked_and_none_is_no_schema():
    found = mismatches("", "3", (("", ""), ("a", text_of({"type": "integer"})), ("b", text_of({"type": "string"}))))
    assert found == {"b": ("", 'the value is not of type "string"')}


def test_a_payload_has_its_bounds_too():
    path, words = mismatch({"type": "object"}, json.dumps("x" * PAYLOAD_BYTES)) or ("", "")
    assert (path, "at most 1048576" in words) == ("", True)
    deep = "[" * 70 + "]" * 70
    assert "nested 69 deep" in (mismatch({"type": "array"}, deep) or ("", ""))[1]
    # Two schemas look at each child, so the work doubles with each level: allowed while that is little.
    tree = {"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}
    assert mismatch(tree, [[[1]]]) is None
    assert "at most" in (mismatch(tree, "[" * 40 + "]" * 40) or ("", ""))[1]
    assert "too large" in (mismatch(doubling(10), json.dumps(["x"] * 100_000)) or ("", ""))[1]


def test_a_recursive_schema_that_looks_once_at_each_place_may_be_as_deep_as_any():
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    payload: dict[str, Any] = {}
    for _ in range(60):
        payload = {"left": payload, "right": {}}
    assert mismatch(tree, payload) is None
    assert max(compiled(text_of(tree)).visits) <= 2


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|a)*$", r"(x+x+)+y", r"^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_GOV_5_no_pattern_takes_for_ever(pattern):
    begun = time.monotonic()
    assert mismatch({"pattern": pattern}, json.dumps("a" * 50_000 + "!")) is not None
    assert time.monotonic() - begun < 1


@given(st.recursive(st.sampled_from([{}, {"type": "string"}, {"$ref": "#"}]), lambda part: st.fixed_dictionaries(
    {}, optional={"anyOf": st.lists(part, min_size=1, max_size=3), "items": part, "not": part,
                  "properties": st.dictionaries(st.sampled_from("ab"), part, max_size=2)}), max_leaves=8))  # fmt: skip
def test_GOV_5_the_bound_on_work_is_one(schema):
    """The twin: count the looks at the worst place by walking, one level at a time."""

    def looks(part: Any, depth: int, here: int = 0) -> int:
        if here > 50:
            raise RecursionError
        if "$ref" in part:
            return (not depth) + looks(schema, depth, here + 1)
        count = (not depth) + sum(looks(one, depth, here + 1) for one in part.get("anyOf", ()))
        count += looks(part["not"], depth, here + 1) if "not" in part else 0
        if depth:
            count += looks(part["items"], depth - 1) if "items" in part else 0
            count += max((looks(one, depth - 1) for one in part.get("properties", {}).values()), default=0)
        return count

    try:
        exact = [looks(schema, depth) for depth in range(4)]
        expected = [max(exact[: depth + 1]) for depth in range(4)]
    except RecursionError:
        expected = []
    try:
        found = schemas._visits(schema)
    except ValueError:
        assert not expected or max(expected) > 100
    else:
        assert list(found[:4]) == expected
