"""Tokens of issuers at both doors of a node (GOV-2): the same credentials, and the same refusals."""

import asyncio
import subprocess
import sys
import time

import pytest

from reach.errors import InvalidRequest
from reach.rpc import issuer_keys, services
from tests.http.conftest import client_of
from tests.http.sse_reader import events_of
from tests.http.test_api import is_problem
from tests.rpc.peers import AgentByHand, Stubs, pb, reason_name, refusal, running, unique
from tests.rpc.tokens import AUDIENCE, ISSUER, key_set, new_key, public, token
from tests.transports.receivers import receiver

pytestmark = pytest.mark.usefixtures("no_tracebacks")

KEY, OTHER = new_key("ES256"), new_key("RS256")


def issuer(folder, **fields):
    """An entry of `jwt.issuers`, with its keys in a file."""
    file = folder / "jwks.json"
    file.write_bytes(key_set(public(KEY, kid="k1")))
    return {"issuer": ISSUER, "audience": AUDIENCE, "keys_file": str(file), "tenants": ["acme", "rival"], **fields}


def node_with(folder, *issuers, **settings):
    return running(folder / "data", server__auth="keys", jwt__issuers=list(issuers), jwt__leeway=0, **settings)


def metadata(shown):
    return (("authorization", f"Bearer {shown}"),)


async def both(node, stubs, shown, path="/v1/server"):
    """What both doors answer to a call of GetServerInfo: (status, reason, text) over HTTP, (code, reason, text)."""
    async with client_of(node.admin_port, headers=dict(metadata(shown))) as http:
        answer = await http.get(path)
    told = answer.json()
    over_http = (answer.status_code, told.get("reason", ""), told.get("detail", ""))
    return over_http, await refusal(stubs.ops.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata(shown)))


async def test_GOV_2_a_token_opens_both_doors_by_its_claims(tmp_path):
    async with node_with(tmp_path, issuer(tmp_path)) as node, Stubs(node.port) as stubs:
        shown = token(KEY, scope="reader")
        info = await stubs.ops.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata(shown))
        assert (info.principal.tenant, info.principal.app_id, list(info.principal.scopes)) == (
            "acme",
            "user|1",
            ["reader"],
        )
        async with client_of(node.admin_port, headers=dict(metadata(shown))) as http:
            told = (await http.get("/v1/server")).json()["principal"]
            assert told == {"tenant": "acme", "appId": "user|1", "scopes": ["reader"]}
            is_problem(await http.post("/v1/tasks", json={"task": {}}), 403, "PERMISSION_DENIED")
            assert (await http.get("/metrics")).status_code == 200
        async with client_of(node.admin_port, headers=dict(metadata(token(KEY, scope="caller")))) as http:
            is_problem(await http.get("/metrics"), 401, "UNAUTHENTICATED")
        for bad, text in (
            (token(KEY, exp=int(time.time()) - 1), "the token has expired"),
            (token(OTHER, "RS256"), "the credentials are not valid"),
            (token(KEY, aud="else"), f"the token is not for {AUDIENCE!r}, or does not end"),
            ("ar_x_y", "the credentials are not valid"),
            ("eyJ", "the credentials are not valid"),
        ):
            over_http, over_grpc = await both(node, stubs, bad)
            assert over_http == (401, "UNAUTHENTICATED", text)
            assert over_grpc == ("UNAUTHENTICATED", "UNAUTHENTICATED", text)


async def test_G4_tenants_of_tokens_do_not_see_each_other(tmp_path):
    async with node_with(tmp_path, issuer(tmp_path)) as node, Stubs(node.port) as stubs:
        task_id = unique("mine")
        spec = {"task_id": task_id, "selector": {"agent_type": "none"}}
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), metadata=metadata(token(KEY)))
        theirs = metadata(token(KEY, tenant="rival"))
        answers = [
            await refusal(stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=one), metadata=theirs))
            for one in (task_id, "nobody-has-it")
        ]
        assert answers[0][2].replace(task_id, "nobody-has-it") == answers[1][2]


async def test_GOV_2_a_token_for_some_types_of_agents_is_for_no_others(tmp_path):
    async with node_with(tmp_path, issuer(tmp_path)) as node, Stubs(node.port) as stubs:
        limited = metadata(token(KEY, scope="agent caller operator", agent_types=["echo"]))
        whole = metadata(token(KEY, scope="agent"))
        agent, other = AgentByHand(stubs, limited), AgentByHand(stubs, whole)
        await agent.join("echo")
        await other.join("sum")
        wrong = AgentByHand(stubs, limited)
        await wrong.send(hellos=[{"link": 1, "registration": {"agent_id": "sum", "boot_id": "b", "instance_id": "i"}}])
        assert reason_name((await wrong.next("refusals")).error) == "PERMISSION_DENIED"
        calls = {
            "Register": stubs.registry.Register(
                pb.RegisterRequest(registration={"agent_id": "sum", "boot_id": "b"}), metadata=limited
            ),
            "Adopt": stubs.registry.Adopt(pb.AdoptRequest(terms={"card_url": "http://127.0.0.1:9/"}), metadata=limited),
            "Drain": stubs.registry.Drain(pb.DrainRequest(instance_id=other.instance_id), metadata=limited),
            "Drain all": stubs.registry.Drain(pb.DrainRequest(agent_id="sum"), metadata=limited),
            "Deregister": stubs.registry.Deregister(
                pb.DeregisterRequest(instance_id=other.instance_id), metadata=limited
            ),
            "CreateKey": stubs.ops.CreateKey(pb.CreateKeyRequest(app_id="a", scopes=["agent"]), metadata=limited),
        }
        for selector in ({"agent_type": "sum"}, {"agent_id": "sum"}, {"instance_id": other.instance_id}, {"text": "x"}):
            task = {"selector": selector}
            calls[f"Dispatch {selector}"] = stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), metadata=limited)
            calls[f"Run {selector}"] = stubs.dispatch.Run(pb.RunRequest(task=task), metadata=limited)
            calls[f"Preview {selector}"] = stubs.dispatch.PreviewRoute(
                pb.PreviewRouteRequest(task=task), metadata=limited
            )
        for name, call in calls.items():
            assert (await refusal(call))[:2] == ("PERMISSION_DENIED", "PERMISSION_DENIED"), name
        stream = stubs.dispatch.DispatchStream(metadata=limited)
        await stream.write(
            pb.DispatchStreamRequest(submits=[{"reference": 1, "task": {"selector": {"agent_id": "sum"}}}])
        )
        while not (frame := await stream.read()).refusals:
            pass
        assert reason_name(frame.refusals[0].error) == "PERMISSION_DENIED"
        stream.cancel()
        asked = stubs.dispatch.Dispatch(
            pb.DispatchRequest(task={"selector": {"agent_type": "echo"}}, wait={"seconds": 10}), metadata=limited
        )
        await agent.finish(await agent.next("offers"), "hello")
        assert (await asked).result.output.text == "hello"
        for one in (agent, other, wrong):
            await one.close()


async def test_GOV_2_a_token_that_expires_ends_the_streams_it_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr("reach.rpc.dispatch.RECHECK_SECONDS", 0.1)
    async with node_with(tmp_path, issuer(tmp_path)) as node, Stubs(node.port) as stubs:
        task_id = unique("long")
        spec = {"task_id": task_id, "selector": {"agent_type": "none"}}
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), metadata=metadata(token(KEY)))
        short = token(KEY, exp=time.time() + 1.0)
        stream = stubs.result.StreamResult(pb.StreamResultRequest(task_id=task_id), metadata=metadata(short))
        async with (
            client_of(node.admin_port, headers=dict(metadata(short))) as http,
            http.stream("GET", f"/v1/tasks/{task_id}/events") as answer,
        ):
            assert answer.status_code == 200
            *_, last = [event async for event in events_of(answer)]
        assert (last.kind, last.data["reason"]) == ("problem", "UNAUTHENTICATED")
        assert (await refusal(stream))[:2] == ("UNAUTHENTICATED", "UNAUTHENTICATED")


async def test_GOV_2_keys_come_from_a_url_and_are_replaced_without_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(issuer_keys, "UNKNOWN_SECONDS", 0.0)
    document = key_set(public(KEY, kid="k1"))
    asked = 0

    def answer(_):
        nonlocal asked
        asked += 1
        return b"HTTP/1.1 200 OK\r\ncache-control: max-age=600\r\ncontent-length: %d\r\n\r\n" % len(document) + document

    async with receiver(answer) as target:
        entry = {"issuer": ISSUER, "audience": AUDIENCE, "keys_url": target.url, "tenant": "acme"}
        async with node_with(tmp_path, entry) as node, Stubs(node.port) as stubs:

            async def code(shown):
                return (await both(node, stubs, shown))[1][:2]

            found = ("", "")
            for _ in range(200):
                if (found := await code(token(KEY, tenant=None))) != ("UNAVAILABLE", "STORE_UNAVAILABLE"):
                    break
                await asyncio.sleep(0.02)
            assert found[0] == "OK"
            document = key_set(public(OTHER, kid="k2"))
            fresh = token(OTHER, "RS256", kid="k2")
            for _ in range(200):
                if (await code(fresh))[0] == "OK":
                    break
                await asyncio.sleep(0.02)
            assert (await code(fresh))[0] == "OK"
            assert (await code(token(KEY)))[0] != "OK"
            assert asked >= 2


async def test_a_missing_package_and_a_bad_file_are_told_at_the_start(tmp_path, monkeypatch):
    entry = issuer(tmp_path)
    (tmp_path / "jwks.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="it has no list 'keys'"):
        async with node_with(tmp_path, entry):
            pass
    for name in ("reach.rpc.tokens", "reach.rpc.issuer_keys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'agentreach\[jwt\]'"):
        async with node_with(tmp_path, entry):
            pass


def test_a_server_without_issuers_does_not_load_the_package():
    code = "import reach.node, sys; sys.exit(bool({'jwt', 'cryptography', 'httpcore'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
