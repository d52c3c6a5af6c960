"""Connections per address over HTTP, and what one tenant may hold open over all doors (GOV-5, P6, P7; "Limits" of the
cases)."""

import asyncio

import pytest

from reach.http import app, crowds
from reach.http.crowds import Crowds
from reach.rpc.access import Admission
from tests.http.conftest import client_of
from tests.http.socket_client import Refused, SocketClient
from tests.http.sse_reader import events_of
from tests.http.test_api import is_problem
from tests.http.test_slow_clients import Raw
from tests.rpc.nodes import until
from tests.rpc.peers import Stubs, pb, refusal, running, unique
from tests.rpc.tenancy import with_keys

pytestmark = pytest.mark.usefixtures("no_tracebacks")

WHENCE = {
    "203.0.113.7": "203.0.113.7",
    "::ffff:203.0.113.7": "203.0.113.7",
    "10.0.0.1": "10.0.0.1",
    "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
    "2001:db8:1:2:ffff::": "2001:db8:1:2::/64",
    "fe80::1%eth0": "fe80::/64",
    "127.0.0.1": "",
    "::1": "",
    "::ffff:127.0.0.1": "",
    "": "",
    "what": "",
}


@pytest.mark.parametrize("host", WHENCE)
def test_GOV_5_whose_a_connection_is(host):
    found = Crowds(1)
    assert found.enter(host) == WHENCE[host]
    assert found._held == ({WHENCE[host]: 1} if WHENCE[host] else {})
    found.leave(WHENCE[host])
    assert found._held == {}, "no address is kept"


@pytest.fixture
def made(monkeypatch):
    """Those that the servers of a test count with. This machine is counted, as others are."""
    made: list[Crowds] = []
    monkeypatch.setattr(crowds, "_whence", lambda host: host)

    def counting(limit: int) -> Crowds:
        made.append(Crowds(limit))
        return made[-1]

    monkeypatch.setattr(app, "Crowds", counting)
    return made


async def test_GOV_5_one_address_has_so_many_connections_and_no_more(tmp_path, made):
    async with running(tmp_path, http__max_connections=40, http__max_connections_per_address=4) as node:
        (found,) = made
        sockets = [SocketClient(node.admin_port) for _ in range(2)]
        for one in sockets:
            await one.open()
        silent = [await Raw.to(node.admin_port) for _ in range(2)]
        await until(lambda: found._held == {"127.0.0.1": 4})
        async with client_of(node.admin_port) as http:
            answer = await http.get("/v1/server")
            told = is_problem(answer, 429, "TOO_MANY_STREAMS")
            assert (told["detail"], told["retryable"]) == ("your address has 4 connections already", True)
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
        with pytest.raises(Refused) as refused:
            await SocketClient(node.admin_port).open()
        assert refused.value.status == 429
        await until(lambda: found._held == {"127.0.0.1": 4})

        others = [await Raw.to(node.admin_port) for _ in range(4)]  # twice as many: these are told, if they ask
        last = await Raw.to(node.admin_port)
        assert await last.rest() == b"", "and this one nothing"
        for each in (*others, last):
            each.close()
        silent[0].close()
        await until(lambda: found._held == {"127.0.0.1": 3})
        async with client_of(node.admin_port) as http:
            assert (await http.get("/v1/server")).status_code == 200
        sockets[0].writer.transport.abort()
        await sockets[1].say(ping="x")
        assert await sockets[1].hear() == {"pong": "x"}, "who was there is not disturbed"
        sockets[1].writer.transport.abort()
        silent[1].close()
        await until(lambda: found._held == {})


async def test_GOV_5_where_nothing_is_said_one_address_has_half(tmp_path, made):
    async with running(tmp_path, http__max_connections=16):
        assert [one.limit for one in made] == [8]


async def test_GOV_5_grpc_takes_so_many_connections_and_no_more(tmp_path):
    async with running(tmp_path, grpc__max_connections=16) as node:
        held = [await Raw.to(node.port) for _ in range(16)]
        for one in held:
            assert await asyncio.wait_for(one.reader.read(1), 5), "the server says its settings"
        late = await Raw.to(node.port)
        assert await late.rest() == b""
        for one in (*held, late):
            one.close()
        async with Stubs(node.port) as stubs:
            await stubs.ops.GetServerInfo(pb.GetServerInfoRequest(), wait_for_ready=True, timeout=10)


@pytest.mark.usefixtures("keys")
async def test_P7_a_tenant_holds_so_many_streams_over_all_doors_and_others_are_served(folder, keys):
    acme, rival = keys.header("acme"), keys.header("rival")
    async with with_keys(folder, server__max_streams_per_tenant=3) as node, Stubs(node.port) as stubs:
        gate = node._grpc.entrance.gates[Admission.STREAMS]
        path = f"/v1/tasks/{unique('task')}"
        spec = {"task_id": path.rpartition("/")[2], "selector": {"agent_id": "nobody"}, "payload": {"text": "x"}}
        async with (
            client_of(node.admin_port, headers=dict(acme)) as http,
            SocketClient(node.admin_port, headers=dict(acme)) as ws,
        ):
            assert (await http.post("/v1/tasks", json={"task": spec})).status_code == 200
            over_grpc = stubs.registry.WatchAgents(pb.WatchAgentsRequest(), metadata=acme)
            await over_grpc.read()
            await ws.ask("held", "ResultService/StreamResult", {"taskId": spec["task_id"]}, credit=1_000)
            assert (await ws.hear())["id"] == "held"
            async with http.stream("GET", f"{path}/events") as answer:
                reader = events_of(answer)  # httpx ends an answer whose reader is forgotten
                assert (await anext(reader)).kind == "accepted"
                assert gate.held == 3
                told = is_problem(await http.get(f"{path}/events"), 429, "TOO_MANY_STREAMS")
                assert told["detail"] == "your tenant holds 3 calls of the class 'streams' already"
                await ws.ask("more", "ResultService/StreamResult", {"taskId": spec["task_id"]})
                assert (await ws.hear())["problem"]["reason"] == "TOO_MANY_STREAMS"
                refused = await refusal(stubs.registry.WatchAgents(pb.WatchAgentsRequest(), metadata=acme))
                assert refused == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS", told["detail"])
                assert gate.held == 3, "who is refused holds no place"
                assert (await http.get("/v1/server")).status_code == 200, "short calls are no streams"
                others = [stubs.registry.WatchAgents(pb.WatchAgentsRequest(), metadata=rival) for _ in range(3)]
                for one in others:
                    await one.read()
            over_grpc.cancel()
            await until(lambda: gate.held == 4)
            again = stubs.registry.WatchAgents(pb.WatchAgentsRequest(), metadata=acme)
            assert (await again.read()).in_sync, "there is room again"
            for one in (*others, again):
                one.cancel()
        await until(lambda: gate.held == 0)
        assert gate._of_tenants == {}, "no tenant is kept"
