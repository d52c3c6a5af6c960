"""A watch that goes on: over lost connections, frozen and restarted members.

It resumes behind the last *event* seen, never at the revision of an answer's header: that may be ahead of events
still to come. Every
HEARTBEAT_S it asks for an answer; a member that gives none for SILENT_S is left, because nothing else notices that it
is frozen.
A watch is a hint: versions of etcd 3.4 dropped or repeated events, so its caller lists everything anew once in a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agentreach.internal.etcd.v3 import etcd_pb2 as pb
from reach.cluster.base import ClusterUnavailable
from reach.cluster.etcd_api.client import EtcdClient, KeyValue, after, key_value

HEARTBEAT_S = 0.5
SILENT_S = 1.2
AGAIN_S = 0.1
"""Before the next endpoint is tried."""


class Compacted(Exception):
    """The revisions to go on from are no longer kept: list, and watch from there."""


class Followed(NamedTuple):
    """One change."""

    kv: KeyValue
    """Of a removed key only key and mod_revision mean something."""
    removed: bool


async def follow(
    client: EtcdClient,
    prefix: bytes,
    revision: int,
    changed: Callable[[Sequence[Followed]], None],
    heard: Callable[[], None],
    seconds: float,
) -> None:
    """Tells all changes of keys with this prefix from revision on, for so long. `heard` is called with each sign of
    life.

    Raises Compacted. Lost connections are repaired here, without end but that of the time.
    """
    end = time.monotonic() + seconds
    state = _Following(prefix, revision, changed, heard)
    while time.monotonic() < end:
        try:
            await state.one_stream(client, end)
        except ClusterUnavailable:
            await asyncio.sleep(AGAIN_S)


class _Following:
    def __init__(
        self, prefix: bytes, revision: int, changed: Callable[[Sequence[Followed]], None], heard: Callable[[], None]
    ) -> None:
        self._prefix = prefix
        self._next = revision
        self._changed = changed
        self._heard = heard
        self._parts: list[Followed] = []

    async def one_stream(self, client: EtcdClient, end: float) -> None:
        self._parts.clear()
        stream = await client.connection.open("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse, SILENT_S)
        try:
            create = pb.WatchCreateRequest(
                key=self._prefix, range_end=after(self._prefix), start_revision=self._next, fragment=True
            )
            await stream.send(pb.WatchRequest(create_request=create), SILENT_S)
            alive = asked = time.monotonic()
            while (now := time.monotonic()) < end:
                answer = await stream.receive(min(HEARTBEAT_S, max(0.001, end - now)))
                now = time.monotonic()
                if answer is not None:
                    alive = now
                    if answer.canceled and not answer.compact_revision:
                        raise stream.left(f"the watch was ended: {answer.cancel_reason}")
                    self._take(answer)
                elif now - alive > SILENT_S:
                    raise stream.left()
                if now - asked >= HEARTBEAT_S:
                    asked = now
                    await stream.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()), SILENT_S)
        finally:
            await stream.close()

    def _take(self, answer: pb.WatchResponse) -> None:
        if answer.compact_revision:
            raise Compacted(f"up to {answer.compact_revision}")
        self._heard()
        self._parts.extend(Followed(key_value(event.kv), event.type == 1) for event in answer.events)
        if self._parts and not answer.fragment:
            events = self._parts
            self._parts = []
            self._changed(events)
            self._next = events[-1].kv.mod_revision + 1
