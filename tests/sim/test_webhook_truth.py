"""The checker finds what must not be of webhooks, and lets pass what is right (DLV-12)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reach.core.model import TaskState
from reach.core.rows import OutboxDone, Writes
from reach.testing.sim.checker import Checker
from tests.sim.history import KEY, outcome_row, task_row

OTHER = (KEY[0], "other")
DONE = OutboxDone(0, "webhook", "acme https://hook-a:443", "1")
END = str(int(TaskState.CANCELLED))


class History:
    def __init__(self) -> None:
        self.checker = Checker()
        self.told = self.checker.webhooks.received

    def accept(self, url: bytes = b"https://hook-a/acme") -> None:
        self.write(tasks=[task_row()._replace(spec=b"spec " + url)])

    def end(self) -> None:
        self.write(outcomes=[outcome_row(state=TaskState.CANCELLED)])

    def write(self, **rows: list[object]) -> None:
        writes = Writes()
        for kind, some in rows.items():
            setattr(writes, kind, some)
        self.checker.durable(writes, [])

    @property
    def found(self) -> list[str]:
        return [violation.name for violation in self.checker.violations]


def nobody_asked(h: History) -> None:
    h.accept(b"")
    h.end()
    h.told(KEY, "wh_1", END)


def before_its_end(h: History) -> None:
    h.accept()
    h.told(KEY, "wh_1", END)


def with_another_end(h: History) -> None:
    h.accept()
    h.end()
    h.told(KEY, "wh_1", "6")


def under_two_names(h: History) -> None:
    h.accept()
    h.end()
    h.told(KEY, "wh_1", END)
    h.told(KEY, "wh_2", END)


def two_under_one_name(h: History) -> None:
    h.accept()
    h.write(tasks=[task_row(2)._replace(task_id="other", spec=b"https://hook-b/acme")])
    h.write(outcomes=[outcome_row(state=TaskState.CANCELLED), outcome_row(state=TaskState.CANCELLED)._replace(row=2)])
    h.told(KEY, "wh_1", END)
    h.told(OTHER, "wh_1", END)


def after_it_was_forgotten(h: History) -> None:
    h.accept()
    h.end()
    h.told(KEY, "wh_1", END)
    h.write(outbox_done=[DONE])
    h.told(KEY, "wh_1", END)


def forgotten_before_it_was_told(h: History) -> None:
    h.accept()
    h.end()
    h.write(outbox_done=[DONE])


def never(h: History) -> None:
    h.accept()
    h.end()
    h.checker.webhooks.finish()


WRONG: list[tuple[Callable[[History], None], str]] = [
    (nobody_asked, "WEBHOOKS_ARE_WANTED"),
    (before_its_end, "WEBHOOKS_TELL_ENDS"),
    (with_another_end, "WEBHOOKS_TELL_ENDS"),
    (under_two_names, "WEBHOOKS_HAVE_ONE_NAME"),
    (two_under_one_name, "WEBHOOKS_HAVE_ONE_NAME"),
    (after_it_was_forgotten, "WEBHOOKS_END"),
    (forgotten_before_it_was_told, "WEBHOOKS_ARE_RECEIVED"),
    (never, "WEBHOOKS_ARE_RECEIVED"),
]


@pytest.mark.parametrize(("history", "name"), WRONG, ids=[one.__name__ for one, _ in WRONG])
def test_what_must_not_be_is_found(history: Callable[[History], None], name: str) -> None:
    h = History()
    history(h)
    assert h.found == [name]


def test_what_is_right_is_let_pass() -> None:
    h = History()
    h.accept()
    h.end()
    h.told(KEY, "wh_1", END)
    h.told(KEY, "wh_1", END)  # its answer was lost
    h.write(outbox_done=[DONE])
    h.checker.webhooks.finish()
    assert h.found == []


def test_what_is_told_late_of_a_task_that_was_removed_says_nothing_of_the_next_one_of_its_id() -> None:
    """Found by seed 6030560."""
    h = History()
    h.accept()
    h.end()
    h.checker.forget_row(1)
    h.told(KEY, "wh_1", END)  # it was on its way
    h.write(tasks=[task_row(2)._replace(spec=b"https://hook-a/acme")])
    h.write(outcomes=[outcome_row(state=TaskState.FAILED)._replace(row=2)])
    h.told(KEY, "wh_2", str(int(TaskState.FAILED)))
    assert h.found == []
    h.told(KEY, "wh_3", str(int(TaskState.FAILED)))
    assert h.found == ["WEBHOOKS_HAVE_ONE_NAME"]
