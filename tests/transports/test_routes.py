"""How agents are reached: tokens, TLS, proxies that lose something, and a server that everybody can reach."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentreach.v1 import endpoint_pb2_grpc, task_pb2
from reach.core.instance_states import Condition
from reach.core.reachability import loss_rate, reach_score, round_trip_ms
from tests.rpc.certificates import Authority
from tests.rpc.peers import Stubs, refusal, running
from tests.transports.endpoint_agent import EndpointAgent, ask, eventually, serving

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
SECRET = "canary-secret-token"
QUICK: dict[str, Any] = {
    "probe__interval": 0.3,
    "probe__retry_interval": 0.1,
    "probe__unreachable_interval": 0.5,
    "probe__timeout": 0.3,
    "probe__check_interval": 0.5,
}


def auth_of(folder: Path, **fields: Any) -> list[dict[str, Any]]:
    file = folder / "token"
    file.write_text(f"{SECRET}\n")
    return [{"name": "ours", "token_file": str(file), "hosts": ["127.0.0.1"], **fields}]


@pytest.mark.asyncio
async def test_GOV_2_the_token_goes_with_each_call_and_is_never_logged(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    agent = EndpointAgent()
    async with (
        running(tmp_path / "node", **QUICK, agents__auth=auth_of(tmp_path)) as node,
        Stubs(node.port) as stubs,
        serving(agent),
    ):
        endpoints = [{"url": f"grpc://127.0.0.1:{agent.port}", "auth_reference": "ours"}]
        answer = await agent.register(stubs, endpoints=endpoints)
        assert list(answer.warnings) == ["credentials are sent in clear: use grpcs://"]
        assert (await ask(stubs, agent, "plain")).state == SUCCEEDED
        assert agent.metadata[0]["authorization"] == f"Bearer {SECRET}"
        shown = repr(node.config) + repr(await stubs.registry.ListAgents(_list()))
    assert SECRET not in shown
    assert SECRET not in caplog.text


def _list() -> Any:
    from agentreach.v1 import registry_pb2

    return registry_pb2.ListAgentsRequest()


@pytest.mark.asyncio
@pytest.mark.parametrize("fields", [{"tenants": ["another"]}, {"hosts": ["elsewhere.example"]}], ids=["tenant", "host"])
async def test_P11_nobody_has_anothers_token_sent_to_himself(tmp_path, fields):
    agent = EndpointAgent()
    auth = auth_of(tmp_path, **fields)
    async with running(tmp_path / "node", agents__auth=auth) as node, Stubs(node.port) as stubs, serving(agent):
        endpoints = [{"url": f"grpc://127.0.0.1:{agent.port}", "auth_reference": "ours"}]
        call = stubs.registry.Register(agent.registration(endpoints=endpoints))
        code, reason, text = await refusal(call)
        unknown = [{"url": f"grpc://127.0.0.1:{agent.port}", "auth_reference": "what"}]
        same = await refusal(stubs.registry.Register(agent.registration(endpoints=unknown)))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert same == (code, reason, text.replace("'ours'", "'what'"))  # what is not yours and what is not there are alike
    assert not agent.checks


@pytest.mark.asyncio
@pytest.mark.parametrize("scheme", ["grpc", "http"])
async def test_REG_6_GOV_6_a_server_that_others_reach_dials_nobody_on_its_own_machine_and_says_so(tmp_path, scheme):
    agent = EndpointAgent()
    async with (
        running(tmp_path / "node", **QUICK, server__host="0.0.0.0", server__insecure=True) as node,
        Stubs(node.port) as stubs,
        serving(agent),
    ):
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433"):
            answer = await agent.register(stubs, endpoints=[{"url": f"{scheme}://{host}:{agent.port}"}])
            assert "this server's own machine" in answer.warnings[0], host
            assert answer.blocked_by == "no_link"
        await asyncio.sleep(0.8)
        agents = (await stubs.registry.ListAgents(_list())).agents
        assert "this server's own machine" in agents[0].warnings[0]  # in the record too
    assert not agent.checks


@contextlib.asynccontextmanager
async def serving_tls(agent: EndpointAgent, authority: Authority, name: str) -> AsyncIterator[None]:
    key, certificate = authority.issue("agent", name)
    server = grpc.aio.server()
    endpoint_pb2_grpc.add_AgentEndpointServiceServicer_to_server(agent, server)
    agent.port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


@pytest.mark.asyncio
async def test_REG_6_grpcs_checks_the_certificate_of_the_name_that_was_given(tmp_path):
    authority, ca = Authority(tmp_path / "ca"), tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    good, wrong = EndpointAgent(), EndpointAgent()
    async with (
        running(tmp_path / "node", **QUICK, agents__tls_ca=str(ca)) as node,
        Stubs(node.port) as stubs,
        serving_tls(good, authority, "DNS:localhost"),
        serving_tls(wrong, authority, "DNS:another.example"),
    ):
        answer = await good.register(stubs, endpoints=[{"url": f"grpcs://localhost:{good.port}"}])
        assert list(answer.warnings) == []
        assert (await ask(stubs, good, "plain")).state == SUCCEEDED
        answer = await wrong.register(stubs, endpoints=[{"url": f"grpcs://localhost:{wrong.port}"}])
        assert answer.blocked_by == "no_link"
        assert "the check failed" in answer.warnings[0]
        assert not wrong.checks
        answer = await good.register(stubs, endpoints=[{"url": f"grpc://localhost:{good.port}"}])
        assert "the check failed" in answer.warnings[0]  # in clear to a port that speaks TLS


class Proxy:
    """Stands between server and agent, and swallows what the server says while `deaf`."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.deaf = False
        self.port = 0

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if not (up and self.deaf):
                    writer.write(data)
        writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._pump(reader, back, up=True), self._pump(there, writer, up=False))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()


@pytest.mark.asyncio
async def test_HLT_11_a_proxy_that_swallows_3_of_10_probes_brings_l_to_0(tmp_path):
    agent = EndpointAgent()
    settings = {**QUICK, "probe__check_interval": 3600}
    async with running(tmp_path / "node", **settings) as node, Stubs(node.port) as stubs, serving(agent):
        proxy = Proxy(agent.port)
        async with proxy.serving():
            await agent.register(stubs, endpoints=[{"url": f"grpc://127.0.0.1:{proxy.port}"}])
            _, instance = node.reach.instance("default", agent.instance_id)
            seen: list[float | None] = []
            for swallowed in (False, True, False, False, True, False, False, True, False, False):
                proxy.deaf = swallowed
                await _next_probe(instance)
                seen.append(instance.probes[-1])
            proxy.deaf = False
            probes = instance.probes
            assert [probe is None for probe in seen].count(True) == 3
            assert len(probes) == 10
            loss = loss_rate(probes)
            assert loss is not None
            assert loss >= 0.3
            whole = reach_score(0, 5_000, round_trip_ms(probes), 0.0)
            assert reach_score(0, 5_000, round_trip_ms(probes), loss) == pytest.approx(whole - 20)  # all of l
            assert Condition.UNREACHABLE not in instance.conditions
            assert not instance.blocked_by
            assert "no answer in time" in instance.last_probe_error


async def _next_probe(instance: Any) -> None:
    """Waits for one more probe. The list is a new one each time only in its content, so we mark its last entry."""
    before = list(instance.probes)
    mark = instance.probe_due_ms
    await eventually(lambda: instance.probe_due_ms != mark or instance.probes != before)


@pytest.mark.asyncio
async def test_HLT_3_an_unreachable_agent_is_left_alone_between_its_probes(tmp_path):
    """A gRPC channel would go on trying to connect by itself, each second, for ever."""
    connections = 0

    def count(_reader: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    agent = EndpointAgent()
    server = await asyncio.start_server(count, "127.0.0.1", 0)
    agent.port = server.sockets[0].getsockname()[1]
    settings = {**QUICK, "probe__unreachable_interval": 60, "probe__check_interval": 3600}
    async with running(tmp_path / "node", **settings) as node, Stubs(node.port) as stubs:
        await agent.register(stubs)
        _, instance = node.reach.instance("default", agent.instance_id)
        await eventually(lambda: instance.probe_status == "unreachable")
        await asyncio.sleep(0.5)
        before = connections
        await asyncio.sleep(2.5)
        assert connections == before
    server.close()
