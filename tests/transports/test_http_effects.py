"""Agents over HTTP: effects, questions, TLS, and who hangs (DLV-7, DLV-1, GOV-2, HLT-3)."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from agentreach.v1 import task_pb2
from tests.rpc.certificates import Authority
from tests.rpc.peers import Stubs, pb, reason_name, running, unique
from tests.transports.endpoint_agent import eventually
from tests.transports.http_agent import Heard, HttpAgent, answer, serving
from tests.transports.test_http_agents import ask, fixed, given, result_of, row_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED


@pytest.mark.parametrize(
    ("raw", "certain"),
    [
        (answer("", "429 Too Many Requests"), True),
        (answer("", "503 Service Unavailable", retry_after="1"), True),
        (answer("", "401 Unauthorized"), True),
        (answer("", "503 Service Unavailable"), False),  # proxies say the same of a connection that breaks
        (answer("", "502 Bad Gateway"), False),
        (b"", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", False),
    ],
)
async def test_DLV_7_only_a_refusal_takes_the_grant_of_an_irreversible_task_back(
    stubs: Stubs, raw: bytes, certain: bool
):
    first, second = HttpAgent(do=fixed(raw)), HttpAgent()
    second.agent_type = first.agent_type
    async with serving(first), serving(second):
        await first.register(stubs, priority=9)
        asked = asyncio.create_task(ask(stubs, first, "do", effects="EFFECTS_IRREVERSIBLE", retry={}))
        await eventually(lambda: first.asked)
        await second.register(stubs)
        result = await asked
        if certain:
            assert (result.state, result.instance_id) == (SUCCEEDED, second.instance_id)
        else:
            assert reason_name(result.error) == "OUTCOME_UNKNOWN"
            assert not second.asked


async def test_DLV_7_who_refuses_connections_has_begun_nothing(stubs: Stubs):
    gone, other = HttpAgent(), HttpAgent()
    other.agent_type = gone.agent_type
    async with serving(other):
        async with serving(gone) as server:
            await gone.register(stubs, priority=9)
            server.close()
        asked = asyncio.create_task(ask(stubs, gone, effects="EFFECTS_IRREVERSIBLE", retry={}))
        await asyncio.sleep(0.05)
        await other.register(stubs)
        result = await asked
        assert (result.state, result.instance_id) == (SUCCEEDED, other.instance_id)


async def test_DLV_1_an_agent_asks_and_is_posted_the_answer(stubs: Stubs):
    async def act(agent: HttpAgent, heard: Heard) -> bytes:
        said = heard.said
        if "inputs" not in said:
            return answer({"waiting": {"prompt": {"which": "card"}, "question": "card"}})
        assert said["attempt"] == 1
        return answer({"result": said["inputs"][0]["payload"]})

    agent = HttpAgent(buy=act)
    async with serving(agent):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "buy")
        await eventually(lambda: _waits(stubs, task_id))
        payload = {"text": '{"card": 7}', "media_type": "application/json"}
        await stubs.dispatch.SendInput(
            pb.SendInputRequest(task_id=task_id, input_id=unique("input"), payload=payload), timeout=5
        )
        done = await result_of(stubs, task_id)
        assert (done.output.text, len(agent.asked)) == ('{"card":7}', 2)


async def _waits(stubs: Stubs, task_id: str) -> bool:
    task = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=5)).task
    return bool(task.state == task_pb2.TASK_STATE_WAITING)


async def test_HLT_3_whose_health_hangs_is_unreachable_and_comes_back(stubs: Stubs):
    agent = HttpAgent()
    async with serving(agent):
        await agent.register(stubs)
        good, agent.health = agent.health, None
        await eventually(lambda: _probed(stubs, agent, "unreachable"))
        assert "no answer in time" in (await row_of(stubs, agent)).last_probe_error
        agent.health = good
        await eventually(lambda: _probed(stubs, agent, "ok"))
        assert (await ask(stubs, agent)).output.text == "done"


async def _probed(stubs: Stubs, agent: HttpAgent, status: str) -> bool:
    return bool((await row_of(stubs, agent)).probe_status == status)


async def test_HLT_3_work_does_not_take_the_connections_of_probes(stubs: Stubs):
    gate = asyncio.Event()

    async def hang(agent: HttpAgent, heard: Heard) -> bytes:
        await gate.wait()
        return answer({"result": "late"})

    agent = HttpAgent(hang=hang)
    async with serving(agent):
        await agent.register(stubs, max_concurrency=40)
        tasks = [await given(stubs, agent, "hang") for _ in range(40)]
        await eventually(lambda: len(agent.asked) == 40)
        await asyncio.sleep(1.0)  # three probes
        row = await row_of(stubs, agent)
        assert (row.probe_status, row.inflight) == ("ok", 40)
        gate.set()
        for task_id in tasks:
            assert (await result_of(stubs, task_id)).output.text == "late"


async def test_GOV_2_https_checks_the_certificate_of_the_name_that_was_given(tmp_path):
    authority = Authority(tmp_path)
    ca, file = tmp_path / "ca.pem", tmp_path / "token"
    ca.write_bytes(authority.certificate)
    file.write_text("the-token")
    auth = [{"name": "ours", "token_file": str(file), "hosts": ["localhost"]}]
    quick: dict[str, Any] = {
        "probe__interval": 0.5,
        "probe__retry_interval": 0.3,
        "probe__timeout": 1.0,
        "probe__check_interval": 0.5,
    }
    good, wrong = HttpAgent(), HttpAgent()
    async with (
        running(tmp_path / "node", **quick, agents__tls_ca=str(ca), agents__auth=auth) as node,
        Stubs(node.port) as stubs,
        _serving_tls(good, authority, "DNS:localhost", tmp_path),
        _serving_tls(wrong, authority, "DNS:another.example", tmp_path),
    ):
        for agent in (good, wrong):
            endpoint = {"url": f"https://localhost:{agent.port}/ask", "auth_reference": "ours"}
            await agent.register(stubs, endpoints=[endpoint])
        assert (await ask(stubs, good)).output.text == "done"
        assert good.asked[0].headers["authorization"] == "Bearer the-token"
        assert (await row_of(stubs, wrong)).blocked_by == "no_link"
        assert not wrong.health_headers, "it was told nothing, not even the token"


class _serving_tls:  # noqa: N801 - used as a function
    def __init__(self, agent: HttpAgent, authority: Authority, name: str, folder: Any) -> None:
        key, certificate = authority.issue("agent", name)
        self.agent = agent
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        chain, private = folder / f"{agent.agent_id}.pem", folder / f"{agent.agent_id}.key"
        chain.write_bytes(certificate)
        private.write_bytes(key)
        self.context.load_cert_chain(chain, private)

    async def __aenter__(self) -> None:
        self.server = await asyncio.start_server(self.agent.serve, "127.0.0.1", 0, ssl=self.context)
        self.agent.port = self.server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
