"""Rules of a cluster: what one node's files say from now on holds at all; who starts takes what is there (RTE-6)."""

import asyncio
import logging

import pytest

from reach.cluster.base import ClusterUnavailable
from reach.cluster.single import Memory, SingleCluster
from reach.config import load
from reach.config.sharing import RULES, SharedRules, read, written
from reach.config.watching import Rules
from tests.contracts.clusters import eventually


class Node:
    """A node with files of its own."""

    def __init__(self, folder, name, memory, skills="a"):
        self.folder = folder / name
        self.folder.mkdir()
        self.file = self.folder / "reach.yaml"
        self.say(skills)
        self.applied = []
        self.rules = Rules(self._load(), self._apply, (self.file, self._load))
        self.rules.load()
        self.cluster = SingleCluster(memory)
        self.shared = SharedRules(self.rules, self.cluster.registry, name)

    def say(self, skills, policy="balanced", routes=""):
        """What its files say from now on; `skills` are names."""
        named = ", ".join(f"{one}: {{}}" for one in skills.split())
        (self.folder / "skills.yaml").write_text(f"skills: {{{named}}}\n")
        first = skills.split()[0]
        (self.folder / "routes.yaml").write_text(
            routes or f"routes: [{{intent_prefix: i, require_capability: {first}, policy: own}}]\n"
        )
        self.file.write_text(
            f"router:\n  vocabulary_file: {self.folder}/skills.yaml\n  routes_file: {self.folder}/routes.yaml\n"
            f"  policies: {{own: {{reach: 1}}}}\n  policy: {policy}\n"
        )

    def _load(self):
        return load(self.file, {"HOME": "/"})

    async def _apply(self, vocabulary, routes, policies):
        self.applied.append((sorted(vocabulary.skills), policies.policy.name))

    async def start(self):
        await self.shared.join()
        self.task = asyncio.create_task(self.shared.run())

    @property
    def skills(self):
        return sorted(self.rules.vocabulary.skills)


@pytest.fixture
async def started(tmp_path):
    memory, nodes = Memory(), []

    async def start(name, **more):
        node = Node(tmp_path, name, memory, **more)
        nodes.append(node)
        await node.start()
        return node

    yield start
    for node in nodes:
        node.task.cancel()
    await asyncio.gather(*(node.task for node in nodes), return_exceptions=True)


async def test_RTE_6_a_change_at_one_node_is_in_force_at_all(started):
    one, two = await started("one"), await started("two")
    two.applied.clear()
    two.say("b c", policy="own")
    assert await two.rules.reload()
    await eventually(lambda: one.skills == two.skills == ["b", "c"])
    assert one.rules.policies.policy.name == two.rules.policies.policy.name == "own"
    assert len(one.rules.routes) == 1
    assert one.applied == two.applied == [(["b", "c"], "own")]


async def test_RTE_6_a_node_that_starts_takes_what_is_there_whatever_its_files_say(started):
    one = await started("one", skills="new")
    late = await started("late", skills="old")
    assert late.skills == ["new"]
    await asyncio.sleep(0.02)  # time for what must not happen
    assert one.skills == ["new"], "who only starts changes nothing"
    late.say("newer")
    assert await late.rules.reload()
    await eventually(lambda: one.skills == ["newer"])


async def test_RTE_6_a_file_that_is_wrong_changes_nothing_anywhere(started, caplog):
    one, two = await started("one"), await started("two")
    one.say("b", routes="routes: [{intent_prefix: i, require_capability: b, policy: nobody}]\n")
    assert not await one.rules.reload()
    await asyncio.sleep(0.02)  # time for what must not happen
    assert one.skills == two.skills == ["a"]
    assert "routes.yaml:1" in caplog.text


async def test_RTE_6_without_etcd_the_old_rules_stay_at_all_and_the_log_says_so(started, caplog, monkeypatch):
    one, two = await started("one"), await started("two")

    async def away(*_, **__):
        raise ClusterUnavailable("no etcd")

    monkeypatch.setattr(one.cluster.registry, "put_document", away)
    one.say("b")
    assert not await one.rules.reload()
    assert one.skills == two.skills == ["a"]
    assert "cannot be shared: no etcd" in caplog.text


async def test_CLU_6_a_document_that_this_version_cannot_read_changes_nothing(started, caplog):
    one = await started("one")
    unknown = (
        b'{"router": {"policy": "nobody", "policies": {}, "pool_policies": {}}, "vocabulary": null, "routes": null}'
    )
    for data in (b"{", b'{"router": {}}', unknown):
        caplog.clear()
        caplog.set_level(logging.ERROR)
        await one.cluster.registry.put_document(RULES, data)
        await eventually(lambda: "the cluster has others" in caplog.text)
    assert one.skills == ["a"]
    one.say("b")
    assert await one.rules.reload()
    await eventually(lambda: one.skills == ["b"])


def test_RTE_6_what_is_written_is_what_is_read(tmp_path):
    node = Node(tmp_path, "one", Memory())
    texts = node.rules.texts()
    assert read(written(texts, "one"), node.rules.router) == (texts, "one")
