"""Tokens that we show to agents: read anew, for whom they are meant, and fit for a header (GOV-2, P11, case G5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from reach.errors import InvalidRequest
from reach.transports.credentials import CredentialEntry, Credentials
from reach.wire.addresses import read_address

HERE = read_address("grpcs://agent.test:9000")


def entries(file: Path) -> Credentials:
    return Credentials([CredentialEntry("ours", str(file), frozenset({"acme"}), frozenset({"agent.test"}))], None)


def test_a_token_that_is_replaced_counts_from_the_next_time_on(tmp_path: Path) -> None:
    file = tmp_path / "token"
    known = entries(file)
    for text in ("one\n", " two "):
        file.write_text(text)
        assert known.token("acme", "ours", HERE) == (text.strip(), "")


@pytest.mark.parametrize("text", ["a\r\nx-admin: 1", "a\nb", "a\rb", "a\0b", "a\x1bb", "", " \n", "ü", "a\x7fb"])
def test_G5_nothing_but_a_token_is_put_into_a_header(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(text.encode())
    with pytest.raises(InvalidRequest, match=r"empty, or more than one line|cannot be read"):
        entries(file).token("acme", "ours", HERE)
    file.unlink()
    with pytest.raises(InvalidRequest, match="cannot be read"):
        entries(file).token("acme", "ours", HERE)
