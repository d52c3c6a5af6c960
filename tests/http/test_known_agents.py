"""Agents that know nothing but plain HTTP, and register by the known path without a `boot_id` (API-2, REG-6, REG-2)."""

import pytest

from tests.http.conftest import client_of
from tests.rpc.peers import AgentByHand, Stubs, running, unique
from tests.transports.endpoint_agent import eventually
from tests.transports.http_agent import HttpAgent, answer, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


async def register(http, agent, **fields):
    body = {"agent_id": agent.agent_id, "endpoint": f"http://127.0.0.1:{agent.port}/ask", "max_concurrency": 2}
    told = await http.post("/agent/register", json={**body, **fields})
    assert told.status_code == 200, told.text
    return told.json()


async def dispatch(http, agent, **fields):
    body = {"agent_id": agent.agent_id, "payload": "x", "timeout_ms": 60_000, **fields}
    return (await http.post("/task/dispatch", json=body)).json()


async def status(http, task_id):
    return (await http.get(f"/task/{task_id}")).json()


async def ended(http, task_id):
    told = await status(http, task_id)
    return told if told["status"] in ("SUCCEEDED", "FAILED", "DEAD_LETTERED") else None


async def rows(http, agent):
    told = (await http.get("/api/v1/agents")).json()["agents"]
    return [row for row in told if row["agent_id"] == agent.agent_id]


async def accepted(agent, heard):
    return answer("", "202 Accepted")


async def test_API_2_it_registers_is_asked_and_reports(http):
    agent = HttpAgent(slow=accepted)
    async with serving(agent):
        told = await register(http, agent)
        assert told["instance_id"] == f"{agent.agent_id}@127.0.0.1:{agent.port}"
        done = await dispatch(http, agent, wait_ms=5_000)
        assert (done["status"], done["data"]) == ("SUCCEEDED", {"agent_output": "done"})
        task_id = (await dispatch(http, agent, method="slow"))["task_id"]
        asked = await eventually(lambda: [one.said for one in agent.asked if one.said["method"] == "slow"])
        report = asked[0]["report"]
        body = {"task_id": task_id, "attempt": asked[0]["attempt"], "instance_id": report["instance_id"], "result": [1]}
        assert (await http.post(report["path"], json=body)).status_code == 200
        assert (await status(http, task_id))["data"] == {"agent_output": [1]}


async def test_REG_2_a_restart_is_the_same_instance_also_after_it_went_offline(http):
    agent = HttpAgent()
    async with serving(agent):
        first = await register(http, agent)
        again = await register(http, agent)
        assert (first["instance_id"], first["generation"]) == (again["instance_id"], again["generation"])
        assert len(await rows(http, agent)) == 1
        gone = await http.post("/agent/offline", json={"instance_id": first["instance_id"]})
        assert gone.status_code == 200
        await register(http, agent)
        assert (await dispatch(http, agent, wait_ms=5_000))["status"] == "SUCCEEDED"


async def test_HLT_4_a_restart_that_its_health_tells_of_gives_its_work_to_the_next(http):
    agent = HttpAgent(slow=accepted)
    agent.health = answer({"status": "ok", "boot_id": "first"})
    async with serving(agent):
        await register(http, agent)
        task_id = (await dispatch(http, agent, method="slow"))["task_id"]
        await eventually(lambda: agent.asked)
        agent.acts.clear()
        agent.health = answer({"status": "ok", "boot_id": "second"})
        await register(http, agent)
        told = await eventually(lambda: ended(http, task_id))
        assert (told["status"], told["attempts"]) == ("SUCCEEDED", 2)


async def test_REG_2_an_agent_that_comes_to_say_its_process_and_then_does_not(http):
    agent = HttpAgent()
    instance_id = unique("instance")
    async with serving(agent):
        await register(http, agent, instance_id=instance_id)
        await register(http, agent, instance_id=instance_id, boot_id="b1")
        await register(http, agent, instance_id=instance_id)
        assert (await dispatch(http, agent, wait_ms=5_000))["status"] == "SUCCEEDED"


async def test_API_2_REG_9_a_row_says_how_an_instance_is_and_what_is_wrong_with_it(tmp_path):
    quick = {"health__slow_start": 0, "probe__interval": 0.2, "probe__retry_interval": 0.1, "probe__timeout": 0.5}
    agent = HttpAgent(slow=accepted)
    async with running(tmp_path, **quick) as node, client_of(node.admin_port) as http, Stubs(node.port) as stubs:

        async def row():
            (found,) = await rows(http, agent)
            return found

        async with serving(agent) as server:
            await register(http, agent)
            await dispatch(http, agent, method="slow")
            well = await eventually(lambda: with_probe(row, "ok"))
            assert (well["health"], well["availability"], well["conditions"]) == ("HEALTHY", "READY", [])
            assert (well["slots"], well["load"]) == ({"used": 1, "free": 1, "max": 2}, 0.5)
            assert (well["last_probe_error"], well["reach_score"]) == ("", pytest.approx(100, abs=5))
            server.close()
        sick = await eventually(lambda: with_probe(row, "unreachable"))
        assert "refused" in sick["last_probe_error"] or "closed" in sick["last_probe_error"], sick["last_probe_error"]
        assert sick["reach_score"] == pytest.approx(80, abs=5), "HLT-11: all of the share of loss is gone"
        assert "UNREACHABLE" in sick["conditions"]
        assert sick["blocked_by"]

        other = AgentByHand(stubs)
        await other.join(unique("beats"))
        (beats,) = (await http.get("/api/v1/agents", params={"agent_id": other.agent_id})).json()["agents"]
        assert 0 <= beats["last_heartbeat"] < 5, "seconds ago"
        await other.close()


async def with_probe(row, status):
    """The row, once its probes say that."""
    found = await row()
    return found if found["probe_status"] == status else None
