"""Two tenants on one node: whatever one asks about the other's ids, the answer is that of an id that nobody has (G4);
and no method is open without the right key (G9)."""

import asyncio
import itertools
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from reach.rpc import dispatch, services
from reach.rpc.access import TABLE
from tests.rpc.hostile import METHODS
from tests.rpc.peers import (
    TIMEOUT,
    AgentByHand,
    CallerByHand,
    Metadata,
    Stubs,
    golden,
    key_of,
    pb,
    reason_in,
    reason_name,
    refusal,
    unique,
)
from tests.rpc.tenancy import (
    ALL,
    LISTS,
    NAMING,
    NOBODYS,
    OWN,
    PACKAGE,
    all_methods,
    belongings,
)

WITH_KEYS = True
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def acme(keys):
    return keys.header("acme")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rival(keys):
    return keys.header("rival")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def theirs(node, stubs, acme):
    """What acme has: an agent, a task that runs, one that ended, and one that only the journal knows."""
    agent = AgentByHand(stubs, acme)
    await agent.join("acme-agent", max_concurrency=9)
    ids = {name: unique(f"acme-{name}") for name in ("running", "ended", "stored")}
    offers = {}
    for name, task_id in ids.items():
        spec = {"task_id": task_id, "selector": {"agent_id": "acme-agent"}, "payload": {"text": "acme's secret"}}
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), metadata=acme)
        offers[name] = await agent.next("offers")
        if name != "running":
            await agent.finish(offers[name], "acme's answer")
    del node.host.tasks["acme", ids["stored"]]
    yield {**ids, "agent": agent, "offers": offers}
    await agent.close()


def verbs(stubs: Stubs, task_id: str, instance_id: str, header: Metadata, own: AgentByHand) -> dict[str, Any]:
    """Every call that takes an id of somebody: of a task or of an instance."""
    key = {"task_id": task_id, "attempt": 1}
    result = {"key": key, "output": {"text": "x"}}
    mine = {"instance_id": own.instance_id, "boot_id": own.boot_id}
    forged = {"instance_id": instance_id, "boot_id": "b"}
    tenant_key = {**key, "tenant": "acme"}
    asked = {
        "GetTask": lambda: stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id), metadata=header),
        "WaitForResult": lambda: stubs.dispatch.WaitForResult(
            pb.WaitForResultRequest(task_id=task_id, timeout={"seconds": 1}), metadata=header
        ),
        "SendInput": lambda: stubs.dispatch.SendInput(
            pb.SendInputRequest(task_id=task_id, payload={"text": "yes"}), metadata=header
        ),
        "ListDecisions": lambda: stubs.ops.ListDecisions(pb.ListDecisionsRequest(task_id=task_id), metadata=header),
        "ExplainTask": lambda: stubs.ops.ExplainTask(pb.ExplainTaskRequest(task_id=task_id), metadata=header),
        "CancelTask": lambda: stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id), metadata=header),
        "StreamResult": lambda: stubs.result.StreamResult(pb.StreamResultRequest(task_id=task_id), metadata=header),
        "GetAgent": lambda: stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=instance_id), metadata=header),
        "Drain": lambda: stubs.registry.Drain(pb.DrainRequest(instance_id=instance_id), metadata=header),
        "Deregister": lambda: stubs.registry.Deregister(pb.DeregisterRequest(instance_id=instance_id), metadata=header),
        "Heartbeat": lambda: stubs.heartbeat.Heartbeat(pb.HeartbeatRequest(beat=forged), metadata=header),
    }
    for name, reporter, told in (
        ("mine", mine, result),
        ("mine, another tenant", mine, {**result, "key": tenant_key}),
        ("forged", forged, result),
    ):
        for method, request in (
            ("ReportResult", pb.ReportResultRequest(reporter=reporter, result=told)),
            ("ExtendLease", pb.ExtendLeaseRequest(reporter=reporter, key=told["key"])),
            ("BeginEffect", pb.BeginEffectRequest(reporter=reporter, key=told["key"])),
        ):
            call = getattr(stubs.result, method)
            asked[f"{method} {name}"] = partial(call, request, metadata=header)
    return asked


async def said(stubs: Stubs, rpc: str, fields: Any, header: Metadata, most: int = 0) -> tuple[str, str, str]:
    """What a method with one request answers: code, reason, and its text or its messages as JSON. Of a list that goes
    on for ever: `most` messages."""
    method = METHODS[PACKAGE + rpc]
    request = json_format.ParseDict(fields, GetMessageClass(method.input_type)())
    kind = stubs.channel.unary_stream if method.server_streaming else stubs.channel.unary_unary
    make: Any = kind(PACKAGE + rpc, None, GetMessageClass(method.output_type).FromString)
    answers = []
    try:
        asked = make(request.SerializeToString(), metadata=header, timeout=TIMEOUT)
        if method.server_streaming:
            async for answer in asked:
                answers.append(json_format.MessageToJson(answer))
                if len(answers) == most:
                    asked.cancel()
                    break
        else:
            answers.append(json_format.MessageToJson(await asked))
    except grpc.aio.AioRpcError as error:
        return error.code().name, reason_in(error.trailing_metadata()), error.details() or ""
    return "OK", "", "".join(answers)


async def test_every_method_has_a_place_among_those_of_two_tenants():
    assert {*NAMING, *LISTS, *OWN} == all_methods()
    assert not OWN.keys() & {*NAMING, *LISTS}


async def test_G4_P11_whatever_names_another_tenants_is_answered_as_what_nobody_has(stubs, keys):
    header = keys.header("rival")
    async with belongings(stubs, keys) as acme:
        for (rpc, requests), (kind, ids) in itertools.product(NAMING.items(), acme.of.items()):
            for fields in requests:
                foreign = await said(stubs, rpc, ids.put(fields), header)
                nobodys = await said(stubs, rpc, NOBODYS.put(fields), header)
                assert ids.masked(foreign[2]) == NOBODYS.masked(nobodys[2]), (rpc, kind)
                assert foreign[:2] == nobodys[:2], (rpc, kind)
        for rpc, fields in LISTS.items():
            assert "acme" not in (await said(stubs, rpc, fields, header, 1))[2], rpc
            told = await said(stubs, rpc, fields, acme.header, 1)
            assert "acme" in told[2] or rpc == "OpsService/ListFailedWebhooks", rpc
        # nothing of it did anything
        for kind, state in (("running", "RUNNING"), ("ended", "SUCCEEDED"), ("dead", "DEAD_LETTERED")):
            told = await said(stubs, "DispatchService/GetTask", {"task_id": acme.of[kind].task_id}, acme.header)
            assert f"TASK_STATE_{state}" in told[2]
        ids = acme.of["running"]
        for rpc in ("RegistryService/GetAgent", "SessionService/GetSession", "OpsService/ListKeys"):
            assert (await said(stubs, rpc, ids.put(NAMING.get(rpc, [{}])[0]), acme.header))[0] == "OK"


@pytest.mark.parametrize("which", ["running", "ended", "stored"])
async def test_g4_an_id_of_another_tenant_is_an_id_that_nobody_has(stubs, theirs, rival, which):
    own = AgentByHand(stubs, rival)
    await own.join("rival-agent")
    instance = theirs["agent"].instance_id
    foreign = verbs(stubs, theirs[which], instance, rival, own)
    unknown = verbs(stubs, "nobody-has-it", "nobody-is-it", rival, own)
    for name, ask in foreign.items():
        answer = await refusal(ask())
        twin = await refusal(unknown[name]())
        assert answer[0] != "OK", name
        text = answer[2].replace(theirs[which], "nobody-has-it").replace(instance, "nobody-is-it")
        assert (*answer[:2], text) == twin, name
    await own.close()
    found = await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=instance), metadata=theirs["agent"].metadata)
    assert found.agent.blocked_by == ""  # neither drained nor gone


async def test_g4_on_streams_too(stubs, theirs, rival):
    caller, agent = CallerByHand(stubs, rival), AgentByHand(stubs, rival)
    await agent.join(unique("rival-agent"))
    for reference, task_id in enumerate((theirs["running"], theirs["ended"], theirs["stored"], "nobody-has-it"), 1):
        await caller.send(
            subscribes=[{"reference": reference, "task_id": task_id, "interest": "INTEREST_EVENTS"}],
            cancels=[{"reference": 10 + reference, "task_id": task_id}],
        )
        await caller.until(lambda count=2 * reference: len(caller.seen["refusals"]) == count)
        for tenant in ("", "acme"):
            key = {"task_id": task_id, "attempt": 1, "tenant": tenant}
            await agent.send(results=[{"link": 1, "key": key, "output": {"text": "x"}}])
            item = await agent.next("refusals")
            text = f"attempt 1 of task {task_id!r} is not known here: stop working on it"
            assert (reason_name(item.error), item.error.message) == ("UNKNOWN_ATTEMPT", text)
    for item in caller.seen["refusals"]:
        assert (reason_name(item.error), item.error.message) == ("TASK_NOT_FOUND", f"there is no task {item.task_id!r}")
    assert not caller.seen["events"]
    assert not caller.seen["cancelled"]
    stranger = AgentByHand(stubs, rival)
    await stranger.send(
        hellos=[
            {
                "link": 1,
                "registration": {"agent_id": "r", "boot_id": "b", "instance_id": theirs["agent"].instance_id},
                "running": [{"key": {"task_id": theirs["running"], "attempt": 1, "tenant": "acme"}}],
            }
        ]
    )
    welcome = await stranger.next("links")  # the same name, but an instance of its own
    assert (welcome.generation, welcome.unknown[0].task_id) == (1, theirs["running"])
    for stream in (caller, agent, stranger):
        await stream.close()


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_D5_P11_a_replay_is_of_its_own_tenant_and_task(stubs, theirs, acme, rival, after):
    """The same id, and the same position, name other events for another tenant, and for another task."""
    task_id, other_id = unique("same"), unique("other")
    texts: dict[tuple[str, str], str] = {}
    agents = {"acme": theirs["agent"], "rival": AgentByHand(stubs, rival)}
    await agents["rival"].join("acme-agent")
    for tenant, header in (("acme", acme), ("rival", rival)):
        for name in (task_id, other_id):
            spec = {"task_id": name, "selector": {"agent_id": "acme-agent"}, "payload": {"text": tenant}}
            await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), metadata=header)
            texts[tenant, name] = unique(f"answer of {tenant}")
            await agents[tenant].finish(await agents[tenant].next("offers"), texts[tenant, name])
    for tenant, header in (("acme", acme), ("rival", rival)):
        for name in (task_id, other_id):
            request = pb.StreamResultRequest(task_id=name, after_sequence=after)
            frames = [frame async for frame in stubs.result.StreamResult(request, metadata=header)]
            told = [event for frame in frames for event in frame.events]
            assert {event.task_id for event in told} == {name}
            assert [event.sequence for event in told] == list(range(after + 1, 4))
            assert told[-1].complete.output.text == texts[tenant, name]
            assert told[-1].complete.instance_id == agents[tenant].instance_id
    gone = pb.DeregisterRequest(instance_id=agents["rival"].instance_id)
    await stubs.registry.Deregister(gone, metadata=rival)  # the next case has an agent of that name to look for in vain
    await agents["rival"].close()


async def test_lists_watches_and_counts_show_only_what_is_their_own(stubs, theirs, acme, rival):
    fresh = rival
    mine = {"task_id": theirs["running"], "selector": {"agent_id": "nobody"}, "payload": {"text": "rival's"}}
    answer = await stubs.dispatch.Dispatch(pb.DispatchRequest(task=mine), metadata=fresh)
    assert not answer.deduplicated  # C2: the same id is another task for another tenant
    page = await stubs.dispatch.ListTasks(pb.ListTasksRequest(view="TASK_VIEW_FULL"), metadata=fresh)
    texts = [task.spec.payload.text for task in page.tasks]
    assert texts[0] == "rival's"
    assert set(texts) <= {"rival's", "rival"}, "those of the case before are theirs too"
    agents = await stubs.registry.ListAgents(pb.ListAgentsRequest(filter={"agent_id": "acme-agent"}), metadata=fresh)
    assert not agents.agents
    watch = stubs.registry.WatchAgents(
        pb.WatchAgentsRequest(filter={"agent_id": "acme-agent"}), metadata=fresh, timeout=TIMEOUT
    )
    assert not (await watch.read()).agents
    watch.cancel()
    infos = [await stubs.ops.GetServerInfo(pb.GetServerInfoRequest(), metadata=who) for who in (acme, fresh)]
    assert [info.principal.tenant for info in infos] == ["acme", "rival"]
    assert infos[1].open_tasks == 1
    preview = await stubs.dispatch.PreviewRoute(
        pb.PreviewRouteRequest(task={"selector": {"agent_id": "acme-agent"}}), metadata=fresh
    )
    assert not preview.decision.candidates
    await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=theirs["running"]), metadata=fresh)
    still = await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=theirs["running"]), metadata=acme)
    assert still.task.state in (pb.TASK_STATE_DELIVERED, pb.TASK_STATE_RUNNING)


async def test_an_agent_that_is_shared_works_for_others_but_cannot_look_around(stubs, theirs, acme, rival):
    agent = AgentByHand(stubs, acme)
    await agent.join("shared", allowed_tenants=["rival"])
    task_id = unique("shared")
    caller = CallerByHand(stubs, rival)
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"agent_id": "shared"})
    offer = await agent.next("offers")
    assert offer.tenant == "rival"
    private = unique("private")
    await stubs.dispatch.Dispatch(
        pb.DispatchRequest(task={"task_id": private, "selector": {"agent_id": "none"}}), metadata=rival
    )
    await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=private), metadata=rival)
    for guess in (private, "nobody-has-it"):
        key = {"task_id": guess, "attempt": 1, "tenant": "rival"}
        await agent.send(results=[{"link": 1, "key": key, "output": {"text": "x"}}])
        assert reason_name((await agent.next("refusals")).error) == "UNKNOWN_ATTEMPT"
    await agent.finish(offer, "for rival")
    assert (await caller.complete(task_id)).output.text == "for rival"
    assert agent.seen["acknowledgements"][-1].tenant == "rival"
    assert (await refusal(stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id), metadata=acme)))[0] == "NOT_FOUND"
    await agent.close()
    await caller.close()


# -- keys -------------------------------------------------------------------------------------------------------------


def call(stubs: Stubs, path: str, metadata: Metadata) -> Any:
    """A call of any method, with an empty message."""
    method = METHODS[path]
    kinds = ["stream" if yes else "unary" for yes in (method.client_streaming, method.server_streaming)]
    make = getattr(stubs.channel, "_".join(kinds))(path, request_serializer=bytes, response_deserializer=bytes)

    async def one():
        yield GetMessageClass(method.input_type)().SerializeToString()

    return make(one() if method.client_streaming else b"", metadata=metadata, timeout=2)


async def answer_of(stubs: Stubs, path: str, metadata: Metadata) -> tuple[str, str, str]:
    """What a call ends with. A stream that is refused while its first message is written may end with a word of the
    client's own library instead (grpc/grpc#36066): then it is asked again."""
    answer = await refusal(call(stubs, path, metadata))
    for _ in range(4):
        if answer[2] != "Internal error from Core":
            break
        answer = await refusal(call(stubs, path, metadata))
    return answer


@pytest.mark.parametrize("path", METHODS)
async def test_gov_2_every_method_is_closed_by_default(stubs, keys, acme, path):
    wrong = [scope for scope in ALL if scope not in TABLE[path].scopes]
    for metadata in ((), (("authorization", "Bearer ar_x_y"),), (("authorization", acme[0][1][:-1] + "!"),)):
        assert (await answer_of(stubs, path, metadata))[:2] == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    for scope in wrong:
        answer = await answer_of(stubs, path, keys.header("acme", scope))
        assert answer[:2] == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    for scope in sorted(TABLE[path].scopes):
        answer = await answer_of(stubs, path, keys.header("acme", scope))
        assert answer[1] not in ("UNAUTHENTICATED", "PERMISSION_DENIED")


async def test_g9_reflection_is_for_operators_and_health_is_open(stubs, keys):
    async def asked():
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    reflect: Any = reflection_pb2_grpc.ServerReflectionStub(stubs.channel).ServerReflectionInfo
    others = keys.header("acme", "caller", "agent", "reader")
    assert (await refusal(reflect(asked(), metadata=())))[0] == "UNAUTHENTICATED"
    assert (await refusal(reflect(asked(), metadata=others)))[0] == "PERMISSION_DENIED"
    assert (await refusal(reflect(asked(), metadata=keys.header("acme", "operator"))))[0] == "OK"
    await golden(stubs, metadata=keys.header("acme"))  # asks for health without a key


async def test_streams_end_when_their_key_does(stubs, keys, theirs, monkeypatch):
    """Within 60 s; here the interval is shorter."""
    monkeypatch.setattr(services, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(dispatch, "RECHECK_SECONDS", 0.1)
    header = keys.header("acme")

    async def beats():
        while True:
            yield pb.StreamHeartbeatsRequest()
            await asyncio.sleep(0.1)

    open_calls = {
        "Attach": stubs.agent.Attach(metadata=header),
        "DispatchStream": stubs.dispatch.DispatchStream(metadata=header),
        "StreamResult": stubs.result.StreamResult(pb.StreamResultRequest(task_id=theirs["running"]), metadata=header),
        "Run": stubs.dispatch.Run(pb.RunRequest(task={"selector": {"agent_id": "none"}}), metadata=header),
        "WatchAgents": stubs.registry.WatchAgents(pb.WatchAgentsRequest(), metadata=header),
        "StreamHeartbeats": stubs.heartbeat.StreamHeartbeats(beats(), metadata=header),
    }
    await open_calls["Attach"].write(pb.AttachRequest(opening={}))
    await open_calls["DispatchStream"].write(pb.DispatchStreamRequest(opening={}))
    for name in ("Attach", "DispatchStream", "StreamResult", "Run", "WatchAgents"):
        await open_calls[name].read()
    keys.revoke(header)
    for name, one in open_calls.items():
        assert (await refusal(one))[:2] == ("UNAUTHENTICATED", "UNAUTHENTICATED"), name


async def test_an_agent_whose_key_ends_loses_its_link_and_its_work_moves(stubs, keys, theirs, acme, monkeypatch):
    monkeypatch.setattr(services, "RECHECK_SECONDS", 0.1)
    header, kind, task_id = keys.header("acme"), unique("revoked"), unique("revoked")
    agent, other = AgentByHand(stubs, header), AgentByHand(stubs, acme)
    await agent.join(kind)
    caller = CallerByHand(stubs, acme)
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"agent_type": kind})
    offer = await agent.next("offers")
    await other.join(kind)
    keys.revoke(header)
    code, reason = await agent.ended()
    assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    again = await other.next("offers")
    assert (again.attempt, key_of(offer)["task_id"]) == (2, task_id)
    await other.serve(again, "moved")
    await caller.complete(task_id)
    for stream in (other, caller):
        await stream.close()
