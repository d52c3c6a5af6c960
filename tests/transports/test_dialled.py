"""From the registration of a dialled agent to its link, and over losses: checks, probes, another process, the guard."""

from __future__ import annotations

import asyncio
import threading
import time

import grpc
import pytest

from agentreach.v1 import task_pb2
from reach.core.instance_states import Health
from reach.transports.dialled import Dialled
from reach.transports.probing import ProbeChannel
from reach.transports.seam import CheckOutcome, ProbeOutcome
from tests.rpc.peers import pb, reason_name, refusal, unique
from tests.transports.endpoint_agent import EndpointAgent, ask, eventually, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED


def instance_of(node, agent):
    return node.reach.instance("default", agent.instance_id)[1]


async def wait_for_link(node, agent):
    await eventually(lambda: not instance_of(node, agent).blocked_by)


async def forever(_agent, _offer, _context):
    yield pb.ExecuteResponse(accept={})
    await asyncio.sleep(60)


async def test_HLT_4_the_outcome_of_the_check_is_in_the_answer(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        agent.status = {"ready": False, "queue_length": 3}
        answer = await agent.register(stubs)
        assert answer.blocked_by == "not_ready"
        assert instance_of(node, agent).status["queue_length"] == 3
        agent.status = {"ready": True}
        await wait_for_link(node, agent)  # by the next check


async def test_HLT_4_nobody_there_is_said_at_once_and_found_later(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        pass
    answer = await agent.register(stubs)
    assert (answer.blocked_by, list(answer.warnings)) == ("no_link", ["the check failed: connection refused"])
    async with serving(agent, agent.port):
        await wait_for_link(node, agent)
        assert (await ask(stubs, agent, "plain")).state == SUCCEEDED


async def test_HLT_4_what_checks_say_is_the_status(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        await agent.register(stubs)
        agent.status = {"inflight": 2, "max_concurrency": 7}
        await eventually(lambda: instance_of(node, agent).max_concurrency == 7)


async def test_HLT_10_an_agent_that_never_says_whether_it_is_ready_is_taken_for_ready_by_its_second_beat(node, stubs):
    agent = EndpointAgent()
    agent.status = {}
    async with serving(agent):
        answer = await agent.register(stubs)
        assert answer.blocked_by == "not_ready"  # the check was its first
        await eventually(lambda: not instance_of(node, agent).blocked_by, seconds=1)


async def test_HLT_3_good_probes_are_beats_and_have_a_round_trip(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        await agent.register(stubs)
        instance = instance_of(node, agent)
        await eventually(lambda: len(instance.probes) >= 3)
        assert all(0 < rtt < 300 for rtt in instance.probes)
        assert (instance.probe_status, instance.health) == ("ok", Health.HEALTHY)


async def test_HLT_3_a_server_without_health_has_answered_all_the_same(node, stubs):
    agent = EndpointAgent()
    async with serving(agent, with_health=False):
        await agent.register(stubs)
        instance = instance_of(node, agent)
        await eventually(lambda: len(instance.probes) >= 2)
        assert instance.probe_status == "ok"


async def test_HLT_3_NOT_SERVING_bars_and_SERVING_ends_it(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        await agent.register(stubs)
        await agent.health.set("", 2)
        await eventually(lambda: instance_of(node, agent).blocked_by == "not_ready")
        await agent.health.set("", 1)
        await wait_for_link(node, agent)


async def test_REG_2_the_same_process_again_is_an_update_and_keeps_its_work(stubs):
    agent = EndpointAgent(wait=forever)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait"))
        await eventually(lambda: agent.open)
        again = await agent.register(stubs, tags=["new"])
        assert again.generation == 1
        await asyncio.sleep(0.1)
        assert len(agent.open) == 1
        assert not agent.cancelled
        asked.cancel()


async def test_HAZ4_a_node_that_has_not_dialled_yet_asks_about_what_it_believes_to_run(node, stubs):
    """Its shards have just come, and the agent is the first to speak: of what is not asked about it drops outcomes."""
    agent = EndpointAgent(wait=forever)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait", task_id="came-with-shard"))
        await eventually(lambda: agent.open)
        dialler = node.host.on_taken.__self__  # who hears that shards came
        dialler.forget(dialler._targets["default", agent.instance_id])
        agent.checks.clear()
        await agent.register(stubs)
        assert [key.task_id for key in agent.checks[0].running] == ["came-with-shard"]
        asked.cancel()


async def test_REG_2_a_new_process_is_a_new_generation_and_fails_the_old_ones_attempts(stubs):
    agent = EndpointAgent(wait=forever)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait"))
        await eventually(lambda: agent.open)
        agent.boot_id = agent.said_boot = unique("boot")
        agent.runs = []
        assert (await agent.register(stubs)).generation == 2
        assert reason_name((await asked).error) == "INSTANCE_LOST"
        assert (await ask(stubs, agent, "plain")).state == SUCCEEDED


async def test_REG_2_a_stale_process_does_not_turn_the_calls_to_itself(stubs):
    old, new = EndpointAgent(), EndpointAgent()
    new.agent_id, new.agent_type, new.instance_id = old.agent_id, old.agent_type, old.instance_id
    async with serving(old), serving(new):
        await old.register(stubs)
        assert (await new.register(stubs)).generation == 2
        _, reason, _ = await refusal(stubs.registry.Register(old.registration()))
        assert reason == "STALE_GENERATION"
        for _ in range(5):
            assert (await ask(stubs, new, "plain")).state == SUCCEEDED
    assert (len(old.executed), len(new.executed)) == (0, 5)


async def test_REG_2_a_registration_that_was_overtaken_does_not_replace_the_newer_process(node, stubs, monkeypatch):
    """Found by the simulation, seed 3003164: the check of the older one took so long that its machine died meanwhile;
    the newer one was stale from then on, and heard nothing of it."""
    old, new = EndpointAgent(), EndpointAgent()
    new.agent_id, new.agent_type, new.instance_id = old.agent_id, old.agent_type, old.instance_id
    look, asked, goes_on = Dialled.look, asyncio.Event(), asyncio.Event()

    async def slow(self):
        if self.joining.boot_id == old.boot_id:
            asked.set()
            await goes_on.wait()
        return await look(self)

    monkeypatch.setattr(Dialled, "look", slow)
    async with serving(old), serving(new):
        late = asyncio.create_task(refusal(stubs.registry.Register(old.registration())))
        await asked.wait()
        await new.register(stubs)
        goes_on.set()
        code, reason, _ = await late
        assert (code, reason) == ("UNAVAILABLE", "AGENT_UNAVAILABLE")
        assert instance_of(node, new).boot_id == new.boot_id
        assert (await ask(stubs, new, "plain")).state == SUCCEEDED


async def test_B6_another_process_at_the_address_does_not_pass_for_the_registered_one(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        agent.said_boot = "another"
        answer = await agent.register(stubs)
        assert answer.blocked_by == "no_link"
        assert list(answer.warnings) == ["the check failed: another process answers there; it has to register"]
        await asyncio.sleep(0.8)
        assert instance_of(node, agent).blocked_by == "no_link"
        agent.said_boot = agent.boot_id
        await wait_for_link(node, agent)


async def test_HLT_6_a_closed_connection_is_a_loss_and_the_work_moves_within_100_ms(node, stubs):
    first, second = EndpointAgent(wait=forever), EndpointAgent()
    second.agent_type = first.agent_type
    async with serving(second), serving(first) as server:
        await first.register(stubs)
        asked = asyncio.create_task(ask(stubs, first, "wait", retry={}))
        await eventually(lambda: first.open)
        await second.register(stubs)
        begun = time.monotonic()
        await server.stop(0)
        result = await asked
        took = time.monotonic() - begun
    assert (result.state, result.instance_id, result.transfers) == (SUCCEEDED, second.instance_id, 1)
    assert took < 1.0  # the figure itself is measured with real processes


async def test_B5_an_agent_that_deregisters_is_dialled_no_more(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        await agent.register(stubs)
        await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=agent.instance_id))
        await asyncio.sleep(1.2)
        count = len(agent.checks)
        await asyncio.sleep(1.2)
        assert len(agent.checks) == count


async def test_DLV_7_sending_an_irreversible_task_is_its_grant(stubs):
    agent, other = EndpointAgent(wait=forever), EndpointAgent()
    async with serving(agent) as server:
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait", effects="EFFECTS_IRREVERSIBLE", retry={}))
        await eventually(lambda: agent.open)
        assert not agent.executed[0].effect_granted
        other.agent_type = agent.agent_type
        async with serving(other):
            await other.register(stubs)
            agent.boot_id = agent.said_boot = unique("boot")
            agent.runs = []
            await agent.register(stubs)
            result = await asked
            assert reason_name(result.error) == "OUTCOME_UNKNOWN"
            assert not other.executed
        await server.stop(0)


async def test_DLV_7_a_granted_effect_waits_for_its_lost_agent_once_however_often_that_is_probed(node, stubs):
    agent = EndpointAgent(wait=forever)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait", effects="EFFECTS_IRREVERSIBLE", retry={}))
        await eventually(lambda: agent.open)
        instance = instance_of(node, agent)
        (task,) = instance.running.values()
    await eventually(lambda: instance.link is None and task.lease_until_ms)
    until, lost = task.lease_until_ms, len(instance.probes)
    await eventually(lambda: instance.probes[lost:].count(None) >= 3 or instance.probes.count(None) == 10)
    assert task.lease_until_ms == until
    asked.cancel()


@pytest.mark.parametrize(
    ("code", "trailing", "certain"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, (), True),
        (grpc.StatusCode.UNAVAILABLE, (("why", "full"),), True),
        (grpc.StatusCode.UNAVAILABLE, (), False),  # gRPC says the same of a connection that breaks
    ],
)
async def test_DLV_7_a_refusal_before_it_began_takes_the_grant_back(stubs, code, trailing, certain):
    async def full(_agent, _offer, context):
        await context.abort(code, "full", trailing)
        yield

    first, second = EndpointAgent(do=full), EndpointAgent()
    second.agent_type = first.agent_type
    async with serving(first), serving(second):
        await first.register(stubs, priority=9)
        asked = asyncio.create_task(ask(stubs, first, "do", effects="EFFECTS_IRREVERSIBLE", retry={}))
        await eventually(lambda: first.executed)
        await second.register(stubs)
        result = await asked
    if not certain:
        assert reason_name(result.error) == "OUTCOME_UNKNOWN"
        assert not second.executed
        return
    assert (result.state, result.instance_id) == (SUCCEEDED, second.instance_id)
    assert not second.executed[0].effect_granted


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("grpc://169.254.169.254:80", "link-local or metadata"),
        ("grpc://[fe80::1]:80", "link-local or metadata"),
        ("grpc://[::ffff:169.254.169.254]:80", "link-local or metadata"),
        ("grpc://[64:ff9b::a9fe:a9fe]:80", "link-local or metadata"),
        ("grpc://100.100.100.200:80", "link-local or metadata"),
        ("grpc://2852039166:80", "link-local or metadata"),  # 169.254.169.254 in one number
        ("grpc://0xa9fea9fe:80", "link-local or metadata"),
        ("grpc://0251.0376.0251.0376:80", "link-local or metadata"),
        ("grpc://224.0.0.1:80", "multicast"),
        ("grpc://user@127.0.0.1:80", "nothing else in it"),
        ("grpc://127.0.0.1", "nothing else in it"),
        ("grpc://127.0.0.1:80/path", "nothing else in it"),
        ("grpc://127.0.0.1:80?q=1", "nothing else in it"),
        ("grpc://127.0.0.1:0", "nothing else in it"),
        ("grpc://127.0.0.1:99999", "nothing else in it"),
        ("grpc://host\r\nx:80", "control characters"),
    ],
)
async def test_GOV_6_what_must_not_be_dialled_is_refused(stubs, url, what):
    agent = EndpointAgent()
    call = stubs.registry.Register(agent.registration(endpoints=[{"url": url}]))
    code, reason, text = await refusal(call)
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), text
    assert what in text


async def test_GOV_6_credentials_go_only_where_they_belong(stubs):
    agent = EndpointAgent()
    async with serving(agent):
        endpoints = [{"url": f"grpc://127.0.0.1:{agent.port}", "auth_reference": "nobodys"}]
        code, reason, text = await refusal(stubs.registry.Register(agent.registration(endpoints=endpoints)))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert "agents.auth" in text
    assert not agent.checks


async def test_a_name_that_does_not_exist_is_registered_with_a_warning(stubs):
    agent = EndpointAgent()
    answer = await agent.register(stubs, endpoints=[{"url": "grpc://no-such-host.invalid:80"}])
    assert answer.blocked_by == "no_link"
    assert "cannot be looked up" in answer.warnings[0]


async def test_REG_6_0_0_0_0_is_warned_of(stubs):
    agent = EndpointAgent()
    async with serving(agent):
        answer = await agent.register(stubs, endpoints=[{"url": f"grpc://0.0.0.0:{agent.port}"}])
    assert "no address to connect to" in answer.warnings[0]


@pytest.mark.parametrize("ends", ["report", "silence"])
async def test_HAZ4_an_attempt_that_cannot_be_joined_is_adopted_and_reported_or_given_up(node, stubs, ends):
    """A connection broke; the agent goes on with what it has, as its checks say, but it cannot be joined."""
    agent = EndpointAgent(wait=forever)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait", task_id=f"adopted-{ends}", retry={}))
        await eventually(lambda: agent.open)
    agent.runs = [{"task_id": f"adopted-{ends}", "attempt": 1}]
    async with serving(agent, agent.port):
        instance = instance_of(node, agent)
        await eventually(lambda: not instance.blocked_by and instance.running)
        await asyncio.sleep(1.2)  # checks name it: it goes on
        assert [offer.attempt for offer in agent.executed] == [1]
        if ends == "report":
            reporter = {"instance_id": agent.instance_id, "boot_id": agent.boot_id}
            result = {"key": agent.runs[0], "output": {"text": "by report"}}
            await stubs.result.ReportResult(pb.ReportResultRequest(reporter=reporter, result=result))
            answer = await asked
            assert (answer.state, answer.attempts, answer.output.text) == (SUCCEEDED, 1, "by report")
        else:
            agent.acts.clear()
            agent.runs = None
            answer = await asked
            assert (answer.state, answer.attempts, answer.output.text) == (SUCCEEDED, 2, "done")


async def test_HAZ4_what_nobody_waits_for_any_more_is_cancelled_at_the_agent(node, stubs):
    agent = EndpointAgent()
    async with serving(agent):
        agent.runs = [{"task_id": "of-long-ago", "attempt": 3}]
        await agent.register(stubs)
        await eventually(lambda: agent.cancelled)
        assert [(key.task_id, key.attempt) for key in agent.cancelled] == [("of-long-ago", 3)]


async def test_HAZ4_what_is_named_though_it_is_over_is_told_so_again(node, stubs):
    """Our word was lost, for the agent stood still: its checks tell."""
    agent = EndpointAgent()
    async with serving(agent):
        await agent.register(stubs)
        assert (await ask(stubs, agent, "", task_id="was-here", retry={})).state == SUCCEEDED
        assert not agent.cancelled
        agent.runs = [{"task_id": "was-here", "attempt": 1}]
        await eventually(lambda: agent.cancelled)
        assert [(key.task_id, key.attempt) for key in agent.cancelled][:1] == [("was-here", 1)]


async def test_DLV_10_an_outcome_is_asked_for_until_it_is_kept(node, stubs, monkeypatch):
    """Of what is not asked for the agent takes it that it was received: a crash before the commit had the task done
    twice."""
    go, kept = asyncio.Event(), threading.Event()

    async def when_told(_agent, _offer, _context):
        await go.wait()
        yield pb.ExecuteResponse(result={"output": {"text": "done"}})

    agent = EndpointAgent(wait=when_told)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait", task_id="kept-late"))
        await eventually(lambda: agent.open)
        committer = node.host.committer
        await committer.drain()
        commit = committer._journal.commit

        def late(writes):
            kept.wait()
            return commit(writes)

        with monkeypatch.context() as patched:
            patched.setattr(committer._journal, "commit", late)
            patched.setattr(type(committer._writer), "here", lambda *_: False)
            go.set()
            try:
                await eventually(lambda: not instance_of(node, agent).running)
                agent.checks.clear()
                await eventually(lambda: len(agent.checks) >= 2)
                assert all([key.task_id for key in check.running] == ["kept-late"] for check in agent.checks)
            finally:
                kept.set()
            assert (await asked).state == SUCCEEDED
        agent.checks.clear()
        await eventually(lambda: agent.checks)
        assert not agent.checks[-1].running


async def test_CLU_2_a_node_that_may_have_lost_its_shards_asks_no_agent_and_cancels_nothing(node, stubs, monkeypatch):
    """What it does not know to run there may be another node's, and what it does not ask for counts as received."""
    agent = EndpointAgent()
    async with serving(agent):
        await agent.register(stubs)
        await wait_for_link(node, agent)
        monkeypatch.setattr(node.host.committer, "doubt", lambda: True)
        await asyncio.sleep(0.2)  # a check may be under way
        agent.runs = [{"task_id": "of-the-next-owner", "attempt": 1}]
        agent.checks.clear()
        await asyncio.sleep(0.8)  # time for what must not happen
        assert (agent.checks, agent.cancelled) == ([], [])
        monkeypatch.undo()
        await eventually(lambda: agent.cancelled)


async def test_CLU_3_work_of_another_nodes_agent_is_not_cancelled(node, stubs, monkeypatch):
    """The pool moved away while its agent was asked what it runs: by now that is for another owner."""
    agent = EndpointAgent()
    async with serving(agent):
        await agent.register(stubs)
        await wait_for_link(node, agent)
        pool, _ = node.reach.instance("default", agent.instance_id)
        look = Dialled.look
        looked = asyncio.Event()

        async def slow(self):
            outcome = await look(self)
            if self.joining.instance_id == agent.instance_id and agent.runs:
                pool.instances.pop(agent.instance_id, None)
                looked.set()
            return outcome

        monkeypatch.setattr(Dialled, "look", slow)
        agent.runs = [{"task_id": "of-another-node", "attempt": 1}]
        await asyncio.wait_for(looked.wait(), 5)
        await asyncio.sleep(0.3)  # time for what must not happen
        assert not agent.cancelled


async def test_A9_pings_go_only_to_servers_that_allow_them(stubs, monkeypatch):
    """A server with gRPC's defaults cuts off a client that pings each 10 s while a task is quiet."""
    made: list[dict[str, object]] = []
    insecure = grpc.aio.insecure_channel

    def record(target, options=(), **more):
        if target.endswith(f":{agent.port}"):
            made.append(dict(options))
        return insecure(target, options=options, **more)

    agent = EndpointAgent()
    monkeypatch.setattr(grpc.aio, "insecure_channel", record)
    async with serving(agent):
        for features in ([], ["keepalive"]):
            made.clear()
            agent.boot_id = agent.said_boot = unique("boot")
            await agent.register(stubs, features=features)
            pings = ["grpc.keepalive_time_ms" in options for options in made]
            assert pings == [False, bool(features)]  # the probes' channel, then that of the work
            wanted = {"grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"} if features else set()
            assert wanted <= set(made[-1])
            assert all(options["grpc.enable_http_proxy"] == 0 for options in made)


@pytest.mark.parametrize("asks", ["probe", "check"])
async def test_HLT_3_that_nobody_is_where_it_was_says_nothing_of_where_it_is(node, stubs, monkeypatch, asks):
    before, agent = EndpointAgent(), EndpointAgent(wait=forever)
    agent.instance_id, agent.agent_type, agent.agent_id = before.instance_id, before.agent_type, before.agent_id
    asked, answered = asyncio.Event(), asyncio.Event()

    act = getattr(ProbeChannel, asks)

    async def refused(channel, *args):
        if channel.route.address.port != before.port:
            return await act(channel, *args)
        asked.set()
        await answered.wait()
        if asks == "probe":
            return ProbeOutcome(False, 0.0, "connection refused", refused=True)
        return CheckOutcome(None, "connection refused", refused=True)

    async with serving(before), serving(agent):
        await before.register(stubs)
        await wait_for_link(node, before)
        monkeypatch.setattr(ProbeChannel, asks, refused)
        await asyncio.wait_for(asked.wait(), 5)
        await agent.register(stubs)
        call = asyncio.create_task(ask(stubs, agent, "wait"))
        await eventually(lambda: agent.open)
        link = instance_of(node, agent).link
        answered.set()
        await asyncio.sleep(0.3)
        assert instance_of(node, agent).link is link
        call.cancel()
