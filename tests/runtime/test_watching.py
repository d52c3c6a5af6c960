"""Watches (REG-9): whatever happens in between, who follows ends up knowing exactly what there is."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.core import changes as core_changes
from reach.core.instance_states import Health
from reach.core.model import Instance, PoolKey
from reach.runtime import watching
from reach.runtime.watching import AgentChanges, Watch
from tests.core.harness import profile

TENANTS = ("acme", "rival", "third")
NAMES = ("a", "b", "c")


class Fleet:
    """Instances of some tenants, as a host would have them."""

    def __init__(self) -> None:
        self.instances: dict[tuple[str, str], Instance] = {}
        self.clock = SimpleNamespace(new_id=lambda: "f00d" * 8)
        self.revision = 0
        self.changes = AgentChanges(self)  # type: ignore[arg-type]

    def pools(self):
        pools: dict[str, dict[str, Instance]] = defaultdict(dict)
        for (tenant, name), one in self.instances.items():
            pools[tenant][name] = one
        return [SimpleNamespace(instances=rows) for rows in pools.values()]

    def put(self, tenant: str, name: str, allowed: tuple[str, ...] = (), health: Health = Health.HEALTHY) -> Instance:
        one = self.instances.get((tenant, name))
        if one is None:
            one = self.instances[tenant, name] = Instance(name, profile(), PoolKey(tenant, "echo"))
            one.bit = 0
        self.revision += 1
        one.revision, one.profile, one.health = self.revision, profile(allowed_tenants=allowed), health
        return one

    def remove(self, tenant: str, name: str) -> Instance | None:
        one = self.instances.pop((tenant, name), None)
        if one is not None:
            one.bit = -1
        return one

    def sweep(self) -> None:
        self.changes._begin_sweep()
        while not self.changes._sweep():
            pass


class Follower:
    """A client: keeps what it is told, resumes with its cursor."""

    def __init__(self, fleet: Fleet, tenant: str, healthy_only: bool) -> None:
        self.fleet, self.tenant, self.healthy_only = fleet, tenant, healthy_only
        self.known: dict[str, Instance] = {}
        self.cursor = ""
        self.watch: Watch | None = None

    def wanted(self, one: Instance) -> bool:
        return not self.healthy_only or one.health is Health.HEALTHY

    def come(self) -> None:
        self.fleet.changes._watchers += 1
        self.watch = Watch(self.fleet.changes, self.tenant, self.wanted, b"filter", self.cursor)
        self.watch._at = self.watch._position(self.cursor)
        self.take(self.watch.first())

    def go(self) -> None:
        self.watch = None
        self.fleet.changes._watchers -= 1

    def take(self, told) -> None:
        if told.whole:
            self.known.clear()
        for name in told.removed:
            self.known.pop(name, None)
        for one in told.instances:
            assert one.pool_key.tenant == self.tenant or self.tenant in one.profile.allowed_tenants
            self.known[one.instance_id] = one
        self.cursor = told.cursor

    def check(self) -> None:
        """It knows all names that it should and no others, and for each an instance that is there."""
        right = defaultdict(list)
        for one in self.fleet.instances.values():
            if (one.pool_key.tenant == self.tenant or self.tenant in one.profile.allowed_tenants) and self.wanted(one):
                right[one.instance_id].append(one)
        assert self.known.keys() == right.keys()
        for name, one in self.known.items():
            assert one in right[name]


ACTS = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from(TENANTS),
        st.sampled_from(NAMES),
        st.sampled_from(((), ("acme",), ("rival", "third"))),
        st.sampled_from((Health.HEALTHY, Health.SUSPECT)),
    ),
    st.tuples(st.just("remove"), st.sampled_from(TENANTS), st.sampled_from(NAMES)),
    st.tuples(st.just("sweep")),
    st.tuples(st.sampled_from(("come", "go", "take")), st.integers(0, 3)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTS, max_size=40), st.sampled_from((1, 2, 100)))
def test_REG_9_who_follows_knows_what_a_list_would_show(acts, tombstones):
    """The twin is the list itself: after a last round everybody knows exactly what is visible to them and matches."""
    asyncio.run(_follow(acts, tombstones))


async def _follow(acts, tombstones) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_changes, "TOMBSTONES", tombstones)
        fleet = Fleet()
        followers = [Follower(fleet, tenant, healthy) for tenant in TENANTS[:2] for healthy in (True, False)]
        for act, *arguments in acts:
            if act == "put":
                fleet.changes.touched(fleet.put(*arguments))
            elif act == "remove":
                one = fleet.remove(*arguments)
                if one is not None:
                    fleet.changes.touched(one)
            elif act == "sweep":
                fleet.sweep()
            else:
                follower = followers[arguments[0]]
                if act == "come" and follower.watch is None:
                    fleet.sweep()  # as `begin` does for the first
                    follower.come()
                    follower.check()
                elif act == "go" and follower.watch is not None:
                    follower.go()
                elif act == "take" and follower.watch is not None:
                    follower.take(follower.watch.take())
        fleet.sweep()
        for follower in followers:
            if follower.watch is None:
                follower.come()
            else:
                follower.take(follower.watch.take())
            follower.check()
            assert follower.watch is not None
            assert len(follower.watch._told) == len(follower.known), "no more is kept than was told"


async def test_REG_9_a_cursor_of_elsewhere_is_no_place_to_resume():
    fleet = Fleet()
    fleet.put("acme", "a")
    async with Watch(fleet.changes, "acme", lambda _: True, b"", "") as watch:
        cursor = watch.first().cursor
        assert [len(watch.take().instances), watch.take().whole] == [0, False]
    for scope, tenant, said, whole in (
        (b"", "acme", cursor, False),
        (b"other filter", "acme", cursor, True),
        (b"", "rival", cursor, True),
        (b"", "acme", cursor.replace("f00d", "beef"), True),
        (b"", "acme", cursor + "9", True),
        (b"", "acme", cursor[:-1] + "²", True),
        (b"", "acme", "nonsense", True),
        (b"", "acme", "1.f00df00df00d", True),
    ):
        async with Watch(fleet.changes, tenant, lambda _: True, scope, said) as watch:
            assert watch.first().whole is whole, said


async def test_REG_9_who_missed_removals_that_are_forgotten_starts_anew(monkeypatch):
    monkeypatch.setattr(core_changes, "TOMBSTONES", 1)
    fleet = Fleet()
    for name in NAMES:
        fleet.put("acme", name)
    async with Watch(fleet.changes, "acme", lambda _: True, b"", "") as away:
        cursor = away.first().cursor
        for name in NAMES[:2]:
            gone = fleet.remove("acme", name)
            assert gone is not None
            fleet.changes.touched(gone)
        async with Watch(fleet.changes, "acme", lambda _: True, b"", cursor) as watch:
            told = watch.first()
        assert (told.whole, [one.instance_id for one in told.instances]) == (True, ["c"])
        assert away.take().whole, "so does one that was there and slow"


async def test_REG_9_nothing_is_done_while_nobody_watches():
    fleet = Fleet()
    fleet.changes.touched(fleet.put("acme", "a"))
    assert (fleet.changes.log.number, len(fleet.changes.log.records)) == (0, 0)
    async with Watch(fleet.changes, "acme", lambda _: True, b"", "") as watch:
        cursor = watch.first().cursor
    fleet.put("acme", "b")
    fleet.remove("acme", "a")
    async with Watch(fleet.changes, "acme", lambda _: True, b"", cursor) as watch:
        told = watch.first()
    assert ([one.instance_id for one in told.instances], told.removed, told.whole) == (["b"], ["a"], False)


async def test_REG_9_after_a_while_without_watchers_all_is_forgotten(monkeypatch):
    monkeypatch.setattr(watching, "KEEP_SECONDS", 0.01)
    fleet = Fleet()
    fleet.put("acme", "a")
    async with Watch(fleet.changes, "acme", lambda _: True, b"", "") as watch:
        cursor = watch.first().cursor
    await asyncio.sleep(0.03)
    assert not fleet.changes.log.records
    async with Watch(fleet.changes, "acme", lambda _: True, b"", cursor) as watch:
        assert watch.first().whole


async def test_REG_9_rare_changes_are_told_at_once_and_load_by_the_next_look(monkeypatch):
    monkeypatch.setattr(watching, "EVERY_SECONDS", 0.3)
    loop, fleet = asyncio.get_running_loop(), Fleet()
    one = fleet.put("acme", "a")
    async with Watch(fleet.changes, "acme", lambda _: True, b"", "") as watch:
        watch.first()
        await watch.next()  # the first look is due at once
        began = loop.time()
        loop.call_later(0.01, lambda: fleet.changes.touched(fleet.put("acme", "b")))
        assert [other.instance_id for other in (await watch.next()).instances] == ["b"]
        assert loop.time() - began < 0.2
        one.inflight = 1
        while not (told := await watch.next()).instances:
            pass
        assert told.instances == [one]


async def test_REG_9_a_large_fleet_is_looked_at_in_parts(monkeypatch):
    monkeypatch.setattr(watching, "LOOKED_AT", 10)
    fleet = Fleet()
    for number in range(25):
        fleet.put("acme", f"i{number:02}")
    async with Watch(fleet.changes, "acme", lambda _: True, b"", "") as watch:
        assert len(watch.first().instances) == 25
        ends = [fleet.changes._sweep() for _ in range(6)]
    assert ends == [False, False, True] * 2
