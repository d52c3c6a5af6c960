"""What becomes of the parts of a watch that several nodes tell (see `watches.py`)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

from agentreach.v1 import ops_pb2, registry_pb2
from reach.rpc.watches import HERE, Lost, StartAnew
from reach.wire.requests import check_id

CURSOR_BYTES: Final = 64 << 10
"""What a cursor over all nodes may take."""
COMPOSED: Final = "n."
"""What such a cursor begins with."""


class TaskMerge:
    """Tasks of all nodes (`watches.Merge`). The first answer comes when all nodes watch."""

    def __init__(self, request: ops_pb2.WatchTasksRequest, here: str, nodes: Iterable[str]) -> None:
        self._request = request
        self._silent = {HERE, *nodes}
        self._begun = False
        self._early: list[ops_pb2.WatchTasksResponse] = []
        self._lost: list[str] = []

    def request(self, node: str) -> ops_pb2.WatchTasksRequest:
        """See Merge."""
        return self._request

    def take(self, node: str, came: bytes | Lost | None) -> list[ops_pb2.WatchTasksResponse]:
        """See Merge."""
        told = ops_pb2.WatchTasksResponse()
        if isinstance(came, bytes):
            told = ops_pb2.WatchTasksResponse.FromString(came)
            self._silent.discard(node)
        elif came is None:
            self._lost += sorted(self._silent)
            self._silent.clear()
        elif not came.gone:
            self._silent.discard(node)
            told.lost_nodes.append(node)
        has_news = bool(told.events or told.missed or told.lost_nodes)
        if self._begun:
            return [told] if has_news else []
        if has_news:
            self._early.append(told)
        if self._silent:
            return []
        self._begun = True
        return [ops_pb2.WatchTasksResponse(lost_nodes=self._lost), *self._early]


class AgentMerge:
    """Agents of all nodes (`watches.Merge`): an instance is there as long as any node has it, for pools move."""

    def __init__(self, request: registry_pb2.WatchAgentsRequest, here: str, nodes: Iterable[str]) -> None:
        self._request = request
        self._here = here
        self._silent = {here, *nodes}
        self._cursors = read_cursor(check_id("cursor", request.cursor, most=CURSOR_BYTES))
        if self._cursors.keys() != self._silent:
            self._cursors = {}
        self._resumes = bool(self._cursors)
        self._is_first = True
        self._told: dict[str, set[str]] = {}
        """The nodes that have an instance, by its id."""
        self._before: dict[str, set[str]] = {}
        """What a node had that tells all anew, and has not told again."""
        self._in_sync = False

    def request(self, node: str) -> registry_pb2.WatchAgentsRequest:
        """See Merge."""
        return registry_pb2.WatchAgentsRequest(
            filter=self._request.filter, cursor=self._cursors.get(node or self._here, "")
        )

    def take(self, node: str, came: bytes | Lost | None) -> list[registry_pb2.WatchAgentsResponse]:
        """See Merge."""
        node = node or self._here  # a cursor is resumed at any node
        told = registry_pb2.WatchAgentsResponse()
        if isinstance(came, bytes):
            told = registry_pb2.WatchAgentsResponse.FromString(came)
            self._heard(node, told)
        elif came is None:
            told.lost_nodes.extend(sorted(self._silent))
            self._silent.clear()
        elif came.gone:
            self._cursors.pop(node, None)
            told.removed.extend(self._gone(node, self._of(node)))
        else:
            self._silent.discard(node)
            told.lost_nodes.append(node)
        told.in_sync = not self._silent and not self._in_sync
        self._in_sync = not self._silent
        if self._in_sync and (told.cursor or told.in_sync):
            told.cursor = composed(self._cursors)
        else:
            told.cursor = ""
        told.reset, self._is_first = self._is_first and not self._resumes, False
        return [told] if told.ByteSize() else []

    def _heard(self, node: str, told: registry_pb2.WatchAgentsResponse) -> None:
        """Makes what one node said what all say."""
        if told.reset:
            if self._resumes and not self._in_sync:
                raise StartAnew
            self._before[node] = self._of(node)
        present = [one.registration.instance_id for one in told.agents]
        for instance_id in present:
            self._told.setdefault(instance_id, set()).add(node)
        gone = list(told.removed)
        if node in self._before:
            self._before[node].difference_update(present)
            if told.cursor:
                gone += sorted(self._before.pop(node))
        del told.removed[:]
        told.removed.extend(self._gone(node, gone))
        if told.cursor:
            self._cursors[node] = told.cursor
        if told.in_sync:
            self._silent.discard(node)

    def _of(self, node: str) -> set[str]:
        return {instance_id for instance_id, nodes in self._told.items() if node in nodes}

    def _gone(self, node: str, instance_ids: Iterable[str]) -> list[str]:
        """Those that no other node has."""
        gone = []
        for instance_id in instance_ids:
            nodes = self._told.get(instance_id, set())
            nodes.discard(node)
            if not nodes:
                self._told.pop(instance_id, None)
                gone.append(instance_id)
        return gone


def composed(cursors: dict[str, str]) -> str:
    """A cursor over all nodes."""
    return COMPOSED + urlsafe_b64encode(json.dumps(cursors, separators=(",", ":")).encode()).decode()


def read_cursor(cursor: str) -> dict[str, str]:
    """The cursors of the nodes; empty if it is none of ours: then all is told anew."""
    if not cursor.startswith(COMPOSED):
        return {}
    try:
        found = json.loads(urlsafe_b64decode(cursor[len(COMPOSED) :]))
    except ValueError:
        return {}
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        return {}
    return found
