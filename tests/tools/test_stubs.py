"""`make stubs LANG=…`: what it generates, and what it says where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def stubs(*arguments: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it."""
    environment = {**os.environ, "PATH": path if path is not None else os.environ["PATH"]}
    command = [sys.executable, str(ROOT / "tools" / "stubs.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_API_5_stubs_for_python_are_those_of_the_contract(tmp_path: Path) -> None:
    done = stubs("python", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"stubs for python are in {tmp_path}\n"
    made = {path.name for path in (tmp_path / "agentreach" / "v1").iterdir()}
    for proto in (ROOT / "protos" / "agentreach" / "v1").glob("*.proto"):
        assert {f"{proto.stem}_pb2.py", f"{proto.stem}_pb2.pyi", f"{proto.stem}_pb2_grpc.py"} <= made
    assert not (tmp_path / "agentreach" / "internal").exists()


@pytest.mark.parametrize(
    ("language", "lacking"),
    [("go", "protoc-gen-go is not here: "), ("java", "mvn is not here: "), ("cpp", "grpc_cpp_plugin is not here: ")],
)
def test_API_5_what_is_missing_is_said(language: str, lacking: str, tmp_path: Path) -> None:
    done = stubs(language, "--out", tmp_path / "out", path=str(tmp_path))
    assert done.returncode == 1
    assert lacking in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_language_that_is_not_known_is_told_with_those_that_are() -> None:
    done = stubs("en_US.UTF-8")  # LANG of the shell, where none was given
    assert done.returncode == 2
    assert "'go'" in done.stderr
    assert "'java'" in done.stderr
