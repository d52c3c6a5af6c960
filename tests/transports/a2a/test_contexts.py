"""What a remote context knows of a conversation, and what it is told (API-3, SES-3)."""

from __future__ import annotations

from google.protobuf import json_format

from agentreach.v1 import attempt_pb2
from reach.transports.a2a import contexts as contexts_module
from reach.transports.a2a.contexts import Contexts, news_for
from reach.wire.a2a.words import HISTORY

KEY = ("", "a:u:s")


def said(*turns, summary=""):
    conversation = attempt_pb2.SessionContext(summary=summary)
    for name, agent in turns:
        turn = conversation.turns.add(task_id=name, agent_id=agent)
        turn.request.text, turn.response.text = f"q{name}", f"a{name}"
    return conversation


def texts(context, conversation):
    parts, told = news_for(context, conversation)
    return [part.text for part in parts], told


def known(contexts, key):
    context = contexts.find(key)
    assert context is not None
    return list(context.known)


def test_API_3_a_new_context_hears_all():
    heard, told = texts(None, said(("1", "x"), summary="hello and so on"))
    assert heard == [
        "What came before, in short: hello and so on",
        "The user said before: q1",
        "Agent x said before: a1",
    ]
    assert told == ["1"]


def test_API_3_a_context_hears_what_others_said_and_nothing_twice():
    contexts = Contexts()
    contexts.began(KEY, "c1", ["1"], "2")
    conversation = said(("1", "x"), ("2", "x"), ("3", "other"), summary="old")
    assert texts(contexts.find(KEY), conversation) == (
        ["The user said before: q3", "Agent other said before: a3"],
        ["3"],
    )
    contexts.began(KEY, "c1", ["3"], "4")
    assert texts(contexts.find(KEY), conversation) == ([], [])


def test_API_3_another_context_id_is_another_context():
    contexts = Contexts()
    contexts.began(KEY, "c1", [], "1")
    contexts.began(KEY, "c2", [], "2")
    assert known(contexts, KEY) == ["2"]


def test_API_3_parts_of_the_history_say_so():
    parts, _ = news_for(None, said(("1", "x")))
    marks = [json_format.MessageToDict(part.metadata)[HISTORY] for part in parts]
    assert marks == [{"role": "user", "task_id": "1"}, {"role": "agent", "task_id": "1"}]


def test_API_3_contexts_are_bounded(monkeypatch):
    monkeypatch.setattr(contexts_module, "SESSIONS", 3)
    monkeypatch.setattr(contexts_module, "TURNS", 2)
    contexts = Contexts()
    for number in range(5):
        contexts.began(("", str(number)), "c", ["1", "2", "3"], "4")
    assert len(contexts) == 3
    assert contexts.find(("", "1")) is None
    assert known(contexts, ("", "4")) == ["3", "4"]
