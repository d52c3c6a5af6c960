"""Canaries: share, promotion, roll-back, sessions, exemptions (RTE-9, REG-10)."""

import pytest

from reach.core import events as ev
from reach.core.canary import MAX_TRIALS, TASKS, Canaries, Stage, Trial, version_key
from reach.core.effects import Noted
from reach.core.filters import Filters
from reach.core.model import Requirement, TaskState
from reach.errors import ErrorClass, Reason
from tests.core.harness import LONG, Shell, instance_of, of

FAILED = (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED)


def shell_of(*versions, slots=50, share=None):
    """A pool with an instance `v<version>` of each."""
    shell = Shell()
    if share is not None:
        shell.pool.router.canary.share = share
    for version in versions:
        shell.join(f"v{version}", version=version, slots=slots, heartbeat_ms=60_000)
    return shell


def run(shell, count, *, fails=(), slow=(), took_ms=100, sessions=False):
    """Tasks, one after the other; those on the instances named fail, or take ten times as long."""
    went = []
    for number in range(count):
        task = shell.submit(retry="never", session=f"a:b:{number}" if sessions else "", **LONG)
        shell.take_up(task)
        went.append(task.instance_id)
        if task.instance_id in fails:
            shell.report(task, error=FAILED)
        else:
            shell.now_ms += took_ms * (10 if task.instance_id in slow else 1)
            shell.report(task)
    return went


def alerts(shell):
    return [note.kind for note in of(shell.sends, Noted) if note.kind.startswith("canary")]


def trial(shell, version="2"):
    return shell.pool.router.canary.trials["echo", version]


def test_RTE_9_a_version_that_grew_gets_five_percent():
    went = run(shell_of("1", "2"), 600)  # not so many that it could be promoted
    assert 600 * 0.03 < went.count("v2") < 600 * 0.08


def test_RTE_9_so_it_does_of_new_sessions_and_these_keep_their_version():
    shell = shell_of("1", "2", slots=500)
    run(shell, 400, sessions=True)
    on_new = [name for name, pin in shell.pool.pins._pins.items() if pin.instance_id == "v2"]
    assert 400 * 0.02 < len(on_new) < 400 * 0.09
    for _, session in on_new[:3]:
        assert shell.submit(session=session).instance_id == "v2"


def test_RTE_9_no_worse_over_fifty_tasks_then_it_gets_all():
    shell = shell_of("1", "2")
    run(shell, 2_000)
    assert alerts(shell) == ["canary_promoted"]
    assert trial(shell).new.tasks == TASKS
    assert set(run(shell, 100)) == {"v2"}


def test_all_means_as_many_as_have_room_there():
    shell = shell_of("1", "2", slots=2)
    trial(shell).stage = Stage.PROMOTED
    assert [shell.submit(**LONG).instance_id for _ in range(4)] == ["v2", "v2", "v1", "v1"]


@pytest.mark.parametrize("worse", ["fails", "slow"])
def test_RTE_9_worse_is_rolled_back_and_alerted(worse):
    shell = shell_of("1", "2")
    for _ in range(20):
        run(shell, 100, **{worse: ("v2",)})
        shell.step()
    assert alerts(shell) == ["canary_rolled_back"]
    (note,) = [note for note in of(shell.sends, Noted) if note.kind == "canary_rolled_back"]
    assert "version 2 of echo" in note.reason
    assert set(run(shell, 100)) == {"v1"}


def test_one_that_fails_always_is_rolled_back_before_it_had_fifty():
    shell = shell_of("1", "2", share=0.5)
    run(shell, 100, fails=("v2",))
    assert trial(shell).stage is Stage.ROLLED_BACK
    assert trial(shell).new.tasks < TASKS


def test_what_no_older_version_could_take_goes_to_the_new_one():
    shell = Shell()
    shell.join("old", version="1", slots=50)
    shell.join("new", version="2", slots=50, tags=("gpu",))
    gpu = Requirement(required_tags=("gpu",))
    assert {shell.submit(requirement=gpu, **LONG).instance_id for _ in range(20)} == {"new"}


def test_RTE_9_a_canary_is_one_only_while_an_older_version_lives():
    shell = shell_of("1", "2")
    shell.lose(shell.pool.instances["v1"])
    assert set(run(shell, 20)) == {"v2"}


def test_a_full_older_version_is_waited_for():
    """Else a burst would make the share whatever it likes."""
    shell = shell_of("1", "2", slots=2)
    tasks = [shell.submit(**LONG) for _ in range(12)]
    assert [task.state for task in tasks if task.instance_id != "v1"].count(TaskState.PENDING) >= 9


def test_the_same_number_on_restart_and_a_lower_one_are_no_canaries():
    shell = shell_of("2", "1")
    shell.join("again", version="2", slots=50)
    assert not shell.pool.router.canary.trials


def test_an_older_one_that_comes_back_does_not_put_a_trusted_one_on_trial():
    shell = shell_of("1", "2")
    shell.step(ev.Left(shell.pool.instances["v1"]))
    assert set(run(shell, 5)) == {"v2"}
    shell.join("v1", "b9", version="1", slots=50)
    assert not shell.pool.router.canary.trials


def test_a_process_that_is_replaced_by_a_newer_version_of_itself_is_no_canary():
    shell = shell_of("1")
    shell.join("v1", "b2", version="2", slots=50)
    assert not shell.pool.router.canary.trials


def test_agents_of_one_pool_are_tried_apart():
    shell = Shell()
    shell.join("a1", agent_id="a", version="1", slots=50)
    shell.join("b2", agent_id="b", version="2", slots=50)
    assert not shell.pool.router.canary.trials
    shell.join("a2", agent_id="a", version="2", slots=50)
    assert list(shell.pool.router.canary.trials) == [("a", "2")]


def test_a_newer_one_takes_the_place_of_one_that_was_promoted():
    shell = shell_of("1", "2")
    trial(shell).stage = Stage.PROMOTED
    shell.join("v3", version="3", slots=50)
    assert trial(shell, "3").stage is Stage.TRIAL
    went = run(shell, 300)
    assert went.count("v3") < 30
    assert went.count("v1") == 0


def test_a_rolled_back_version_stays_so_when_its_processes_restart():
    shell = shell_of("1", "2")
    trial(shell).stage = Stage.ROLLED_BACK
    shell.join("v2", "b2", version="2", slots=50)
    assert set(run(shell, 30)) == {"v1"}


def test_a_rolled_back_version_stays_so_when_the_only_older_process_restarts():
    shell = shell_of("1", "2")
    run(shell, 600, fails={"v2"})
    assert alerts(shell) == ["canary_rolled_back"]
    shell.step(ev.Left(shell.pool.instances["v1"], None))
    assert set(run(shell, 5)) == {"v2"}, "nobody else is there"
    shell.join("again", version="1", slots=50, heartbeat_ms=60_000)
    assert set(run(shell, 50)) == {"again"}


def test_how_a_trial_is_judged():
    def judged(new, old):
        made = Trial("a", "2")
        for side, (tasks, failed, duration) in ((made.new, new), (made.old, old)):
            for number in range(tasks):
                side.add(number >= failed, duration)
        return made.verdict()

    assert judged((49, 0, 100), (900, 0, 100)) is Stage.TRIAL
    assert judged((50, 0, 100), (900, 0, 100)) is Stage.PROMOTED
    assert judged((50, 0, 100), (49, 0, 100)) is Stage.TRIAL
    assert judged((50, 1, 100), (900, 0, 100)) is Stage.PROMOTED  # 2 %
    assert judged((50, 2, 100), (900, 0, 100)) is Stage.ROLLED_BACK
    assert judged((50, 2, 100), (900, 18, 100)) is Stage.PROMOTED
    assert judged((50, 0, 120), (900, 0, 100)) is Stage.PROMOTED
    assert judged((50, 0, 121), (900, 0, 100)) is Stage.ROLLED_BACK
    assert judged((10, 2, 100), (20, 0, 100)) is Stage.ROLLED_BACK
    assert judged((10, 10, 100), (900, 900, 100)) is Stage.TRIAL


@pytest.mark.parametrize(
    ("low", "high"), [("1", "2"), ("1.9", "1.10"), ("2.0", "2.0.1"), ("v1", "v2"), ("1.0-rc1", "1.0.1"), ("a", "b")]
)
def test_versions_grow_as_people_count(low, high):
    assert version_key(low) < version_key(high)


def test_trials_are_bounded():
    filters = Filters()
    canaries = Canaries(filters)
    for number in range(3 * MAX_TRIALS):
        one = instance_of(f"i{number}", version=str(number))
        one.bit = number
        filters.add(one)
        canaries.joined(one)
    assert len(canaries.trials) == MAX_TRIALS


def back(shell):
    """The server restarts, and all come back, in the order in which they registered last."""
    known = [one.instance_id for one in shell.pool.instances.values()]
    shell.crash_and_load()
    for name in known:
        version = shell.joinings[name].profile.version
        shell.join(name, version=version, slots=50, heartbeat_ms=60_000)


@pytest.mark.parametrize("newest_first", [False, True])
def test_RTE_9_a_version_that_was_rolled_back_stays_so_over_a_restart(newest_first):
    shell = shell_of("1", "2")
    run(shell, 1_500, fails=("v2",))
    assert trial(shell).stage is Stage.ROLLED_BACK
    if newest_first:
        shell.join("v1", version="1", slots=51, registration=b"again")  # the row of the old one is the later one
    back(shell)
    assert trial(shell).stage is Stage.ROLLED_BACK
    assert set(run(shell, 300)) == {"v1"}


def test_RTE_9_what_was_promoted_stays_so_and_what_was_on_trial_is_weighed_anew():
    shell = shell_of("1", "2")
    run(shell, 3_000)
    assert trial(shell).stage is Stage.PROMOTED
    shell.join("v3", version="3", slots=50, heartbeat_ms=60_000)
    back(shell)
    assert trial(shell).stage is Stage.PROMOTED
    assert trial(shell, "3").stage is Stage.TRIAL
    assert trial(shell, "3").new.tasks == 0
    assert run(shell, 200).count("v2") > 150


def test_what_is_trusted_is_on_no_trial_after_a_restart():
    shell = shell_of("1", "2")
    shell.step(ev.Left(shell.pool.instances["v1"]))
    shell.join("v1", version="1", slots=50, heartbeat_ms=60_000)
    assert not shell.pool.router.canary.trials
    back(shell)
    assert not shell.pool.router.canary.trials
