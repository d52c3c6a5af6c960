"""How a text is shown that may begin again."""

from __future__ import annotations

import pytest

from agentreach.v1 import event_pb2, task_pb2
from reach.cli.following import Follower, Screen, outcome_line
from reach.sdk.answers import Event, Result

Capture = pytest.CaptureFixture[str]


def test_pieces_are_written_as_they_come(capsys: Capture) -> None:
    screen = Screen(streams=True)
    screen.append(1, "a")
    assert capsys.readouterr().out == "a"
    screen.append(2, "b\n")
    screen.finish("ab\n")
    assert capsys.readouterr().out == "b\n"


def test_an_attempt_that_says_the_same_again_costs_nothing(capsys: Capture) -> None:
    screen = Screen(streams=True)
    screen.append(1, "one ")
    screen.append(2, "two ")
    screen.reset(0)
    for number, piece in enumerate(("one ", "tw", "o ", "three"), 3):
        screen.append(number, piece)
    screen.finish("one two three")
    captured = capsys.readouterr()
    assert captured.out == "one two three\n"
    assert captured.err == ""


def test_an_attempt_that_says_something_else_begins_on_a_new_line(capsys: Capture) -> None:
    screen = Screen(streams=True)
    screen.append(1, "one")
    screen.reset(0)
    screen.append(2, "uno")
    screen.append(3, " due")
    screen.finish("uno due")
    captured = capsys.readouterr()
    assert captured.out == "one\nuno due\n"
    assert captured.err == "(the text begins again)\n"


def test_what_is_kept_stays(capsys: Capture) -> None:
    screen = Screen(streams=True)
    screen.append(1, "kept ")
    screen.append(2, "void")
    screen.reset(1)
    screen.append(3, "void and more")
    screen.finish("kept void and more")
    assert capsys.readouterr().out == "kept void and more\n"


def test_replaced_text_and_snapshots(capsys: Capture) -> None:
    screen = Screen(streams=True)
    screen.append(1, "10 %")
    screen.replace(2, "20 %")
    screen.replace(3, "20 % done")
    screen.finish("20 % done")
    assert capsys.readouterr().out == "10 %\n20 % done\n"


def test_an_answer_that_is_not_the_text_follows_it(capsys: Capture) -> None:
    screen = Screen(streams=True)
    screen.append(1, "line 1\n")
    screen.finish('{"lines": 1}')
    assert capsys.readouterr().out == 'line 1\n{"lines": 1}\n'


def test_without_streaming_only_the_answer(capsys: Capture) -> None:
    screen = Screen(streams=False)
    screen.append(1, "line 1\n")
    screen.reset(0)
    screen.append(2, "line 1\n")
    screen.finish("answer")
    assert capsys.readouterr().out == "answer\n"


def test_the_end_of_a_text_that_was_tailed_is_not_written_twice(capsys: Capture) -> None:
    screen = Screen(streams=True)
    screen.append(7, "end")
    screen.finish("begin and end")
    assert capsys.readouterr().out == "end\n"


def event(**fields: object) -> Event:
    return Event(event_pb2.TaskEvent(task_id="t", **fields))  # type: ignore[arg-type]


def test_a_follower_shows_a_story(capsys: Capture) -> None:
    follower = Follower()
    follower.show(event(sequence=1, accepted={"warnings": ["odd\x1b"], "deduplicated": True}))
    follower.show(event(sequence=2, attempt=1, started={"instance_id": "i-1"}))
    follower.show(event(sequence=3, attempt=1, delta={"mode": 1, "payload": {"text": "half"}}))
    follower.show(event(sequence=4, attempt=1, retrying={"reason": "INSTANCE_LOST", "message": "gone"}))
    follower.show(event(sequence=5, attempt=2, attempt_reset={}))
    follower.show(event(sequence=6, attempt=2, started={"instance_id": "i-2"}))
    follower.show(event(sequence=7, attempt=2, delta={"mode": 1, "payload": {"text": "half and half"}}))
    assert follower.goes_on
    result = {"task_id": "t", "state": 5, "output": {"text": "half and half"}, "attempts": 2, "transfers": 1}
    follower.show(event(sequence=8, attempt=2, complete={**result, "instance_id": "i-2"}))
    follower.close()
    assert not follower.goes_on
    captured = capsys.readouterr()
    assert captured.out.split() == ["half", "and", "half"]
    assert captured.err.splitlines() == [
        "task t is known already: this is its first answer again",
        "warning: odd",
        "attempt 1 failed (INSTANCE_LOST): gone; it goes on elsewhere or later",
        "attempt 2 on i-2",
        "task t SUCCEEDED · by i-2 · 2 attempts, moved 1 times · queued 0 ms, ran 0 ms",
    ]


def test_other_events_and_channels_go_to_stderr(capsys: Capture) -> None:
    follower = Follower()
    follower.show(event(sequence=1, delta={"channel": "log", "mode": 1, "payload": {"text": "note"}}))
    follower.show(event(sequence=2, handoff={"from_instance_id": "a", "to_instance_id": "b"}))
    follower.show(event(sequence=3, degraded={"why": "full"}))
    follower.show(event(sequence=4, waiting={"prompt": {"text": "which?"}}))
    follower.show(event(sequence=5, progress={"note": "half"}))
    follower.show(event(sequence=6, gap={"snapshot": [{"payload": {"text": "so far"}}]}))
    captured = capsys.readouterr()
    assert captured.out == "so far"
    assert captured.err.splitlines() == [
        "[log] note",
        "the conversation moved from a to b",
        "served in a lesser way: full",
        "the agent asks: which? (reach input t …)",
    ]


def test_a_failure_in_one_line() -> None:
    failed = task_pb2.Result(task_id="t", state=task_pb2.TASK_STATE_FAILED, attempts=1, instance_id="i")
    failed.error.reason = 31  # type: ignore[assignment]
    failed.error.error_class = 6  # type: ignore[assignment]
    failed.error.message = "cannot\x1b be done"
    line = outcome_line(Result(failed))
    assert line == "task t FAILED: AGENT_FAILED: cannot\N{REPLACEMENT CHARACTER} be done · by i · queued 0 ms, ran 0 ms"
