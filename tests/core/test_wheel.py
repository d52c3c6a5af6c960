"""The timer wheel against a plain dict of deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from reach.core.wheel import SLOT_MS, TimerWheel


class Entry:
    def __init__(self, name=""):
        self.name = name
        self.timer_slot = 0


def test_a_deadline_is_never_early_and_at_most_a_slot_late():
    wheel, entry = TimerWheel(), Entry()
    for at_ms in range(1, 45):
        wheel.arm(entry, at_ms)
        due_ms = wheel.next_ms()
        assert due_ms is not None
        assert at_ms <= due_ms < at_ms + SLOT_MS
        assert wheel.due(due_ms - 1) == []
        assert wheel.due(due_ms) == [entry]
        assert wheel.due(due_ms + 1_000) == []


def test_arming_again_moves_the_deadline_both_ways():
    wheel, entry = TimerWheel(), Entry()
    wheel.arm(entry, 100)
    wheel.arm(entry, 500)
    assert wheel.due(200) == []
    wheel.arm(entry, 300)
    assert wheel.due(300) == [entry]
    assert wheel.next_ms() is None


def test_what_is_disarmed_never_comes_and_may_be_disarmed_twice():
    wheel, entry = TimerWheel(), Entry()
    wheel.arm(entry, 100)
    wheel.disarm(entry)
    wheel.disarm(entry)
    assert wheel.next_ms() is None
    assert wheel.due(1_000) == []
    wheel.arm(entry, 100)
    assert wheel.due(100) == [entry]


def test_it_is_known_whether_a_deadline_comes_in_time():
    wheel, entry = TimerWheel(), Entry()
    assert not wheel.comes(entry, 1_000), "it has none"
    wheel.arm(entry, 500)
    assert wheel.comes(entry, 1_000)
    assert wheel.comes(entry, 500)
    assert not wheel.comes(entry, 400)


def test_a_deadline_in_the_past_is_due_at_once():
    wheel, entry = TimerWheel(), Entry()
    wheel.arm(entry, -5)
    assert wheel.due(SLOT_MS) == [entry]


def test_entries_may_be_armed_anew_while_the_due_ones_are_handled():
    wheel, entry = TimerWheel(), Entry()
    wheel.arm(entry, 100)
    for due in wheel.due(100):
        wheel.arm(due, 100)
    assert wheel.due(100) == [entry]


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.integers(0, 5), st.integers(0, 300)),
        st.tuples(st.just("disarm"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 80)),
        st.tuples(st.just("next"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(ACTS)
def test_the_wheel_equals_a_list_of_deadlines(acts):
    wheel, entries, now = TimerWheel(), [Entry(str(number)) for number in range(6)], 0
    plain: dict[str, int] = {}
    for act, number, amount in acts:
        entry = entries[number]
        if act == "arm":
            wheel.arm(entry, now + amount)
            plain[entry.name] = max(SLOT_MS, -(-(now + amount) // SLOT_MS) * SLOT_MS)
        elif act == "disarm":
            wheel.disarm(entry)
            plain.pop(entry.name, None)
        elif act == "pass":
            now += amount
            came = [one.name for one in wheel.due(now) if isinstance(one, Entry)]
            assert sorted(came) == sorted(name for name, at in plain.items() if at <= now)
            assert [plain[name] for name in came] == sorted(plain[name] for name in came)
            for name in came:
                del plain[name]
        else:
            assert wheel.next_ms() == min(plain.values(), default=None)
    assert {one.name for one in entries if one.timer_slot} == set(plain)
