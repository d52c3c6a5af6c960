"""The paths that users of such layers know, with the one envelope of DLV-12 and the rows of REG-9 (API-2)."""

import asyncio

import pytest

from tests.http.test_api import is_problem
from tests.rpc.peers import unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

ENVELOPE = {
    "protocol_version", "task_id", "status", "data", "executed_intent", "agent_id", "instance_id", "attempts",
    "timings", "error",
}  # fmt: skip
ROW = {
    "reach_score", "probe_status", "last_heartbeat", "last_probe_error", "load", "slots", "health", "availability",
    "conditions",
}  # fmt: skip


async def test_DLV_12_a_task_has_one_envelope_before_and_after_its_end(http, agent):
    agent_id, task_id = unique("agent"), unique("task")
    await agent.join(agent_id, tags=["eu"])
    body = {"task_id": task_id, "agent_id": agent_id, "tags": ["eu"], "payload": {"text": 1}, "timeout_ms": 1500}
    given = (await http.post("/task/dispatch", json={**body, "protocol_version": "1", "labels": {"a": "b"}})).json()
    assert given.keys() == ENVELOPE | {"deduplicated", "warnings"}
    assert (given["task_id"], given["data"], given["error"]) == (task_id, {"agent_output": None}, None)
    offer = await agent.next("offers")
    assert offer.task.payload.text == '{"text":1}'  # any JSON is content
    assert offer.start_to_close.ToMilliseconds() == 1500
    running = (await http.get(f"/task/{task_id}")).json()
    assert running.keys() == ENVELOPE | {"pending_reason"}
    output = {"text": '{"sum": 3}', "media_type": "application/json"}
    await agent.finish(offer, output=output, executed_intent="add")
    told = (await http.get(f"/task/{task_id}")).json()
    assert told.keys() == ENVELOPE | {"pending_reason"}
    assert (told["status"], told["data"], told["protocol_version"]) == ("SUCCEEDED", {"agent_output": {"sum": 3}}, "1")
    assert (told["agent_id"], told["instance_id"], told["attempts"]) == (agent_id, agent.instance_id, 1)
    assert told["executed_intent"] == "add"
    assert told["timings"].keys() == {"queued_ms", "ran_ms"}


async def test_DLV_12_a_failure_is_in_the_envelope(http, agent):
    agent_id = unique("agent")
    await agent.join(agent_id)
    body = {"agent_id": agent_id, "payload": "hello", "wait_ms": 10_000}
    asked = asyncio.ensure_future(http.post("/task/dispatch", json=body, headers={"idempotency-key": unique("key")}))
    offer = await agent.next("offers")
    assert offer.task.payload.text == "hello"
    error = {"error_class": "ERROR_CLASS_AGENT_ERROR", "reason": "ERROR_REASON_AGENT_FAILED", "message": "no funds"}
    await agent.finish(offer, error=error)
    told = (await asked).json()
    assert (told["status"], told["error"]["message"], told["error"]["reason"]) == (
        "FAILED",
        "no funds",
        "ERROR_REASON_AGENT_FAILED",
    )


@pytest.mark.parametrize("media_type", ["application/json", "text/plain", "application/x+json; charset=utf-8"])
async def test_what_only_says_that_it_is_json_is_told_as_text(http, agent, media_type):
    agent_id = unique("agent")
    await agent.join(agent_id)
    task_id = (await http.post("/task/dispatch", json={"agent_id": agent_id, "payload": 1})).json()["task_id"]
    await agent.finish(await agent.next("offers"), output={"text": "{raw\nline", "media_type": media_type})
    assert (await http.get(f"/task/{task_id}")).json()["data"] == {"agent_output": "{raw\nline"}


@pytest.mark.parametrize("path", ["/agent/register", "/registry/register"])
async def test_REG_9_agents_register_are_listed_as_rows_and_go(http, path):
    agent_id = unique("known")
    body = {
        "agent_id": agent_id,
        "instance_id": agent_id,
        "capabilities": ["summarization", {"name": "translation", "version": "2"}],
        "tags": ["eu"],
        "max_concurrency": 4,
    }
    joined = (await http.post(path, json=body)).json()
    assert (joined["instance_id"], joined["generation"]) == (agent_id, "1")
    again = (await http.post(path, json=body)).json()
    assert again["generation"] == "1"
    page = (await http.get("/api/v1/agents", params={"agent_id": agent_id})).json()
    (row,) = page["agents"]
    assert row.keys() >= ROW
    assert row["slots"] == {"used": 0, "free": 4, "max": 4}
    assert row["capabilities"] == ["summarization", "translation"]
    assert row["health"] in ("STARTING", "HEALTHY")
    assert page["next_page_token"] == ""
    assert (await http.post("/agent/offline", json={"agent_id": agent_id})).json() == {"instance_ids": [agent_id]}
    gone = await http.post("/agent/offline", json={"agent_id": agent_id, "instance_id": agent_id})
    assert (gone.status_code, gone.json()) == (200, {})
    assert (await http.get("/api/v1/agents", params={"agent_id": agent_id})).json()["agents"] == []


async def test_an_agent_reports_what_it_does(http, agent):
    agent_id = unique("agent")
    await agent.join(agent_id)
    task_id = (await http.post("/task/dispatch", json={"agent_id": agent_id, "payload": 1})).json()["task_id"]
    offer = await agent.next("offers")
    await agent.accept(offer)
    who = {"instance_id": agent.instance_id, "boot_id": agent.boot_id, "task_id": task_id, "attempt": offer.attempt}
    for said in ({"progress": {"fraction": 0.5, "note": "half"}}, {"delta": "a piece", "attempt_sequence": 1}):
        answer = await http.post("/events/report", json={**who, **said})
        assert (answer.status_code, answer.json().get("refusals", [])) == (200, []), said
    assert (await http.post("/events/report", json={**who, "result": {"sum": 3}})).status_code == 200
    told = (await http.get(f"/task/{task_id}")).json()
    assert (told["status"], told["data"]) == ("SUCCEEDED", {"agent_output": {"sum": 3}})

    failing = (await http.post("/task/dispatch", json={"agent_id": agent_id, "payload": 1})).json()["task_id"]
    await agent.next("offers")
    assert (await http.post("/events/report", json={**who, "task_id": failing, "error": "cannot"})).status_code == 200
    told = (await http.get(f"/task/{failing}")).json()
    assert (told["status"], told["error"]["message"]) == ("FAILED", "cannot")


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/task/dispatch", {"agent": "x"}, "MALFORMED_MESSAGE"),
        ("/task/dispatch", {}, "INVALID_FIELD"),
        ("/task/dispatch", {"agent_id": "x", "wait_ms": "long"}, "INVALID_FIELD"),
        ("/task/dispatch", {"agent_id": "x", "timeout_ms": -1}, "INVALID_FIELD"),
        ("/task/dispatch", {"agent_id": "x", "timeout_ms": True}, "INVALID_FIELD"),
        ("/task/dispatch", {"agent_id": "x", "tags": 7}, "MALFORMED_MESSAGE"),
        ("/task/dispatch", [], "MALFORMED_MESSAGE"),
        ("/agent/register", {"capabilities": [7]}, "MALFORMED_MESSAGE"),
        ("/agent/register", {"endpoint": 7}, "MALFORMED_MESSAGE"),
        ("/agent/register", {}, "INVALID_FIELD"),
        ("/agent/offline", {}, "INVALID_FIELD"),
        ("/events/report", {}, "MALFORMED_MESSAGE"),
        ("/events/report", {"result": 1, "error": "x"}, "MALFORMED_MESSAGE"),
        ("/events/report", {"result": 1, "what": 1}, "MALFORMED_MESSAGE"),
        ("/events/report", {"error": 7}, "MALFORMED_MESSAGE"),
        ("/events/report", {"progress": "half"}, "MALFORMED_MESSAGE"),
        ("/events/report", {"result": 1, "attempt": "first"}, "MALFORMED_MESSAGE"),
        ("/events/report", {"result": 1}, "INVALID_FIELD"),
    ],
)
async def test_what_is_wrong_is_a_problem(http, path, body, reason):
    is_problem(await http.post(path, json=body), 400, reason)


@pytest.mark.parametrize(
    ("path", "field", "said"),
    [
        ("/task/dispatch", "agentId", "has no field 'agentId', perhaps 'agent_id': it has agent_id, agent_type, "),
        ("/agent/register", "url", "has no field 'url': it has endpoint, agent_id, "),
    ],
)
async def test_API_2_a_field_that_is_not_known_is_told_with_those_that_are(http, path, field, said):
    told = is_problem(await http.post(path, json={field: "x"}), 400, "MALFORMED_MESSAGE")
    assert said in told["detail"]


async def test_DLV_12_a_task_that_waits_says_what_for(http):
    given = (await http.post("/task/dispatch", json={"agent_id": "nobody", "payload": "x"})).json()
    told = (await http.get(f"/task/{given['task_id']}")).json()
    assert (told["status"], told["pending_reason"]) == ("PENDING", "no_match: no agent 'nobody' is registered")


async def test_API_2_a_selector_counts_beside_what_is_given_flat(http, agent):
    agent_id = unique("agent")
    await agent.join(agent_id)
    body = {"selector": {"agent_id": agent_id}, "agent_type": agent_id, "payload": "x"}
    assert (await http.post("/task/dispatch", json=body)).status_code == 200
    assert (await agent.next("offers")).task.selector.agent_id == agent_id
    is_problem(await http.post("/task/dispatch", json={**body, "selector": [1]}), 400, "MALFORMED_MESSAGE")


async def test_API_4_another_version_of_the_envelope_is_refused_in_words(http):
    body = {"agent_id": "x", "payload": 1, "protocol_version": "9"}
    told = is_problem(await http.post("/task/dispatch", json=body), 409, "VERSION_NOT_SUPPORTED")
    assert "'9'" in told["detail"]


async def test_other_verbs_and_ids_are_told_as_anywhere(http):
    is_problem(await http.get("/task/dispatch"), 404, "TASK_NOT_FOUND")  # an id like any other
    is_problem(await http.delete("/task/x"), 405, "NOT_IMPLEMENTED")
    answer = await http.get("/agent/register")
    assert "takes POST" in is_problem(answer, 405, "NOT_IMPLEMENTED")["detail"]
    assert answer.headers["allow"] == "POST"
    is_problem(await http.get("/api/v1/agents", params={"x": 1}), 400, "INVALID_FIELD")
