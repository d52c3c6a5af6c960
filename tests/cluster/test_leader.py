"""The leader's loop, on a clock of its own."""

import asyncio

import pytest

from reach.cluster.base import ClusterUnavailable, DocumentChanged, NodeInfo, NotLeading
from reach.cluster.drained import drained, set_drained
from reach.cluster.leader import Leader
from reach.cluster.single import Memory, SingleCluster
from reach.core.placement import SHARDS
from tests.contracts.clusters import eventually


class Scene:
    """Nodes that share one memory; the loop of the first runs by hand."""

    def __init__(self):
        self.memory = Memory()
        self.now = 0
        self.nodes = {}

    async def join(self, name, boot="b", weight=1):
        node = self.nodes[name] = SingleCluster(self.memory)
        await node.membership.join(NodeInfo(name, boot, "h:1", weight))
        await node.election.campaign()
        return node

    def leader(self, name):
        return Leader(self.nodes[name], lambda: self.now)

    @property
    def wish(self):
        return self.memory.wish.nodes


async def test_CLU_4_nodes_that_start_together_are_placed_once():
    scene = Scene()
    await scene.join("n1")
    loop = scene.leader("n1")
    assert await loop._turn() == 1000
    scene.now = 600
    await scene.join("n2")
    assert await loop._turn() == 1000
    scene.now = 1600
    assert await loop._turn() is None
    assert set(scene.wish) == {"n1", "n2"}
    assert scene.memory.wish.term == scene.nodes["n1"].election.term


async def test_CLU_4_arrivals_cannot_put_off_placement_for_ever():
    scene = Scene()
    await scene.join("n0")
    loop = scene.leader("n0")
    await loop._turn()
    for number in range(1, 6):
        scene.now += 900
        await scene.join(f"n{number}")
        await loop._turn()
        if scene.wish:
            break
    assert scene.now <= 3600


async def test_CLU_3_a_loss_is_answered_at_once_though_others_arrive():
    scene = Scene()
    for name in ("n1", "n2", "n3"):
        await scene.join(name)
    loop = scene.leader("n1")
    await loop._turn()
    await loop.place_now()
    before = scene.wish
    await scene.join("n4")
    scene.memory.expire("n3", "b")
    assert await loop._turn() == 1000
    assert {scene.wish[shard] for shard in range(64) if before[shard] == "n3"} == {"n1", "n2"}
    assert "n4" not in scene.wish
    scene.now = 1000
    await loop._turn()
    assert scene.wish.count("n4") == 21


async def test_CLU_4_a_node_that_is_back_before_it_was_missed_keeps_its_shards():
    scene = Scene()
    for name in ("n1", "n2"):
        await scene.join(name)
    loop = scene.leader("n1")
    await loop._turn()
    await loop.place_now()
    before = scene.memory.wish
    await scene.join("n2", boot="next")
    assert await loop._turn() is None
    assert scene.memory.wish == before


async def say(scene, reach):
    """Nodes say whether they reach the journal."""
    for name, reaches in reach.items():
        await scene.nodes[name].membership.update(NodeInfo(name, "b", "h:1", store_reachable=reaches))


async def test_CLU_4_when_all_lose_the_journal_and_find_it_one_after_the_other_nothing_moves():
    scene = Scene()
    for name in ("n1", "n2", "n3"):
        await scene.join(name)
    loop = scene.leader("n1")
    await loop._turn()
    await loop.place_now()
    before = scene.memory.wish
    for reaches in (False, True):
        for name in ("n2", "n3", "n1"):
            await say(scene, {name: reaches})
            assert await loop._turn() is not None or (name, reaches) == ("n1", True), "it waits for the others"
            scene.now += 400
        assert scene.memory.wish == before
        scene.now += 5_000
        await loop._turn()
        assert scene.memory.wish == before


async def test_CLU_4_who_alone_loses_the_journal_loses_its_shards_after_a_moment():
    scene = Scene()
    for name in ("n1", "n2", "n3"):
        await scene.join(name)
    loop = scene.leader("n1")
    await loop._turn()
    await loop.place_now()
    await say(scene, {"n2": False})
    assert await loop._turn() == 1000
    assert "n2" in scene.wish
    scene.now += 1_000
    await loop._turn()
    assert set(scene.wish) == {"n1", "n3"}
    await say(scene, {"n2": True})
    assert await loop._turn() == 1000
    scene.now += 1_000
    await loop._turn()
    assert set(scene.wish) == {"n1", "n2", "n3"}


async def started_again():
    """A cluster of three that was stopped as a whole; its first node is back."""
    scene = Scene()
    for name in ("n1", "n2", "n3"):
        await scene.join(name)
    loop = scene.leader("n1")
    await loop._turn()
    await loop.place_now()
    for name in ("n1", "n2", "n3"):
        scene.memory.expire(name, "b")
    scene.now = 60_000
    await scene.join("n1", boot="next")
    return scene, scene.leader("n1"), scene.memory.wish


async def test_CLU_4_a_cluster_that_starts_again_finds_all_where_it_was():
    scene, loop, before = await started_again()
    assert await loop._turn() == 1000
    scene.now += 900
    await scene.join("n2", boot="next")
    assert await loop._turn() == 1000
    scene.now += 900
    await scene.join("n3", boot="next")
    assert await loop._turn() is None
    assert scene.memory.wish == before, "the first did not take all, to give it back"
    scene.memory.expire("n3", "next")
    assert await loop._turn() is None
    assert set(scene.wish) == {"n1", "n2"}, "from now on a loss is answered at once"


async def test_CLU_3_an_owner_that_does_not_come_again_is_not_waited_for_for_long():
    scene, loop, before = await started_again()
    assert await loop._turn() == 1000
    scene.now += 1_000
    assert await loop._turn() is None
    assert set(scene.wish) == {"n1"}
    scene, loop, before = await started_again()
    await loop._turn()
    for number in range(4, 9):  # others that come do not put it off for ever
        scene.now += 900
        await scene.join(f"n{number}")
        await loop._turn()
        if scene.memory.wish != before:
            break
    assert scene.now <= 63_700


async def test_CLU_1_a_drained_node_gives_up_all_and_one_that_does_not_lead_says_nothing():
    scene = Scene()
    for name in ("n1", "n2"):
        await scene.join(name)
    other = scene.leader("n2")
    assert await other._turn() is None
    with pytest.raises(NotLeading):
        await other.place_now()
    assert scene.wish == ()
    loop = scene.leader("n1")
    await loop._turn()
    await loop.place_now()
    await scene.nodes["n2"].membership.update(NodeInfo("n2", "b", "h:1", weight=0))
    await loop._turn()
    assert set(scene.wish) == {"n1"}


async def test_CLU_4_a_wish_that_could_not_be_written_is_written_later(monkeypatch):
    scene = Scene()
    node = await scene.join("n1")
    loop = scene.leader("n1")
    await loop._turn()
    scene.now = 1_000
    publish = node.placement.publish

    async def fails(nodes, term):
        raise ClusterUnavailable("no etcd", unknown=True)

    monkeypatch.setattr(node.placement, "publish", fails)
    assert await loop._turn() == 500
    monkeypatch.setattr(node.placement, "publish", publish)
    await loop._turn()
    assert set(scene.wish) == {"n1"}


async def test_CLU_3_the_loop_hears_of_changes_by_itself():
    scene = Scene()
    await scene.join("n1")
    await scene.join("n2")
    loop = scene.leader("n1")
    running = asyncio.create_task(loop.run())
    try:
        await asyncio.sleep(0)
        await loop.place_now()
        await eventually(lambda: "n2" in scene.wish)
        scene.memory.expire("n2", "b")
        await eventually(lambda: "n2" not in scene.wish)
    finally:
        running.cancel()
    await eventually(lambda: scene.memory.nodes_changed._all == {})


async def test_CLU_4_what_an_operator_drains_owns_nothing_over_leaders_and_restarts_until_it_is_undone():
    scene = Scene()
    for name in ("n1", "n2", "n3"):
        await scene.join(name)
    loop = scene.leader("n1")
    running = asyncio.create_task(loop.run())
    try:
        await asyncio.sleep(0)  # it subscribes
        assert await loop.place_now() == SHARDS
        before = scene.wish
        registry = scene.nodes["n3"].registry
        assert await set_drained(registry, "n2", undo=False, required={"n1", "n2", "n3"}) == {"n2"}
        await eventually(lambda: "n2" not in scene.wish)
        assert all(was == is_now for was, is_now in zip(before, scene.wish, strict=True) if was != "n2")
        await scene.join("n2", boot="after a restart")
        heir = scene.leader("n3")
        await heir._turn()
        scene.memory.expire("n1", "b")
        scene.nodes["n1"].membership._info = None
        scene.now = 60_000
        await heir._turn()
        assert set(scene.wish) == {"n3"}, "another leader keeps to it"
        await set_drained(registry, "n2", undo=True, required=())
        await heir.place_now()
        assert scene.wish.count("n2") == SHARDS // 2
    finally:
        running.cancel()


async def test_CLU_3_a_leader_knows_since_when_it_leads():
    scene = Scene()
    for name in ("n1", "n2"):
        await scene.join(name)
    first, second = scene.leader("n1"), scene.leader("n2")
    scene.now = 500
    await first._turn()
    await second._turn()
    scene.now = 800
    assert (first.leading_ms, second.leading_ms) == (300, None)
    await scene.nodes["n1"].election.resign()
    assert first.leading_ms is None
    with pytest.raises(NotLeading):
        await first.place_now()
    await second._turn()
    scene.now = 1_000
    assert second.leading_ms == 200


async def test_CLU_4_the_last_node_that_owns_anything_is_not_drained():
    scene = Scene()
    for name in ("n1", "n2"):
        await scene.join(name)
    registry = scene.nodes["n1"].registry
    await set_drained(registry, "n1", undo=False, required={"n1", "n2"})
    with pytest.raises(ValueError, match="nobody would be left"):
        await set_drained(registry, "n2", undo=False, required={"n1", "n2"})
    assert drained(registry) == {"n1"}
    await registry.put_document("drained", b"{broken")
    assert drained(registry) == frozenset()
    for nonsense in (b"\xff", b"7", b'{"n1": 1}', b"null"):
        await registry.put_document("drained", nonsense)
        assert drained(registry) == frozenset(), "what cannot be read drains nobody"
    await registry.put_document("drained", b'["n1", 7, null]')
    assert drained(registry) == {"n1"}


async def test_CLU_4_a_leader_that_was_told_to_place_at_once_gives_nothing_to_a_drained_node():
    scene = Scene()
    for name in ("n1", "n2"):
        await scene.join(name)
    loop = scene.leader("n1")
    await set_drained(scene.nodes["n2"].registry, "n2", undo=False, required={"n1", "n2"})
    await loop.place_now()
    assert set(scene.wish) == {"n1"}


async def test_CLU_4_a_leader_that_waits_for_a_change_hears_of_a_drain(monkeypatch):
    scene = Scene()
    for name in ("n1", "n2"):
        await scene.join(name)
    loop = scene.leader("n1")
    turns = []

    async def turn(honest=loop._turn):
        turns.append(await honest())
        return turns[-1]

    monkeypatch.setattr(loop, "_turn", turn)
    running = asyncio.create_task(loop.run())
    try:
        await eventually(lambda: turns)
        await loop.place_now()
        await eventually(lambda: turns[-1] is None)
        count = len(turns)
        await asyncio.sleep(0.01)  # or it would hear of that as well
        assert len(turns) == count
        await set_drained(scene.nodes["n2"].registry, "n2", undo=False, required={"n1", "n2"})
        await eventually(lambda: set(scene.wish) == {"n1"})
    finally:
        running.cancel()


async def test_CLU_4_no_more_nodes_are_drained_than_the_document_may_name(monkeypatch):
    monkeypatch.setattr("reach.cluster.drained.MOST", 2)
    registry = (await Scene().join("n1")).registry
    for name in ("a", "b"):
        await set_drained(registry, name, undo=False, required={"n1"})
    with pytest.raises(ValueError, match="drained already"):
        await set_drained(registry, "c", undo=False, required={"n1"})
    assert drained(registry) == {"a", "b"}


async def test_CLU_4_a_drain_whose_answer_was_lost_is_read_and_one_that_was_not_written_is_told(monkeypatch):
    registry = (await Scene().join("n1")).registry
    put = registry.put_document

    async def lost(*arguments):
        await put(*arguments)
        raise ClusterUnavailable("no answer", unknown=True)

    monkeypatch.setattr(registry, "put_document", lost)
    assert await set_drained(registry, "a", undo=False, required={"n1"}) == {"a"}

    tried = []

    async def fails(*arguments):
        tried.append(arguments)
        raise ClusterUnavailable("no etcd", unknown=False)

    monkeypatch.setattr(registry, "put_document", fails)
    with pytest.raises(ClusterUnavailable, match="no etcd"):
        await set_drained(registry, "b", undo=False, required={"n1"})
    assert len(tried) == 1
    assert drained(registry) == {"a"}


@pytest.mark.parametrize("before", [(), ("a",)])
async def test_CLU_4_of_two_operators_at_one_time_each_is_heard(monkeypatch, before):
    """Also when nobody was ever drained."""
    registry = (await Scene().join("n1")).registry
    for name in before:
        await set_drained(registry, name, undo=False, required={"n1"})
    put, others = registry.put_document, ["b"]

    async def later(*arguments):
        if others:
            await set_drained(registry, others.pop(), undo=False, required={"n1"})
        return await put(*arguments)

    monkeypatch.setattr(registry, "put_document", later)
    assert await set_drained(registry, "c", undo=False, required={"n1"}) == {*before, "b", "c"}
    assert drained(registry) == {*before, "b", "c"}


async def test_CLU_4_who_is_never_first_is_told_so(monkeypatch):
    registry = (await Scene().join("n1")).registry

    async def changed(*arguments):
        raise DocumentChanged("it is another one")

    monkeypatch.setattr(registry, "put_document", changed)
    with pytest.raises(ClusterUnavailable, match="changes it all the time"):
        await set_drained(registry, "a", undo=False, required={"n1"})


async def test_CLU_3_a_node_that_does_not_lead_yet_knows_who_was_there():
    """When it leads it answers a loss at once: it has seen that owner."""
    scene = Scene()
    for name in ("n1", "n2", "n3"):
        await scene.join(name)
    first, heir = scene.leader("n1"), scene.leader("n2")
    await first._turn()
    await first.place_now()
    await heir._turn()
    scene.now = 60_000
    scene.memory.expire("n1", "b")
    scene.nodes["n1"].membership._info = None
    assert await heir._turn() is None
    assert set(scene.wish) == {"n2", "n3"}


async def test_CLU_4_an_operator_that_places_at_once_waits_for_no_owner():
    scene, loop, _ = await started_again()
    await loop._turn()
    assert await loop.place_now() > 0
    assert set(scene.wish) == {"n1"}


async def test_CLU_4_an_owner_that_was_waited_for_in_vain_is_not_waited_for_again(monkeypatch):
    scene, loop, _ = await started_again()
    await loop._turn()
    scene.now += 1_000
    publish = scene.nodes["n1"].placement.publish

    async def fails(nodes, term):
        raise ClusterUnavailable("no etcd", unknown=True)

    monkeypatch.setattr(scene.nodes["n1"].placement, "publish", fails)
    assert await loop._turn() == 500, "the wish could not be written"
    monkeypatch.setattr(scene.nodes["n1"].placement, "publish", publish)
    scene.now += 500
    assert await loop._turn() is None
    assert set(scene.wish) == {"n1"}


async def test_CLU_4_placing_by_hand_where_nothing_moves_changes_nothing_for_who_comes_next():
    scene = Scene()
    await scene.join("n1")
    loop = scene.leader("n1")
    await loop._turn()
    assert await loop.place_now() == SHARDS
    assert await loop.place_now() == 0
    await scene.join("n2")
    assert await loop._turn() == 1000, "it waits for others that may come"
    assert await loop.place_now() == SHARDS // 2
