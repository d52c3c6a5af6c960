"""Every path × (no credential, a wrong one, a wrong scope, another tenant): refused, and what is not yours answers
exactly as what is not there (G4, G9, GOV-1, GOV-2)."""

from typing import Any

import pytest
import pytest_asyncio

from reach.http.known import KNOWN
from reach.http.routes import ROWS
from reach.rpc.access import TABLE
from reach.store import keys as key_store
from tests.http.conftest import client_of
from tests.http.sse_reader import events_of
from tests.http.test_api import is_problem
from tests.rpc.peers import AgentByHand, Stubs, running, unique
from tests.rpc.test_tenants import ALL, Keys

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

FILLED = {"instance_id": "i", "task_id": "t", "key_id": "k", "node_id": "n"}
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.verb} {row.path}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture(scope="module")
def keys(folder):
    made = Keys(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_store, "_LOOK_EVERY_S", 0)  # the server sees a new key at once
        yield made
    made.store.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(folder, keys):
    async with running(folder, server__auth="keys") as made:
        yield made


def door(node, keys, tenant, *scopes):
    """A client with a key."""
    return client_of(node.admin_port, headers=dict(keys.header(tenant, *scopes)))


def path_of(row, **filled):
    """A path with something in each of its fields."""
    return "/v1/" + "/".join(
        {**FILLED, **filled}.get(step[1:-1].rpartition(".")[2], "x") if step.startswith("{") else step
        for step in row.steps
    )


@EACH_ROW
async def test_G9_no_path_is_open_without_the_right_key(node, keys, row):
    async with client_of(node.admin_port) as http:
        for header in ({}, {"authorization": "Bearer ar_x_y"}, {"authorization": "Basic eDp5"}):
            answer = await http.request(row.verb, path_of(row), headers=header)
            is_problem(answer, 401, "UNAUTHENTICATED")
            assert answer.headers["www-authenticate"] == "Bearer"
    wrong = sorted(set(ALL) - TABLE[row.method].scopes)
    if wrong:
        async with door(node, keys, "acme", *wrong) as http:
            is_problem(await http.request(row.verb, path_of(row)), 403, "PERMISSION_DENIED")


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.path)
async def test_G4_G9_the_known_paths_are_no_way_around(node, keys, known):
    bodies: dict[str, Any] = {
        "/task/dispatch": {"agent_id": "x", "payload": 1},
        "/agent/offline": {"instance_id": "x"},
        "/events/report": {"instance_id": "x", "task_id": "x", "result": 1},
    }
    body: Any = {"json": bodies.get(known.path, {"agent_id": "x", "instance_id": "x"})} if known.verb == "POST" else {}
    path = known.path.replace("{task_id}", "x")
    async with client_of(node.admin_port) as http:
        is_problem(await http.request(known.verb, path, **body), 401, "UNAUTHENTICATED")
    wrong = sorted(set(ALL) - TABLE[f"/agentreach.v1.{known.rpcs[0]}"].scopes)
    async with door(node, keys, "acme", *wrong) as http:
        rpc = "ResultService/ReportResult" if known.path == "/events/report" else known.rpcs[0]
        assert TABLE[f"/agentreach.v1.{rpc}"].scopes.isdisjoint(wrong)
        is_problem(await http.request(known.verb, path, **body), 403, "PERMISSION_DENIED")


async def test_a_key_that_was_revoked_opens_nothing(node, keys):
    header = keys.header("acme", "reader")
    async with client_of(node.admin_port, headers=dict(header)) as http:
        assert (await http.get("/v1/server")).status_code == 200
        keys.revoke(header)
        is_problem(await http.get("/v1/server"), 401, "UNAUTHENTICATED")


async def test_G4_an_id_of_another_tenant_is_an_id_that_nobody_has(node, keys):
    task_id = unique("acme-task")
    async with Stubs(node.port) as stubs, door(node, keys, "acme") as acme, door(node, keys, "rival") as rival:
        agent = AgentByHand(stubs, keys.header("acme"))
        await agent.join("acme-agent")
        spec = {"task_id": task_id, "selector": {"agent_id": "acme-agent"}, "payload": {"text": "secret"}}
        session = {"app_id": "app", "user_id": "u", "session_id": "s"}
        given = await acme.post("/v1/tasks", json={"task": {**spec, "session": session}})
        assert given.status_code == 200
        await agent.accept(await agent.next("offers"))
        mine = {
            "instance_id": agent.instance_id,
            "task_id": task_id,
            "app_id": "app",
            "user_id": "u",
            "session_id": "s",
        }
        none = dict.fromkeys(mine, "nobody")
        asked = 0
        for row in ROWS:
            if not row.filled or "node_id" in row.filled or "key_id" in row.filled:
                continue
            asked += 1
            body = {"json": {"beat": {"boot_id": "b"}} if "heartbeat" in row.path else {}} if row.has_body else {}
            if row.path.endswith("/input"):
                body = {"json": {"payload": {"text": "yes"}}}
            answers = [await rival.request(row.verb, path_of(row, **who), **body) for who in (mine, none)]
            told = [answer.json() for answer in answers]
            assert answers[0].status_code >= 400, row
            assert {one.pop("traceId") for one in told}, row
            text = str(told[0])
            for name, value in mine.items():
                if name in ("task_id", "instance_id"):
                    text = text.replace(value, "nobody")
            if "session" not in row.path:
                assert text == str(told[1]), row
            else:
                assert told[0]["reason"] == told[1]["reason"] == "SESSION_NOT_FOUND"
        assert asked >= 10
        answers = [await rival.get(f"/task/{one}") for one in (task_id, "nobody")]
        assert [one.status_code for one in answers] == [404, 404]
        assert answers[0].json()["detail"].replace(task_id, "nobody") == answers[1].json()["detail"]
        assert (await rival.get("/api/v1/agents")).json()["agents"] == []
        gone = await rival.post("/agent/offline", json={"instance_id": agent.instance_id})
        is_problem(gone, 404, "AGENT_NOT_FOUND")
        for path, rows in (("tasks", "tasks"), ("agents", "agents"), ("sessions", "sessions"), ("keys", "keys")):
            told = (await rival.get(f"/v1/{path}")).json()[rows]
            assert all("acme" not in str(row) for row in told), path
        async with rival.stream("GET", "/v1/watch/agents") as answer:
            assert (await anext(events_of(answer))).data["agents"] == []
        assert (await acme.get(f"/v1/tasks/{task_id}")).json()["task"]["state"] == "TASK_STATE_RUNNING"
        found = (await acme.get(f"/v1/agents/{agent.instance_id}")).json()["agent"]
        assert not found.get("blockedBy")
        await agent.close()


async def test_a_key_cannot_be_ended_by_another_tenant(node, keys):
    async with door(node, keys, "acme") as acme, door(node, keys, "rival") as rival:
        made = (await acme.post("/v1/keys", json={"app_id": "a", "scopes": ["reader"]})).json()
        key_id = made["key"]["keyId"]
        answers = [await rival.delete(f"/v1/keys/{one}") for one in (key_id, "nobody")]
        assert answers[0].status_code == answers[1].status_code >= 400
        async with client_of(node.admin_port, headers={"authorization": f"Bearer {made['secret']}"}) as http:
            assert (await http.get("/v1/server")).status_code == 200
        assert (await acme.delete(f"/v1/keys/{key_id}")).status_code == 200
