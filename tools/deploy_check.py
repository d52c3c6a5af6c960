"""`make deploy-check`: published linters read what is in deploy/. One that is not on this machine is skipped, loudly.

What must hold between these files and the code, tests/deploy checks, with no linter at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
KUSTOMIZED = ("base", "trial")
KUBERNETES = ("1.30.0", "1.37.0")
"""Oldest and newest version whose schemas the manifests must fit."""
SECRETS = {"REACH_CLUSTER_SECRET": "x", "REACH_POSTGRES_PASSWORD": "x"}
EXPOSURE = 15
"""Most that `systemd-analyze security` may find, in tenths: 1.2 of 10 as it is."""


class Absent(Exception):
    """A linter is not here."""


def program(name: str) -> str:
    """The path of a program: beside the interpreter, else wherever PATH says.

    Raises:
        Absent: it is nowhere.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Absent(name)
    return found


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """What a linter prints. Raises RuntimeError if it finds something."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **(environment or {})}
    )
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout}{done.stderr}".strip())
    return done.stdout


def yaml_style() -> None:
    """Style and syntax of all YAML."""
    run(program("yamllint"), "--strict", "-c", str(DEPLOY / ".yamllint.yaml"), str(DEPLOY))


def dockerfile() -> None:
    """Habits of Dockerfiles."""
    run(program("hadolint"), str(DEPLOY / "Dockerfile"))


def compose() -> None:
    """What compose makes of its file."""
    docker = program("docker")
    if subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode != 0:
        raise Absent("docker compose")
    run(docker, "compose", "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet", environment=SECRETS)


def kubernetes() -> None:
    """What kustomize makes of base and overlay, against the schemas of Kubernetes."""
    kubectl = program("kubectl")
    built = {name: run(kubectl, "kustomize", str(DEPLOY / "kubernetes" / name)) for name in KUSTOMIZED}
    validate = program("kubernetes-validate")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in built.items():
            file = Path(folder, f"{name}.yaml")
            file.write_text(text)
            for version in KUBERNETES:
                run(validate, "--strict", "--quiet", "-k", version, str(file))


def systemd() -> None:
    """The unit: as systemd reads it, and how much it leaves open."""
    analyze, unit = program("systemd-analyze"), DEPLOY / "systemd" / "reach.service"
    with tempfile.TemporaryDirectory() as folder:  # with a program that is there, as verify looks for it
        copy = Path(folder, unit.name)
        copy.write_text(unit.read_text().replace("/opt/agentreach/bin/reach", "/bin/true"))
        run(analyze, "verify", "--man=no", str(copy))
        run(analyze, "security", "--offline=true", f"--threshold={EXPOSURE}", str(copy))


CHECKS: dict[str, Callable[[], None]] = {
    "YAML (yamllint)": yaml_style,
    "Dockerfile (hadolint)": dockerfile,
    "compose.yaml (docker compose config)": compose,
    "Kubernetes (kubectl kustomize, kubernetes-validate)": kubernetes,
    "systemd unit (systemd-analyze)": systemd,
}


def findings() -> Iterator[tuple[str, str]]:
    """What each linter says: the check, and "ok", "SKIPPED: …" or what is wrong."""
    for name, check in CHECKS.items():
        try:
            check()
        except Absent as absent:
            yield name, f"SKIPPED: {absent} is not on this machine"
        except RuntimeError as error:
            yield name, f"WRONG\n{error}"
        else:
            yield name, "ok"


def main() -> int:
    """The exit code: 1 if a linter found something."""
    wrong = 0
    for name, said in findings():
        wrong += said.startswith("WRONG")
        if said.startswith("SKIPPED"):
            print(f"\n!!!! deploy-check: {name}\n!!!! {said}\n", file=sys.stderr)
        else:
            print(f"deploy-check: {name}: {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
