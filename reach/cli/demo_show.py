"""What people see of `reach demo`: the streams, line by line, the kill, and the table at the end."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.demo_files import Job, short_title
from reach.cli.terminal import one_line, span, write_table

if TYPE_CHECKING:
    from reach.sdk.answers import Event

_TITLE: Final = 22
_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta")


@dataclass(slots=True)
class Track:
    """What became of one task."""

    job: Job
    task_id: str = ""
    accepted: bool = False
    state: str = ""
    """Empty until it ended."""
    instance_id: str = ""
    attempts: int = 0
    transfers: int = 0
    took_ms: float = 0.0
    problem: str = ""
    lines: int = 0
    rest: str = ""
    began: float = 0.0


@dataclass(slots=True)
class Show:
    """Writes what happens; nothing if `quiet`."""

    quiet: bool = False
    _colours: dict[str, str] = field(default_factory=dict)

    def line(self, title: str, text: str, *, colour: str | None = None, bold: bool = False) -> None:
        """One line with its title in front."""
        if self.quiet:
            return
        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 160
        name = click.style(short_title(title, _TITLE), fg=colour or self._colour(title))
        body = one_line(text, max(20, width - _TITLE - 4))
        click.echo(f"{name} {click.style('│', dim=True)} {click.style(body, bold=bold) if bold else body}")

    def stage(self, text: str) -> None:
        """What the demo itself does."""
        if not self.quiet:
            click.echo(click.style(f"▸ {one_line(text, 300)}", bold=True))

    def event(self, track: Track, event: Event) -> None:
        """What is new with one task."""
        title = track.job.title
        if event.kind == "started":
            again = f"attempt {event.attempt}, " if event.attempt > 1 else ""
            self.line(title, f"→ {again}{event.instance_id}", bold=event.attempt > 1)
        elif event.kind == "retrying":
            self._flush(track)
            self.line(title, f"✗ attempt {event.attempt} lost: {event.reason}", colour="red", bold=True)
        elif event.kind == "attempt_reset":
            track.rest, track.lines = "", 0
            self.line(title, "↻ begins again", bold=True)
        elif event.kind == "delta" and not event.channel:
            *whole, track.rest = (track.rest + event.text).split("\n")
            for text in whole:
                self._text(track, text)
        elif event.result is not None:
            self._end(track, event)

    def _text(self, track: Track, text: str) -> None:
        track.lines += 1
        if not text.strip():
            return
        if track.lines <= track.job.shown_lines:
            self.line(track.job.title, text)
        elif track.lines == track.job.shown_lines + 1:
            self.line(track.job.title, "…")

    def _flush(self, track: Track) -> None:
        if track.rest.strip():
            self._text(track, track.rest)
        track.rest = ""

    def _end(self, track: Track, event: Event) -> None:
        self._flush(track)
        result = event.result
        assert result is not None
        if result.ok and not track.lines:
            for text in result.text.splitlines():
                self._text(track, text)
        if result.error is not None:
            self.line(track.job.title, f"✗ {result.error}", colour="red")

    def _colour(self, title: str) -> str:
        return self._colours.setdefault(title, _COLOURS[len(self._colours) % len(_COLOURS)])

    def table(self, tracks: Sequence[Track], figures: dict[str, Any], seconds: float) -> None:
        """The end: each task, and all of them together."""
        if self.quiet:
            return
        click.echo()
        write_table(("TASK", "INSTANCE", ">ATTEMPTS", ">MOVED", "STATE", ">TIME", "<WHY"), map(_row, tracks))
        click.echo(
            f"\n{figures['tasks']} tasks: {figures['succeeded']} succeeded, {figures['failed']} failed, "
            f"{figures['lost']} lost; {figures['transfers']} moved to another instance; "
            f"p50 {span(figures['p50_ms'] / 1000)}, p95 {span(figures['p95_ms'] / 1000)}; {seconds:.1f} s in all"
        )


def _row(track: Track) -> tuple[str, ...]:
    return (
        one_line(track.job.title, 40),
        track.instance_id,
        str(track.attempts or ""),
        str(track.transfers or ""),
        track.state or ("LOST" if track.accepted else "REFUSED"),
        span(track.took_ms / 1000) if track.state else "",
        track.problem,
    )


def figures_of(tracks: Sequence[Track]) -> dict[str, Any]:
    """All tasks together: what `--json` prints. Lost: accepted, and without an end."""
    ended = sorted(track.took_ms for track in tracks if track.state)
    succeeded = sum(track.state == "SUCCEEDED" for track in tracks)
    lost = sum(track.accepted and not track.state for track in tracks)
    return {
        "tasks": len(tracks),
        "succeeded": succeeded,
        "failed": len(tracks) - succeeded - lost,
        "lost": lost,
        "transfers": sum(track.transfers for track in tracks),
        "p50_ms": _percentile(ended, 0.50),
        "p95_ms": _percentile(ended, 0.95),
    }


def _percentile(ordered: Sequence[float], share: float) -> float:
    """By nearest rank; 0 for nothing."""
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1) if ordered else 0.0
