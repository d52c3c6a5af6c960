"""Lists and figures of all nodes as one (CLU-1): whoever pages through them sees each row once and in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import Any

import pytest

from agentreach.v1 import ops_pb2, registry_pb2, session_pb2, task_pb2
from reach.rpc import merging, registry, session
from reach.rpc.merged_watches import AgentMerge, composed, read_cursor
from reach.rpc.merging import add_info, merged_agents, merged_drains, merged_sessions
from reach.rpc.watches import HERE, Lost, StartAnew
from reach.wire.requests import session_name

Agents = list[list[tuple[str, str]]]
"""Of each node: instances and their owners."""


def agents_of(node: list[tuple[str, str]], request: registry_pb2.ListAgentsRequest, most: int) -> bytes:
    """What one node answers: its instances behind a place, by id and owner, those of one id together; `most`: then its
    page has as many bytes as it may."""
    after = registry.read_token(request.page_token)
    rows = sorted(row for row in node if row > after)
    size = min(request.page_size, most, len(rows))
    while 0 < size < len(rows) and rows[size][0] == rows[size - 1][0]:
        size += 1
    answer = registry_pb2.ListAgentsResponse()
    for instance_id, owner in rows[:size]:
        one = answer.agents.add()
        one.registration.instance_id, one.registration.version = instance_id, owner
    if len(rows) > size:
        answer.next_page_token = registry.token_of(rows[size - 1])
    return answer.SerializeToString()


def agent_pages(nodes: Agents, size: int, *most: int) -> Iterator[list[tuple[str, str]]]:
    """The pages that a client sees. `most`: what each node tells at a time."""
    request = registry_pb2.ListAgentsRequest(page_size=size)
    for _ in range(100):
        answers = [agents_of(*one) for one in zip(nodes, repeat(request), most or repeat(size), strict=False)]
        answer = merged_agents(request, answers)
        yield [(one.registration.instance_id, one.registration.version) for one in answer.agents]
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token
    raise AssertionError("the list has no end")


def some_agents(chance: random.Random) -> Agents:
    """Some ids have several owners, at one node or at several."""
    nodes: Agents = [[], [], []]
    for number in range(30):
        for owner in range(chance.choice((1, 1, 1, 3))):
            chance.choice(nodes).append((f"i{number:02}", f"{owner:012x}"))
    return nodes


@pytest.mark.parametrize("bytes_", [1 << 20, 40])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_CLU_1_pages_of_agents_of_all_nodes_have_each_once_and_in_order(
    size: int, bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PAGE_BYTES", bytes_)
    for seed in range(20):
        nodes = some_agents(random.Random(seed))
        pages = list(agent_pages(nodes, size))
        seen = [row for page in pages for row in page]
        assert sorted(seen) == sorted(row for node in nodes for row in node), seed
        ids = [instance_id for instance_id, _ in seen]
        assert ids == sorted(ids), seed
        for page in pages:
            assert len({instance_id for instance_id, _ in page}) <= size
        for before, after in pairwise(pages):
            if before and after:
                assert before[-1][0] < after[0][0], "those of one id are told together"
        if bytes_ == 40:
            assert max(len({name for name, _ in page}) for page in pages) <= 3, "a page ends when it is over its bytes"
        elif size > 7:
            assert len(pages) == 1


def test_CLU_1_behind_the_end_of_the_shortest_page_nothing_is_known_yet() -> None:
    """One node has more between what the others have told."""
    nodes: Agents = [[("a", "0" * 12), ("b", "0" * 12), ("c", "0" * 12)], [("d", "0" * 12)]]
    pages = list(agent_pages(nodes, 2))
    assert [[name for name, _ in page] for page in pages] == [["a", "b"], ["c", "d"]]
    for seed in range(20):
        nodes = some_agents(random.Random(seed))
        seen = [row for page in agent_pages(nodes, 10, 1, 3, 10) for row in page]
        assert [name for name, _ in seen] == sorted(name for node in nodes for name, _ in node), seed


Session = tuple[int, str]


def sessions_of(node: list[Session], request: session_pb2.ListSessionsRequest, most: int) -> bytes:
    size = min(request.page_size, most)
    before = session.read_place(request.page_token)
    places = {(used, session_name(_key(name))): name for used, name in node}
    rows = sorted((place for place in places if before is None or place < before), reverse=True)
    answer = session_pb2.ListSessionsResponse()
    for place in rows[:size]:
        one = answer.sessions.add(key=_key(places[place]))
        one.last_used_at.FromMilliseconds(place[0])
    if len(rows) > size:
        answer.next_page_token = session.token_of(rows[size - 1])
    return answer.SerializeToString()


def _key(name: str) -> task_pb2.SessionKey:
    return task_pb2.SessionKey(app_id="app", user_id=name, session_id="s")


@pytest.mark.parametrize("most", [100, 2])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_CLU_1_pages_of_sessions_of_all_nodes_have_each_once_and_the_latest_first(size: int, most: int) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        nodes: list[list[Session]] = [[], [], []]
        for number in range(25):  # some were used in the same millisecond
            chance.choice(nodes).append((chance.randrange(12), f"u{number:02}"))
        request, seen, pages = session_pb2.ListSessionsRequest(page_size=size), [], 0
        while True:
            answer = merged_sessions(request, [sessions_of(node, request, most) for node in nodes])
            assert len(answer.sessions) <= size
            seen += [(one.last_used_at.ToMilliseconds(), one.key.user_id) for one in answer.sessions]
            pages += 1
            assert pages <= 100, "the list has no end"
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        assert seen == sorted((row for node in nodes for row in node), reverse=True), seed
        if min(size, most) > 25:
            assert pages == 1


def test_CLU_1_figures_of_all_nodes_are_added_and_drained_instances_named_in_order() -> None:
    whole = ops_pb2.GetServerInfoResponse(agents=1, open_tasks=10, node_id="here")
    for agents in (2, 3):
        part = ops_pb2.GetServerInfoResponse(agents=agents, open_tasks=agents * 10, node_id="there")
        add_info(whole, part.SerializeToString())
    assert (whole.agents, whole.open_tasks, whole.node_id) == (6, 60, "here")
    drains = [registry_pb2.DrainResponse(instance_ids=ids).SerializeToString() for ids in (["c", "a"], [], ["b"])]
    assert merged_drains(registry_pb2.DrainRequest(), drains).instance_ids == ["a", "b", "c"]


def told(*agents: str, **fields: Any) -> bytes:
    """What one node tells of its agents."""
    made = registry_pb2.WatchAgentsResponse(**fields)
    for name in agents:
        made.agents.add().registration.instance_id = name
    return made.SerializeToString()


def merge_of(*others: str, cursor: str = "") -> AgentMerge:
    return AgentMerge(registry_pb2.WatchAgentsRequest(cursor=cursor), "a", others)


def only(answers: list[registry_pb2.WatchAgentsResponse]) -> registry_pb2.WatchAgentsResponse:
    (answer,) = answers
    return answer


def test_REG_9_a_watch_of_all_nodes_begins_anew_once_and_has_a_cursor_once_all_have_told() -> None:
    merge = merge_of("b")
    first = only(merge.take(HERE, told("x", reset=True, in_sync=True, cursor="a1")))
    assert (first.reset, first.in_sync, first.cursor) == (True, False, ""), "it could not be resumed there"
    second = only(merge.take("b", told("y", reset=True, in_sync=True, cursor="b1")))
    assert (second.reset, second.in_sync, read_cursor(second.cursor)) == (False, True, {"a": "a1", "b": "b1"})
    third = only(merge.take("b", told("z", cursor="b2")))
    assert (third.reset, third.in_sync, read_cursor(third.cursor)) == (False, False, {"a": "a1", "b": "b2"})
    assert only(merge.take("b", told("z", in_sync=True))).cursor == "", "nothing to go on from"
    assert merge.take("b", told()) == [], "what says nothing is not told"


def test_REG_9_a_watch_that_resumes_tells_only_what_has_changed_and_begins_anew_if_a_node_cannot() -> None:
    cursor = composed({"a": "a1", "b": "b1"})
    merge = merge_of("b", cursor=cursor)
    assert (merge.request(HERE).cursor, merge.request("b").cursor) == ("a1", "b1")
    assert not only(merge.take(HERE, told("x", in_sync=True, cursor="a2"))).reset
    with pytest.raises(StartAnew):
        merge.take("b", told("y", reset=True))
    merge = merge_of("b", cursor=cursor)
    merge.take(HERE, told(in_sync=True, cursor="a2"))
    assert only(merge.take("b", told(in_sync=True, cursor="b2"))).in_sync
    again = only(merge.take("b", told("y", reset=True)))
    assert not again.reset, "later, what it tells anew is compared with what it had"


def test_REG_9_what_a_node_that_begins_anew_tells_again_is_not_gone() -> None:
    merge = merge_of("b")
    merge.take(HERE, told("x", in_sync=True, cursor="a1"))
    merge.take("b", told("x", "y", "z", in_sync=True, cursor="b1"))
    assert list(only(merge.take("b", told("y", reset=True))).removed) == []
    answer = only(merge.take("b", told(cursor="b2")))
    assert list(answer.removed) == ["z"], "x is at another node as well"
    assert list(only(merge.take(HERE, told(removed=["x", "never"], cursor="a2"))).removed) == ["x", "never"]
    assert list(only(merge.take("b", told(removed=["y"], cursor="b3"))).removed) == ["y"]


def test_CLU_1_a_node_that_is_gone_is_in_no_cursor_and_its_agents_are_gone_unless_others_have_them() -> None:
    merge = merge_of("b")
    merge.take(HERE, told("x", in_sync=True, cursor="a1"))
    merge.take("b", told("x", "y", in_sync=True, cursor="b1"))
    assert list(only(merge.take("b", Lost(False))).lost_nodes) == ["b"]
    assert list(only(merge.take("b", Lost(True))).removed) == ["y"]
    assert read_cursor(only(merge.take(HERE, told("z", cursor="a2"))).cursor) == {"a": "a2"}


@pytest.mark.parametrize("cursor", ["", "mine", "n.", "n.!", "n." + "W10=", "n." + "eyJhIjogMX0=", "n." + "InRleHQi"])
def test_REG_9_a_cursor_that_is_none_begins_anew(cursor: str) -> None:
    """Not base64, no JSON, a list, a number in it, a text."""
    assert read_cursor(cursor) == {}
    merge = merge_of("b", cursor=cursor)
    assert merge.request("b").cursor == ""
    assert only(merge.take(HERE, told("x", in_sync=True, cursor="a1"))).reset
