"""Messages as JSON: what protobuf's own mapping cannot say is said all the same."""

import json
from contextlib import suppress

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from reach import Agent, AgentError, Task
from reach.errors import InvalidRequest
from reach.http.messages import encode, fill
from reach.http.routes import ROWS
from tests.rpc.nodes import until
from tests.rpc.peers import pb, unique


@pytest.mark.parametrize(
    ("seconds", "nanos", "said"),
    [
        (1, 500_000_000, "1.500s"),
        (1, 1_500_000_000, "2.500s"),
        (0, (1 << 31) - 1, "2.147483647s"),
        (-1, -1_500_000_000, "-2.500s"),
        (1, -1_500_000_000, "-0.500s"),
        (-1, 1_500_000_000, "0.500s"),
        (1 << 62, 0, "315576000000s"),
        (-(1 << 62), 5, "-315576000000s"),
    ],
)
def test_G3_a_duration_that_is_none_is_said_as_the_nearest_one(seconds, nanos, said):
    odd = {"seconds": seconds, "nanos": nanos}
    message = pb.GetTaskResponse(task={"spec": {"start_delay": odd, "retry": {"delays": [{"seconds": 1}, odd]}}})
    before = message.SerializeToString()
    spec = json.loads(encode(message))["task"]["spec"]
    assert (spec["startDelay"], spec["retry"]["delays"]) == (said, ["1s", said])
    assert message.SerializeToString() == before
    json_format.ParseDict({"task": {"spec": spec}}, pb.GetTaskResponse())


@pytest.mark.parametrize(("seconds", "said"), [(1 << 62, "9999-12-31T23:59:59Z"), (-(1 << 62), "0001-01-01T00:00:00Z")])
def test_G3_a_time_beyond_all_years_is_said_as_the_last_one(seconds, said):
    message = pb.GetTaskResponse(task={"accepted_at": {"seconds": seconds}})
    assert json.loads(encode(message))["task"]["acceptedAt"] == said


@pytest.mark.asyncio(loop_scope="module")
async def test_G3_one_odd_task_does_not_spoil_the_list(http, stubs):
    spec = {"task_id": unique("odd"), "selector": {"agent_id": "nobody"}, "payload": {"text": "x"}}
    spec["timeouts"] = {"start_to_close": {"seconds": 1, "nanos": 1_500_000_000}}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec))
    listed = await http.get("/v1/tasks", params={"view": "full"})
    assert [row["spec"]["timeouts"] for row in listed.json()["tasks"]] == [{"startToClose": "2.500s"}]


NAMES = sorted({name for row in ROWS for name in row.request.DESCRIPTOR.fields_by_name})
STEPS = st.sampled_from([*NAMES, "", "labels", "task", "spec", "seconds", "nanos", "text"])


@given(st.sampled_from(ROWS), st.lists(STEPS, max_size=3).map(".".join) | st.text(max_size=8), st.text(max_size=8))
def test_G2_whatever_a_query_says_it_is_taken_or_refused(row, name, value):
    """Also one that has no name."""
    for said in ([(name, value)], [(name, value), (name, value)], [("", value)]):
        with suppress(InvalidRequest):
            fill(row, row.request(), {}, said, "", "")


@pytest.mark.asyncio(loop_scope="module")
async def test_G3_text_of_an_agent_that_utf_8_cannot_say_is_replaced_and_all_else_goes_on(node, http):
    """The words of an error, of a note and of an answer, through the SDK; the same stream has the next task."""
    agent_id = unique("odd")
    agent = Agent(agent_id, addr=f"127.0.0.1:{node.port}", max_concurrency=1)

    @agent.route("fail")
    async def fail(task: Task) -> str:
        task.progress(0.5, "half \udcff")
        raise AgentError(b"broken \xff".decode("utf-8", "surrogateescape") + " \ud800 \0")

    @agent.route("work")
    async def work(task: Task) -> str:
        return "done \ud800"

    async with agent:
        await until(lambda: node.reach.host.of_type(agent_id))
        failed = await run(http, agent_id, "fail")
        assert (failed["state"], failed["attempts"]) == ("TASK_STATE_FAILED", 1)
        assert failed["error"]["reason"] == "ERROR_REASON_AGENT_FAILED"
        said = failed["error"]["message"]
        assert said.startswith("broken ")
        assert not any("\ud800" <= letter <= "\udfff" for letter in said), ascii(said)
        done = await run(http, agent_id, "work")
        assert (done["state"], done["attempts"], done["output"]["text"]) == ("TASK_STATE_SUCCEEDED", 1, "done ?")
        listed = await http.get("/v1/tasks", params={"view": "FULL", "agent_type": agent_id})
        assert listed.status_code == 200
        told = {task["spec"]["method"]: task["result"] for task in listed.json()["tasks"]}
        assert (told["fail"]["error"]["message"], told["work"]["output"]["text"]) == (said, "done ?")
        (row,) = (await http.get("/v1/agents", params={"agent_id": agent_id})).json()["agents"]
        assert row["generation"] == "1", "it never had to come back"


async def run(http, agent_id, method):
    """The outcome of a task."""
    spec = {"selector": {"agent_id": agent_id}, "method": method, "payload": {"text": "x"}}
    answer = await http.post("/v1/tasks", json={"task": spec, "wait": "10s"})
    return answer.json()["result"]
