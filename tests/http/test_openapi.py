"""The OpenAPI document: valid by the schema that the OpenAPI Initiative publishes (tests/golden/openapi-3.1.json,
Apache 2.0), whole, and true of what the server answers."""

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
import pytest_asyncio

from reach.http.known import KNOWN
from reach.http.routes import ROWS
from tests.rpc.peers import unique

pytestmark = pytest.mark.asyncio(loop_scope="module")

META = json.loads((Path(__file__).parents[1] / "golden" / "openapi-3.1.json").read_text())
VERBS = {"get", "post", "delete"}


@pytest_asyncio.fixture(loop_scope="module")
async def document(http):
    answer = await http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def checker(document, name):
    """Compares with a schema of the document."""
    ref = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": f"#/components/schemas/{name}"}
    return jsonschema_rs.validator_for({**ref, "components": document["components"]})


async def test_API_2_the_document_is_valid(document):
    found = [error.message for error in jsonschema_rs.validator_for(META).iter_errors(document)]
    assert found == []
    broken = {**document, "paths": {"no-slash": {}}}
    assert not jsonschema_rs.validator_for(META).is_valid(broken)  # it can say no
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        checker(document, name)  # each reference leads somewhere
    refs = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert refs <= document["components"]["schemas"].keys()


async def test_all_paths_are_in_it_and_each_operation_has_a_name_of_its_own(document):
    listed = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    assert {(row.verb, f"/v1{row.shown}") for row in ROWS} <= listed
    assert {(known.verb, known.path) for known in KNOWN} <= listed
    operations = [one for verbs in document["paths"].values() for verb, one in verbs.items() if verb in VERBS]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names))
    for path, verbs in document["paths"].items():
        for one in verbs.values():
            named = {row["name"] for row in one.get("parameters", ()) if row["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), path
        assert path.count("{") == len(re.findall(r"\{\w+\}", path)), "names with dots"


async def test_it_says_of_each_part_what_the_contract_says(document):
    schemas = document["components"]["schemas"]
    assert schemas["DispatchRequest"]["description"] == "Asks to take a task."
    assert schemas["DispatchRequest"]["properties"]["task"]["description"] == "The task."
    assert "* `TASK_STATE_PENDING`: " in schemas["TaskState"]["description"]
    asked = document["paths"]["/v1/tasks"]["get"]
    assert "Tasks by filter, latest first." in asked["description"]
    sizes = {row["name"]: row["description"] for row in asked["parameters"] if row["in"] == "query"}
    assert sizes["page_size"] == "1 … 1,000; 0: 50."
    silent = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, said in schema.get("properties", {}).items()
        if name != "Problem" and not said.get("description")
    ]
    assert silent == []
    assert all(schema.get("description") for name, schema in schemas.items() if name != "Problem")


async def test_what_it_says_of_answers_is_true(document, http, agent):
    agent_id, task_id = unique("agent"), unique("task")
    await agent.join(agent_id)
    spec = {"task_id": task_id, "selector": {"agent_id": agent_id}, "payload": {"json": {"a": [1]}}}
    assert checker(document, "DispatchRequest").is_valid({"task": {"taskId": "t", "payload": {"json": 1}}})
    assert not checker(document, "DispatchRequest").is_valid({"task": {"taskId": 1}})
    await http.post("/v1/tasks", json={"task": spec})
    await agent.serve(await agent.next("offers"), "done")
    for path, name in (
        (f"/v1/tasks/{task_id}/result", "WaitForResultResponse"),
        (f"/v1/tasks/{task_id}", "GetTaskResponse"),
        (f"/v1/tasks/{task_id}/explanation", "ExplainTaskResponse"),
        ("/v1/tasks?view=full", "ListTasksResponse"),
        ("/v1/agents", "ListAgentsResponse"),
        (f"/v1/agents/{agent.instance_id}", "GetAgentResponse"),
        ("/v1/server", "GetServerInfoResponse"),
        ("/v1/cluster", "GetClusterResponse"),
        ("/v1/tasks/none", "Problem"),
    ):
        answer = (await http.get(path)).json()
        assert [error.message for error in checker(document, name).iter_errors(answer)] == [], path
    assert not checker(document, "Problem").is_valid({})


async def test_the_parameters_that_it_tells_of_are_understood(document, http):
    """Each one by itself: whatever is wrong, it is not that there is no such parameter."""
    for path, verbs in document["paths"].items():
        get = verbs.get("get", {})
        if "watch" in path or not path.startswith("/v1"):
            continue
        for one in get.get("parameters", ()):
            if one["in"] == "query":
                answer = await http.get(re.sub(r"\{[^}]+\}", "x", path), params={one["name"]: ""})
                assert "is no parameter" not in answer.text, (path, one["name"])


async def test_the_page_needs_nothing_from_elsewhere(http):
    answer = await http.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r'<script|<link|<img|src=|url\(|@import|="https?:', answer.text)
    for row in ROWS:
        assert f"/v1{row.shown}</code>" in answer.text
    assert '<td>list of <a href="#Attempt">Attempt</a><br>All attempts, oldest first; the last 16.</td>' in answer.text
    links = set(re.findall(r'href="#([^"]+)"', answer.text))
    assert links <= set(re.findall(r'id="([^"]+)"', answer.text))
