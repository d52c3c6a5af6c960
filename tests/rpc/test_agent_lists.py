"""ListAgents, GetAgent and WatchAgents (REG-9, GOV-1): rows, pages, cursors, and who sees what."""

import asyncio

import pytest
import pytest_asyncio

from reach.store import keys as key_store
from tests.rpc.outside import addresses
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, pb, refusal, running, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def register(stubs: Stubs, agent_id: str, instance_id: str, metadata=(), **fields) -> None:
    said = {"agent_id": agent_id, "boot_id": "b", "instance_id": instance_id, **fields}
    await stubs.registry.Register(pb.RegisterRequest(registration=said), metadata=metadata)


class Follower:
    """Keeps what a watch tells."""

    def __init__(self, stubs: Stubs, wanted: dict, cursor: str = "", metadata=()) -> None:
        request = pb.WatchAgentsRequest(filter=wanted, cursor=cursor)
        self.call = stubs.registry.WatchAgents(request, metadata=metadata)
        self.known: dict = {}
        self.cursor = cursor
        self.messages: list = []

    async def read(self):
        async with asyncio.timeout(TIMEOUT):
            message = await self.call.read()
        self.messages.append(message)
        if message.reset:
            self.known.clear()
        for name in message.removed:
            self.known.pop(name, None)
        self.known |= {one.registration.instance_id: one for one in message.agents}
        self.cursor = message.cursor or self.cursor
        return message

    async def until(self, condition):
        while not condition(self):
            await self.read()
        return self

    async def synced(self):
        return await self.until(lambda self: any(message.in_sync for message in self.messages))

    def close(self) -> str:
        self.call.cancel()
        return self.cursor


async def test_REG_9_a_row_shows_what_is_known(stubs):
    agent = AgentByHand(stubs)
    name = unique("row")
    await agent.join(name, max_concurrency=4, weight=20)
    status = {"queue_length": 3, "memory_watermark": 0.5, "last_task_duration": {"nanos": 7_000_000}, "ready": True}
    await agent.send(beats=[{"link": 1, "status": {**status, "methods": [{"name": "m", "inflight": 2}]}}])
    async with asyncio.timeout(TIMEOUT):
        while not (found := await row(stubs, agent.instance_id)).HasField("status"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (found.health, found.availability, found.blocked_by) == (pb.HEALTH_HEALTHY, pb.AVAILABILITY_READY, "")
    assert (found.load, found.inflight, found.max_concurrency, found.sessions) == (0.0, 0, 4, 0)
    assert found.HasField("last_heartbeat_age")
    assert found.probe_status == "none"
    assert (found.status.queue_length, found.status.memory_watermark, found.status.ready) == (3, 0.5, True)
    assert found.status.last_task_duration.nanos == 7_000_000
    assert [(one.name, one.inflight) for one in found.status.methods] == [("m", 2)]
    assert [one.state for one in found.history][:2] == ["STARTING", "HEALTHY"]
    assert all(one.reason and one.at.seconds > 1_600_000_000 for one in found.history)
    effective = found.registration
    assert (effective.weight, effective.priority, effective.heartbeat_interval.seconds) == (20, 3, 5)
    listed = await stubs.registry.ListAgents(pb.ListAgentsRequest(filter={"agent_id": name}))
    assert not listed.agents[0].history, "lists leave it out"
    await agent.close()


async def row(stubs: Stubs, instance_id: str, metadata=()):
    request = pb.GetAgentRequest(instance_id=instance_id)
    return (await stubs.registry.GetAgent(request, metadata=metadata)).agent


async def test_REG_9_a_change_is_visible_at_once_to_who_made_it(stubs):
    name = unique("mine")
    for number in range(20):
        await register(stubs, name, f"{name}-{number}")
        listed = await stubs.registry.ListAgents(pb.ListAgentsRequest(filter={"agent_id": name}, page_size=1_000))
        assert len(listed.agents) == number + 1


# -- pages ------------------------------------------------------------------------------------------------------------


async def test_REG_9_pages_hold_while_instances_come_and_go(stubs):
    name = unique("pages")
    for number in range(0, 10, 2):
        await register(stubs, name, f"{name}-{number}")
    request = pb.ListAgentsRequest(filter={"agent_id": name}, page_size=2)
    first = await stubs.registry.ListAgents(request)
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=f"{name}-2"))  # where the page ended
    await register(stubs, name, f"{name}-1")  # behind us
    await register(stubs, name, f"{name}-5")
    seen = [one.registration.instance_id[-1] for one in first.agents]
    request.page_token = first.next_page_token
    while request.page_token:
        page = await stubs.registry.ListAgents(request)
        seen += [one.registration.instance_id[-1] for one in page.agents]
        request.page_token = page.next_page_token
    assert seen == ["0", "2", "4", "5", "6", "8"]


@pytest.mark.parametrize("token", ["x", "nonsense!", "bm90aGluZw==", "a" * 2_000, "é", "AAAA"])
async def test_REG_9_a_page_token_that_is_not_ours_is_refused(stubs, token):
    code, reason, text = await refusal(stubs.registry.ListAgents(pb.ListAgentsRequest(page_token=token)))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert "page_token" in text


# -- watching ---------------------------------------------------------------------------------------------------------


async def test_REG_9_a_watch_resumes_where_it_was(stubs):
    name = unique("resumed")
    for number in range(4):
        await register(stubs, name, f"{name}-{number}")
    watch = await Follower(stubs, {"agent_id": name}).synced()
    assert sorted(watch.known) == [f"{name}-{number}" for number in range(4)]
    assert watch.messages[0].reset
    cursor = watch.close()
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=f"{name}-0"))
    await stubs.registry.Drain(pb.DrainRequest(instance_id=f"{name}-1"))
    await register(stubs, name, f"{name}-9")
    again = await Follower(stubs, {"agent_id": name}, cursor).synced()
    assert not again.messages[0].reset
    assert sorted(again.known) == [f"{name}-1", f"{name}-9"], "only what changed"
    assert list(again.messages[0].removed) == [f"{name}-0"]
    cursor = again.close()
    quiet = await Follower(stubs, {"agent_id": name}, cursor).synced()
    assert [(message.reset, len(message.agents), len(message.removed)) for message in quiet.messages] == [(False, 0, 0)]
    quiet.close()


async def test_REG_9_a_cursor_of_another_life_or_filter_starts_anew(stubs, tmp_path):
    name = unique("elsewhere")
    await register(stubs, name, f"{name}-0")
    async with running(tmp_path) as other, Stubs(other.port) as far:
        cursor = (await Follower(far, {"agent_id": name}).synced()).close()
    for foreign in (cursor, (await Follower(stubs, {"agent_type": name}).synced()).close(), "garbage"):
        watch = await Follower(stubs, {"agent_id": name}, foreign).synced()
        assert watch.messages[0].reset
        assert list(watch.known) == [f"{name}-0"]
        watch.close()
    code, reason, text = await refusal(stubs.registry.WatchAgents(pb.WatchAgentsRequest(cursor="c" * 300)))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), text


async def test_REG_9_one_that_stops_matching_is_told_as_removed_and_comes_back(stubs):
    agent = AgentByHand(stubs)
    name = unique("member")
    await agent.join(name)
    watch = await Follower(stubs, {"agent_id": name, "health": ["HEALTH_HEALTHY"]}).synced()
    assert list(watch.known) == [agent.instance_id]
    await agent.close()
    await watch.until(lambda self: not self.known)
    back = AgentByHand(stubs)
    await back.join(name, instance_id=agent.instance_id)
    await watch.until(lambda self: self.known)
    await register(stubs, name, agent.instance_id, boot_id=back.boot_id, tags=["new"])
    await watch.until(lambda self: self.known[agent.instance_id].registration.tags == ["new"])
    tagged = await Follower(stubs, {"tags": ["new"]}).synced()
    await register(stubs, name, agent.instance_id, boot_id=back.boot_id)
    await tagged.until(lambda self: not self.known)
    for one in (watch, tagged):
        one.close()
    await back.close()


async def test_REG_9_a_slow_watcher_is_told_how_it_ended_and_costs_nothing(stubs):
    """One instance with a record of 200 KiB changes 300 times while nobody reads: 60 MiB if each change were kept."""
    name = unique("slow")
    wordy = [{"name": f"c{number}", "description": "d" * 20_000} for number in range(10)]
    await register(stubs, name, name, capabilities=wordy)
    watch = Follower(stubs, {"agent_id": name})
    await watch.read()
    for number in range(300):
        await stubs.registry.Drain(pb.DrainRequest(instance_id=name, undo=bool(number % 2)))
        if number % 10 == 0:
            await asyncio.sleep(0.025)  # so that rounds are made
    await register(stubs, name, name, tags=["last"])
    await watch.until(lambda self: name in self.known and self.known[name].registration.tags == ["last"])
    assert len(watch.messages) < (150 if addresses() else 60)  # over hops it takes longer, and has more rounds
    watch.close()


# -- tenants ----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    """A server with three tenants: (stubs, header of each)."""
    folder = tmp_path_factory.mktemp("shared")
    store = key_store.SqliteKeyStore(folder)
    scopes = ("agent", "caller", "reader", "operator")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_store, "_LOOK_EVERY_S", 0)
        async with running(folder, server__auth="keys") as made, Stubs(made.port) as stubs:
            yield (
                stubs,
                [
                    (("authorization", f"Bearer {store.create(tenant, 'app', scopes)[1]}"),)
                    for tenant in ("owner", "friend", "stranger")
                ],
            )
    store.close()


async def test_GOV_1_who_may_call_an_agent_sees_it_but_not_what_is_its_owners(shared):
    stubs, (owner, friend, stranger) = shared
    name = unique("open")
    secret = {"host": "box", "sdk": "x", "allowed_tenants": ["friend", "other"], "labels": {"team": "t"}}
    await register(stubs, name, name, owner, **secret)
    mine, theirs = await row(stubs, name, owner), await row(stubs, name, friend)
    assert (mine.tenant, mine.registration.host, mine.registration.boot_id) == ("owner", "box", "b")
    assert (theirs.tenant, theirs.registration.host, theirs.registration.boot_id) == ("", "", "")
    assert (list(theirs.registration.allowed_tenants), len(theirs.history)) == ([], 0)
    assert (theirs.registration.agent_id, theirs.health, dict(theirs.registration.labels)) == (
        name, mine.health, {"team": "t"},
    )  # fmt: skip
    wanted = {"agent_id": name}
    for who, count in ((owner, 1), (friend, 1), (stranger, 0)):
        listed = await stubs.registry.ListAgents(pb.ListAgentsRequest(filter=wanted), metadata=who)
        assert len(listed.agents) == count
        watch = await Follower(stubs, wanted, metadata=who).synced()
        assert len(watch.known) == count
        watch.close()
    code, reason, _ = await refusal(stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=name), metadata=stranger))
    assert (code, reason) == ("NOT_FOUND", "AGENT_NOT_FOUND")
    for call in (
        stubs.registry.Drain(pb.DrainRequest(instance_id=name), metadata=friend),
        stubs.registry.Deregister(pb.DeregisterRequest(instance_id=name), metadata=friend),
    ):
        assert (await refusal(call))[1] == "AGENT_NOT_FOUND", "to see is not to rule"


async def test_GOV_1_an_agent_for_all_tenants_is_seen_by_all(shared):
    stubs, (owner, _, stranger) = shared
    name = unique("public")
    await register(stubs, name, name, owner, allowed_tenants=["*"])
    assert (await row(stubs, name, stranger)).registration.agent_id == name
    listed = await stubs.registry.ListAgents(pb.ListAgentsRequest(filter={"agent_id": name}), metadata=stranger)
    assert len(listed.agents) == 1
    watch = await Follower(stubs, {"agent_id": name}, metadata=stranger).synced()
    assert len(watch.known) == 1
    cursor = watch.close()
    await register(stubs, name, name, owner)
    again = await Follower(stubs, {"agent_id": name}, cursor, metadata=stranger).synced()
    assert list(again.messages[0].removed) == [name]
    again.close()


async def test_GOV_1_who_may_not_call_it_any_more_is_told_that_it_is_gone_and_a_stranger_never_hears_its_name(shared):
    stubs, (owner, friend, stranger) = shared
    name = unique("closing")
    await register(stubs, name, name, owner, allowed_tenants=["friend"])
    watch = await Follower(stubs, {"agent_id": name}, metadata=friend).synced()
    away = (await Follower(stubs, {"agent_id": name}, metadata=friend).synced()).close()
    strange = (await Follower(stubs, {"agent_id": name}, metadata=stranger).synced()).close()
    await register(stubs, name, name, owner)
    await watch.until(lambda self: not self.known)
    watch.close()
    for cursor, who, removed in ((away, friend, [name]), (strange, stranger, [])):
        again = await Follower(stubs, {"agent_id": name}, cursor, metadata=who).synced()
        assert not again.messages[0].reset
        assert list(again.messages[0].removed) == removed
        again.close()


async def test_GOV_1_two_owners_may_use_one_instance_id(shared):
    """Lists show both to who may call both, pages too; a watch tells the other one when one goes."""
    stubs, (owner, friend, stranger) = shared
    name = unique("twin")
    await register(stubs, name, name, owner, allowed_tenants=["stranger"], tags=["owner's"])
    await register(stubs, name, name, friend, allowed_tenants=["stranger"], tags=["friend's"])
    other = unique("zzz")
    await register(stubs, name, other, owner, allowed_tenants=["stranger"], tags=["other"])
    request = pb.ListAgentsRequest(filter={"agent_id": name}, page_size=1)
    pages: list[list[str]] = []
    while not pages or request.page_token:
        page = await stubs.registry.ListAgents(request, metadata=stranger)
        pages.append(sorted(one.registration.tags[0] for one in page.agents))
        request.page_token = page.next_page_token
    assert pages == [["friend's", "owner's"], ["other"]], "those of one id are told together"
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=other), metadata=owner)
    watch = await Follower(stubs, {"agent_id": name}, metadata=stranger).synced()
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=name), metadata=friend)
    await watch.until(lambda self: self.known[name].registration.tags == ["owner's"])
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=name), metadata=owner)
    await watch.until(lambda self: not self.known)
    watch.close()
