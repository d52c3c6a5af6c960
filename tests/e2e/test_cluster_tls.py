"""Real nodes that speak TLS to each other, to agents and to callers (GOV-2, CLU-1): an authority made by the test."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from reach import SyncClient, Tls
from reach.core.model import PoolKey
from reach.core.placement import shard_of
from tests.e2e.nodes import Node, Nodes
from tests.e2e.plain import DEADLINE
from tests.e2e.processes import AgentProcess, eventually
from tests.rpc.certificates import Authority

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(150)]

HERE = "IP:127.0.0.1"


class TlsNode(Node):
    """One node whose HTTP speaks TLS as well."""

    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE


class TlsNodes(Nodes):
    """Nodes with certificates of one authority, or of another one for those that are named.

    Args:
        folder: Of the test.
        strangers: Nodes whose certificate is of another authority.
        mutual: Whoever calls shows a certificate of the authority.
    """

    def __init__(self, folder: Path, strangers: str = "", *, mutual: bool = False) -> None:
        self.authority = Authority(folder / "authority")
        self.another = Authority(folder / "another", "another authority")
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.authority.certificate)
        self._strangers, self._mutual = strangers, mutual
        super().__init__(folder, "ab")

    def pair(self, name: str) -> tuple[Path, Path]:
        """Files of a key and a certificate."""
        authority = self.another if name in self._strangers else self.authority
        files = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        for file, text in zip(files, authority.issue(name, HERE), strict=True):
            file.write_bytes(text)
        return files

    def made(self, name: str, *more: str) -> Node:
        """See Nodes."""
        plain = super().made(name, *more)
        key, certificate = self.pair(name)
        tls = ["--tls-cert", str(certificate), "--tls-key", str(key)]
        if self._mutual:
            tls += ["--tls-client-ca", str(self.ca)]
        return TlsNode(self.folder / name, {"AGENT_REACH_CLUSTER_PEER_CA": str(self.ca)}, [*plain._arguments, *tls])

    def client_files(self) -> tuple[Path, ...]:
        """What agents and callers have: the authority, and a certificate where they are asked for one."""
        if not self._mutual:
            return (self.ca,)
        key, certificate = self.pair("client")
        return (self.ca, certificate, key)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def start(**how: Any) -> TlsNodes:
            nodes = TlsNodes(tmp_path, **how)
            stack.callback(nodes.stop)
            nodes.start()
            return nodes

        yield start


def type_of(nodes: Nodes, owner: str) -> str:
    """A type of agents whose pool a node owns, by the last claims."""
    last = {shard: names[0] for (shard, _), names in sorted(nodes.claims().items())}
    return next(name for name in map("type{}".format, range(999)) if last[shard_of(PoolKey("default", name))] == owner)


@pytest.mark.parametrize("mutual", [False, True], ids=["TLS", "mTLS"])
def test_GOV_2_nodes_agents_and_callers_speak_tls(started, log: Path, mutual) -> None:
    """The agent is at a, its pool is b's, the caller is at a: all of it goes over the link between the nodes."""
    nodes = started(mutual=mutual)
    agent_type, files = type_of(nodes, "b"), nodes.client_files()
    arguments = [
        word for name, file in zip(("--ca", "--cert", "--key"), files, strict=False) for word in (name, str(file))
    ]
    who = ("--agent", agent_type, "--type", agent_type)
    with AgentProcess(nodes.all["a"].address, log, *who, *arguments) as agent:
        agent.instance()
        for node in nodes.all.values():
            with SyncClient(node.address, tls=Tls(*files)) as client:
                assert client.call("echo", "over TLS", agent_type=agent_type, timeout=DEADLINE) == "over TLS"
        with SyncClient(nodes.all["a"].address, connect_timeout=2) as client, pytest.raises(Exception, match="TLS"):
            client.call("echo", "plaintext", agent_type=agent_type, timeout=5)
    assert not [line for node in nodes.all.values() for line in node.tracebacks()]


def test_GOV_2_a_node_with_a_certificate_of_another_authority_is_told_of(started) -> None:
    nodes = started(strangers="b")
    node = nodes.all["a"]
    (record,) = eventually(lambda: node.records("no TLS connection to another node"), "the log says why")
    assert record["level"] == "error"
    assert record["fields"]["node"] == "b"
    assert "cluster.peer_ca" in record["fields"]["reason"]
