"""How the events of a task are shown: the text of the answer on stdout as it comes, everything else on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from reach.cli.exits import Exit
from reach.cli.terminal import one_line, printable, say, span, write, write_json
from reach.cli.values import is_text

if TYPE_CHECKING:
    from reach.sdk.answers import Event, Result

_NOTE: Final = 300


class StatusLine:
    """One line on the terminal that is overwritten: what goes on just now. Nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Puts the text in place of the former one."""
        if self._terminal:
            sys.stderr.write(f"\r\x1b[2K\x1b[2m{one_line(text, 78)}\x1b[0m")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Takes it away, before something else is written."""
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = False


class Screen:
    """The text on stdout. What is written cannot be taken back, so a text that begins again (another attempt) is only
    written from where it differs: an agent that says the same again costs the reader nothing."""

    def __init__(self, streams: bool) -> None:
        self.ends_line = True
        """The cursor stands at the begin of a line."""
        self._streams = streams
        self._shown: list[str] = []
        self._pieces: list[tuple[int, str]] = []
        self._behind = False
        """The text begins again and has not reached what is shown."""

    def append(self, sequence: int, text: str) -> None:
        """A piece comes to the end."""
        self._pieces.append((sequence, text))
        if not self._streams:
            return
        if self._behind:
            self._catch_up()
        else:
            self._put(text)
            self._shown.append(text)

    def replace(self, sequence: int, text: str) -> None:
        """The text is this from now on."""
        self._pieces = [(sequence, text)]
        self._behind = True
        if self._streams:
            self._catch_up()

    def reset(self, keep_up_to_sequence: int) -> None:
        """What came after this is void."""
        self._pieces = [piece for piece in self._pieces if piece[0] <= keep_up_to_sequence]
        self._behind = True

    def finish(self, text: str) -> None:
        """The whole answer: writes what of it is not there yet."""
        shown = "".join(self._shown)
        if text.startswith(shown):
            self._put(text[len(shown) :])
        elif not text.endswith(shown):
            self.end_line()
            self._put(text)
        self.end_line()

    def end_line(self) -> None:
        """Begins a new line if the last one is not ended."""
        if not self.ends_line:
            self._put("\n")

    def _catch_up(self) -> None:
        shown, text = "".join(self._shown), "".join(piece for _, piece in self._pieces)
        if text.startswith(shown):
            self._put(text[len(shown) :])
        elif shown.startswith(text):
            return
        else:
            self.end_line()
            say("(the text begins again)")
            self._put(text)
        self._shown = [text]
        self._behind = False

    def _put(self, text: str) -> None:
        if text:
            write(text)
            self.ends_line = text.endswith("\n")


class JsonFollower:
    """Each event as one line of JSON."""

    def __init__(self) -> None:
        self.goes_on = False
        """The task is accepted and has not ended."""

    def show(self, event: Event) -> None:
        """Writes one event."""
        from reach.cli.messages import plain

        self.goes_on = event.result is None
        write_json({"kind": event.kind, **plain(event.message)}, pretty=False)

    def note(self, text: str) -> None:
        """Something that is no event: nothing for programs."""

    def close(self) -> None:
        """Nothing was left open."""


class Follower:
    """Events for people."""

    def __init__(self, *, streams: bool = True, quiet: bool = False, output: str | None = None) -> None:
        self._status = StatusLine()
        self._screen = Screen(streams and output is None)
        self._quiet = quiet
        self._output = output
        self.goes_on = False
        """The task is accepted and has not ended."""

    def show(self, event: Event) -> None:
        """Writes what is new with one event."""
        self.goes_on = event.result is None
        if event.kind == "delta":
            self._delta(event)
        elif event.kind == "progress":
            done = "" if event.fraction is None else f"{event.fraction:4.0%} "
            self._now(f"{done}{event.note}")
        elif event.kind == "started":
            if event.attempt > 1:
                self.note(f"attempt {event.attempt} on {event.instance_id}")
            self._now(f"running on {event.instance_id}")
        elif event.kind == "attempt_reset":
            self._screen.reset(event.keep_up_to_sequence)
        elif event.kind == "gap":
            self._screen.replace(event.sequence, event.snapshot.get("", ""))
        elif event.result is not None:
            self._complete(event.result)
        else:
            self._rare(event)

    def note(self, text: str) -> None:
        """Something for people about what goes on."""
        if not self._quiet:
            self._status.clear()
            self._screen.end_line()
            say(one_line(text, _NOTE))

    def close(self) -> None:
        """Leaves the terminal in order."""
        self._status.clear()
        self._screen.end_line()

    def _now(self, text: str) -> None:
        if not self._quiet and self._screen.ends_line:
            self._status.show(text)

    def _delta(self, event: Event) -> None:
        if event.channel:
            self.note(f"[{event.channel}] {event.text}")
        elif event.message.delta.payload.WhichOneof("content") != "data":
            self._status.clear()
            add = self._screen.replace if event.mode == "replace" else self._screen.append
            add(event.sequence, event.text)

    def _rare(self, event: Event) -> None:
        message = event.message
        if event.kind == "accepted":
            if message.accepted.deduplicated:
                self.note(f"task {event.task_id} is known already: this is its first answer again")
            for warning in message.accepted.warnings:
                self.note(f"warning: {warning}")
        elif event.kind == "retrying":
            self.note(f"attempt {event.attempt} failed ({event.reason}): {event.note}; it goes on elsewhere or later")
        elif event.kind == "handoff":
            before, now = message.handoff.from_instance_id, message.handoff.to_instance_id
            self.note(f"the conversation moved from {before} to {now}")
        elif event.kind == "degraded":
            self.note(f"served in a lesser way: {message.degraded.why}")
        elif event.kind == "waiting":
            what = "asks for credentials" if event.wants_auth else "asks"
            self.note(f"the agent {what}: {event.text}  (reach input {event.task_id} …)")
        elif event.kind == "input_given":
            self.note("it was answered")

    def _complete(self, result: Result) -> None:
        self._status.clear()
        if result.ok:
            write_output(result, self._screen, self._output)
        else:
            self._screen.end_line()
        if not (self._quiet and result.ok):
            say(outcome_line(result))


def write_output(result: Result, screen: Screen, output: str | None) -> None:
    """The answer: into a file if one is named; binary content not onto a terminal."""
    if output is not None:
        from pathlib import Path

        Path(output).write_bytes(result.payload)
        say(f"{len(result.payload)} bytes of {result.media_type} written to {output}")
        return
    binary = result.message.output.WhichOneof("content") == "data" and not is_text(result.media_type)
    if not binary:
        screen.finish(result.text)
    elif sys.stdout.isatty():
        screen.end_line()
        say(f"({len(result.payload)} bytes of {result.media_type}; --output FILE keeps them)")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(result.payload)
        sys.stdout.buffer.flush()


def outcome_line(result: Result) -> str:
    """How a task ended, in one line."""
    parts = [f"task {result.task_id} {result.state.name}"]
    if result.error is not None:
        parts[0] += f": {result.error.reason.name}: {printable(result.error.message).strip()}"
    if result.instance_id:
        parts.append(f"by {result.instance_id}")
    if result.attempts > 1:
        moved = f", moved {result.transfers} times" if result.transfers else ""
        parts.append(f"{result.attempts} attempts{moved}")
    if result.attempts:
        parts.append(f"queued {span(result.queued)}, ran {span(result.ran)}")
    return " · ".join(parts)


def exit_of_result(result: Result) -> Exit:
    """What the shell is told."""
    return Exit.OK if result.ok else Exit.TASK_FAILED
