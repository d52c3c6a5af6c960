"""What is known of etcd's keys, whatever it tells, and however often (E6)."""

from collections.abc import Sequence
from typing import Any

import pytest

from reach.cluster.etcd_api import Followed, KeyValue
from reach.cluster.etcd_mirror import Mirror

PREFIX = b"/reach/main/"


def entry(key: str, value: str, revision: int) -> KeyValue:
    return KeyValue(PREFIX + key.encode(), value.encode(), 1, revision, 0)


def put(key: str, value: str, revision: int) -> Followed:
    return Followed(entry(key, value, revision), False)


def gone(key: str, revision: int) -> Followed:
    return Followed(entry(key, "", revision), True)


class Scene:
    """A mirror that has listed two agents at revision 5, and what its listeners hear."""

    def __init__(self) -> None:
        client: Any = None
        self.mirror = Mirror(client, PREFIX)
        self.heard: list[bytes] = []
        self.mirror.subscribe(b"agents", self._hear)
        self.mirror._replace([entry("agents/a", "1", 3), entry("agents/b", "1", 5)], 5)
        assert self.mirror.filled.is_set()
        self.heard.clear()

    def _hear(self, keys: Sequence[bytes]) -> None:
        self.heard += keys

    @property
    def known(self) -> dict[bytes, bytes]:
        return {key: one.value for key, one in self.mirror.group(b"agents")}

    def comes(self, *events: Followed) -> list[bytes]:
        """What listeners hear of some events."""
        self.heard.clear()
        self.mirror._apply(events)
        return list(self.heard)


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_E6_what_was_heard_before_is_heard_of_by_nobody(scene):
    for again in (put("agents/b", "1", 5), put("agents/a", "0", 2), gone("agents/a", 4)):
        assert scene.comes(again) == []
        assert scene.mirror.revision == 5
    assert scene.known == {b"agents/a": b"1", b"agents/b": b"1"}


async def test_E6_a_repeated_event_among_others_takes_nothing_back(scene):
    """Nor would what came before it be taken for new the next time."""
    assert scene.comes(put("agents/a", "2", 7), put("agents/a", "1", 3)) == [b"agents/a"]
    assert scene.mirror.revision == 7
    assert scene.comes(put("agents/a", "3", 9), put("agents/a", "older", 8), put("agents/b", "2", 9)) == [
        b"agents/a",
        b"agents/b",
    ]
    assert scene.mirror.revision == 9
    assert scene.known == {b"agents/a": b"3", b"agents/b": b"2"}
    assert scene.comes(put("agents/a", "2", 7)) == []


async def test_E6_a_list_finds_what_no_event_told_of(scene):
    """What has changed, what is new and what is gone, and nothing else."""
    scene.mirror._replace([entry("agents/b", "2", 6), entry("agents/c", "1", 7), entry("members/n", "1", 7)], 8)
    assert sorted(scene.heard) == [b"agents/a", b"agents/b", b"agents/c"]
    assert scene.known == {b"agents/b": b"2", b"agents/c": b"1"}
    assert scene.mirror.revision == 8
    scene.heard.clear()
    scene.mirror._replace([entry("agents/b", "2", 6), entry("agents/c", "1", 7)], 9)
    assert scene.heard == []


async def test_what_is_removed_is_known_no_more_and_others_hear_nothing(scene):
    assert scene.comes(gone("agents/a", 6), put("members/n", "1", 6)) == [b"agents/a"]
    assert scene.known == {b"agents/b": b"1"}
    assert scene.mirror.get(b"members/n") == entry("members/n", "1", 6)


async def test_who_waits_for_a_revision_is_told_when_it_is_in_and_not_kept_for_ever(scene):
    assert await scene.mirror.reached(5)
    assert not await scene.mirror.reached(6, seconds=0.01)
    scene.comes(put("agents/a", "2", 6))
    assert await scene.mirror.reached(6, seconds=0.01)
