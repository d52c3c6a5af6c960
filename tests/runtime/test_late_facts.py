"""A turn counts once, though the fact of it comes after its session has forgotten which tasks it had (SES-3)."""

from __future__ import annotations

import pytest

from agentreach.v1 import task_pb2
from reach.core.homes import Accepted
from reach.core.model import Outcome, TaskState
from reach.core.placement import shard_of_session
from reach.core.rows import OutboxDone
from reach.core.session import TURN
from reach.runtime.homeward import Brought
from reach.wire.codec import ProtoCodec
from tests.runtime.hosts import READER, TENANT, Shell

NAME = (TENANT, "app:user:s")
HOME = shard_of_session(NAME)
FACT = (5, "7")


def brought(number: int) -> Brought:
    spec = task_pb2.TaskSpec(task_id=f"t{number}", selector=task_pb2.Selector(agent_type="nobody"))
    task, _ = READER.read(TENANT, spec)
    task.outcome = Outcome(TaskState.SUCCEEDED, "done", "text/plain")
    content = ProtoCodec(READER).turn_bytes(task)
    done = OutboxDone(FACT[0], TURN, NAME[1], str(7 + number), HOME)
    return Brought(NAME, f"t{number}", Accepted(number, 0), None, content, done)


@pytest.mark.parametrize("written", ["not yet", "it is being written"])
async def test_SES_3_a_turn_that_is_brought_again_counts_once_until_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setattr("reach.core.context.APPLIED", 2)
    shell = Shell()
    sessions = shell.host.sessions
    for number in range(4):
        sessions.take_in(brought(number))
        sessions.keep(brought(number).fact)  # type: ignore[arg-type]
    if written == "it is being written":
        sessions.flush()
    assert sessions.keeps(FACT)
    sessions.take_in(brought(0))
    context = sessions.home(NAME).look(NAME, 0)
    assert context is not None
    assert context.count == 4
    sessions.flush()
    await shell.settle()
    assert not sessions.keeps(FACT)
    assert shell.journal.every_fact(TURN, 0, 9) == []
    await shell.stop()


async def test_SES_3_a_home_that_was_lost_keeps_nothing() -> None:
    shell = Shell()
    sessions = shell.host.sessions
    sessions.take_in(brought(0))
    sessions.keep(brought(0).fact)  # type: ignore[arg-type]
    sessions.flush()
    assert sessions.keeps(FACT)
    sessions.leave([HOME])
    assert not sessions.keeps(FACT), "its next owner has to hear of it"
    await shell.stop()
