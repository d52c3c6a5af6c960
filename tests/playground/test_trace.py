"""Traces: what is wrong with one is said with its place."""

import pytest

from reach.errors import InvalidRequest, Reason
from reach.playground.trace import load, read, stories

GOOD = "name: x\ninstances:\n  - {name: a}\ntasks:\n  - {rate: 1}\n"


def test_every_story_of_the_package_can_be_read_and_says_what_it_shows():
    assert stories() == ["black-hole", "cold-restart", "hot-capability", "leak", "slow-node", "worse-canary"]
    for name in stories():
        trace = load(name)
        assert trace.name == name
        assert trace.about


@pytest.mark.parametrize(("text", "ms"), [("200ms", 200), ("1.5s", 1_500), ("2m", 120_000), ("3", 3_000), ("0", 0)])
def test_times(text, ms):
    trace = read(f"{GOOD}  - {{rate: 1, begin: {text}, end: 10m}}\nduration: 10m\n".encode(), "t")
    assert trace.tasks[1].begin.ms == ms


def test_json_is_read_too():
    trace = read(b'{"name": "x", "instances": [{"name": "a"}], "recorded": [{"at": "5ms", "work": 2}]}', "t")
    assert (trace.recorded[0].at.ms, trace.recorded[0].work) == (5, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "line "),
        ("name: x\n\tinstances: []", "line 2"),
        ("[]", "Expected `object`, got `array`"),
        ("", "Expected `object`, got `null`"),
        ("name: x\ntasks: [{rate: 1}]", "instances"),
        (GOOD.replace("rate: 1", "rate: 0"), "$.tasks[0].rate"),
        (GOOD.replace("rate: 1", "rate: .nan"), "rate"),
        (GOOD.replace("rate: 1", "rate: fast"), "$.tasks[0].rate"),
        (GOOD.replace("rate: 1", "speed: 1"), "speed"),
        (GOOD.replace("rate: 1", "rate: 1, timeout: soon"), "'soon' is not a time"),
        (GOOD.replace("rate: 1", "rate: 1, timeout: -1"), "-1 is not a time"),
        (GOOD.replace("rate: 1", "rate: 1, timeout: .inf"), "is not a time"),
        (GOOD.replace("rate: 1", "rate: 1, timeout: true"), "is not a time"),
        (GOOD.replace("rate: 1", "rate: 1, begin: 2m"), "$.tasks[0]"),
        (GOOD.replace("rate: 1", "rate: 99999"), "at most 1000000"),
        (GOOD.replace("{name: a}", "{name: a, fail: 2}"), "$.instances[0].fail"),
        (GOOD.replace("{name: a}", "{name: a, slots: 0}"), "$.instances[0].slots"),
        (GOOD.replace("{name: a}", "{name: a, count: 10001}"), "$.instances[0].count"),
        (GOOD.replace("{name: a}", "{name: a}\n  - {name: a}"), "one name"),
        (GOOD.replace("{name: a}", "{name: a, happens: [{at: 1s}]}"), "$.instances[0].happens[0]"),
        (GOOD.replace("{name: a}", "{name: a, happens: [{at: 1s, stop: true, slow: 2}]}"), "happens[0]"),
        (GOOD.replace("tasks:\n  - {rate: 1}\n", ""), "neither"),
        (GOOD + "duration: 0\n", "duration"),
        (GOOD + "heartbeat: 2m\n", "heartbeat"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, said):
    with pytest.raises(InvalidRequest) as caught:
        read(text.encode(), "my.yaml")
    assert caught.value.reason is Reason.INVALID_FIELD
    assert caught.value.message.startswith("trace my.yaml: ")
    assert said in caught.value.message


def test_a_file_that_is_not_there_names_the_stories(tmp_path):
    for name in ("no-such-story", str(tmp_path)):
        with pytest.raises(InvalidRequest, match="slow-node"):
            load(name)


def test_bytes_that_are_no_text():
    with pytest.raises(InvalidRequest, match=r"my\.yaml"):
        read(b"\xff\xfe\x00name", "my.yaml")
