"""The slow obvious journal: it keeps everything it was told, in order, and folds it whenever somebody asks."""

from typing import Any

from reach.core.rows import OutboxRow, OutcomeRow, TaskRow, Writes, granted_of
from reach.store.base import Loaded, StoredTask, TaskQuery

OF_A_ROW = ("attempts", "failures", "outcomes", "reserves", "effects", "checkpoints", "questions", "inputs", "handles")


class ModelJournal:
    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {kind: [] for kind in (*OF_A_ROW, "tasks")}
        self.agents: dict[tuple[str, str], Any] = {}
        self.pins: dict[Any, Any] = {}
        self.contexts: dict[Any, Any] = {}
        self.hops: dict[int, int] = {}
        self.facts: list[OutboxRow] = []
        self.highest_row = 0
        self.highest_revision = 0

    def commit(self, writes: Writes) -> list[int]:
        taken = []
        for task in writes.tasks:
            others = [t for t in self.told["tasks"] if (t.tenant, t.task_id) == (task.tenant, task.task_id)]
            if not others:
                self.told["tasks"].append(task)
            elif others[0].row != task.row:
                taken.append(task.row)
        for kind in (*OF_A_ROW, "tasks"):
            for item in getattr(writes, kind):
                self.highest_row = max(self.highest_row, item.row)
                if kind != "tasks" and item.row not in taken:
                    self.told[kind].append(item)
        for gone in writes.agents_gone:
            self.agents.pop((gone.tenant, gone.instance_id), None)
        for agent in writes.agents:
            self.highest_revision = max(self.highest_revision, agent.revision)
            key = (agent.tenant, agent.instance_id)
            if key not in self.agents or self.agents[key].revision <= agent.revision:
                self.agents[key] = agent
        for pin in writes.pins:
            self.pins.pop(pin[1:5], None)
            if pin.instance_id:
                self.pins[pin[1:5]] = pin
        self.commit_facts(writes, taken)
        self.commit_moves(writes, taken)
        return taken

    def commit_moves(self, writes: Writes, taken: list[int]) -> None:
        tasks = self.told["tasks"]
        for move in writes.moves:
            for place, task in enumerate(tasks):
                is_next = task.shard == move.shard and self.hops.get(move.row, 0) < move.hop
                if task.row == move.row and move.row not in taken and is_next:
                    self.hops[move.row] = move.hop
                    tasks[place] = task._replace(
                        shard=move.to_shard,
                        pool_tenant=move.pool_tenant,
                        agent_type=move.agent_type,
                        reserved=move.sequence,
                    )

    def commit_facts(self, writes: Writes, taken: list[int]) -> None:
        for context in writes.contexts:
            self.contexts.pop(context[1:3], None)
            if context.state is not None:
                self.contexts[context[1:3]] = context
        for fact in writes.outbox:
            if fact.row not in taken and all(fact[:2] + fact[3:4] != one[:2] + one[3:4] for one in self.facts):
                self.facts.append(fact)
        for done in writes.outbox_done:
            self.facts = [one for one in self.facts if (one.shard, one.kind, one.key) != (done[0], done[1], done[3])]

    def of(self, kind: str, row: int) -> list[Any]:
        return [item for item in self.told[kind] if item.row == row]

    def firsts(self, kind: str, row: int) -> list[Any]:
        """The first of each number, by number."""
        items = self.of(kind, row)
        numbers = sorted({item.number for item in items})
        return [next(item for item in items if item.number == number) for number in numbers]

    def outcome(self, row: int) -> OutcomeRow | None:
        return next(iter(self.of("outcomes", row)), None)

    def stored(self, task: TaskRow) -> StoredTask:
        row = task.row
        attempts = self.firsts("attempts", row)
        data = None
        number = 0
        for item in self.of("checkpoints", row):
            if data is None or item.number >= number:
                data, number = item.data, item.number
        handle = None
        for item in self.of("handles", row):
            if handle is None or item.number >= handle.number:
                handle = item
        return StoredTask(
            task,
            [item for item in attempts if item.number > task.attempt],
            self.firsts("failures", row),
            max([task.reserved] + [item.reserved for item in attempts + self.of("reserves", row)]),
            granted_of([item.number for item in self.of("effects", row)]),
            data,
            self.outcome(row),
            self.questions(row),
            tuple(self.firsts("inputs", row)),
            handle,
            self.hops.get(row, 0),
        )

    def questions(self, row: int) -> tuple[Any, ...]:
        first: dict[tuple[int, int], Any] = {}
        for item in self.of("questions", row):
            first.setdefault((item.attempt, item.number), item)
        return tuple(first[key] for key in sorted(first))

    def load(self) -> Loaded:
        tasks = sorted(task for task in self.told["tasks"] if self.outcome(task.row) is None)
        return Loaded(
            [self.stored(task) for task in tasks],
            sorted(self.agents.values(), key=lambda agent: (agent.revision, agent.tenant, agent.instance_id)),
            sorted(self.pins.values(), key=lambda pin: pin[1:5]),
            self.highest_row + 1,
            self.highest_revision + 1,
            sorted(self.contexts.values(), key=lambda context: context[1:3]),
        )

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        found = [task for task in self.told["tasks"] if (task.tenant, task.task_id) == (tenant, task_id)]
        return self.stored(found[0]) if found else None

    def list_tasks(self, query: TaskQuery) -> list[StoredTask]:
        found = []
        for stored in map(self.stored, sorted(self.told["tasks"], reverse=True)):
            task = stored.task
            state = stored.outcome.state if stored.outcome else 1
            wanted = [
                query.tenant in ("", task.tenant),
                not query.states or state in query.states,
                not query.reason or (stored.outcome is not None and stored.outcome.reason == query.reason),
                query.session in ("", task.session),
                query.agent_type in ("", task.agent_type),
                query.root_task_id in ("", task.root_task_id),
                query.accepted_after_ms <= task.accepted_wall_ms,
                task.accepted_wall_ms < (query.accepted_before_ms or 1 << 62),
                task.row < (query.before_row or 1 << 62),
            ]
            if all(wanted):
                found.append(stored)
        return found[: query.limit]

    def purge(self, ended_before_ms: int, limit: int, *, dead_letters: bool = False) -> int:
        ended: dict[int, Any] = {item.row: self.outcome(item.row) for item in self.told["outcomes"]}
        fitting = {row: one.ended_wall_ms for row, one in ended.items() if (one.state == 9) is dead_letters}
        oldest = sorted((time, row) for row, time in fitting.items() if time < ended_before_ms)[:limit]
        return self.remove_rows({row for _, row in oldest})

    def remove(self, rows: list[int]) -> int:
        return self.remove_rows({row for row in rows if self.outcome(row) is not None})

    def dead_letters(self) -> int:
        ended = {item.row for item in self.told["outcomes"]}
        return sum(self.outcome(row).state == 9 for row in ended)  # type: ignore[union-attr]

    def drop_facts(self, kind: str, before_ms: int, limit: int) -> int:
        old = [one for one in self.facts if one.kind == kind and one.wall_ms < before_ms][:limit]
        self.facts = [one for one in self.facts if one not in old]
        return len(old)

    def remove_rows(self, gone: set[int]) -> int:
        count = sum(task.row in gone for task in self.told["tasks"])
        for kind, items in self.told.items():
            self.told[kind] = [item for item in items if item.row not in gone]
        self.hops = {row: hop for row, hop in self.hops.items() if row not in gone}
        return count
