"""Batching: frames by bytes and items, what waits for company, and what a peer that does not read costs."""

from __future__ import annotations

import asyncio

from reach.wire.batcher import FIRST_ITEMS, FRAME_BYTES, ITEM_OVERHEAD, LATER_SECONDS, QUEUE_BYTES, Batcher


async def _taken(batcher: Batcher) -> bytes | None:
    async with asyncio.timeout(5):
        return await batcher.take()


async def test_what_gathers_in_one_turn_is_one_frame() -> None:
    batcher = Batcher()
    for item in (b"a", b"b", b"c", b"d"):
        batcher.put(item)
    assert await _taken(batcher) == b"abcd"
    assert batcher.queued_bytes == 0


async def test_the_first_items_of_many_leave_early_and_the_rest_is_one_frame() -> None:
    batcher = Batcher()
    items = [bytes([number % 256]) for number in range(10 * FIRST_ITEMS)]
    for item in items:
        batcher.put(item)
    assert await _taken(batcher) == b"".join(items[:FIRST_ITEMS])
    assert await _taken(batcher) == b"".join(items[FIRST_ITEMS:])


async def test_what_nobody_waits_for_is_no_frame_of_its_own_however_much_it_is() -> None:
    """The acknowledgements of one batch go with the offers of the next: the agent is woken once."""
    batcher = Batcher()
    for _ in range(FIRST_ITEMS):
        batcher.later(b"a")
    for _ in range(FIRST_ITEMS):
        batcher.put(b"b")
    assert await _taken(batcher) == b"a" * FIRST_ITEMS + b"b" * FIRST_ITEMS


async def test_STR_5_a_frame_is_bounded_by_bytes_and_a_larger_item_goes_alone() -> None:
    batcher = Batcher()
    items = [bytes([65 + number]) * size for number, size in enumerate((FRAME_BYTES - 5, 6, 2 * FRAME_BYTES, 10))]
    for item in items:
        batcher.put(item)
    assert [await _taken(batcher) for _ in items] == items


async def test_what_nobody_waits_for_goes_with_the_next_frame() -> None:
    batcher = Batcher()
    batcher.later(b"a")
    taking = asyncio.ensure_future(batcher.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not taking.done(), "nobody waits for it"
    batcher.put(b"b")
    assert await taking == b"ab"


async def test_what_nobody_waits_for_leaves_alone_after_a_while() -> None:
    batcher = Batcher()
    loop = asyncio.get_running_loop()
    batcher.later(b"a")
    began = loop.time()
    assert await _taken(batcher) == b"a"
    assert loop.time() - began >= LATER_SECONDS / 2


async def test_what_came_after_its_company_has_left_waits_for_new_company() -> None:
    batcher = Batcher()
    batcher.later(b"a")
    batcher.put(b"b")
    assert await _taken(batcher) == b"ab"
    batcher.later(b"c")
    assert await _taken(batcher) == b"c", "and is not forgotten"


async def test_close_says_what_is_left_and_drops_what_comes() -> None:
    batcher = Batcher()
    batcher.later(b"a")
    batcher.close()
    batcher.put(b"b")
    assert await _taken(batcher) == b"a"
    assert await _taken(batcher) is None


async def test_a_peer_that_does_not_read_is_cut_off_and_still_gets_what_is_queued() -> None:
    batcher = Batcher()
    large = b"x" * (4 << 20)
    for _ in range(QUEUE_BYTES // len(large)):
        batcher.put(large)
    assert batcher.overrun
    assert batcher.closed
    batcher.put(b"late")
    taken = [frame async for frame in _all(batcher)]
    assert taken == [large] * (QUEUE_BYTES // len(large))
    assert batcher.queued_bytes == 0


async def test_many_tiny_items_count_more_than_their_bytes() -> None:
    batcher = Batcher()
    for _ in range(QUEUE_BYTES // (ITEM_OVERHEAD + 1) + 1):
        batcher.put(b"x")
    assert batcher.overrun


async def _all(batcher: Batcher):
    while (frame := await _taken(batcher)) is not None:
        yield frame
