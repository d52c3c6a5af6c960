"""Client certificates at both doors, and the server's own, which is replaced without a restart (GOV-2)."""

import asyncio
import logging
import os
import ssl
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from reach.config.tls import Files, ServerTls
from reach.errors import InvalidRequest
from reach.http.certificates import names_of
from tests.http.socket_client import Refused, SocketClient
from tests.http.test_api import is_problem
from tests.rpc.certificates import Authority
from tests.rpc.peers import TIMEOUT, pb, running

WHO = "spiffe://acme/web"
IDENTITIES = [{"identity": WHO, "tenant": "acme", "app_id": "web", "scopes": ["caller", "reader"]}]
INFO = "/agentreach.v1.OpsService/GetServerInfo"


class Party:
    """An authority, and what it has signed, as files."""

    def __init__(self, folder, name):
        self.folder = folder / name
        self.authority = Authority(self.folder, name)
        self.ca = self.folder / "ca.pem"

    def issue(self, name, alternative, days=2):
        key, certificate = self.authority.issue(name, alternative, days)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for file, text in zip(files, (certificate, key), strict=True):
            file.write_bytes(text)
        return files


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    made = Party(tmp_path_factory.mktemp("tls"), "ours")
    made.issue("server", "IP:127.0.0.1")
    made.issue("web", f"URI:{WHO}")
    made.issue("other", "URI:spiffe://acme/other")
    made.issue("late", f"URI:{WHO}", days=-1)
    return made


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    made = Party(tmp_path_factory.mktemp("tls"), "strangers")
    made.issue("web", f"URI:{WHO}")
    return made


def settings(party, **more):
    return {
        "server__tls_cert": str(party.folder / "server.pem"),
        "server__tls_key": str(party.folder / "server.key"),
        "server__tls_client_ca": str(party.ca),
        "server__client_cert_required": True,
        **more,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(ours, tmp_path_factory):
    more = {"server__auth": "keys", "server__client_identities": IDENTITIES}
    async with running(tmp_path_factory.mktemp("node"), **settings(ours, **more)) as made:
        yield made


def shown(party, name="", trusts=None):
    """TLS with a certificate of a party, or without one."""
    tls = ssl.create_default_context(cafile=str((trusts or party).ca))
    if name:
        tls.load_cert_chain(party.folder / f"{name}.pem", party.folder / f"{name}.key")
    return tls


def client(node, party, name="", trusts=None, **arguments):
    """A client with a certificate of a party, or without one."""
    tls = shown(party, name, trusts)
    return httpx.AsyncClient(base_url=f"https://127.0.0.1:{node.admin_port}", verify=tls, timeout=TIMEOUT, **arguments)


async def over_grpc(node, party, name="", trusts=None):
    """The code of a call with the same certificate over gRPC, and what it says of the caller."""
    pair = [(party.folder / f"{name}.{kind}").read_bytes() for kind in ("key", "pem")] if name else (None, None)
    credentials = grpc.ssl_channel_credentials((trusts or party).ca.read_bytes(), *pair)
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{node.port}", credentials, options) as channel:
        call: Any = channel.unary_unary(INFO, None, pb.GetServerInfoResponse.FromString)
        try:
            return "OK", (await call(b"", timeout=TIMEOUT)).principal
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details()


@pytest.mark.asyncio(loop_scope="module")
async def test_GOV_2_a_certificate_is_the_same_caller_at_both_doors(node, ours):
    async with client(node, ours, "web") as http:
        told = (await http.get("/v1/server")).json()["principal"]
        assert told == {"tenant": "acme", "appId": "web", "scopes": ["caller", "reader"]}
        given = await http.post("/v1/tasks", json={"task": {"selector": {"agent_type": "none"}}})
        assert given.status_code == 200
        is_problem(await http.get("/v1/keys"), 403, "PERMISSION_DENIED")
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/task/nobody")).json()["reason"] == "TASK_NOT_FOUND"
    async with SocketClient(node.admin_port, tls=shown(ours, "web")) as ws:
        told = await ws.call("OpsService/GetServerInfo", {})
        assert told["response"]["principal"]["appId"] == "web"
    code, principal = await over_grpc(node, ours, "web")
    assert (code, principal.tenant, principal.app_id) == ("OK", "acme", "web")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("who", "name", "refused"),
    [("ours", "late", True), ("strangers", "web", True), ("ours", "other", False), ("ours", "", False)],
    ids=["expired", "wrong authority", "wrong name", "none"],
)
async def test_GOV_2_four_refusals(node, ours, strangers, who, name, refused):
    party = {"ours": ours, "strangers": strangers}[who]
    async with client(node, party, name, trusts=ours) as http:
        if refused:  # by the handshake; with TLS 1.3 the client hears of it with its first answer
            for path in ("/v1/server", "/healthz"):
                with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError, ssl.SSLError)):
                    await http.get(path)
        else:
            is_problem(await http.get("/v1/server"), 401, "UNAUTHENTICATED")
            is_problem(await http.post("/v1/tasks", content=b"x"), 401, "UNAUTHENTICATED")
            is_problem(await http.get("/metrics"), 401, "UNAUTHENTICATED")
            is_problem(await http.get("/v1/ws", headers={"authorization": "Bearer ar_x_y"}), 426, "MALFORMED_MESSAGE")
            assert (await http.get("/healthz")).status_code == 200
            with pytest.raises(Refused, match="401"):
                await SocketClient(node.admin_port, tls=shown(party, name, ours)).open()
    code, _ = await over_grpc(node, party, name, trusts=ours)
    assert code == ("UNAUTHENTICATED" if name == "other" else "UNAVAILABLE")


@pytest.mark.asyncio(loop_scope="module")
async def test_GOV_2_a_key_does_not_stand_for_the_certificate(node, ours):
    token = (node.config.storage.path, node)[1]
    key = token._grpc.ops._keys.create("acme", "app", ["reader"])[1]
    header = {"authorization": f"Bearer {key}"}
    async with client(node, ours, headers=header) as http:
        assert "certificate" in is_problem(await http.get("/v1/server"), 401, "UNAUTHENTICATED")["detail"]
        is_problem(await http.get("/metrics"), 401, "UNAUTHENTICATED")
    async with client(node, ours, "other", headers=header) as http:
        assert (await http.get("/v1/server")).json()["principal"]["appId"] == "app"


@pytest.mark.asyncio
async def test_GOV_2_without_keys_the_certificate_is_what_opens(ours, tmp_path):
    async with running(tmp_path, **settings(ours)) as node:
        async with client(node, ours) as http:
            assert "certificate" in is_problem(await http.get("/v1/server"), 401, "UNAUTHENTICATED")["detail"]
            is_problem(await http.get("/metrics"), 401, "UNAUTHENTICATED")
            assert (await http.get("/readyz")).status_code == 200
        async with client(node, ours, "other") as http:
            assert (await http.get("/v1/server")).status_code == 200
            assert (await http.get("/metrics")).status_code == 200


@pytest.mark.asyncio
async def test_tls_1_1_is_too_old(node, ours):
    tls = ssl.create_default_context(cafile=str(ours.ca))
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        tls.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", node.admin_port, ssl=tls)


# -- replaced ---------------------------------------------------------------------------------------------------------


def replaced(party, other):
    """Puts the files of another party where those of this one were."""
    for name in ("server.pem", "server.key", "ca.pem"):
        (party.folder / name).write_bytes((other.folder / name).read_bytes())


@pytest.mark.asyncio
async def test_GOV_2_certificates_are_replaced_without_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr("reach.config.tls.LOOK_SECONDS", 0.0)
    old, new, kept = (Party(tmp_path, name) for name in ("old", "new", "kept"))
    for party in (old, new):
        party.issue("server", "IP:127.0.0.1")
        party.issue("web", f"URI:{WHO}")
    for name in ("web.pem", "web.key", "ca.pem"):
        (kept.folder / name).write_bytes((old.folder / name).read_bytes())
    more = {"server__auth": "keys", "server__client_identities": IDENTITIES}
    async with running(tmp_path / "node", **settings(old, **more)) as node, client(node, kept, "web") as before:
        assert (await before.get("/v1/server")).status_code == 200
        assert (await over_grpc(node, kept, "web"))[0] == "OK"
        replaced(old, new)
        assert (await before.get("/v1/server")).status_code == 200  # its connection goes on
        async with client(node, new, "web") as http:
            assert (await http.get("/v1/server")).status_code == 200
        assert (await over_grpc(node, new, "web"))[0] == "OK"
        async with client(node, kept, "web", trusts=new) as http:  # of the authority that went
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                await http.get("/v1/server")
        assert (await over_grpc(node, kept, "web", trusts=new))[0] == "UNAVAILABLE"
        async with client(node, kept, "web") as http:  # who knows the old one only
            with pytest.raises(httpx.ConnectError):
                await http.get("/v1/server")


def test_what_cannot_be_used_is_not_taken(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    party, now = Party(tmp_path, "party"), 0.0
    files = party.issue("server", "DNS:a")
    tls = ServerTls(Files(str(files[0]), str(files[1]), ""), lambda: now)
    first = tls.content
    good, other = files[0].read_bytes(), party.issue("other", "DNS:b")
    for text in (b"", b"nothing", other[0].read_bytes()):
        files[0].write_bytes(text)
        now += 1
        assert tls.look() is False
        assert tls.content is first
        assert tls.renewed() is None
    files[0].unlink()
    now += 1
    assert tls.look() is False
    files[0].write_bytes(other[0].read_bytes())
    files[1].write_bytes(other[1].read_bytes())
    assert tls.look() is False  # it has looked a moment ago
    now += 1
    assert tls.look() is True
    assert tls.renewed() is tls.content is not first
    assert tls.renewed() is None
    assert "a new certificate of the server cannot be used" in caplog.text
    files[0].write_bytes(good)
    os.utime(files[0], (1, 1))
    with pytest.raises(InvalidRequest, match="not the one of the certificate"):
        ServerTls(Files(str(files[0]), str(files[1]), ""))
    with pytest.raises(InvalidRequest, match="cannot be used"):
        ServerTls(Files(str(other[0]), str(other[1]), str(files[1])))


def test_names_are_read_as_grpc_tells_them():
    certificate = {
        "subject": ((("countryName", "DE"),), (("commonName", "web"), ("commonName", "second"))),
        "subjectAltName": (("DNS", "a"), ("URI", WHO), ("IP Address", "10.0.0.1"), ("email", "a@b"), ("DirName", ())),
    }
    assert names_of(certificate) == {
        "x509_subject_alternative_name": [b"a", WHO.encode(), b"10.0.0.1", b"a@b"],
        "x509_common_name": [b"web", b"second"],
        "transport_security_type": [b"ssl"],
    }
    assert names_of(None) == names_of({}) == {}
