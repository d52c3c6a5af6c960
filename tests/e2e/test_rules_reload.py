"""Vocabulary and routes of a real server: hot reload, SIGHUP, bad files, restarts (REG-5, RTE-6)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentreach.v1 import agent_pb2, dispatch_pb2, registry_pb2, task_pb2
from tests.e2e.plain import Plain, refused
from tests.e2e.processes import Server, eventually

pytestmark = pytest.mark.e2e

SKILLS = "skills:\n  summarization: {aliases: [summarize]}\n  refunds: {}\n"
ROUTES = "routes:\n- intent_prefix: mail\n  require_capability: summarize\n"


class Rules:
    """The files of a server."""

    def __init__(self, folder: Path) -> None:
        self.skills, self.routes = folder / "skills.yaml", folder / "routes.yaml"
        self.write(self.skills, SKILLS)
        self.write(self.routes, ROUTES)
        self.environment = {
            "AGENT_REACH_ROUTER_VOCABULARY_FILE": str(self.skills),
            "AGENT_REACH_ROUTER_ROUTES_FILE": str(self.routes),
        }

    def write(self, file: Path, text: str) -> None:
        """As editors do: a new file in place of the old one."""
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").rename(file)


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(tmp_path)


@pytest.fixture
def server(tmp_path: Path, rules: Rules) -> Iterator[Server]:
    with Server(tmp_path / "data", rules.environment) as made:
        yield made
        assert not made.tracebacks()


def register(plain: Plain, name: str, capability: str) -> None:
    registration = agent_pb2.Registration(agent_id=name, boot_id="b", instance_id=f"{name}-1")
    registration.capabilities.add(name=capability)
    plain.call(plain.registry.Register, registry_pb2.RegisterRequest(registration=registration))


def pool_of(plain: Plain, **selector: Any) -> str:
    task = task_pb2.TaskSpec(selector=task_pb2.Selector(**selector))
    request = dispatch_pb2.PreviewRouteRequest(task=task)
    return str(plain.call(plain.dispatching.PreviewRoute, request).pool)


def errors(server: Server) -> list[str]:
    records = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
    return [record["message"] for record in records if record.get("level") == "error"]


def test_REG_5_RTE_6_a_bad_file_keeps_the_old_rules_and_is_told_of_by_line_a_good_one_is_taken(server, plain, rules):
    register(plain, "short", "summarization")
    register(plain, "pay", "refunds")
    assert pool_of(plain, intent="mail.long") == "short"
    rules.write(rules.routes, ROUTES + "- intent_prefix: money\n  require_capabilty: refunds\n")
    told = eventually(lambda: errors(server), "the bad file is told of")
    reason = "routes[1].require_capabilty is unknown; did you mean require_capability?"
    assert told == [f"the old rules stay: {rules.routes}:5: {reason}"]
    rules.write(rules.skills, "skills:\n  summarization: {aliases: [refunds]}\n  refunds: {}\n")
    eventually(lambda: len(errors(server)) > 1, "the other bad file is told of too")
    assert f"{rules.skills}:2: alias 'refunds' of 'summarization' means 'refunds' already (line 3)" in errors(server)[1]
    assert pool_of(plain, intent="mail.long") == "short"
    assert pool_of(plain, capability="refunds") == "pay"
    with refused("NO_ROUTE"):
        pool_of(plain, intent="money.back")
    rules.write(rules.skills, SKILLS)
    rules.write(rules.routes, ROUTES + "- intent_prefix: money\n  require_capability: refunds\n")
    eventually(lambda: "new rules" in server.log_text(), "the good files are taken")
    assert pool_of(plain, intent="money.back") == "pay"
    assert pool_of(plain, intent="mail") == "short"


def test_REG_5_SIGHUP_reads_the_files_at_once_and_never_ends_the_server(server, plain, rules):
    register(plain, "short", "summarization")
    stamp = rules.skills.stat()
    text = rules.skills.read_text().replace("summarize", "summarise")
    rules.skills.write_text(text)
    os.utime(rules.skills, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # nobody could see by this that it has changed
    server.signal(signal.SIGHUP)
    eventually(lambda: pool_of(plain, capability="summarise") == "short", "the new alias is known")
    rules.skills.write_text("{")
    server.signal(signal.SIGHUP)
    eventually(lambda: any("is not YAML" in one for one in errors(server)), "the bad file is told of")
    assert pool_of(plain, capability="summarise") == "short"


def test_RTE_6_what_waits_by_intent_outlives_kill_9_and_a_route_that_is_gone(server, plain, rules):
    task = task_pb2.TaskSpec(task_id="waits", selector=task_pb2.Selector(intent="mail.long"))
    plain.dispatch(task)
    assert "no agent has capability 'summarization'" in plain.get("waits").pending_reason
    server.kill()
    rules.write(rules.routes, "routes: []\n")
    server.start()
    waiting = plain.get("waits", wait_for_ready=True)
    assert waiting.state == task_pb2.TASK_STATE_PENDING
    assert "no route has intent 'mail.long'" in waiting.pending_reason
    register(plain, "short", "summarization")
    assert plain.get("waits").pool == "~"  # nobody says any more what it needs: nobody gets it
    rules.write(rules.routes, ROUTES)
    eventually(lambda: plain.get("waits").pool == "short", "the route is back, and the task goes where it says")


def test_a_server_does_not_start_with_bad_rules(tmp_path, rules):
    rules.write(rules.routes, "routes:\n- intent_prefix: a\n")
    command = [sys.executable, "-m", "reach.cli", "serve", "--port", "0", "--admin-port", "0", "--memory",
               "--data", str(tmp_path / "other")]  # fmt: skip
    ended = subprocess.run(
        command, env={**os.environ, **rules.environment}, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert f"{rules.routes}:2: route 'a' names nobody" in ended.stderr


def test_RTE_3_own_policies_of_a_running_server_change_with_its_file(tmp_path, rules):
    config = tmp_path / "reach.yaml"
    rules.write(config, "router:\n  policies:\n    mine: {capacity: 1}\n  pool_policies: {pay: mine}\n")
    made = Server(tmp_path / "data", rules.environment, ["--config", str(config)])
    with made as server, Plain(server.address) as plain:
        register(plain, "pay", "refunds")

        def policy() -> str:
            task = task_pb2.TaskSpec(selector=task_pb2.Selector(capability="refunds"))
            request = dispatch_pb2.PreviewRouteRequest(task=task)
            decision = plain.call(plain.dispatching.PreviewRoute, request).decision
            return f"{decision.policy} {decision.policy_hash}"

        before = policy()
        assert before.startswith("mine ")
        rules.write(config, "router:\n  policies:\n    mine: {capacityy: 1}\n  pool_policies: {pay: mine}\n")
        told = eventually(lambda: errors(server), "the bad file is told of")[0]
        assert told.startswith(f"the old rules stay: {config}:2: router.policies.mine: there is no signal 'capacityy'")
        assert policy() == before
        rules.write(config, "router:\n  policies:\n    mine: {weight: 1}\n  pool_policies: {pay: mine}\n")
        eventually(lambda: policy() != before, "the good file is taken")
        assert policy().startswith("mine ")
        assert not server.tracebacks()
