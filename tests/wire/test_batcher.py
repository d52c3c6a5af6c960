"""Batching: frames by bytes and items, what waits for company, and what a peer that does not read costs."""

from __future__ import annotations

import asyncio

from reach.wire.batcher import FIRST_ITEMS, FRAME_BYTES, ITEM_OVERHEAD, LATER_SECONDS, QUEUE_BYTES, Batcher

Frame = list[int]


def _batcher() -> Batcher[Frame]:
    return Batcher(list)


async def _taken(batcher: Batcher[Frame]) -> Frame | None:
    async with asyncio.timeout(5):
        return await batcher.take()


async def test_what_gathers_in_one_turn_is_one_frame() -> None:
    batcher = _batcher()
    for number in range(5):
        batcher.room(10).append(number)
    assert await _taken(batcher) == [0, 1, 2, 3, 4]
    assert batcher.queued_bytes == 0


async def test_the_first_items_of_many_leave_early_and_the_rest_is_one_frame() -> None:
    batcher = _batcher()
    for number in range(10 * FIRST_ITEMS):
        batcher.room(10).append(number)
    assert await _taken(batcher) == list(range(FIRST_ITEMS))
    assert await _taken(batcher) == list(range(FIRST_ITEMS, 10 * FIRST_ITEMS))


async def test_a_frame_is_bounded_by_bytes_and_a_larger_item_goes_alone() -> None:
    batcher = _batcher()
    for number, size in enumerate((FRAME_BYTES - 2 * ITEM_OVERHEAD, 10, 2 * FRAME_BYTES, 10)):
        batcher.room(size).append(number)
    frames = [await _taken(batcher) for _ in range(4)]
    assert frames == [[0], [1], [2], [3]]


async def test_what_nobody_waits_for_goes_with_the_next_frame() -> None:
    batcher = _batcher()
    batcher.later(10).append(1)
    taking = asyncio.ensure_future(batcher.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not taking.done(), "nobody waits for it"
    batcher.room(10).append(2)
    assert await taking == [1, 2]


async def test_what_nobody_waits_for_leaves_alone_after_a_while() -> None:
    batcher = _batcher()
    loop = asyncio.get_running_loop()
    batcher.later(10).append(1)
    began = loop.time()
    assert await _taken(batcher) == [1]
    assert loop.time() - began >= LATER_SECONDS / 2


async def test_what_came_after_its_company_has_left_waits_for_new_company() -> None:
    batcher = _batcher()
    batcher.later(10).append(1)
    batcher.room(10).append(2)
    assert await _taken(batcher) == [1, 2]
    batcher.later(10).append(3)
    assert await _taken(batcher) == [3], "and is not forgotten"


async def test_close_says_what_is_left_and_drops_what_comes() -> None:
    batcher = _batcher()
    batcher.later(10).append(1)
    batcher.close()
    batcher.room(10).append(2)
    assert await _taken(batcher) == [1]
    assert await _taken(batcher) is None


async def test_a_peer_that_does_not_read_is_bounded() -> None:
    batcher = _batcher()
    for number in range(3 * QUEUE_BYTES // FRAME_BYTES):
        batcher.room(FRAME_BYTES).append(number)
    assert batcher.overrun
    assert batcher.queued_bytes <= QUEUE_BYTES + FRAME_BYTES + 2 * ITEM_OVERHEAD
