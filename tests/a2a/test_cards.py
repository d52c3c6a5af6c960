"""Cards: where they are, what they say, and whom they say it to (API-3, G6, GOV-1)."""

import asyncio

import httpx
import pytest
from a2a.types import a2a_pb2

from reach.a2a import cards
from reach.wire.a2a.words import CURSOR, DISPATCH
from tests.http.conftest import client_of
from tests.rpc.conftest import no_tracebacks  # noqa: F401 - a fixture here too
from tests.rpc.peers import TIMEOUT, AgentByHand, running, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

SKILLS = [
    {"name": "summarization", "description": "Makes it short.", "examples": ["in brief"], "tags": ["text"]},
    {"name": "translation", "output_media_types": ["text/plain"]},
]


async def test_API_3_a_type_of_agents_has_a_card_with_the_skills_of_its_instances(
    calling, agent, node, stubs, monkeypatch
):
    await agent.join(name := unique("writer"), capabilities=SKILLS[:1], version="2")
    other = AgentByHand(stubs)
    await other.join(unique("writer"), agent_type=name, capabilities=SKILLS[1:], version="1")
    card = await calling.card(name)
    assert (card.name, card.version) == (name, "2")
    assert [skill.id for skill in card.skills] == ["summarization", "translation"]
    assert list(card.skills[0].examples) == ["in brief"]
    assert all(skill.tags and skill.description for skill in card.skills)
    assert card.capabilities.streaming
    assert {one.uri for one in card.capabilities.extensions} == {CURSOR, DISPATCH}
    assert not any(one.required for one in card.capabilities.extensions)
    at = f"http://127.0.0.1:{node.admin_port}/a2a/t.{name}"
    assert [(one.url, one.protocol_binding, one.tenant, one.protocol_version) for one in card.supported_interfaces] == [
        (at, "JSONRPC", "", "1.0"),
        (at, "HTTP+JSON", "", "1.0"),
        (at, "JSONRPC", "", "0.3"),
    ]
    extended = await (await calling.client(name)).get_extended_agent_card(a2a_pb2.GetExtendedAgentCardRequest())
    monkeypatch.setattr(cards, "KEEP_SECONDS", 0)
    await other.close()
    async with asyncio.timeout(TIMEOUT):
        while [skill.id for skill in (await calling.card(name)).skills] != ["summarization"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (grpc,) = [one for one in extended.supported_interfaces if one.protocol_binding == "GRPC"]
    assert (grpc.url, grpc.tenant, grpc.protocol_version) == (f"127.0.0.1:{node.port}", f"t.{name}", "1.0")


async def test_API_3_the_extended_card_is_the_card_as_the_caller_may_see_it(calling, agent, binding):
    await agent.join(name := unique("extended"))
    client = await calling.client(name, binding)
    card = await client.get_extended_agent_card(a2a_pb2.GetExtendedAgentCardRequest())
    assert card.name == name


async def test_API_3_a_card_is_sent_again_only_when_it_changed(calling, agent, http):
    await agent.join(name := unique("cached"), capabilities=SKILLS[:1])
    path = f"/a2a/t.{name}/.well-known/agent-card.json"
    first = await http.get(path)
    assert first.headers["cache-control"] == "public, max-age=30"
    tag = first.headers["etag"]
    await agent.send(beats=[])
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = await http.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await http.get(path, headers={"if-none-match": '"x"'})).status_code == 200


async def test_API_3_the_fleet_has_a_card_and_a_catalog_of_all_cards(calling, agent, http, node):
    await agent.join(name := unique("in-catalog"), capabilities=SKILLS)
    card = await calling.card()
    assert card.name == "Agent-Reach"
    assert card.supported_interfaces[0].tenant == ""
    listed = (await http.get("/.well-known/ai-catalog.json")).json()
    assert listed["specVersion"] == "1.0"
    at = f"http://127.0.0.1:{node.admin_port}"
    entries = {one["url"]: one for one in listed["entries"]}
    assert f"{at}/.well-known/agent-card.json" in entries
    mine = entries[f"{at}/a2a/t.{name}/.well-known/agent-card.json"]
    assert mine["type"] == "application/a2a-agent-card+json"
    assert (await http.get(mine["url"])).json()["name"] == name
    for path in ("/a2a/.well-known/agent-card.json", "/a2a", "/a2a/"):
        assert (await http.get(path)).json()["name"] == "Agent-Reach"
    for path in (f"/a2a/t.{name}", f"/a2a/t.{name}/"):
        assert (await http.get(path)).json()["name"] == name


async def test_API_3_there_is_no_card_of_a_type_that_nobody_has(http):
    for route in ("t.nobody", "nonsense", "t.", "tx.!"):
        answer = await http.get(f"/a2a/{route}/.well-known/agent-card.json")
        assert (answer.status_code, answer.json()["reason"]) == (404, "NO_ROUTE")
    assert (await http.get("/a2a/t.x/y")).status_code == 404
    assert (await http.put("/a2a")).status_code == 405


async def test_G6_a_card_says_what_is_configured_and_not_what_a_request_calls_us(http, agent):
    await agent.join(name := unique("host"))
    answer = await http.get(f"/a2a/t.{name}/.well-known/agent-card.json", headers={"x-forwarded-host": "evil.example"})
    assert "evil" not in answer.text


async def test_API_3_where_it_is_off_nothing_is_there(tmp_path):
    async with running(tmp_path, a2a__enabled=False) as node, client_of(node.admin_port) as http:
        for path in ("/.well-known/agent-card.json", "/.well-known/ai-catalog.json", "/a2a", "/a2a/tasks"):
            assert (await http.get(path)).status_code == 404


async def test_API_3_where_the_extra_is_missing_it_is_said(http: httpx.AsyncClient, monkeypatch):
    monkeypatch.setattr("reach.a2a.door.is_installed", lambda: False)
    answer = await http.get("/.well-known/agent-card.json")
    assert answer.status_code == 501
    assert "agentreach[a2a]" in answer.json()["detail"]
