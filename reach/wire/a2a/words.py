"""The words of A2A that are ours to choose: extensions, headers, and routes.

A2A's `tenant` is no tenant of ours: it names a route, and comes back with each call as the card said it.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from agentreach.v1 import task_pb2
from reach.errors import InvalidRequest, Reason

VERSION: Final = "1.0"
VERSION_KEY: Final = "a2a-version"
EXTENSIONS_KEY: Final = "a2a-extensions"
AFTER_KEY: Final = "reach-after-seq"
"""Header of `SubscribeToTask`: the last sequence that the reader has. The request has no metadata to say it in."""

_BASE: Final = "https://agentreach.dev/a2a/ext"
DISPATCH: Final = f"{_BASE}/dispatch/v1"
"""Extension: options of a task, in the metadata of a message."""
CURSOR: Final = f"{_BASE}/stream-cursor/v1"
"""Extension: `{seq, attempt}` in the metadata of what is streamed; who says it may go on behind a sequence."""
TASK: Final = f"{_BASE}/task/v1"
"""In the metadata of what we send to agents: which task of ours it is."""
HISTORY: Final = f"{_BASE}/history/v1"
"""In the metadata of parts that we send to agents: it was said before, and by whom."""
RUNTIME: Final = f"{_BASE}/runtime/v1"
"""Extension of a card: what the registry wants to know of an agent beyond A2A."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,199}\Z")
_CODED: Final = "x"
"""Second letter of a route whose name is coded (base64url), for it has what no step of a path can have."""
ANY: Final = "any"


class RouteTo(NamedTuple):
    """Where the calls of a route go."""

    kind: str
    """`t`: a type of agents, `c`: a capability, `i`: an intent, empty: whoever fits the text of the message."""
    name: str = ""

    @property
    def token(self) -> str:
        """As A2A's `tenant`: one step of a path."""
        if not self.kind:
            return ANY
        if _PLAIN.match(self.name):
            return f"{self.kind}.{self.name}"
        return f"{self.kind}{_CODED}.{base64.urlsafe_b64encode(self.name.encode()).decode().rstrip('=')}"

    def selector(self, text: str) -> task_pb2.Selector:
        """Which agents may take a message with this text."""
        if self.kind == "t":
            return task_pb2.Selector(agent_type=self.name)
        if self.kind == "c":
            return task_pb2.Selector(capability=self.name)
        if self.kind == "i":
            return task_pb2.Selector(intent=self.name)
        return task_pb2.Selector(text=text)


def route_of(tenant: str) -> RouteTo:
    """The route that A2A's `tenant` names; empty is `any`.

    Raises:
        InvalidRequest: it names none.
    """
    kind, dot, name = tenant.partition(".")
    if tenant in ("", ANY):
        return RouteTo("")
    if dot and name and kind in ("t", "c", "i") and len(name) <= 256:
        return RouteTo(kind, name)
    if dot and kind in ("tx", "cx", "ix") and len(name) <= 400:
        try:
            padded = name + "=" * (-len(name) % 4)
            if found := base64.b64decode(padded, b"-_", validate=True).decode():
                return RouteTo(kind[0], found)
        except (binascii.Error, ValueError):
            pass  # refused below, as any other that names none
    raise InvalidRequest(
        "tenant names no route: t.<type>, c.<capability>, i.<intent> or any", Reason.NO_ROUTE, field="tenant"
    )
