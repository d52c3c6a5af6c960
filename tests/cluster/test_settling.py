"""What a leader waits for before it takes it at its word (CLU-4)."""

from collections.abc import Iterable

from reach.cluster.base import NodeInfo
from reach.cluster.settling import Settling

SETTLE_MS = 1_000


def nodes(names: Iterable[str], cut_off: Iterable[str] = ()) -> dict[str, NodeInfo]:
    return {name: NodeInfo(name, "boot", "h:1", store_reachable=name not in cut_off) for name in names}


def taken(found: dict[str, NodeInfo]) -> str:
    """The nodes that are taken not to reach the journal."""
    return "".join(name for name, info in found.items() if not info.store_reachable)


def test_CLU_4_owners_that_were_never_seen_are_waited_for_from_when_they_are_missed():
    settling = Settling(SETTLE_MS)
    settling.saw(nodes("a"), 0)
    assert settling.awaits(["a", "", "a"], 50_000) == 0, "nobody is waited for where nobody was"
    assert settling.awaits(["a", "b"], 60_000) == 1_000
    assert settling.awaits(["a", "b"], 60_400) == 600
    settling.saw(nodes("ac"), 60_500)
    assert settling.awaits(["a", "b"], 60_500) == 1_000, "others come: it may as well"
    assert settling.awaits(["a", "b"], 61_499) == 1
    assert settling.awaits(["a", "b"], 61_500) == 0
    settling.saw(nodes("d"), 61_550)
    assert settling.awaits(["a", "b"], 61_550) == 0, "it was waited for in vain, and is not again for others that come"


def test_CLU_4_each_wait_for_owners_begins_anew():
    settling = Settling(SETTLE_MS)
    settling.saw(nodes("a"), 0)
    assert settling.awaits(["b"], 0) == 1_000
    settling.saw(nodes("ab"), 500)
    assert settling.awaits(["b"], 500) == 0
    assert settling.awaits(["c"], 60_000) == 1_000


def test_CLU_4_no_wait_for_owners_lasts_for_ever():
    settling = Settling(SETTLE_MS)
    settling.saw(nodes("a"), 0)
    now_ms = 0
    while settling.awaits(["missing"], now_ms):
        now_ms += 900
        settling.saw(nodes([f"n{now_ms}"]), now_ms)
    assert now_ms == 3_600, "the first look at which it was three moments ago"


def test_CLU_4_what_nodes_say_of_the_journal_is_taken_after_a_moment_in_which_it_held():
    settling = Settling(SETTLE_MS)
    assert settling.judged(nodes("abc"), 0)[1] is None
    found, wait_ms = settling.judged(nodes("abc", "a"), 0)
    assert (taken(found), wait_ms) == ("", 1_000)
    found, wait_ms = settling.judged(nodes("abc", "a"), 400)
    assert (taken(found), wait_ms) == ("", 600)
    found, wait_ms = settling.judged(nodes("abc", "ab"), 900)
    assert (taken(found), wait_ms) == ("", 1_000), "another one: it may be all of them"
    found, wait_ms = settling.judged(nodes("abc", "ab"), 1_900)
    assert (taken(found), wait_ms) == ("ab", None)
    found, wait_ms = settling.judged(nodes("abc"), 50_000)
    assert (taken(found), wait_ms) == ("ab", 1_000), "and the same on the way back"
    found, wait_ms = settling.judged(nodes("abc", "ab"), 50_500)
    assert (taken(found), wait_ms) == ("ab", None), "it was not so"
    assert settling.judged(nodes("abc"), 51_200)[1] == 1_000


def test_CLU_4_what_nodes_say_one_after_the_other_is_taken_after_three_moments():
    settling = Settling(SETTLE_MS)
    for number, wait_ms in enumerate((1_000, 1_000, 1_000, 300)):
        said = nodes("abcdef", "abcdef"[: number + 1])
        assert settling.judged(said, 900 * number)[1] == wait_ms
    found, wait = settling.judged(nodes("abcdef", "abcde"), 3_000)
    assert (taken(found), wait) == ("abcde", None)


def test_CLU_4_who_has_left_is_not_waited_for_and_an_operator_waits_for_nobody():
    settling = Settling(SETTLE_MS)
    settling.judged(nodes("ab", "b"), 0, at_once=True)
    assert settling.judged(nodes("a"), 100)[1] is None
    found, wait_ms = settling.judged(nodes("ab", "a"), 200, at_once=True)
    assert (taken(found), wait_ms) == ("a", None)
