"""Every path × (no credential, a wrong one, a wrong scope, another tenant): refused, and what is not yours answers
exactly as what is not there (G4, G9, GOV-1, GOV-2)."""

import itertools
import json
from typing import Any

import pytest

from reach.http.app import create_app
from reach.http.known import KNOWN
from reach.http.routes import ROWS, UNROUTED
from reach.rpc.access import TABLE
from tests.http.conftest import client_of
from tests.http.sse_reader import events_of
from tests.http.test_api import is_problem
from tests.rpc.peers import running
from tests.rpc.tenancy import ALL, LISTS, NAMING, NOBODYS, OWN, belongings

WITH_KEYS = True
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

FILLED = {"instance_id": "i", "task_id": "t", "key_id": "k", "node_id": "n"}
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.verb} {row.path}")


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


OPEN = {"/healthz", "/livez", "/readyz", "/openapi.json", "/docs"}
"""Paths that say nothing of anybody."""
ELSEWHERE = {"/v1", "/v1/ws", "/metrics", "/.well-known/agent-card.json", "/.well-known/ai-catalog.json", "/a2a"}
"""Paths with tests of their own: rows of `/v1` are below, the socket is in test_socket_keys.py, A2A in tests/a2a."""


async def test_every_path_that_is_served_has_a_place_here(tmp_path, monkeypatch):
    """A new one is to be put into a table of `tests/rpc/tenancy.py`, or above, with a test."""
    served = []

    def seen(*arguments, **named):
        served.append(create_app(*arguments, **named))
        return served[0]

    monkeypatch.setattr("reach.config.parts.create_app", seen)
    async with running(tmp_path, server__auth="keys"):
        paths = {route.path for route in served[0].routes}  # type: ignore[attr-defined]
    assert paths - OPEN - ELSEWHERE == {known.path for known in KNOWN}
    assert {row.rpc for row in ROWS} | set(UNROUTED) == {*NAMING, *LISTS, *OWN}
    assert {rpc for known in KNOWN for rpc in known.rpcs} <= {row.rpc for row in ROWS}


def asked(row, fields):
    """A request with these fields as the path, the query and the body have it; None: it is not for this path."""
    rest, steps = json.loads(json.dumps(fields)), []
    for step in row.steps:
        if step.startswith("{"):
            *above, name = step[1:-1].split(".")
            inner = rest
            for one in above:
                inner = inner.get(one, {})
            if name not in inner:
                return None
            steps.append(inner.pop(name))
        else:
            steps.append(step)
    path = "/v1/" + "/".join(steps)
    if row.has_body:
        return {"method": row.verb, "url": path, "json": rest}
    flat: dict[str, Any] = {}
    for name, value in rest.items():
        flat |= {f"{name}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    return {"method": row.verb, "url": path, "params": flat}


async def answer_to(http, request, most=0):
    """Status, reason, and what is said without what differs each time."""
    async with http.stream(**request) as answer:
        if answer.headers["content-type"].startswith("text/event-stream"):
            told = []
            async for event in events_of(answer):
                told.append(event.data)
                if len(told) == most:
                    break
            return answer.status_code, "", json.dumps(told)
        await answer.aread()
    fields = answer.json() if answer.content else {}
    fields.pop("traceId", None)
    return answer.status_code, fields.get("reason", ""), json.dumps(fields)


async def test_G4_P11_whatever_names_another_tenants_is_answered_as_what_nobody_has(node, keys, stubs):
    tried = set()
    async with door(node, keys, "acme") as own, door(node, keys, "rival") as rival, belongings(stubs, keys) as acme:
        for row, (kind, ids) in itertools.product(ROWS, acme.of.items()):
            for fields in NAMING.get(row.rpc, ()):
                foreign, nobodys = asked(row, ids.put(fields)), asked(row, NOBODYS.put(fields))
                if foreign is None:
                    continue
                tried.add(row.rpc)
                answers = await answer_to(rival, foreign), await answer_to(rival, nobodys)
                assert ids.masked(answers[0][2]) == NOBODYS.masked(answers[1][2]), (row, kind)
                assert answers[0][:2] == answers[1][:2], (row, kind)
            if row.rpc in LISTS:
                request = asked(row, LISTS[row.rpc])
                if request is None:
                    continue
                assert "acme" not in (await answer_to(rival, request, 1))[2], row
                told = await answer_to(own, request, 1)
                assert "acme" in told[2] or row.rpc == "OpsService/ListFailedWebhooks", row
                tried.add(row.rpc)
        assert tried == {*NAMING, *LISTS}
        running = acme.of["running"]
        foreign, nobodys = [await rival.get(f"/task/{one.task_id}") for one in (running, NOBODYS)]
        assert foreign.status_code == nobodys.status_code == 404
        assert running.masked(foreign.json()["detail"]) == NOBODYS.masked(nobodys.json()["detail"])
        assert (await rival.get("/api/v1/agents")).json()["agents"] == []
        gone = await rival.post("/agent/offline", json={"instance_id": running.instance_id})
        is_problem(gone, 404, "AGENT_NOT_FOUND")
        assert (await own.get(f"/v1/tasks/{running.task_id}")).json()["task"]["state"] == "TASK_STATE_RUNNING"
        found = (await own.get(f"/v1/agents/{running.instance_id}")).json()["agent"]
        assert not found.get("blockedBy")


async def test_a_key_cannot_be_ended_by_another_tenant(node, keys):
    async with door(node, keys, "acme") as acme, door(node, keys, "rival") as rival:
        made = (await acme.post("/v1/keys", json={"app_id": "a", "scopes": ["reader"]})).json()
        key_id = made["key"]["keyId"]
        answers = [await rival.delete(f"/v1/keys/{one}") for one in (key_id, "nobody")]
        assert answers[0].status_code == answers[1].status_code >= 400
        async with client_of(node.admin_port, headers={"authorization": f"Bearer {made['secret']}"}) as http:
            assert (await http.get("/v1/server")).status_code == 200
        assert (await acme.delete(f"/v1/keys/{key_id}")).status_code == 200
