"""Draws docs/states.md from the tables of the core: `python tools/states.py > docs/states.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reach.core import health, states
from reach.core.instance_states import Health
from reach.core.model import FIRST_TERMINAL, TaskState

HEAD = """\
# States

Drawn by `tools/states.py` from `reach/core/states.py` and `reach/core/health.py`. Do not edit: `python
tools/states.py > docs/states.md` writes it anew, and a test compares.
"""
TASKS = """
## Tasks

Terminal states absorb: the first outcome wins. Back-off is PENDING. A pair of state and input that is not in the
picture is ignored on purpose; the table says why.
"""
HEALTH = """
## Health of instances

Proof of life brings an instance back at once, from wherever it is: to HEALTHY, or, while another source still misses
it (beats arrive, probes fail; or the other way round), to SUSPECT, which still works. Silence takes it down step by
step; a stream that ended, or a process that was replaced, is certain and skips the steps. A process that has never been
ready is STARTING, with a limit of its own.
"""


def diagram(transitions: Mapping[Any, IntEnum], first: IntEnum, last: list[IntEnum]) -> list[str]:
    """A Mermaid state diagram; one arrow for all inputs that lead from one state to another."""
    arrows: dict[tuple[IntEnum, IntEnum], list[str]] = {}
    for (state, event), target in transitions.items():
        if target is not state:
            arrows.setdefault((state, target), []).append(event.name)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}"]
    lines += [f"    {one.name} --> {other.name}: {', '.join(names)}" for (one, other), names in sorted(arrows.items())]
    lines += [f"    {state.name} --> [*]" for state in last]
    return [*lines, "```"]


def table(rows: type[IntEnum], columns: type[IntEnum], cells: Mapping[Any, IntEnum]) -> list[str]:
    """What each input does in each state; a dash where it is ignored."""
    lines = ["| | " + " | ".join(column.name for column in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        named = (cells[row, column].name if (row, column) in cells else "-" for column in columns)
        lines.append(f"| **{row.name}** | " + " | ".join(named) + " |")
    return lines


def ignored() -> list[str]:
    """Why what is ignored is ignored."""
    lines = ["| state | input | why nothing happens |", "|---|---|---|"]
    lines += [
        f"| {state.name} | {event.name} | {why} |"
        for (state, event), why in states.IGNORED.items()
        if state < FIRST_TERMINAL
    ]
    why = {why for (state, _), why in states.IGNORED.items() if state >= FIRST_TERMINAL}
    return [*lines, *(f"| any terminal state | any | {one} |" for one in sorted(why))]


def page() -> str:
    """The whole of docs/states.md."""
    terminal: list[IntEnum] = [state for state in TaskState if state >= FIRST_TERMINAL]
    parts = [
        [HEAD.rstrip()],
        [TASKS.rstrip(), ""],
        diagram(states.TRANSITIONS, TaskState.PENDING, terminal),
        [""],
        table(TaskState, states.TaskInput, states.TRANSITIONS),
        [""],
        ignored(),
        [HEALTH.rstrip(), ""],
        diagram(health.TRANSITIONS, Health.STARTING, []),
        [""],
        table(Health, health.Sign, health.TRANSITIONS),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
