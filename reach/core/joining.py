"""What an instance says of itself when it registers."""

from __future__ import annotations

from collections.abc import Callable

from reach.core.endpoint import Endpoint
from reach.core.instance_states import Availability
from reach.core.model import Profile

NO_BOOT_ID = "unnamed"
"""`boot_id` of an agent that does not say which process it is: each time it registers it is taken for the same."""


class Joining:
    """What an instance says when it registers; None where it says nothing (REG-3)."""

    __slots__ = (
        "availability",
        "boot_id",
        "dialled",
        "endpoint",
        "heartbeat_ms",
        "hello",
        "instance_id",
        "max_concurrency",
        "max_sessions",
        "merge",
        "priority",
        "profile",
        "ready",
        "registration",
        "warnings",
        "weight",
    )

    def __init__(self, instance_id: str, boot_id: str, profile: Profile, registration: bytes) -> None:
        self.instance_id = instance_id
        self.boot_id = boot_id
        self.profile = profile
        self.registration = registration
        self.weight: int | None = None
        self.priority: int | None = None
        self.max_concurrency: int | None = None
        self.max_sessions: int | None = None
        self.heartbeat_ms: int | None = None
        self.ready: bool | None = None
        self.endpoint: Endpoint | None = None
        """Where it wants to be dialled; None if it dials us."""
        self.dialled = False
        """We call it: it owes us no beats, and a good probe or check counts as one (HLT-2)."""
        self.availability: Availability | None = None
        self.warnings: tuple[str, ...] = ()
        self.hello = 0
        """Number of the hello that says it, of those of its process; 0: it is none, or they are not counted."""
        self.merge: Callable[[bytes, bytes], bytes] | None = None
        """(former registration, this one) -> this one, with what it leaves out as it was (REG-3)."""

    def completed(self, former: bytes) -> bytes:
        """The registration as it is kept, after the one that was kept before (empty if there was none)."""
        return self.merge(former, self.registration) if former and self.merge is not None else self.registration
