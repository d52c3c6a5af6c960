"""Where sessions live: their time, their bounds, and how they are forgotten (SES-1, SES-2)."""

from reach.core.context import Facts
from reach.core.homes import Accepted, Home, Room
from tests.core.test_context import turn

NAME, OTHER = ("acme", "app:user:1"), ("globex", "app:user:1")
WALL = 1_000_000


def home(**room):
    return Home(7, Room(ttl_ms=100, **room))


def add(home, name, number, now_ms=0, row=1, at_ms=None, **more):
    accepted = Accepted(row, now_ms if at_ms is None else at_ms)
    return home.add(name, turn(number), Facts({}, {}), accepted, now_ms, **more)


def restarted(home, now_ms=0, wall_ms=WALL, last_row=100):
    again = Home(home.shard, Room(ttl_ms=100))
    again.room.restored_row = last_row
    for row in home.rows(now_ms, wall_ms):
        if row.state is not None:
            again.restore(row, now_ms, wall_ms)
    return again


def test_SES_1_two_tenants_with_the_same_key_never_meet():
    one = home()
    add(one, NAME, 1)
    assert one.look(OTHER, 0) is None
    add(one, OTHER, 2)
    assert [item.task_id for item in one.look(NAME, 0).turns] == ["t1"]


def test_SES_2_a_session_lives_as_long_as_it_is_used():
    one = home()
    add(one, NAME, 1)
    assert one.look(NAME, 99) is not None
    one.open(NAME, 99)
    assert one.look(NAME, 198).count == 1
    assert one.look(NAME, 199) is None
    assert one.open(NAME, 199).count == 0  # a new one
    assert one.room.sessions == 1


def test_SES_2_a_route_may_give_it_more_time():
    one = home()
    one.open(NAME, 0, 1_000)
    assert add(one, NAME, 1, 500) is not None
    assert one.look(NAME, 1_499) is not None
    assert one.look(NAME, 1_500) is None


def test_a_session_with_an_open_task_does_not_expire():
    one = home()
    add(one, NAME, 1)
    add(one, OTHER, 1)
    one.expire(100, lambda: {NAME})
    assert one.look(NAME, 199) is not None
    assert one.look(OTHER, 100) is None
    assert len(one) == 1
    one.expire(200, set)
    assert len(one) == 0
    assert (one.room.sessions, one.room.bytes) == (0, 0)


def test_SES_2_a_task_that_ends_after_the_time_of_its_session_adds_to_what_was_said():
    """Between the end of its time and the next look at sessions whose time is over."""
    one = home()
    add(one, NAME, 1)
    assert add(one, NAME, 2, now_ms=150, at_ms=99).count == 2
    assert add(one, NAME, 3, now_ms=300, at_ms=299).count == 1, "its time was over when the task came"


def test_SES_2_another_open_task_keeps_a_session_too():
    one = home()
    add(one, NAME, 1)
    one.busy = lambda name: name == NAME
    assert one.look(NAME, 150) is not None
    assert one.look(NAME, 249) is not None
    one.look(NAME, 250)
    one.busy = lambda _: False
    assert one.look(NAME, 349) is not None
    assert one.look(NAME, 350) is None
    one.busy = lambda _: True
    assert one.open(NAME, 360, None, Accepted(9, 360)).count == 1


def test_too_many_sessions_forget_the_one_that_was_used_longest_ago():
    one = home(max_sessions=2)
    for number in range(3):
        add(one, ("acme", str(number)), number)
        one.open(("acme", "0"), number)
    assert [item.session for item in one] == ["2", "0"]
    assert one.room.evicted == 1
    assert {row.session for row in one.rows(0, WALL) if row.state is None} == {"1"}


def test_a_tenant_that_has_more_than_its_share_makes_room_for_others():
    one = home(max_sessions=4)
    add(one, NAME, 1)
    for number in range(9):
        add(one, ("greedy", str(number)), number, number)
    assert one.look(NAME, 9) is not None
    assert [item.session for item in one if item.tenant == "greedy"] == ["6", "7", "8"]
    for number in range(3):
        add(one, ("third", str(number)), number, 10)
    assert one.look(NAME, 10) is not None
    assert {name: used[0] for name, used in one.room.tenants.items()} == {"acme": 1, "greedy": 1, "third": 2}


def test_bytes_are_bounded_too_but_what_is_used_now_stays():
    one = home(max_bytes=30_000)
    big = turn(1, "x" * 16_000)
    one.add(("acme", "a"), big, Facts({}, {}), Accepted(1, 0), 0)
    one.add(("acme", "b"), big, Facts({}, {}), Accepted(1, 0), 0)
    assert [item.session for item in one] == ["b"]
    assert one.room.bytes <= 30_000


def test_only_what_changed_is_written_and_written_once():
    one = home()
    one.open(NAME, 0)
    assert one.rows(0, WALL) == []  # nothing has been said
    add(one, NAME, 1)
    (row,) = one.rows(10, WALL)
    assert (row.shard, row.tenant, row.session, row.expires_wall_ms) == (7, *NAME, WALL + 90)
    assert one.rows(10, WALL) == []
    assert not one.is_dirty


def test_a_restart_keeps_what_was_said_whatever_the_clock_says():
    one = home()
    add(one, NAME, 1)
    again = restarted(one)
    assert again.has(NAME, "t1")
    assert add(again, NAME, 1) is None
    assert again.look(NAME, 99) is not None
    one._dirty[NAME] = None
    leapt = restarted(one, wall_ms=WALL + 10**9)
    assert leapt.look(NAME, 99) is not None


def test_a_deleted_session_is_not_brought_back_by_tasks_that_were_accepted_before():
    one = home()
    add(one, NAME, 1)
    one.delete(NAME, 0, (5,))
    assert one.look(NAME, 0) is None
    assert add(one, NAME, 2, row=5) is None
    assert one.look(NAME, 0) is None
    again = restarted(one)
    assert add(again, NAME, 2, row=5) is None
    kept = add(again, NAME, 3, row=6)
    assert [item.task_id for item in kept.turns] == ["t3"]
    assert again.look(NAME, 0) is kept
    assert kept.revision > 1


def test_what_was_deleted_before_anything_was_said_does_not_come_back_either():
    one = home()
    one.delete(NAME, 0, (5,))
    assert add(one, NAME, 1, row=5) is None
    assert add(restarted(one), NAME, 1, row=5) is None
    assert add(one, NAME, 2, row=6) is not None


def test_rows_that_only_volatile_tasks_had_are_given_again_after_a_restart():
    one = home()
    add(one, NAME, 1)
    one.delete(NAME, 0, (1_000,))
    assert add(restarted(one, last_row=7), NAME, 2, row=7) is None
    assert add(restarted(marked(one), last_row=7), NAME, 2, row=8) is not None


def marked(home):
    home._dirty[NAME] = None
    return home


def test_a_task_that_waited_while_its_session_was_deleted_does_not_bring_it_back():
    one = home()
    add(one, NAME, 1)
    one.delete(NAME, 0, (5,))
    assert one.open(NAME, 0, None, Accepted(5, 0)).revision > 0
    assert one.look(NAME, 0) is None
    one.open(NAME, 0, None, Accepted(6, 0))
    assert one.look(NAME, 0) is not None


def test_a_summary_that_comes_too_late_changes_nothing():
    one = home()
    context = one.open(NAME, 0)
    for number in range(15):
        add(one, NAME, number)
    due = context.due()
    one.delete(NAME, 0, (0,))
    one.summarised(context, due, "late")
    assert one.look(NAME, 0) is None
    assert context.summary == ""


def test_SES_3_a_summary_of_turns_that_are_in_another_one_takes_no_others_away():
    one = home()
    context = one.open(NAME, 0)
    for number in range(15):
        add(one, NAME, number)
    late = context.due()
    one.summarised(context, late, "an extract")  # for it took too long
    for number in range(15, 25):
        add(one, NAME, number)
    due = context.due()
    assert len(due) == len(late)
    one.summarised(context, late, "late")
    assert context.summary == "an extract"
    one.summarised(context, due, "in time")
    assert (context.summary, context.older) == ("in time", [])


def test_a_tenant_with_many_new_sessions_does_not_push_out_the_older_ones_of_others():
    room = Room(max_sessions=1_000)
    homes = [Home(number, room) for number in range(2)]
    for number in range(300):
        add(homes[0], ("acme", str(number)), number)
    for number in range(2_000):
        add(homes[number % 2], ("greedy", str(number)), number, 1)
    assert room.tenants["acme"][0] == 300
    assert (room.sessions, len(homes[0]) + len(homes[1])) == (1_000, 1_000)


def test_pages_do_not_move_because_a_session_was_looked_at():
    one = home()
    one.open(NAME, 0, 1_000)
    add(one, NAME, 1, 50)
    again = restarted(one, now_ms=60)
    (stored,) = again
    before = stored.used_ms
    assert again.look(NAME, 60) is stored
    assert (stored.ttl_ms, stored.used_ms) == (1_000, before)
    assert before <= 60
