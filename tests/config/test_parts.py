"""What parts of a node are told of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from reach.config import Config, load
from reach.config.parts import listen, server_tls
from reach.errors import InvalidRequest
from tests.rpc.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def config_of(folder: Path, key: bytes, certificate: bytes) -> Config:
    files = {"tls_key": key, "tls_cert": certificate}
    for name, text in files.items():
        (folder / name).write_bytes(text)
    return load(None, {f"AGENT_REACH_SERVER_{name.upper()}": str(folder / name) for name in files})


def test_GOV_2_a_certificate_and_its_key_are_taken(tmp_path, authority) -> None:
    key, certificate = authority.issue("node", "IP:127.0.0.1")
    config = config_of(tmp_path, key, certificate)
    found = listen(config, server_tls(config))
    assert (found.private_key, found.certificate) == (key, certificate)


def test_GOV_2_a_key_of_another_certificate_is_told(tmp_path, authority) -> None:
    _, certificate = authority.issue("node", "IP:127.0.0.1")
    key, _ = authority.issue("node", "IP:127.0.0.1")
    with pytest.raises(InvalidRequest, match="the key is not the one of the certificate"):
        server_tls(config_of(tmp_path, key, certificate))


def test_GOV_2_what_is_no_certificate_is_told(tmp_path, authority) -> None:
    key, _ = authority.issue("node", "IP:127.0.0.1")
    with pytest.raises(InvalidRequest, match=r"server\.tls_cert .* cannot be used"):
        server_tls(config_of(tmp_path, key, b"not a certificate"))
