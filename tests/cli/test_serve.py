"""`reach serve` and `reach config`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reach.cli.exits import Exit
from reach.testing.server import LocalServer
from tests.cli.conftest import Command


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations of servers that were to run."""
    import reach.node

    seen: list[Any] = []

    def run(config: Any, file: Any) -> int:
        seen.append(config)
        return 0

    monkeypatch.setattr(reach.node, "run", run)
    return seen


def test_cfg_1_every_option_overrides_a_field(reach: Command, served: list[Any], tmp_path: Path) -> None:
    options = ["--host", "0.0.0.0", "--port", "1", "--admin-port", "2", "--data", str(tmp_path), "--auth", "keys"]
    options += ["--insecure", "--log-level", "error", "--log-format", "text"]
    assert reach("serve", *options).code == 0
    (config,) = served
    server = config.server
    assert (server.host, server.port, server.admin_port, server.auth) == ("0.0.0.0", 1, 2, "keys")
    assert server.insecure
    assert (config.storage.type, config.storage.path) == ("sqlite", str(tmp_path))
    assert (config.telemetry.log_level, config.telemetry.log_format) == ("error", "text")


def test_cfg_1_options_override_the_environment_which_overrides_the_file(
    reach: Command, served: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reach.yaml"
    file.write_text("server: {port: 1, admin_port: 2, drain_seconds: 5}")
    monkeypatch.setenv("AGENT_REACH_SERVER_ADMIN_PORT", "3")
    monkeypatch.setenv("AGENT_REACH_SERVER_PORT", "4")
    reach("serve", "--config", str(file), "--port", "6", "--memory")
    (config,) = served
    assert (config.server.port, config.server.admin_port, config.server.drain_seconds) == (6, 3, 5.0)
    assert config.storage.type == "memory"
    assert config.telemetry.log_format == "json"


def test_tls_options(reach: Command, served: list[Any], tmp_path: Path) -> None:
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text("x")
    files = [f"--tls-{name}={tmp_path / name}" for name in ("cert", "key")]
    reach("serve", "--host", "::", "--auth", "keys", *files, f"--tls-client-ca={tmp_path / 'ca'}")
    (config,) = served
    assert config.server.tls_cert == str(tmp_path / "cert")
    assert config.server.client_cert_required


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--port", "99999"), "--port: expected int <= 65535"),
        (("--host", "0.0.0.0"), "without authentication the server listens on loopback only"),
        (("--tls-cert", "/none"), "server.tls_cert needs server.tls_key"),
        (("--config", "/none"), "/none: cannot be read"),
        (("--port", "7", "--admin-port", "7"), "are both 7"),
    ],
)
def test_a_configuration_that_cannot_be_used(
    reach: Command, served: list[Any], arguments: tuple[str, ...], text: str
) -> None:
    ran = reach("serve", *arguments)
    assert ran.code == Exit.WRONG_REQUEST
    assert text in ran.err
    assert "Traceback" not in ran.err
    assert not served


def test_unknown_keys_are_told_with_their_line(reach: Command, tmp_path: Path) -> None:
    file = tmp_path / "reach.yaml"
    file.write_text("server:\n  prot: 1\n")
    for command in (("serve", "--config", str(file)), ("config", "check", str(file))):
        ran = reach(*command)
        assert ran.code == Exit.WRONG_REQUEST
        assert f"{file}:2: server.prot is unknown; did you mean server.port?" in ran.err


def test_config_reference_and_check(reach: Command, tmp_path: Path) -> None:
    assert "**`server.port`**" in reach("config", "reference").out
    file = tmp_path / "reach.yaml"
    file.write_text("server: {port: 1234}")
    assert "  port: 1234\n" in reach("config", "check", str(file)).out
    assert "  port: 8900\n" in reach("config", "check").out


@pytest.mark.e2e
def test_a_second_server_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with LocalServer(tmp_path / "one") as first:
        for data, port in ((tmp_path / "two", first.port), (tmp_path / "one", 0)):
            command = [sys.executable, "-m", "reach.cli", "serve", "--data", str(data), "--port", str(port)]
            command += ["--admin-port", "0", "--log-format", "text"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env={**os.environ})
            assert done.returncode == Exit.UNREACHABLE
            assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.e2e
def test_sigterm_ends_it_with_0() -> None:
    with LocalServer() as server:
        assert server.stop() == 0
