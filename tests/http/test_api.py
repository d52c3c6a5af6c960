"""The JSON door on a real node: what gRPC can do, paths can do (API-2)."""

import asyncio
import json

import pytest

from reach.rpc.access import Admission
from tests.rpc.nodes import until
from tests.rpc.peers import TIMEOUT, pb, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


def is_problem(answer, status, reason):
    """A problem of this kind; its document."""
    told = answer.json()
    assert (answer.status_code, told["reason"]) == (status, reason), told
    assert answer.headers["content-type"] == "application/problem+json"
    assert (told["status"], told["type"]) == (status, f"urn:agentreach:reason:{reason}")
    assert told["title"]
    assert told["detail"]
    return told


async def test_API_2_a_task_from_giving_it_to_its_answer(http, agent):
    agent_id, task_id = unique("agent"), unique("task")
    await agent.join(agent_id)
    body = {
        "task": {
            "task_id": task_id,
            "selector": {"agentId": agent_id},
            "payload": {"json": {"amount": 12, "in": ["€"]}},
            "labels": {"team": "red"},
        },
        "wait": "10s",
    }
    asked = asyncio.ensure_future(http.post("/v1/tasks", json=body))
    offer = await agent.next("offers")
    assert (offer.task.payload.text, offer.task.payload.media_type) == ('{"amount":12,"in":["€"]}', "application/json")
    await agent.serve(offer, "done, with ü")
    answer = await asked
    told = answer.json()
    assert (answer.status_code, told["taskId"], told["state"]) == (200, task_id, "TASK_STATE_SUCCEEDED")
    assert told["result"]["output"] == {"text": "done, with ü", "mediaType": "text/plain"}
    assert told["warnings"] == []
    assert len(answer.headers["x-trace-id"]) == 32
    assert answer.headers["cache-control"] == "no-store"

    one = (await http.get(f"/v1/tasks/{task_id}")).json()["task"]
    assert one["spec"]["payload"]["text"] == '{"amount":12,"in":["€"]}'
    short = (await http.get(f"/v1/tasks/{task_id}", params={"view": "basic"})).json()["task"]
    assert "payload" not in short["spec"]
    result = (await http.get(f"/v1/tasks/{task_id}/result", params={"timeout": "5"})).json()["result"]
    assert result["output"]["text"] == "done, with ü"
    story = (await http.get(f"/v1/tasks/{task_id}/explanation")).json()
    assert story["story"]
    listed = await http.get("/v1/tasks", params={"states": "SUCCEEDED", "labels.team": "red", "agent_type": agent_id})
    assert [row["spec"]["taskId"] for row in listed.json()["tasks"]] == [task_id]
    none = await http.get("/v1/tasks", params={"states": ["FAILED", "CANCELLED"], "labels.team": "red"})
    assert none.json()["tasks"] == []


async def test_DLV_3_an_idempotency_key_is_the_id_of_the_task(http):
    key = unique("key")
    body = {"task": {"selector": {"agent_id": "nobody"}, "payload": {"text": "x"}}}
    answers = [(await http.post("/v1/tasks", json=body, headers={"idempotency-key": key})).json() for _ in range(2)]
    assert [one["taskId"] for one in answers] == [key, key]
    assert [one.get("deduplicated", False) for one in answers] == [False, True]
    other = {"task": {"selector": {"agent_id": "nobody"}, "payload": {"text": "y"}}}
    is_problem(await http.post("/v1/tasks", json=other, headers={"idempotency-key": key}), 409, "TASK_ID_REUSED")
    named = {"task": {**body["task"], "task_id": unique("named")}}
    answer = (await http.post("/v1/tasks", json=named, headers={"idempotency-key": key})).json()
    assert answer["taskId"] == named["task"]["task_id"]  # the request says it itself
    cancelled = (await http.post(f"/v1/tasks/{key}/cancel")).json()
    assert cancelled["state"] == "TASK_STATE_CANCELLED"


async def test_agents_over_http_register_beat_drain_and_go(http):
    agent_id = unique("by-http")
    registration = {"agent_id": agent_id, "instance_id": f"{agent_id}/1", "boot_id": "b", "max_concurrency": 3}
    joined = (await http.post("/v1/agents", json={"registration": registration})).json()
    assert (joined["instanceId"], joined["generation"]) == (f"{agent_id}/1", "1")
    path = f"/v1/agents/{agent_id}%2F1"  # a slash in an id
    beat = await http.post(f"{path}/heartbeat", json={"beat": {"boot_id": "b", "status": {"ready": True}}})
    assert beat.json() == {"nextIn": "5s"}
    agent = (await http.get(path)).json()["agent"]
    assert agent["registration"]["maxConcurrency"] == 3
    assert agent["reachScore"] >= 0
    listed = (await http.get("/v1/agents", params={"agent_id": agent_id, "pageSize": 1})).json()
    assert [row["registration"]["instanceId"] for row in listed["agents"]] == [f"{agent_id}/1"]
    assert (await http.post(f"{path}/drain", json={"deadline": "1s"})).json()["instanceIds"] == [f"{agent_id}/1"]
    assert (await http.post("/v1/drains", json={"agentId": agent_id, "undo": True})).status_code == 200
    assert (await http.delete(path, params={"boot_id": "b"})).json() == {}
    is_problem(await http.get(path), 404, "AGENT_NOT_FOUND")


async def test_pages_follow_each_other(http):
    agent_type = unique("many")
    for number in range(5):
        row = {"agent_id": f"{agent_type}-{number}", "agent_type": agent_type, "instance_id": f"{agent_type}-{number}"}
        assert (await http.post("/v1/agents", json={"registration": {**row, "boot_id": "b"}})).status_code == 200
    seen, token = [], ""
    while True:
        params = {"agent_type": agent_type, "page_size": "2", "page_token": token}
        page = (await http.get("/v1/agents", params=params)).json()
        seen += [row["registration"]["instanceId"] for row in page["agents"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert seen == [f"{agent_type}-{number}" for number in range(5)]


async def test_what_is_asked_is_answered_as_over_grpc(http, stubs):
    """One of each that only looks: the same message, whichever door it comes through."""
    info = (await http.get("/v1/server")).json()
    assert info["nodeId"] == (await stubs.ops.GetServerInfo(pb.GetServerInfoRequest())).node_id
    assert info["principal"]["tenant"] == "default"
    for path in ("node", "cluster", "sessions", "dead-letters", "failed-webhooks"):
        assert (await http.get(f"/v1/{path}")).status_code == 200, path
    preview = await http.post("/v1/routes/preview", json={"task": {"selector": {"agent_id": "nobody"}}})
    assert preview.json()["refusal"]["reason"] == "ERROR_REASON_NO_MATCHING_AGENT"
    is_problem(await http.get("/v1/sessions/app/user/none"), 404, "SESSION_NOT_FOUND")
    is_problem(await http.post("/v1/cluster/rebalance"), 409, "WRONG_STATE")
    assert (await http.post("/v1/dead-letters/purge", json={"task_ids": ["none"]})).json() == {}


@pytest.mark.parametrize(
    ("verb", "path", "status", "reason", "said"),
    [
        ("GET", "/v1/tasks/none", 404, "TASK_NOT_FOUND", "none"),
        ("GET", "/v1/tasks?page_size=1001", 400, "INVALID_FIELD", "page_size"),
        ("GET", "/v1/tasks?states=NEVER", 400, "INVALID_FIELD", "states must be one of TASK_STATE_PENDING, "),
        ("GET", "/v1/tasks?page_size=x", 400, "INVALID_FIELD", "page_size must be a whole number"),
        ("GET", "/v1/tasks/none/result?timeout=soon", 400, "INVALID_FIELD", "timeout must be a duration in seconds"),
        ("GET", "/v1/tasks?page_size=1&page_size=2", 400, "INVALID_FIELD", "more than once"),
        ("GET", "/v1/tasks?sates=FAILED", 400, "INVALID_FIELD", "sates"),
        ("GET", "/v1/tasks?view.x=1", 400, "INVALID_FIELD", "view.x"),
        ("GET", "/v1/tasks?%ff=1", 400, "MALFORMED_MESSAGE", "UTF-8"),
        ("GET", "/v1/tasks/a?task_id=b", 400, "INVALID_FIELD", "path"),
        ("GET", "/v1/tasks?" + "&".join(["states=FAILED"] * 300), 400, "INVALID_FIELD", "256"),
        ("GET", "/v1/nothing", 404, "NOT_IMPLEMENTED", "path"),
        ("GET", "/v1", 404, "NOT_IMPLEMENTED", "path"),
        ("GET", "/nothing", 404, "NOT_IMPLEMENTED", "/docs"),
        ("PUT", "/v1/tasks", 405, "NOT_IMPLEMENTED", "GET, POST"),
        ("GET", "/v1/tasks/none/result?timeout=0.1", 404, "TASK_NOT_FOUND", "none"),
    ],
)
async def test_API_2_errors_are_problems(http, verb, path, status, reason, said):
    answer = await http.request(verb, path, follow_redirects=True)
    told = is_problem(answer, status, reason)
    assert said in told["detail"]
    assert told["retryable"] is False
    assert told["class"] == "INVALID_REQUEST"


async def test_what_may_be_tried_again_says_when(http, node):
    node.reach.stopping = True
    try:
        body = {"task": {"selector": {"agent_id": "nobody"}, "payload": {"text": "x"}}}
        answer = await http.post("/v1/tasks", json=body)
    finally:
        node.reach.stopping = False
    told = is_problem(answer, 503, "SHUTTING_DOWN")
    assert (told["retryable"], told["retryAfterMs"], answer.headers["retry-after"]) == (True, 1000, "1")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "a JSON object"),
        (b'"x"', "a JSON object"),
        (b'{"task": {"payload": {"text": "raw\nline"}}}', "byte"),
        (b'{"task": {"payload": {"text": "\xff"}}}', "not JSON"),
        (b'{"task": {"payload": {"text": "\\ud800"}}}', ""),
        (b'{"task": [1]}', "no DispatchRequest: task must be an object with taskId, "),
        (b'{"task": null, "x": 1}', "has no field 'x': it has task, wait"),
        (b'{"task": {"selector": {"agent": "a"}}}', "task.selector has no field 'agent', perhaps 'agentId': it has "),
        (b'{"task": {"payload": "hello"}}', "task.payload must be an object with json, data, text, mediaType, such as"),
        (b'{"task": {"attachments": {}}}', "task.attachments must be a list"),
        (b'{"task": {"effects": "some"}}', "task.effects is 'some': it must be one of EFFECTS_"),
        (b'{"task": {"taskId": 7}}', "task.taskId must be text"),
        (b'{"wait": 10}', 'wait must be a duration in seconds, as text: "1.5s"'),
        (b'{"task": {"priority": "many"}}', "task.priority must be a whole number"),
        (b'{"task": {"payload": {"json": 1, "text": "2"}}}', "one of"),
        (b'{"task": {"payload": {"json": 1, "data": "2"}}}', "one of"),
        (b'{"task": {"payload": {"data": 1}}}', ""),
        (b'{"wait": "soon"}', "wait must be a duration"),
        (b'{"wait": 1e400}', ""),
        (b'{"task": {"priority": 1e400}}', ""),
        (b'{"task": {"labels": {"a": {}}}}', ""),
        (b'{"task":' * 90 + b"1" + b"}" * 90, ""),
        (b"[" * 100_000, "deep"),
        (b'{"task":' * 100_000, "deep"),
        (b'{"task": {"payload": {"json": ' + b"[" * 5_000 + b"]" * 5_000 + b"}}}", "deep"),
    ],
)
async def test_G1_G2_a_body_that_is_wrong_is_the_callers_mistake(http, body, said):
    told = is_problem(await http.post("/v1/tasks", content=body), 400, "MALFORMED_MESSAGE")
    assert said in told["detail"]
    assert len(told["detail"]) < 1_000


async def test_GOV_5_bodies_have_a_limit_told_or_not(http, node):
    limit = 2 * node.config.server.payload_limit + (1 << 20)

    async def pieces():
        for _ in range(limit // 65_536 + 2):
            yield b" " * 65_536

    for content in (b" " * (limit + 1), pieces()):
        told = is_problem(await http.post("/v1/tasks", content=content), 413, "PAYLOAD_TOO_LARGE")
        assert told["metadata"]["limit"] == str(limit)
    big = {"task": {"selector": {"agent_id": "x"}, "payload": {"text": "x" * (node.config.server.payload_limit + 1)}}}
    is_problem(await http.post("/v1/tasks", json=big), 413, "PAYLOAD_TOO_LARGE")
    packed = await http.post("/v1/tasks", content=b"x", headers={"content-encoding": "gzip"})
    is_problem(packed, 415, "MALFORMED_MESSAGE")


async def test_GOV_5_headers_have_a_limit(http):
    reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 40_000)
    async with asyncio.timeout(TIMEOUT):
        head, _, body = (await reader.read(65_536)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431")
    assert json.loads(body)["reason"] == "MALFORMED_MESSAGE"
    writer.close()


async def test_a_page_of_another_site_cannot_act_here(http):
    answer = await http.post("/v1/keys", json={}, headers={"origin": "https://evil.example"})
    is_problem(answer, 403, "PERMISSION_DENIED")
    own = await http.post("/v1/routes/preview", json={}, headers={"origin": str(http.base_url).rstrip("/")})
    assert own.status_code != 403


async def test_a_caller_that_goes_does_not_wait_any_more(http, node):
    body = {"task": {"task_id": unique("left"), "selector": {"agent_id": "nobody"}, "payload": {"text": "x"}}}
    await http.post("/v1/tasks", json=body)
    asked = asyncio.ensure_future(http.get(f"/v1/tasks/{body['task']['task_id']}/result"))
    gate = node._grpc.entrance.gates[Admission.STREAMS]
    await until(lambda: gate.held == 1)
    asked.cancel()
    await until(lambda: gate.held == 0)


async def test_RTE_13_decisions_are_a_resource(http, agent):
    agent_id, task_id = unique("agent"), unique("task")
    await agent.join(agent_id)
    body = {"task": {"task_id": task_id, "selector": {"agentId": agent_id}, "payload": {"text": "x"}}}
    await http.post("/v1/tasks", json=body)
    await agent.serve(await agent.next("offers"), "done")
    (one,) = (await http.get(f"/v1/tasks/{task_id}/decisions")).json()["decisions"]
    assert (one["taskId"], one["attempt"]) == (task_id, 1)
    assert one["decision"]["chosenInstanceId"] == agent.instance_id
    assert one["decision"]["cause"] == "new"
    many = (await http.get("/v1/decisions", params={"agent_type": agent_id, "page_size": 10})).json()
    assert many["decisions"] == [one]
    is_problem(await http.get("/v1/tasks/none/decisions"), 404, "TASK_NOT_FOUND")
