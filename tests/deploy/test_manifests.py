"""What must hold between deploy/ and the code, so that no manifest says what no node understands. Needs no linter."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from reach.cli.serve import serve
from reach.config import Config, load
from reach.http.app import create_app
from reach.telemetry.exposition import prometheus_text
from reach.telemetry.metrics import Metrics
from reach.version import VERSION
from tools.deploy_check import CHECKS, Absent, findings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
GRPC, HTTP = Config().server.port, Config().server.admin_port
IMAGES = {"agentreach", "postgres", "quay.io/coreos/etcd"}
"""All that may be named; whoever has a registry of their own says so in an overlay."""
LEAVING_SECONDS = 5
"""More than draining: handing over and closing."""


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text()


def documents(folder: str) -> list[dict[str, Any]]:
    """All Kubernetes objects of a folder, patches too."""
    found = []
    for file in sorted((KUBERNETES / folder).glob("*.yaml")):
        found += [one for one in yaml.safe_load_all(file.read_text()) if one]
    return found


def one(kind: str, name: str = "reach", folder: str = "base") -> dict[str, Any]:
    (found,) = [each for each in documents(folder) if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod_of(stateful_set: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = stateful_set["spec"]["template"]["spec"]
    return pod


@pytest.fixture
def compose() -> dict[str, Any]:
    known: dict[str, Any] = yaml.safe_load(text_of("compose.yaml"))
    return known


def seconds(text: str) -> int:
    assert text.endswith("s"), text
    return int(text.removesuffix("s"))


def flags(arguments: list[str]) -> set[str]:
    """Of a call of `reach serve`; the command itself is checked on the way."""
    assert arguments[0] == "serve", arguments
    return {word.partition("=")[0] for word in arguments[1:] if word.startswith("-")}


KNOWN_FLAGS = {name for parameter in serve.params for name in parameter.opts}


@pytest.fixture
def read(tmp_path: Path):
    """Reads a configuration as a node would whose secrets are mounted."""

    def load_it(environ: dict[str, str], file: str | None = None) -> Config:
        def here(text: str) -> str:
            return re.sub(r"/(?:run/secrets|etc/agentreach)/[\w./-]+", lambda found: stand_in(found.group()), text)

        def stand_in(path: str) -> str:
            copy = tmp_path / path.strip("/").replace("/", "-")
            copy.write_text("a secret of more than sixteen bytes")
            return str(copy)

        path = None
        if file is not None:
            path = tmp_path / "reach.yaml"
            path.write_text(here(file))
        return load(path, {name: here(value) for name, value in environ.items()})

    return load_it


# -- images -----------------------------------------------------------------------------------------------------------


def test_versions_agree(compose) -> None:
    assert f'org.opencontainers.image.version="{VERSION}"' in text_of("Dockerfile")
    assert f"-t agentreach:{VERSION} " in text_of("Dockerfile")
    nodes = [one for name, one in compose["services"].items() if name.startswith("node-")]
    assert {node["image"] for node in nodes} == {f"agentreach:{VERSION}"}
    kustomization = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())
    assert kustomization["images"] == [{"name": "agentreach", "newTag": VERSION}]
    bases = set(re.findall(r"^FROM (\S+)", text_of("Dockerfile"), re.MULTILINE))
    assert len(bases) == 1, "what is built is what runs"
    assert re.fullmatch(r"python:3\.1[1-3]\.\d+-slim-\w+", bases.pop())


def images(compose: dict[str, Any]) -> Iterator[str]:
    for service in compose["services"].values():
        yield service["image"]
    for folder in ("base", "trial"):
        for each in documents(folder):
            if each["kind"] == "StatefulSet":
                yield from (one["image"] for one in pod_of(each)["containers"] if "image" in one)


def test_images_are_the_well_known_ones_and_pinned(compose) -> None:
    found = set(images(compose))
    assert {image.partition(":")[0] for image in found} == IMAGES
    pinned = {image for image in found if re.fullmatch(r"\S+:v?\d+\.\d+\S*", image)}
    assert found - pinned == {"agentreach"}, "the base's image gets its tag from the kustomization"
    etcd = {image for image in found if "etcd" in image}
    postgres = {image for image in found if "postgres" in image}
    assert len(etcd) == len(postgres) == 1, "compose and Kubernetes agree"


def test_the_image_is_made_of_what_is_there_and_not_ignored() -> None:
    allowed = {line[1:] for line in text_of("Dockerfile.dockerignore").splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text_of("Dockerfile"), re.MULTILINE):
        copied |= set([word for word in shlex.split(line) if not word.startswith("--")][:-1])
    assert copied == allowed
    for name in copied:
        assert (DEPLOY.parent / name).exists(), name


def test_the_container_is_nobody_and_says_how_it_does() -> None:
    text = text_of("Dockerfile")
    last = text[text.rindex("FROM ") :]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert re.search(rf"^EXPOSE {GRPC} {HTTP}$", last, re.MULTILINE)
    assert "AGENT_REACH_STORAGE_PATH=/var/lib/agentreach" in last
    settings = "\n".join(re.findall(r"^ENV (?:.|\\\n)+", last, re.MULTILINE))
    variables = dict(re.findall(r"(AGENT_REACH_\w+)=(\S+)", settings))
    load(None, {**variables, "AGENT_REACH_SERVER_INSECURE": "true"})
    (command,) = re.findall(r"^CMD (\[.*\])$", last, re.MULTILINE)
    assert flags(yaml.safe_load(command)) <= KNOWN_FLAGS


@pytest.mark.parametrize(("arguments", "code", "wanted"), [((), 0, "/healthz"), (("ready",), 1, "/readyz")])
def test_the_health_check_asks_the_node(arguments, code, wanted) -> None:
    asked: list[str] = []

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if self.path == "/healthz" else 503)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass  # not a word on stderr

    with HTTPServer(("127.0.0.1", 0), Node) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {"AGENT_REACH_SERVER_ADMIN_PORT": str(server.server_port)}
        script = [sys.executable, str(DEPLOY / "healthcheck.py"), *arguments]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
        server.shutdown()
    assert (done.returncode, asked) == (code, [wanted]), done.stderr
    assert "Traceback" not in done.stderr


# -- compose ----------------------------------------------------------------------------------------------------------


def test_what_compose_gives_its_nodes_is_a_configuration(compose, read) -> None:
    members = {f"{name}:2379" for name in compose["services"] if name.startswith("etcd-")}
    ports: list[str] = []
    for name, service in compose["services"].items():
        ports += service.get("ports", ())
        if not name.startswith("node-"):
            continue
        config = read(service["environment"])
        assert config.server.node_id == name
        assert config.server.advertise == f"{name}:{GRPC}"
        assert set(config.cluster.endpoints) == members
        assert config.storage.url.partition("@")[2] == "postgres:5432/reach"
        secrets = {f"/run/secrets/{secret}" for secret in service["secrets"]}
        assert {value for key, value in service["environment"].items() if key.endswith("_FILE")} == secrets
        assert {port.rpartition(":")[2] for port in service["ports"]} == {str(GRPC), str(HTTP)}
        assert seconds(service["stop_grace_period"]) >= config.server.drain_seconds + LEAVING_SECONDS
        assert set(service["depends_on"]) == {one for one in compose["services"] if not one.startswith("node-")}
        assert service["healthcheck"]["test"][-1] == "ready"
    assert all(port.startswith("127.0.0.1:") for port in ports), "nobody is asked who they are: loopback only"
    assert len({port.rsplit(":", 1)[0] for port in ports}) == len(ports)
    assert all("healthcheck" in service for service in compose["services"].values())


def test_members_of_etcd_know_each_other(compose) -> None:
    for name, service in compose["services"].items():
        if name.startswith("etcd-"):
            environment = service["environment"]
            assert environment["ETCD_NAME"] == name
            assert f"{name}={environment['ETCD_INITIAL_ADVERTISE_PEER_URLS']}" in environment["ETCD_INITIAL_CLUSTER"]
            assert service["volumes"] == [f"{name}:{environment['ETCD_DATA_DIR']}"]


# -- Kubernetes -------------------------------------------------------------------------------------------------------


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    fields = {"metadata.name": "reach-0", "metadata.namespace": "somewhere"}
    found: dict[str, str] = {}
    for variable in container["env"]:
        value = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name.group(1)], value)
    return found


@pytest.mark.parametrize(("folder", "source"), [("base", "configmap"), ("trial", "config")])
def test_what_kubernetes_gives_its_nodes_is_a_configuration(read, folder, source) -> None:
    (container,) = pod_of(one("StatefulSet"))["containers"]
    environ = environment_of(container)
    document = yaml.safe_load((KUBERNETES / folder / f"{source}.yaml").read_text())
    config = read({name: value for name, value in environ.items() if name.startswith("AGENT_REACH_")},
                  document["data"]["reach.yaml"])  # fmt: skip
    assert config.server.node_id == "reach-0"
    assert config.server.advertise == f"reach-0.reach-nodes.somewhere.svc:{GRPC}"
    assert (config.server.auth, bool(config.server.tls_cert)) == (
        ("keys", True) if folder == "base" else ("none", False)
    )
    pod = pod_of(one("StatefulSet"))
    stop = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] >= stop + config.server.drain_seconds + LEAVING_SECONDS
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    for path in re.findall(r"/etc/agentreach/[\w./-]+", document["data"]["reach.yaml"]):
        assert str(Path(path).parent) in mounted, path


def test_flags_ports_and_probes_are_those_of_a_node() -> None:
    (container,) = pod_of(one("StatefulSet"))["containers"]
    assert flags(container["args"]) <= KNOWN_FLAGS
    assert container["args"][-1].startswith(tuple(mount["mountPath"] for mount in container["volumeMounts"]))
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"grpc": GRPC, "http": HTTP}
    app = create_app(lambda: (True, {}), lambda: b"")
    paths = {route.path for route in app.routes if hasattr(route, "path")}
    for folder in ("base", "trial"):
        for each in documents(folder):
            if each["kind"] != "StatefulSet" or each["metadata"]["name"] != "reach":
                continue
            (container,) = pod_of(each)["containers"]
            for probe, path in (
                ("startupProbe", "/healthz"),
                ("livenessProbe", "/healthz"),
                ("readinessProbe", "/readyz"),
            ):
                asked = container[probe]["httpGet"]
                assert (asked["path"], asked["port"]) == (path, "http")
                assert asked["scheme"] == ("HTTPS" if folder == "base" else "HTTP")
                assert path in paths
    for name in ("reach", "reach-nodes"):
        for port in one("Service", name)["spec"]["ports"]:
            assert port["targetPort"] == port["name"]
            assert port["port"] == {"grpc": GRPC, "http": HTTP}[port["name"]]
    for rule in one("NetworkPolicy")["spec"]["ingress"]:
        assert {port["port"] for port in rule["ports"]} <= {"grpc", "http"}


def test_objects_find_each_other() -> None:
    stateful = one("StatefulSet")
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["serviceName"] == one("Service", "reach-nodes")["metadata"]["name"]
    assert one("Service", "reach-nodes")["spec"]["clusterIP"] == "None"
    selectors = [
        stateful["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(one("Service", name)["spec"]["selector"] for name in ("reach", "reach-nodes")),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    target = one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", stateful["metadata"]["name"])
    names = {volume["name"] for volume in pod_of(stateful)["volumes"]}
    assert {mount["name"] for mount in pod_of(stateful)["containers"][0]["volumeMounts"]} == names
    listed = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml"} == {file.name for file in (KUBERNETES / "base").glob("*.yaml")}


def test_what_scales_is_a_metric() -> None:
    metrics = one("HorizontalPodAutoscaler")["spec"]["metrics"]
    (named,) = [metric["pods"]["metric"]["name"] for metric in metrics if metric["type"] == "Pods"]
    assert f"\n{named}" in "\n" + prometheus_text(Metrics()).decode()


def test_pods_may_do_little() -> None:
    for folder in ("base", "trial"):
        for each in documents(folder):
            if each["kind"] != "StatefulSet" or "securityContext" not in pod_of(each):
                continue
            pod = pod_of(each)
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["automountServiceAccountToken"] is False
            assert pod["enableServiceLinks"] is False, "AGENT_REACH_PORT of a service would be refused by nodes"
            for container in pod["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


# -- systemd ----------------------------------------------------------------------------------------------------------


def test_the_unit_runs_what_there_is() -> None:
    text = text_of("systemd/reach.service")
    entries = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    command = shlex.split(entries["ExecStart"])
    assert Path(command[0]).name == "reach"
    assert flags(command[1:]) <= KNOWN_FLAGS
    variables = dict(word.partition("=")[::2] for word in entries["Environment"].split())
    config = load(None, variables)
    assert config.storage.path == f"/var/lib/{entries['StateDirectory']}"
    assert int(entries["TimeoutStopSec"]) >= config.server.drain_seconds + LEAVING_SECONDS


# -- linters ----------------------------------------------------------------------------------------------------------


def test_a_linter_that_is_absent_is_skipped_and_one_that_finds_something_is_heard(monkeypatch, capsys) -> None:
    from tools import deploy_check

    def absent() -> None:
        raise Absent("such a thing")

    def wrong() -> None:
        raise RuntimeError("line 3 is wrong")

    monkeypatch.setattr(deploy_check, "CHECKS", {"one": absent, "two": lambda: None})
    assert deploy_check.main() == 0
    assert "!!!! SKIPPED: such a thing is not on this machine" in capsys.readouterr().err
    monkeypatch.setitem(deploy_check.CHECKS, "three", wrong)
    assert deploy_check.main() == 1
    assert "line 3 is wrong" in capsys.readouterr().out
    assert dict(findings())["two"] == "ok"
    assert len(CHECKS) == 5
