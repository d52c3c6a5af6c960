"""One suite for all clusters: membership, registry, election, placement (CLU-1, CLU-4, REG-8)."""

import asyncio
from functools import partial

import pytest

from reach.cluster.base import (
    AgentChange,
    AgentKey,
    ClusterError,
    Document,
    DocumentChanged,
    NodeInfo,
    NotLeading,
    Standing,
)
from reach.cluster.drained import drained, set_drained
from tests.contracts.clusters import eventually, open_backend

A = AgentKey("acme", "a@host")
B = AgentKey("acme", "b@host")


@pytest.fixture(params=["memory", "etcd"])
async def backend(request):
    servers = request.getfixturevalue("etcd_server") if request.param == "etcd" else None
    if servers is not None:
        await servers.ready()
    async with open_backend(request.param, servers) as opened:
        yield opened


def info(number, boot="b1", **more):
    return NodeInfo(f"n{number}", boot, f"127.0.0.1:{7000 + number}", **more)


def standing(node):
    return node.membership.standing


async def joined(backend, number, boot="b1"):
    node = await backend.node()
    await node.membership.join(info(number, boot))
    return node


async def test_CLU_1_members_see_one_another_come_change_and_go(backend):
    one, two = await joined(backend, 1), await backend.node()
    heard = []
    two.membership.subscribe(lambda: heard.append(sorted(two.membership.nodes())))
    assert standing(two) is Standing.OUT
    assert standing(one) is Standing.MEMBER
    await two.membership.join(info(2, version="1.2", weight=3))
    await eventually(lambda: sorted(one.membership.nodes()) == ["n1", "n2"])
    assert one.membership.nodes()["n2"] == info(2, version="1.2", weight=3)
    await one.membership.update(info(1, weight=0, store_reachable=False))
    await eventually(lambda: two.membership.nodes()["n1"] == info(1, weight=0, store_reachable=False))
    await one.membership.leave()
    assert standing(one) is Standing.OUT
    await eventually(lambda: list(two.membership.nodes()) == ["n2"])
    assert heard[-1] == ["n2"]
    with pytest.raises(ClusterError):
        await two.membership.update(info(2, boot="other"))


async def test_CLU_1_a_new_process_takes_the_place_of_the_old_one_which_stays_out(backend):
    old = await joined(backend, 1, "old")
    await old.election.campaign()
    new = await joined(backend, 1, "new")
    await eventually(lambda: old.membership.standing is Standing.REPLACED)
    await eventually(lambda: new.election.leader is None)
    await old.membership.update(info(1, "old", weight=7))
    await old.membership.leave()
    assert await new.membership.convict("n1", "old") is False
    assert new.membership.nodes()["n1"].boot == "new"
    assert standing(new) is Standing.MEMBER


async def test_CLU_3_a_convicted_node_is_gone_with_its_candidacy_and_can_join_again(backend):
    one, two = await joined(backend, 1), await joined(backend, 2)
    await one.election.campaign()
    await two.election.campaign()
    await eventually(lambda: two.election.leader == "n1" and "n1" in two.membership.nodes())
    assert await two.membership.convict("n1", "another") is False
    assert await two.membership.convict("n9", "b1") is False
    assert await two.membership.convict("n1", "b1") is True
    await eventually(lambda: two.election.term is not None)
    if backend.rejoins_by_itself:
        await eventually(lambda: one.membership.standing is Standing.MEMBER and "n1" in two.membership.nodes())
        await eventually(lambda: one.election.term is None and one.election.leader == "n2")
    else:
        assert standing(one) is Standing.LOST
        await one.membership.join(info(1))
        assert standing(one) is Standing.MEMBER


async def test_REG_8_agents_are_published_to_all_and_survive_their_nodes(backend):
    one, two = await joined(backend, 1), await backend.node()
    heard: list[AgentChange] = []
    two.registry.subscribe(heard.extend)
    await one.registry.publish([AgentChange(A, b"1"), AgentChange(B, b"1"), AgentChange(A, b"2")])
    await eventually(lambda: dict(two.registry.agents()) == {A: b"2", B: b"1"})
    await one.registry.publish([AgentChange(B, None), AgentChange(AgentKey("none", "x"), None)])
    await eventually(lambda: dict(two.registry.agents()) == {A: b"2"})
    assert heard[-1] == AgentChange(B, None)
    await one.stop()
    late = await backend.node()
    assert dict(late.registry.agents()) == {A: b"2"}


async def test_REG_8_names_with_slashes_and_other_characters_stay_apart(backend):
    one, two = await backend.node(), await backend.node()
    keys = [AgentKey("a/b", "c"), AgentKey("a", "b/c"), AgentKey("ä%2F", "\u2603 x")]
    await one.registry.publish([AgentChange(key, key.instance_id.encode()) for key in keys])
    await eventually(lambda: dict(two.registry.agents()) == {key: key.instance_id.encode() for key in keys})


async def test_REG_8_what_is_there_already_costs_no_revision(backend):
    one = await joined(backend, 1)
    await one.registry.publish([AgentChange(A, b"1")])
    before = await backend.revision()
    await one.registry.publish([AgentChange(A, b"1"), AgentChange(B, None)])
    await one.membership.update(info(1))
    await asyncio.sleep(0.3 if backend.rejoins_by_itself else 0)
    assert await backend.revision() == before


async def test_CLU_1_a_thousand_agents_at_once(backend):
    one, two = await backend.node(), await backend.node()
    await one.registry.publish([AgentChange(AgentKey("t", f"i{number}"), b"x" * 200) for number in range(1000)])
    await eventually(lambda: len(two.registry.agents()) == 1000)
    late = await backend.node()
    assert len(late.registry.agents()) == 1000


async def test_CLU_1_documents_are_shared_and_changed_only_from_what_was_read(backend):
    one, two = await backend.node(), await backend.node()
    heard: list[str] = []
    two.registry.subscribe_documents(heard.append)
    await one.registry.put_document("routes", b"1", expected=0)
    with pytest.raises(DocumentChanged):
        await two.registry.put_document("routes", b"2", expected=0)
    await eventually(lambda: "routes" in two.registry.documents())
    read = two.registry.documents()["routes"]
    assert read.data == b"1"
    await two.registry.put_document("routes", b"2", expected=read.revision)
    with pytest.raises(DocumentChanged):
        await one.registry.put_document("routes", b"3", expected=read.revision)
    await one.registry.put_document("routes", b"4")
    await eventually(lambda: two.registry.documents()["routes"].data == b"4")
    assert two.registry.documents()["routes"] > Document(b"4", read.revision)
    assert set(heard) == {"routes"}


async def test_CLU_4_nodes_that_are_drained_at_once_by_two_are_all_drained(backend):
    one, two = await backend.node(), await backend.node()
    names = [f"n{number}" for number in range(8)]
    both = [(one, name) for name in names[:4]] + [(two, name) for name in names[4:]]
    drain = partial(set_drained, undo=False, required={"other"})
    for turn in range(4):
        await asyncio.gather(drain(one.registry, both[turn][1]), drain(two.registry, both[turn + 4][1]))
    assert drained(one.registry) >= set(names[:4])
    await eventually(lambda: drained(one.registry) == drained(two.registry) == set(names))
    assert await set_drained(one.registry, "n0", undo=True, required=()) == set(names[1:])


async def test_CLU_3_the_age_of_a_lease_is_that_of_its_last_renewal(backend):
    node = await backend.node()
    assert node.membership.lease_age_ms is None
    await node.membership.join(info(1))
    for _ in range(10):
        age_ms = node.membership.lease_age_ms
        assert age_ms is not None
        assert 0 <= age_ms <= max(1, node.membership.ttl_ms)
        await asyncio.sleep(0.02)  # the lease gets older
    await node.membership.leave()
    assert node.membership.lease_age_ms is None


async def test_CLU_1_the_first_candidate_leads_and_hands_over(backend):
    one, two = await joined(backend, 1), await joined(backend, 2)
    outsider = await backend.node()
    with pytest.raises(ClusterError):
        await outsider.election.campaign()
    changes = []
    two.election.subscribe(lambda: changes.append(two.election.leader))
    await one.election.campaign()
    await one.election.campaign()
    await two.election.campaign()
    await eventually(lambda: one.election.term is not None and two.election.leader == "n1" == outsider.election.leader)
    first = one.election.term
    assert two.election.term is None
    await one.election.resign()
    await eventually(lambda: two.election.term is not None and one.election.leader == "n2")
    assert one.election.term is None
    assert two.election.term > first
    await one.election.campaign()
    await two.membership.leave()
    await eventually(lambda: one.election.term is not None and changes[-1] == "n1")


async def test_CLU_1_only_the_leader_says_where_shards_go(backend):
    one, two = await joined(backend, 1), await joined(backend, 2)
    assert two.placement.wish().nodes == ()
    await one.election.campaign()
    await eventually(lambda: one.election.term is not None)
    heard = []
    two.placement.subscribe(lambda: heard.append(two.placement.wish()))
    term = one.election.term
    await one.placement.publish(["n1", "n2"] * 32, term)
    await eventually(lambda: two.placement.wish().nodes == ("n1", "n2") * 32)
    assert two.placement.wish().term == term
    assert two.placement.wish().shards_of("n2") == list(range(1, 64, 2))
    with pytest.raises(NotLeading):
        await two.placement.publish(["n2"] * 64, term)
    await one.election.resign()
    with pytest.raises(NotLeading):
        await one.placement.publish(["n1"] * 64, term)
    await two.election.campaign()
    await eventually(lambda: two.election.term is not None)
    before = two.placement.wish().revision
    await two.placement.publish(["n2"] * 64, two.election.term)
    await eventually(lambda: one.placement.wish().nodes == ("n2",) * 64)
    assert one.placement.wish().revision > before
    assert heard[0].nodes == ("n1", "n2") * 32


async def test_a_listener_that_fails_keeps_nobody_from_hearing(backend, caplog):
    one = await backend.node()
    heard = []

    def broken():
        raise ValueError("of the listener")

    one.membership.subscribe(broken)
    gone = one.membership.subscribe(lambda: heard.append("gone"))
    one.membership.subscribe(lambda: heard.append("kept"))
    gone()
    gone()
    await one.membership.join(info(1))
    await eventually(lambda: "kept" in heard)
    assert "gone" not in heard
    assert "of the listener" in caplog.text
