"""Every field of a registration (REG-1, REG-3): read, checked, shown, kept over updates, restarts and reconnects."""

import asyncio
from typing import Any, NamedTuple

import pytest

from agentreach.v1 import agent_pb2
from reach.core.effects import Turn
from tests.rpc.peers import AgentByHand, Stubs, pb, refusal, running, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "x" * 257


class Field(NamedTuple):
    """One field of the contract."""

    value: Any
    """A good value."""
    bad: tuple[Any, ...]
    """Values that are refused with its name."""
    kept: bool = False
    """It keeps its value where a later registration leaves it out; else it is what was said last."""
    default: Any = None
    """What counts where it was never said."""


CAPABILITY = {
    "name": "summarization", "version": "2", "parameter_schema": '{"type": "object"}', "success_rate": 0.9,
    "concurrency": 3, "cost_slots": 2, "effects": "EFFECTS_NONE", "languages": ["en"], "tags": ["gpu"],
    "expected_latency": {"seconds": 2}, "input_media_types": ["text/plain"], "output_media_types": ["text/plain"],
    "description": "makes it short", "examples": ["shorten this"], "resource_model": "large",
}  # fmt: skip
BAD_CAPABILITIES: tuple[Any, ...] = tuple(
    [{"name": "c", **bad}]
    for bad in (
        {"name": ""}, {"name": LONG}, {"version": LONG}, {"success_rate": 1.1}, {"success_rate": float("nan")},
        {"concurrency": 0}, {"cost_slots": 0}, {"cost_slots": 1_001}, {"effects": 77}, {"languages": [LONG]},
        {"tags": ["t"] * 65}, {"expected_latency": {"seconds": -1}}, {"input_media_types": ["a\n"]},
        {"output_media_types": ["a\n"]},
    )
)  # fmt: skip
FIELDS = {
    "agent_id": Field("doc", ("", LONG, "a\n")),
    "agent_type": Field("docs", (LONG, "~x", "a\n")),
    "instance_id": Field("doc-1", (LONG, "a\n")),
    "boot_id": Field("b1", ("", LONG)),
    "endpoints": Field([{"url": "stream:", "health_path": "/h", "auth_reference": "key"}], ([{"url": "ftp://x"}],)),
    "capabilities": Field([CAPABILITY], (*BAD_CAPABILITIES, [{"name": "c"}] * 257)),
    "methods": Field(
        [{"name": "task.process", "expected_latency": {"seconds": 1}, "concurrency": 2}],
        ([{"name": LONG}], [{"name": "m", "expected_latency": {"seconds": -1}}], [{"name": "m", "concurrency": 0}]),
    ),
    "tags": Field(["gpu", "eu"], ([LONG], ["t"] * 65)),
    "labels": Field({"team": "x"}, ({"a\n": "b"}, {str(n): "v" for n in range(65)})),
    "weight": Field(20, (0, 101), kept=True, default=10),
    "priority": Field(0, (10,), kept=True, default=3),
    "max_concurrency": Field(4, (0, 100_001), kept=True, default=1),
    "max_sessions": Field(7, (0, 1_000_001), kept=True),
    "version": Field("1.2", (LONG,)),
    "languages": Field(["en", "de"], ([LONG],)),
    "input_media_types": Field(["text/plain"], (["a\n"],)),
    "output_media_types": Field(["text/plain"], (["a\n"],)),
    "region": Field("eu", (LONG,)),
    "zone": Field("eu-1", (LONG,)),
    "allowed_tenants": Field(["friend"], ([LONG], ["t"] * 257)),
    "heartbeat_interval": Field({"seconds": 7}, ({"seconds": 61}, {"nanos": 5}), kept=True, default={"seconds": 5}),
    "availability": Field("AVAILABILITY_BUSY", (77,)),
    "ready": Field(True, ()),
    "host": Field("box", (LONG,)),
    "features": Field(["replay"], ([LONG],)),
    "sdk": Field("python 1", (LONG,)),
}
WHOLE = {name: field.value for name, field in FIELDS.items()}
NAMES = {"agent_id": "doc", "agent_type": "docs", "instance_id": "doc-1"}


def said(fields: dict[str, Any]) -> Any:
    """A registration as the contract has it."""
    return pb.Registration(**fields)


async def shown(stubs: Stubs, instance_id: str = "doc-1") -> Any:
    answer = await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=instance_id))
    return answer.agent


async def register(stubs: Stubs, fields: dict[str, Any]) -> Any:
    return await stubs.registry.Register(pb.RegisterRequest(registration=said(fields)))


async def test_REG_1_the_table_names_every_field_of_the_contract():
    assert sorted(FIELDS) == sorted(agent_pb2.Registration.DESCRIPTOR.fields_by_name)
    assert sorted(CAPABILITY) == sorted(agent_pb2.Capability.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.bad])
async def test_REG_1_a_bad_value_is_refused_by_name(stubs, name):
    for bad in FIELDS[name].bad:
        fields = {"agent_id": unique("bad"), "boot_id": "b", name: bad}
        code, reason, text = await refusal(stubs.registry.Register(pb.RegisterRequest(registration=said(fields))))
        assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), (bad, text)
        assert f"registration.{name}" in text, (bad, text)


async def test_REG_1_REG_3_kept_over_updates_restarts_and_reconnects(tmp_path):
    """The whole at first; then a process that says next to nothing; then a new server; then a new process."""
    few = {**NAMES, "boot_id": "b1"}
    expected = said({**few, **{name: field.value for name, field in FIELDS.items() if field.kept}})
    settings = {"storage__type": "sqlite"}
    async with running(tmp_path, **settings) as node, Stubs(node.port) as stubs:
        first = await register(stubs, WHOLE)
        assert (first.generation, first.instance_id, first.heartbeat_interval.seconds) == (1, "doc-1", 7)
        row = await shown(stubs)
        assert row.registration == said(WHOLE), "all of it is shown"
        assert (row.availability, row.max_concurrency) == (pb.AVAILABILITY_BUSY, 4)
        again = await register(stubs, WHOLE)
        assert (again.generation, again.revision) == (1, first.revision), "the same again changes nothing"
        await register(stubs, few)
        assert (await shown(stubs)).registration == expected, "what is left out and has presence stays"
    for boot, generation in (("b1", 1), ("b2", 2)):
        async with running(tmp_path, **settings) as node, Stubs(node.port) as stubs:
            expected.boot_id = "b1" if generation == 1 else expected.boot_id
            assert (await shown(stubs)).registration == expected, "it survived the server"
            agent = AgentByHand(stubs)
            agent.boot_id = boot
            welcome = await agent.join("doc", instance_id="doc-1", agent_type="docs", ready=None)
            assert (welcome.generation, welcome.heartbeat_interval.seconds) == (generation, 7)
            expected.boot_id = boot
            row = await shown(stubs)
            assert row.registration == expected, "it survived the hello"
            assert row.max_concurrency == 4
            await agent.close()


async def test_REG_1_what_counts_where_nothing_was_said(stubs):
    name = unique("plain")
    answer = await register(stubs, {"agent_id": name, "boot_id": "b"})
    assert answer.instance_id.startswith(f"{name}@unknown#")
    row = await shown(stubs, answer.instance_id)
    expected = {key: field.default for key, field in FIELDS.items() if field.default is not None}
    whole = {"agent_id": name, "agent_type": name, "instance_id": answer.instance_id, "boot_id": "b", **expected}
    assert row.registration == said(whole)
    assert row.availability == pb.AVAILABILITY_READY


async def test_REG_3_a_restarted_agent_that_sends_no_load_does_not_look_idle(stubs):
    name = unique("busy")
    agent = AgentByHand(stubs)
    await agent.join(name, max_concurrency=8)
    beat = {"inflight": 6, "queue_length": 5, "ready": True}
    await agent.send(beats=[{"link": 1, "status": beat}])
    await agent.send(beats=[{"link": 1, "status": {"queue_length": 4}}])
    await agent.send(hellos=[{"link": 1, "registration": {"agent_id": name, "boot_id": "another"}}])
    await agent.next("links")
    row = await shown(stubs, agent.instance_id)
    assert (row.generation, row.max_concurrency) == (2, 8)
    assert (row.status.inflight, row.status.queue_length) == (6, 4)
    await agent.close()


async def test_REG_2_what_a_stale_process_registers_changes_nothing(stubs):
    name = unique("stale")
    for boot in ("b1", "b2"):
        await register(stubs, {"agent_id": name, "boot_id": boot, "instance_id": name, "tags": [boot]})
    late = {"agent_id": f"{name}-x", "boot_id": "b1", "instance_id": name, "agent_type": name}
    code, reason, _ = await refusal(stubs.registry.Register(pb.RegisterRequest(registration=said(late))))
    assert (code, reason) == ("FAILED_PRECONDITION", "STALE_GENERATION")
    assert (await shown(stubs, name)).registration.tags == ["b2"]
    preview = await stubs.dispatch.PreviewRoute(
        pb.PreviewRouteRequest(task={"selector": {"agent_id": name}, "payload": {"text": "x"}})
    )
    assert [one.instance_id for one in preview.decision.candidates] == [name], "it is still found by its name"


async def test_published_state_expires_on_the_wire(stubs):
    agent = AgentByHand(stubs)
    name = unique("published")
    await agent.join(name, ready=True)
    status = {"availability": "AVAILABILITY_UNAVAILABLE", "availability_ttl": {"seconds": 30}}
    await agent.send(beats=[{"link": 1, "status": status}])
    row = await until(stubs, agent.instance_id, lambda row: row.availability == pb.AVAILABILITY_UNAVAILABLE)
    assert row.blocked_by == "unavailable"
    assert 28 <= row.availability_ttl.seconds <= 30
    status = {"availability": "AVAILABILITY_UNAVAILABLE", "availability_ttl": {"nanos": 50_000_000}}
    await agent.send(beats=[{"link": 1, "status": status}])
    row = await until(stubs, agent.instance_id, lambda row: row.availability == pb.AVAILABILITY_READY)
    assert (row.HasField("availability_ttl"), row.blocked_by) == (False, "")
    await agent.close()


async def until(stubs: Stubs, instance_id: str, condition: Any) -> Any:
    """The row once it is so."""
    async with asyncio.timeout(20):
        while not condition(row := await shown(stubs, instance_id)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return row


async def test_REG_6_a_process_with_an_address_that_holds_a_stream_is_reached_by_the_stream(tmp_path):
    async with running(tmp_path, probe__interval=1) as node, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        registration = {
            "agent_id": "both",
            "instance_id": "both-1",
            "boot_id": agent.boot_id,
            "endpoints": [{"url": "grpc://127.0.0.1:1"}],
        }

        async def shown():
            return (await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id="both-1"))).agent

        await stubs.registry.Register(pb.RegisterRequest(registration=registration))
        assert (await shown()).blocked_by == "no_link"
        await agent.join("both", instance_id="both-1")
        for _ in range(2):  # also where it tells its address anew
            await asyncio.sleep(1.3)
            assert ((await shown()).health, (await shown()).probe_status) == (pb.HEALTH_HEALTHY, "none")
            await stubs.registry.Register(pb.RegisterRequest(registration=registration))
        await agent.close()


async def test_REG_8_registrations_are_kept_and_beats_are_not(tmp_path, monkeypatch):
    """Over a restart an instance is known, and barred until it comes; of its beats and scores nothing was written."""
    written: list[Any] = []
    async with running(tmp_path, storage__type="sqlite") as node:
        stubs = Stubs(node.port)
        agent = AgentByHand(stubs)
        await agent.join("kept", labels={"team": "x"})
        await asyncio.sleep(0.2)
        honest = node.host.committer.submit

        def submit(turn: Turn) -> None:
            written.append(turn.writes.count())
            honest(turn)

        monkeypatch.setattr(node.host.committer, "submit", submit)
        for _ in range(3):
            await agent.send(beats=[{"link": 1, "status": {"ready": True}}])
            await asyncio.sleep(0.05)
        assert written, "they were heard"
        assert not any(written), "and nothing of them is written"
        instance_id = agent.instance_id
        await stubs.channel.close()
    async with running(tmp_path, storage__type="sqlite") as node:
        stubs = Stubs(node.port)
        found = (await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=instance_id))).agent
        assert (found.registration.agent_id, dict(found.registration.labels)) == ("kept", {"team": "x"})
        assert found.blocked_by
        await stubs.channel.close()
