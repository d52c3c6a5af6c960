"""Nodes that speak TLS to each other, to agents and to callers (GOV-2, CLU-1), with certificates of one authority."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from reach import Agent, Client, Task, Tls
from reach.core.placement import SHARDS
from reach.errors import Unavailable
from reach.runtime.ownership import Peer
from tests.rpc.certificates import Authority
from tests.rpc.nodes import SECRET, Cluster, Member, owned

HERE = "IP:127.0.0.1"


class Files:
    """An authority, and a pair of files for each name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority(folder / "authority")
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.authority.certificate)

    def pair(self, name: str, authority: Authority | None = None, host: str = HERE) -> tuple[str, str]:
        """Files with a certificate and its key."""
        key, certificate = (authority or self.authority).issue(name, host)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for file, text in zip(files, (certificate, key), strict=True):
            file.write_bytes(text)
        return str(files[0]), str(files[1])

    def settings(self, pair: tuple[str, str], *, mutual: bool) -> dict[str, object]:
        """Of a node."""
        tls = {"server__tls_cert": pair[0], "server__tls_key": pair[1], "cluster__peer_ca": str(self.ca)}
        asks = {"server__tls_client_ca": str(self.ca), "server__client_cert_required": True}
        return {**tls, **(asks if mutual else {})}

    def client(self, *, mutual: bool) -> Tls:
        """What agents and callers have."""
        return Tls(self.ca, *self.pair("client", host="URI:x:client")) if mutual else Tls(self.ca)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@asynccontextmanager
async def running(files: Files, pairs: dict[str, tuple[str, str]], *, mutual: bool = False) -> AsyncIterator[Cluster]:
    made = Cluster()
    async with AsyncExitStack() as stack:
        for name, pair in pairs.items():
            node = Member(name, files.folder / name, made.addresses, SECRET, **files.settings(pair, mutual=mutual))
            await node.start()
            stack.push_async_callback(node.stop)
            made.nodes[name] = node
            made.addresses[name] = Peer(name, f"127.0.0.1:{node.port}")
        for node in made.nodes.values():
            for shard in range(SHARDS):
                node.owners.give(shard, next(iter(pairs)))
        made.share()
        yield made


@pytest.mark.parametrize("mutual", [False, True], ids=["TLS", "mTLS"])
async def test_GOV_2_nodes_agents_and_callers_speak_tls(files, mutual) -> None:
    """The agent is at one, its pool is two's, the caller is at one: all of it goes over the link between the nodes."""
    tls = files.client(mutual=mutual)
    async with running(files, {name: files.pair(name) for name in ("one", "two")}, mutual=mutual) as nodes:
        agent_type, addresses = owned(nodes, "two"), nodes.addresses
        agent = Agent(agent_type, agent_type=agent_type, addr=addresses["one"].address, tls=tls)

        @agent.route()
        async def echo(task: Task) -> str:
            return task.text

        async with agent:
            for peer in addresses.values():
                async with Client(peer.address, tls=tls) as client:
                    assert await client.call("", "over TLS", agent_type=agent_type, timeout=15) == "over TLS"
        assert not nodes["one"].tasks()
        assert len(nodes["two"].tasks()) == 2
        async with Client(addresses["one"].address, connect_timeout=1) as plain:
            with pytest.raises(Unavailable, match="TLS is spoken there and not here"):
                await plain.call("", "in the clear", agent_type=agent_type)


@pytest.mark.parametrize("what", ["authority", "name"])
async def test_GOV_2_what_is_wrong_with_the_certificate_of_a_node_is_told(files, caplog, what) -> None:
    another = Authority(files.folder / "another", "another authority")
    wrong = files.pair("two", another) if what == "authority" else files.pair("two", host="DNS:elsewhere.example")
    wanted = "not signed by an authority" if what == "authority" else "as a subject alternative name"
    async with running(files, {"one": files.pair("one"), "two": wrong}) as nodes:
        agent_type = owned(nodes, "two")
        async with Client(nodes.addresses["one"].address, tls=Tls(files.ca)) as client:
            with pytest.raises(Unavailable, match=wanted):
                await client.get_task(f"{agent_type}-unknown", timeout=3)
    told = [record for record in caplog.records if record.message == "no TLS connection to another node"]
    assert [record.node for record in told] == ["two"]
    assert told[0].levelno == logging.ERROR
    assert wanted in told[0].reason
