"""Who gets in (GOV-2): TLS, client certificates and API keys, against a real server and a real agent."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from agentreach.v1 import ops_pb2
from reach import Client, InvalidRequest, Reason, SyncClient, Tls, Unavailable
from reach.store.keys import SqliteKeyStore
from tests.e2e.plain import Plain, refused, spec
from tests.e2e.processes import AgentProcess, Server, eventually
from tests.rpc.certificates import Authority

pytestmark = pytest.mark.e2e

EVERYTHING = ("agent", "caller", "reader", "operator")
INFO = ops_pb2.GetServerInfoRequest()


class Files:
    """Certificates as files, which is how the server, the SDK and people have them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.ca = self._write("ca.pem", self.authority.certificate)

    def pair(self, name: str, alternative_name: str, days: int = 2, authority: Authority | None = None) -> list[str]:
        """Paths of a certificate and its key."""
        key, certificate = (authority or self.authority).issue(name, alternative_name, days)
        return [self._write(f"{name}.pem", certificate), self._write(f"{name}.key", key)]

    def _write(self, name: str, content: bytes) -> str:
        (self.folder / name).write_bytes(content)
        return str(self.folder / name)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def credentials(ca: str, cert: str | None = None, key: str | None = None) -> grpc.ChannelCredentials:
    return Tls(ca, cert, key).credentials()


def is_cut_off(address: str, given: grpc.ChannelCredentials | None) -> str:
    """The reason why no connection comes about."""
    with Plain(address, credentials=given) as plain:
        with pytest.raises(grpc.RpcError) as refusal:
            plain.call(plain.ops.GetServerInfo, INFO, deadline=10)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE, refusal.value
        return str(refusal.value.details())


def test_GOV2_tls(tmp_path, files):
    """Who trusts the authority talks to it; who does not, or speaks plainly, or looks for another name, does not."""
    cert, key = files.pair("server", "IP:127.0.0.1")
    environment = {"AGENT_REACH_SERVER_TLS_CERT": cert, "AGENT_REACH_SERVER_TLS_KEY": key}
    with (
        Server(tmp_path / "data", environment) as server,
        Plain(server.address, credentials=credentials(files.ca)) as plain,
        AgentProcess(server.address, tmp_path / "agents.log", "--ca", files.ca),
    ):
        eventually(plain.free, "the agent takes work")
        assert plain.dispatch(spec("echo", "x"), wait=5).result.output.text == "x"
        with SyncClient(server.address, tls=files.ca) as client:
            assert client.call("echo", "by the SDK", agent_type="worker") == "by the SDK"
        stranger = Files(tmp_path / "stranger")
        is_cut_off(server.address, None)
        is_cut_off(server.address, credentials(stranger.ca))
        is_cut_off(f"localhost:{server.port}", credentials(files.ca))
        with SyncClient(server.address, tls=stranger.ca, connect_timeout=2) as client, pytest.raises(Unavailable):
            client.call("echo", "x", agent_type="worker")
        assert plain.dispatch(spec("echo", "x"), wait=5).result.output.text == "x"
        assert not server.tracebacks()


def test_GOV2_mtls(tmp_path, files):
    """A client certificate is needed, and says who it is. None, another authority's, an expired one: no connection.
    One that the configuration does not name: nobody."""
    cert, key = files.pair("server", "IP:127.0.0.1")
    identities = [
        {"identity": "urn:fleet", "tenant": "acme", "app_id": "fleet", "scopes": ["agent"]},
        {"identity": "urn:desk", "tenant": "acme", "app_id": "desk", "scopes": ["caller", "reader"]},
    ]
    environment = {
        "AGENT_REACH_SERVER_AUTH": "keys",
        "AGENT_REACH_SERVER_TLS_CERT": cert,
        "AGENT_REACH_SERVER_TLS_KEY": key,
        "AGENT_REACH_SERVER_TLS_CLIENT_CA": files.ca,
        "AGENT_REACH_SERVER_CLIENT_CERT_REQUIRED": "true",
        "AGENT_REACH_SERVER_CLIENT_IDENTITIES": json.dumps(identities),
    }
    fleet, desk = files.pair("fleet", "URI:urn:fleet"), files.pair("desk", "URI:urn:desk")
    unnamed, expired = files.pair("unnamed", "URI:urn:unnamed"), files.pair("desk-before", "URI:urn:desk", days=-1)
    foreign = files.pair("desk-foreign", "URI:urn:desk", authority=Authority(tmp_path / "other-ca"))
    tls = ("--ca", files.ca, "--cert", fleet[0], "--key", fleet[1])
    with (
        Server(tmp_path / "data", environment) as server,
        Plain(server.address, credentials=credentials(files.ca, *desk)) as plain,
        AgentProcess(server.address, tmp_path / "agents.log", *tls),
    ):
        eventually(plain.free, "the agent takes work")
        assert plain.dispatch(spec("echo", "x"), wait=5).result.output.text == "x"
        who = plain.call(plain.ops.GetServerInfo, INFO).principal
        assert (who.tenant, who.app_id, sorted(who.scopes)) == ("acme", "desk", ["caller", "reader"])
        with SyncClient(server.address, tls=Tls(files.ca, *desk)) as client:
            assert client.call("echo", "by the SDK", agent_type="worker") == "by the SDK"
        for refused_pair in ((), foreign, expired):
            is_cut_off(server.address, credentials(files.ca, *refused_pair))
        is_cut_off(server.address, None)
        with Plain(server.address, credentials=credentials(files.ca, *unnamed)) as nobody, refused("UNAUTHENTICATED"):
            nobody.dispatch(spec("echo", "x"))
        with Plain(server.address, credentials=credentials(files.ca, *fleet)) as agent, refused("PERMISSION_DENIED"):
            agent.dispatch(spec("echo", "x"))
        assert not server.tracebacks()


async def test_GOV2_api_keys(tmp_path):
    """No key, a wrong one, one without the scope, one that is revoked: refused, and told why. Without a restart."""
    with closing(SqliteKeyStore(tmp_path / "data")) as keys:
        (_, operator), (_, fleet), (desk_key, desk) = (
            keys.create("acme", app, scopes)
            for app, scopes in (("ops", EVERYTHING), ("fleet", ("agent",)), ("desk", ("caller",)))
        )
        environment = {"AGENT_REACH_SERVER_AUTH": "keys"}
        with (
            Server(tmp_path / "data", environment) as server,
            Plain(server.address, operator) as plain,
            AgentProcess(server.address, tmp_path / "agents.log", environment={"AGENT_REACH_API_KEY": fleet}) as agent,
        ):
            eventually(plain.free, "the agent takes work")
            async with Client(server.address, api_key=desk) as client:
                assert await client.call("echo", "x", agent_type="worker") == "x"
                for key in ("", "ar_nobody", desk[:-1] + ("a" if desk[-1] != "a" else "b"), desk + "x"):
                    with Plain(server.address, key) as nobody, refused("UNAUTHENTICATED"):
                        nobody.dispatch(spec("echo", "x"))
                with Plain(server.address, fleet) as other, refused("PERMISSION_DENIED"):
                    other.dispatch(spec("echo", "x"))
                with Plain(server.address, desk) as other, refused("PERMISSION_DENIED"):
                    other.agents()
                async with Client(server.address, api_key=fleet) as other:
                    with pytest.raises(InvalidRequest) as denied:
                        await other.call("echo", "x", agent_type="worker")
                    assert denied.value.reason is Reason.PERMISSION_DENIED
                # Revoked while its stream is open: the next thing it asks for is refused.
                plain.call(plain.ops.RevokeKey, ops_pb2.RevokeKeyRequest(key_id=desk_key.key_id))
                await asyncio.sleep(1)
                with pytest.raises(InvalidRequest) as ended:
                    await client.call("echo", "x", agent_type="worker", timeout=5)
                assert ended.value.reason is Reason.UNAUTHENTICATED
            # A new one counts at once. The agent has noticed nothing of all this.
            made = plain.call(plain.ops.CreateKey, ops_pb2.CreateKeyRequest(app_id="desk", scopes=["caller"]))
            async with Client(server.address, api_key=made.secret) as client:
                assert await client.call("echo", "again", agent_type="worker") == "again"
            assert agent.running
            text = server.log_text()
            assert not server.tracebacks()
    for secret in (operator, fleet, desk, made.secret):
        assert secret not in text
        assert secret.rpartition("_")[2] not in text
