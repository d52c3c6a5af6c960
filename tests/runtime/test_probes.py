"""The schedule of probes and checks (HLT-3, HLT-4), on a clock by hand."""

from __future__ import annotations

import asyncio

import pytest

from reach.runtime.probes import LOOK_AGAIN_MS, Probes

pytestmark = pytest.mark.asyncio


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Target:
    """Answers at once, or when `answer` is set; due each `period` ms after its last probe."""

    def __init__(self, clock: Clock, period: int = 5_000) -> None:
        self._clock = clock
        self._period = period
        self.gone = False
        self.left = 0
        self.probes: list[int] = []
        self.checks: list[int] = []
        self.answer = asyncio.Event()
        self.answer.set()
        self.probe_due_ms = 0

    async def probe(self) -> None:
        self.probes.append(self._clock.now)
        self.probe_due_ms = self._clock.now + self._period
        await self.answer.wait()

    async def check(self) -> None:
        self.checks.append(self._clock.now)
        await self.answer.wait()

    def leave(self) -> None:
        self.left += 1


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def let_pass(probes: Probes, clock: Clock, ms: int, step: int = 50) -> None:
    for _ in range(ms // step):
        clock.now += step
        probes.begin_due()
        await turn()


@pytest.fixture
def clock():
    return Clock()


async def test_HLT_3_a_target_is_probed_when_the_core_says(clock):
    probes, target = Probes(clock, 8, 15_000), Target(clock)
    probes.add(target)
    await let_pass(probes, clock, 20_000)
    gaps = [later - earlier for earlier, later in zip(target.probes, target.probes[1:], strict=False)]
    assert len(target.probes) == 4
    assert all(5_000 <= gap <= 5_050 for gap in gaps)


async def test_HLT_4_checks_have_a_period_of_their_own(clock):
    probes, target = Probes(clock, 8, 15_000), Target(clock)
    probes.add(target)
    await let_pass(probes, clock, 61_000)
    assert len(target.checks) == 4


async def test_HLT_3_one_that_hangs_is_not_asked_again_meanwhile_and_does_not_delay_others(clock):
    probes, hangs, other = Probes(clock, 8, 60_000), Target(clock, 1_000), Target(clock, 1_000)
    hangs.answer.clear()
    probes.add(hangs)
    probes.add(other)
    await let_pass(probes, clock, 10_000)
    assert len(hangs.probes) == 1
    assert len(other.probes) >= 9
    hangs.answer.set()
    await let_pass(probes, clock, 2_000)
    assert len(hangs.probes) >= 2


async def test_HLT_3_at_most_8_at_once_and_one_that_finds_no_place_is_skipped(clock):
    probes = Probes(clock, 8, 60_000)
    targets = [Target(clock) for _ in range(20)]
    for target in targets:
        target.answer.clear()
        probes.add(target)
    await let_pass(probes, clock, LOOK_AGAIN_MS + 50)
    assert sum(len(target.probes) for target in targets) == 8
    assert probes.skipped == 12
    for target in targets:
        target.answer.set()
    await let_pass(probes, clock, 1_200)
    assert all(target.probes for target in targets)


async def test_a_hasty_probe_comes_at_once_and_once_and_leaves_the_regular_ones(clock):
    probes, target = Probes(clock, 8, 60_000), Target(clock)
    probes.add(target)
    await let_pass(probes, clock, 1_000)
    assert len(target.probes) == 1
    probes.hasten(target)
    probes.hasten(target)
    await let_pass(probes, clock, 50)
    assert len(target.probes) == 2
    await let_pass(probes, clock, 20_000)
    assert len(target.probes) == 6


async def test_a_target_that_is_gone_leaves_once_and_is_asked_no_more(clock):
    probes, target = Probes(clock, 8, 15_000), Target(clock)
    probes.add(target)
    await let_pass(probes, clock, 1_000)
    target.gone = True
    await let_pass(probes, clock, 40_000)
    assert (len(target.probes), target.checks, target.left) == (1, [], 1)


async def test_one_probe_that_breaks_ends_nothing(clock, caplog):
    class Broken(Target):
        async def probe(self) -> None:
            await super().probe()
            raise RuntimeError("boom")

    probes, target = Probes(clock, 8, 15_000), Broken(clock, 1_000)
    probes.add(target)
    await let_pass(probes, clock, 5_000)
    assert len(target.probes) >= 4
    assert "a probe broke" in caplog.text


async def test_HLT_4_one_that_others_end_comes_again(clock):
    """Its target moved: the channel that it waited for is closed."""
    probes, target = Probes(clock, 8, 5_000), Target(clock)
    probes.add(target)
    ended = asyncio.get_running_loop().create_future()
    ended.cancel()
    target.answer.wait = lambda: ended  # type: ignore[method-assign,assignment,return-value]
    await let_pass(probes, clock, 11_000)
    assert len(target.checks) == 2
    assert len(target.probes) == 3


async def test_run_sleeps_until_the_next_is_due_and_wakes_for_new_ones():
    loop = asyncio.get_running_loop()

    def now() -> int:
        return int(loop.time() * 1_000)

    class Real(Clock):
        def __call__(self) -> int:
            return now()

        @property
        def now(self) -> int:
            return now()

        @now.setter
        def now(self, value: int) -> None:
            pass

    clock = Real()
    probes = Probes(now, 8, 60_000)
    running = asyncio.create_task(probes.run())
    await asyncio.sleep(0.05)
    target = Target(clock, 100)
    probes.add(target)
    await asyncio.sleep(0.9)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert 2 <= len(target.probes) <= 5


async def test_HLT_4_many_targets_of_one_restart_are_all_checked_in_their_period(clock):
    """All are due in the same instant: those that find no place must not have to wait for a whole period."""
    probes = Probes(clock, 8, 15_000)
    targets = [Target(clock) for _ in range(200)]
    for target in targets:
        probes.add(target)
    await let_pass(probes, clock, 20_000)
    assert all(target.checks and target.probes for target in targets)
