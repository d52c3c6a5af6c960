"""Which protocol nodes speak to each other, so that two versions can run together while one replaces the other (CLU-6).

`MAJOR.MINOR`, sent with every call of a node. A higher minor number only adds: fields that the other does not know are
passed over, and what is not answered is done without. Another major number is refused, in words: such a step needs a
version in between that speaks both. Nodes before there was a version send none, which is 1.0.
"""

from __future__ import annotations

import re
from typing import Final

from reach.errors import InvalidRequest, Reason

KEY: Final = "x-reach-peer-version"
"""The metadata that carries it."""
VERSION: Final = "1.0"
"""What this node speaks. Minor: grows with additions that others may want to know of. Major: never, if it can be
helped."""
MAJORS: Final = frozenset({1})
"""What it understands."""


def check(version: str) -> None:
    """Whether a node that speaks this version is understood.

    Raises:
        InvalidRequest: VERSION_NOT_SUPPORTED.
    """
    found = re.fullmatch(r"([0-9]{1,6})\.([0-9]{1,6})", version or "1.0")
    if found is not None and int(found[1]) in MAJORS:
        return
    message = (
        f"this node speaks version {VERSION} of the protocol between nodes, not {version[:20]!r}: upgrade through a"
        " version that speaks both, and replace nodes one after the other"
    )
    raise InvalidRequest(message, Reason.VERSION_NOT_SUPPORTED)
