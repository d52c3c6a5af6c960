"""docs/protocol.md says what is true: its tables are made from the contract and the code, its links lead somewhere."""

import re

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


def test_the_page_names_every_call_that_is_not_built():
    told = PAGE.read_text().rpartition("## Versions")[2]
    source = "".join(file.read_text() for file in sorted((ROOT / "reach" / "rpc").glob("*.py")))
    missing = re.findall(r'not_built\("(\w+)"\)', source)
    assert [name for name in missing if f"`{name}`" not in told and not name.endswith(("Session", "Sessions"))] == []


def test_files_that_the_page_names_are_there():
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE.read_text()):
        assert (ROOT / path).exists()
    assert protocol_page.limits_table().count("\n") > 15
