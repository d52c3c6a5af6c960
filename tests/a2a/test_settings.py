"""Where cards say that we are (G6)."""

import pytest

from reach.config import load
from reach.config.parts import a2a_settings


@pytest.mark.parametrize(
    ("settings", "url", "grpc"),
    [
        ({}, "http://127.0.0.1:8800", "127.0.0.1:8900"),
        ({"server.host": "::1"}, "http://[::1]:8800", "[::1]:8900"),
        (
            {"server.host": "0.0.0.0", "server.insecure": True, "server.advertise": "reach.example:99"},
            "http://reach.example:8800",
            "reach.example:99",
        ),
        (
            {"a2a.public_url": "https://agents.example/reach", "a2a.public_grpc": "grpc.example:443"},
            "https://agents.example/reach",
            "grpc.example:443",
        ),
    ],
)
def test_G6_where_we_are(settings, url, grpc, tmp_path):
    found = a2a_settings(load(None, {"HOME": str(tmp_path)}, settings), 8800, 8900)
    assert (found.url, found.grpc) == (url, grpc)
    assert found.shows_grpc is ("a2a.public_grpc" in settings)


def test_G6_every_interface_is_no_place_to_be_called(tmp_path):
    found = a2a_settings(load(None, {"HOME": str(tmp_path)}, {"server.host": "0.0.0.0", "server.insecure": True}), 1, 2)
    assert "0.0.0.0" not in f"{found.url} {found.grpc}"
