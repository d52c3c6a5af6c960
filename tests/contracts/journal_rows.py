"""Short ways to make rows of a journal, with values that tell one column from another."""

from typing import Any

from reach.core.rows import (
    AgentRow,
    AttemptRow,
    CheckpointRow,
    ContextRow,
    EffectRow,
    FailureRow,
    HandleRow,
    InputRow,
    MoveRow,
    OutboxDone,
    OutboxRow,
    OutcomeRow,
    PinRow,
    QuestionRow,
    ReserveRow,
    TaskRow,
    Writes,
)

CLAIM_OF_BEFORE = (
    "insert into shard (shard, epoch) select s, 1 from unnest($1::int[]) s where $2::text is not null order by s"
    " on conflict (shard) do update set epoch = shard.epoch + 1 returning shard, epoch"
)
"""How programs claim that know no holders."""
SUCCEEDED = 5
FAILED = 6
PENDING = 1


def task(row: int, task_id: str = "", tenant: str = "acme", **changes: Any) -> TaskRow:
    plain = TaskRow(
        row=row,
        shard=row % 64,
        tenant=tenant,
        task_id=task_id or f"task-{row}",
        pool_tenant="owner",
        agent_type="summarizer",
        spec=b"\x00\xffspec %d" % row,
        accepted_wall_ms=1_000_000 + row,
        reserved=1_000,
        session="",
        root_task_id="",
        attempt=1,
        instance_id="inst-1",
        agent_id="agent-1",
        generation=3,
    )
    return plain._replace(**changes)


def attempt(row: int, number: int = 2, **changes: Any) -> AttemptRow:
    return AttemptRow(row, row % 64, number, f"inst-{number}", f"agent-{number}", 4, 2_000_000 + row, 0)._replace(
        **changes
    )


def failure(row: int, number: int = 1, **changes: Any) -> FailureRow:
    return FailureRow(row, row % 64, number, 3_000_000 + row, 3, 17, "the instance is gone", 1, 1, 3_000_500)._replace(
        **changes
    )


def outcome(row: int, state: int = SUCCEEDED, **changes: Any) -> OutcomeRow:
    plain = OutcomeRow(
        row=row,
        shard=row % 64,
        state=state,
        ended_wall_ms=4_000_000 + row,
        sequence=7,
        agent_id="agent-1",
        instance_id="inst-1",
        attempts=1,
        transfers=0,
        queued_ms=12,
        ran_ms=34,
        media_type="text/plain",
        content=f"done {row}",
        error_class=0,
        reason=0,
        message="",
        metadata=None,
        extra=None,
    )
    return plain._replace(**changes)


def reserve(row: int, reserved: int) -> ReserveRow:
    return ReserveRow(row, row % 64, reserved)


def effect(row: int, number: int = 1) -> EffectRow:
    return EffectRow(row, row % 64, number, "charge", 5_000_000)


def handle(row: int, number: int = 1, place: str = "/jobs/1") -> HandleRow:
    return HandleRow(row, row % 64, number, place)


def checkpoint(row: int, number: int = 1, data: bytes = b"half way") -> CheckpointRow:
    return CheckpointRow(row, row % 64, number, data)


def question(row: int, attempt: int = 1, number: int = 1, **changes: Any) -> QuestionRow:
    plain = QuestionRow(row, row % 64, attempt, number, 2, "text/plain", "May I?", "pay", 5_100_000, 8_700_000)
    return plain._replace(**changes)


def given(row: int, number: int = 1, **changes: Any) -> InputRow:
    return InputRow(row, row % 64, number, f"in-{number}", "pay", "", b"\xffyes", 5_200_000)._replace(**changes)


def agent(instance_id: str = "inst-1", revision: int = 1, tenant: str = "acme", **changes: Any) -> AgentRow:
    return AgentRow(
        tenant,
        instance_id,
        "summarizer",
        f"boot-{revision}",
        revision,
        ("boot-0",),
        b"\xff%d" % revision,
        6_000,
        revision,
        6_500,
        2,
    )._replace(**changes)


def move(row: int, agent_type: str = "translator", hop: int = 1, **changes: Any) -> MoveRow:
    return MoveRow(row, row % 64, row % 64, "owner-2", agent_type, hop, 1_000)._replace(**changes)


def pin(session: str = "s1", instance_id: str = "inst-1", **changes: Any) -> PinRow:
    return PinRow(9, "owner", "summarizer", "acme", session, instance_id, 7_000, 0)._replace(**changes)


def context(session: str = "s1", state: Any = (1, "said", [b"\xff"]), **changes: Any) -> ContextRow:
    return ContextRow(5, "acme", session, 3, 9_000, list(state) if state is not None else None)._replace(**changes)


def fact(key: str, lane: str = "a", row: int = 0, kind: str = "turn", **changes: Any) -> OutboxRow:
    return OutboxRow(3, kind, lane, key, row, "acme", f"task-{row}", 8_000_000 + row, b"\x00body")._replace(**changes)


def done(of: OutboxRow) -> OutboxDone:
    return OutboxDone(of.shard, of.kind, of.lane, of.key)


def writes(**kinds: list[Any]) -> Writes:
    made = Writes()
    for kind, rows in kinds.items():
        setattr(made, kind, rows)
    return made
