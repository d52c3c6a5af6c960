"""docs/protocol.md says what is true: its tables are made from the contract and the code, its links lead somewhere."""

import re

import pytest

from reach.wire.status import TABLE
from tests.rpc import protocol_page
from tests.rpc.protocol_page import PAGE, ROOT, meanings, with_tables


def test_the_tables_are_as_they_would_be_written_now():
    page = PAGE.read_text()
    assert page == with_tables(page), "run: python -m tests.rpc.protocol_page"


def test_every_reason_has_a_meaning_of_its_own():
    told = meanings()
    assert set(told) == {reason.name for reason in TABLE}
    assert all(told.values())
    assert not [text for text in told.values() if re.search(r"[A-Z]{4,}_[A-Z]+\.$", text)]


@pytest.mark.parametrize("name", ["protocol.md", "grpcurl.md"])
def test_links_lead_to_what_there_is(name):
    text = (ROOT / "docs" / name).read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith("https://"):
            continue
        file = (ROOT / "docs" / path) if path else ROOT / "docs" / name
        assert file.exists(), target
        if anchor:
            heads = {
                head.lower().replace(" ", "-") for head in re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            }
            assert anchor in heads, target


def test_files_that_the_page_names_are_there():
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE.read_text()):
        assert (ROOT / path).exists()
    assert protocol_page.limits_table().count("\n") > 15
