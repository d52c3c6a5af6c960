"""What a reader is told of each event, and tasks as A2A shows them (API-3, STR-3)."""

from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf import json_format

from agentreach.v1 import event_pb2, task_pb2
from reach.a2a.cards import _for_types
from reach.a2a.story import Story, fold
from reach.a2a.tasks import facts_of, state_of, task_of
from tests.rpc.peers import pb

S = a2a_pb2.TaskState
R = task_pb2.TaskState


class Teller:
    """Makes events, and tells them."""

    def __init__(self) -> None:
        self.story = Story(a2a_pb2.Task(id="t", context_id="c"))
        self.sequence = 0

    def tell(self, **kind: Any) -> list[Any]:
        self.sequence += 1
        event = json_format.ParseDict({"sequence": self.sequence, "attempt": 1, **kind}, event_pb2.TaskEvent())
        return list(self.story.tell(event))

    def delta(self, text: str, mode: str = "APPEND", channel: str = "") -> Any:
        delta = {"mode": f"DELTA_MODE_{mode}", "channel": channel, "payload": {"text": text}}
        (one,) = self.tell(delta=delta)
        return one.artifact.artifact_id, one.append, one.artifact.parts[0].text

    def complete(self, text: str = "", state: str = "SUCCEEDED") -> list[Any]:
        output = {"output": {"text": text}} if text else {}
        return self.tell(complete={"state": f"TASK_STATE_{state}", **output})


def test_STR_1_pieces_of_each_channel_follow_each_other_and_replace_begins_anew():
    teller = Teller()
    assert teller.delta("a") == ("answer", False, "a")
    assert teller.delta("b") == ("answer", True, "b")
    assert teller.delta("x", channel="log") == ("answer.log", False, "x")
    assert teller.delta("c", "REPLACE") == ("answer", False, "c")
    assert teller.delta("d") == ("answer", True, "d")
    last, log, status = teller.complete("cd")
    assert (last.append, last.last_chunk, last.artifact.artifact_id) == (True, True, "answer")
    assert (log.last_chunk, log.artifact.artifact_id) == (True, "answer.log")
    assert status.status.state == S.TASK_STATE_COMPLETED


def test_STR_3_after_a_reset_nothing_of_before_counts():
    teller = Teller()
    teller.delta("half ")
    empty, status = teller.tell(attemptReset={"keepUpToSequence": "0"})
    assert (empty.append, empty.artifact.parts[0].text, status.status.state) == (False, "", S.TASK_STATE_WORKING)
    assert teller.delta("all") == ("answer", False, "all")
    last, _ = teller.complete("all")
    assert (last.append, last.last_chunk) == (True, True)
    assert teller.story.over


def test_an_output_that_is_not_what_was_streamed_comes_whole_and_nothing_comes_of_nothing():
    teller = Teller()
    teller.delta("draft")
    whole, _ = teller.complete("final")
    assert (whole.append, whole.last_chunk, whole.artifact.parts[0].text) == (False, True, "final")
    assert [type(one) for one in Teller().complete()] == [a2a_pb2.TaskStatusUpdateEvent]
    teller = Teller()
    teller.delta("half")
    assert [type(one) for one in teller.complete(state="FAILED")] == [a2a_pb2.TaskStatusUpdateEvent]


def test_STR_2_a_gap_is_told_and_what_stands_replaces_what_was_said():
    story = Story(a2a_pb2.Task(id="t", context_id="c"))
    event: Any = event_pb2.TaskEvent(sequence=9, attempt=1)
    event.gap.snapshot.add(mode=event_pb2.DELTA_MODE_REPLACE).payload.text = "so far"
    event.gap.snapshot.add(channel="log", mode=event_pb2.DELTA_MODE_REPLACE).payload.text = "notes"
    told: Any = story.tell(event)
    assert [(one.artifact.artifact_id, one.append, one.metadata["gap"]) for one in told] == [
        ("answer", False, True),
        ("answer.log", False, True),
    ]
    empty = event_pb2.TaskEvent(sequence=10, attempt=1, gap=event_pb2.Gap(from_sequence=1, to_sequence=9))
    assert [one.metadata["gap"] for one in story.tell(empty)] == [True]
    assert story.tell(event_pb2.TaskEvent(sequence=1, accepted=event_pb2.Accepted())) == []


@pytest.mark.parametrize(
    ("kind", "state", "told"),
    [
        ({"started": {}}, "WORKING", {}),
        ({"retrying": {"reason": "INSTANCE_LOST"}}, "WORKING", {"retrying": "INSTANCE_LOST"}),
        ({"handoff": {}}, "WORKING", {"handoff": True}),
        ({"degraded": {}}, "WORKING", {"degraded": True}),
        ({"inputGiven": {}}, "WORKING", {"input_given": True}),
        ({"progress": {"fraction": 0.25}}, "WORKING", {"fraction": 0.25}),
        ({"waiting": {"waitingFor": "WAITING_FOR_INPUT", "question": "q"}}, "INPUT_REQUIRED", {"question": "q"}),
        ({"waiting": {"waitingFor": "WAITING_FOR_AUTH"}}, "AUTH_REQUIRED", {}),
        ({"complete": {"state": "TASK_STATE_REJECTED"}}, "REJECTED", {}),
        ({"complete": {"state": "TASK_STATE_CANCELLED"}}, "CANCELED", {}),
        ({"complete": {"state": "TASK_STATE_DEAD_LETTERED", "taskId": "t"}}, "FAILED", {"dead_letter_id": "t"}),
    ],
    ids=str,
)
def test_API_3_what_A2A_has_no_event_for_is_in_the_metadata_of_a_status(kind, state, told):
    (one,) = Teller().tell(**kind)
    assert one.status.state == S.Value(f"TASK_STATE_{state}")
    assert {name: one.metadata[name] for name in told} == told


def test_a_reader_who_is_told_nothing_is_told_nothing():
    kinds: list[dict[str, Any]] = [{"accepted": {}}, {"progress": {}}, {"resumed": {}}, {}]
    for kind in kinds:
        assert Teller().tell(**kind) == []


def test_a_task_is_brought_to_where_updates_lead():
    teller, task = Teller(), a2a_pb2.Task(id="t")
    teller.delta("wrong")
    told = [
        *teller.tell(attemptReset={}),
        *teller.tell(delta={"payload": {"text": "right"}}),
        *teller.tell(delta={"payload": {"text": "!"}}),
        *teller.tell(delta={"channel": "pic", "payload": {"data": "AAE="}}),
        *teller.complete("right!"),
    ]
    fold(task, told)
    assert [(one.artifact_id, len(one.parts), one.parts[0].text) for one in task.artifacts] == [
        ("answer", 1, "right!"),
        ("answer.pic", 1, ""),
    ]
    assert task.status.state == S.TASK_STATE_COMPLETED


@pytest.mark.parametrize(
    ("state", "attempts", "shown"),
    [
        (R.TASK_STATE_PENDING, 0, S.TASK_STATE_SUBMITTED),
        (R.TASK_STATE_PENDING, 1, S.TASK_STATE_WORKING),
        (R.TASK_STATE_DELIVERED, 1, S.TASK_STATE_SUBMITTED),
        (R.TASK_STATE_DELIVERED, 2, S.TASK_STATE_WORKING),
        (R.TASK_STATE_RUNNING, 1, S.TASK_STATE_WORKING),
    ],
)
def test_API_3_a_task_that_is_tried_again_stays_working(state, attempts, shown):
    task = pb.Task(state=state, attempts=[{"number": number + 1} for number in range(attempts)])
    assert state_of(task) == shown


def test_API_3_why_a_task_failed_is_in_its_status_and_metadata():
    error = {"message": "no such city", "reason": "ERROR_REASON_AGENT_FAILED"}
    result = {"task_id": "t", "state": R.TASK_STATE_DEAD_LETTERED, "error": error, "confidence": 0.5}
    task = pb.Task(spec={"task_id": "t"}, state=R.TASK_STATE_DEAD_LETTERED, result=result)
    shown = task_of(task)
    assert (shown.status.state, shown.status.message.parts[0].text) == (S.TASK_STATE_FAILED, "no such city")
    assert {name: shown.metadata[name] for name in ("reason", "dead_letter_id", "confidence")} == {
        "reason": "AGENT_FAILED",
        "dead_letter_id": "t",
        "confidence": 0.5,
    }
    assert shown.context_id == "t"
    assert not task_of(task, 0).history


def test_G2_numbers_that_JSON_cannot_say_are_left_out():
    event = event_pb2.TaskEvent(sequence=1, progress=event_pb2.Progress(fraction=float("nan"), note="n"))
    (told,) = Teller().story.tell(event)
    assert "fraction" not in told.metadata
    assert "confidence" not in facts_of(task_pb2.Result(confidence=float("inf")))


def test_GOV_2_credentials_for_types_show_their_cards_only():
    agents = [pb.Registration(agent_id="a"), pb.Registration(agent_id="b", agent_type="c")]
    assert _for_types(agents, frozenset()) == agents
    assert _for_types(agents, frozenset({"c", "b"})) == agents[1:]
    assert _for_types(agents, frozenset({"a"})) == agents[:1]
