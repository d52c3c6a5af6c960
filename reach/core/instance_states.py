"""The words for how instances do, one each, everywhere. What makes it so: `health.py`, `conditions.py`, `drain.py`."""

from __future__ import annotations

from enum import IntEnum


class Health(IntEnum):
    """What we think of an instance's life (HLT-6). Numbers as in the contract."""

    STARTING = 1
    HEALTHY = 2
    SUSPECT = 3
    UNHEALTHY = 4
    OFFLINE = 5


class Availability(IntEnum):
    """What an instance says of itself. Numbers as in the contract."""

    READY = 1
    BUSY = 2
    DRAINING = 3
    UNAVAILABLE = 4


class Condition(IntEnum):
    """Circumstances that bear on routing. Numbers as in the contract."""

    WARMING = 1
    NOT_READY = 2
    UNREACHABLE = 3
    STALLED = 4
    DEAF = 5
    SELF_REPORTED_FAILURES = 6
    CIRCUIT_OPEN = 7
