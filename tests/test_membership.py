"""How a node becomes one of several, and when it does not start (CLU-1, CLU-2)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from reach import membership
from reach.cluster.base import ClusterUnavailable
from reach.cluster.single import SingleCluster
from reach.config import Config, load
from reach.core.placement import SHARDS
from reach.errors import Unavailable
from reach.membership import EXIT_BROKEN, Membership, access_of, peer_tls, secret_of
from reach.runtime.standing import NodeStanding
from reach.store.memory_shared import MemoryNode, MemoryShared
from tests.runtime.hosts import Shell


def config_of(folder: Path, *, alone: bool, **more: object) -> Config:
    """`more`: fields of the configuration, with `__` for the dot."""
    for name in ("secret", "password", "ca", "cert", "key"):
        (folder / name).write_bytes(f"  the {name} of a cluster\n".encode())
    fields: dict[str, object] = {
        "storage.type": "postgres",
        "storage.url": "postgres://reach@db:5432/reach",
        "cluster.name": "orders",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    if not alone:
        fields["cluster.endpoints"] = ["etcd-1:2379", "etcd-2:2379"]
        fields["cluster.secret_file"] = str(folder / "secret")
    return load(None, {}, fields)


class Scene:
    """A node, and what makes it one of several."""

    def __init__(self, config: Config) -> None:
        store = MemoryNode(MemoryShared())
        self.shell = Shell(store)  # type: ignore[arg-type]
        self.membership = Membership(config, self.shell.host, store, "one", "boot")

    async def beside(self, work: Any) -> None:
        """Lets the node go on while this is awaited."""
        done = asyncio.ensure_future(work)
        async with asyncio.timeout(10):
            while not done.done():
                await self.shell.settle(2)
                await asyncio.sleep(0.001)
        await done


@pytest.fixture
async def scenes() -> AsyncIterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for scene in made:
        await scene.membership.stop()
        await scene.shell.stop()


@pytest.mark.parametrize("weight", [1, 0])
async def test_CLU_1_a_node_that_is_alone_owns_all_there_is_once_it_has_started(
    tmp_path: Path, scenes: list[Scene], weight: int
) -> None:
    """Whatever share it would have of a cluster."""
    scenes.append(scene := Scene(config_of(tmp_path, alone=True, cluster__weight=weight)))
    await scene.beside(scene.membership.start("here:1", Mock()))
    assert scene.membership.claims.owned == frozenset(range(SHARDS))
    assert scene.membership.cluster.membership.nodes()["one"].peer_address == "here:1"
    await scene.beside(scene.membership.leave(5))
    assert scene.membership.cluster.membership.nodes() == {}


async def test_CLU_2_a_node_whose_etcd_does_not_answer_does_not_start_and_says_where_it_looked(
    tmp_path: Path, scenes: list[Scene]
) -> None:
    scenes.append(scene := Scene(config_of(tmp_path, alone=False)))

    class Away(SingleCluster):
        async def start(self) -> None:
            raise ClusterUnavailable("etcd does not answer", unknown=False)

    scene.membership.cluster = Away()
    with pytest.raises(Unavailable, match=r"etcd does not answer: is it running at etcd-1:2379, etcd-2:2379\?$"):
        await scene.membership.start("here:1", Mock())
    assert not scene.membership._tasks, "nothing of it runs"
    await scene.membership.leave(5)


@pytest.mark.parametrize("alone", [True, False])
async def test_CLU_1_a_node_knows_whether_it_is_alone(tmp_path: Path, scenes: list[Scene], alone: bool) -> None:
    scenes.append(scene := Scene(config_of(tmp_path, alone=alone)))
    standing = NodeStanding(scene.shell.host, scene.shell.reach)
    scene.membership.tell(standing)
    assert standing.cluster_name == ("" if alone else "orders")
    assert standing.claims is scene.membership.claims
    assert standing.steering is not None
    assert isinstance(scene.membership.cluster, SingleCluster) is alone


async def test_CLU_2_a_process_whose_invariant_is_broken_ends_and_does_not_keep_its_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)

    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    for error in (None, RuntimeError("no such shard")):
        task = asyncio.create_task(work(error), name="leader")
        await asyncio.wait({task})
        membership._failed(task)
    assert ended == [EXIT_BROKEN]
    assert "leader broke: this process ends" in caplog.text
    task = asyncio.create_task(work(None))
    task.cancel()
    await asyncio.wait({task})
    membership._failed(task)
    assert ended == [EXIT_BROKEN], "a node that stops has not failed"


def test_CLU_1_what_is_read_of_files_is_as_it_was_meant(tmp_path: Path) -> None:
    """Editors end a file with a new line, and a secret is the same with it on one node and without on another."""
    config = config_of(tmp_path, alone=False)
    assert secret_of(config) == b"the secret of a cluster"
    assert peer_tls(config) is None
    ca, certificate, key = (f"  the {name} of a cluster\n".encode() for name in ("ca", "cert", "key"))
    named: dict[str, object] = {name: str(tmp_path / name) for name in ("password", "ca", "cert", "key")}
    user = {"cluster__user": "root", "cluster__password_file": named["password"], "cluster__ca": named["ca"]}
    access = access_of(config_of(tmp_path, alone=False, **user))
    assert (access.user, access.password) == ("root", "the password of a cluster")
    assert (access.ca, access.certificate, access.key) == (ca, None, None)
    server = {"server__tls_cert": named["cert"], "server__tls_key": named["key"]}
    assert peer_tls(config_of(tmp_path, alone=False, **server)) == (certificate, key, certificate)
    server["cluster__peer_ca"] = named["ca"]
    assert peer_tls(config_of(tmp_path, alone=False, **server)) == (ca, key, certificate)
