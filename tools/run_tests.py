"""Runs the tests in several processes at once, because most of them mostly wait: for timers, for servers, for a disk.

Arguments go to one pytest instead. JOBS=1 runs one part after the other.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
JOBS = int(os.environ.get("JOBS", "0")) or (os.cpu_count() or 1) + 2
"""Processes at once. With more than this, tests that wait for an answer in time begin to miss it."""
LONG = (
    "tests/sim/test_planted.py",
    "tests/e2e/test_overload.py",
    "tests/sim/test_histories.py",
    "tests/e2e/test_cluster.py",
    "tests/sim/test_nodes.py",
    "tests/e2e/test_kills.py",
    "tests/sim/test_planted_nodes.py",
)
"""Files that take longest, each a part of its own; they begin first, so that none of them is what all wait for, and
those that compute take turns with those that wait."""
FEW = {"tests/e2e": 2, "tests/cluster": 1, "tests/contracts": 2}
"""How many files of a folder make one part; each process has to load all that it tests."""
OTHERWISE = 12


class Ran(NamedTuple):
    """What became of a part."""

    files: list[str]
    code: int
    output: str


def parts(files: Iterable[str]) -> list[list[str]]:
    """All test files in parts, in the order in which they begin."""
    rest = sorted(files)
    made = [[name] for name in LONG if name in rest]
    folders: dict[str, list[str]] = {}
    for name in rest:
        if name not in LONG:
            folders.setdefault(name.rpartition("/")[0], []).append(name)
    for folder in sorted(folders, key=lambda name: (name not in FEW, name)):
        size = FEW.get(folder, OTHERWISE)
        made += [folders[folder][at : at + size] for at in range(0, len(folders[folder]), size)]
    return made


class Runner:
    """Runs parts, and ends what runs when it is interrupted."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, files: list[str]) -> Ran:
        """One part, to its end."""
        with tempfile.TemporaryFile("w+") as output:
            if self._stopped:
                return Ran(files, 1, "interrupted")
            code = self._wait([*PYTEST, *files], output)
            output.seek(0)
            return Ran(files, code, output.read())

    def _wait(self, command: list[str], output: IO[str]) -> int:
        environment = dict(os.environ)
        if environment.pop("PYTHONDONTWRITEBYTECODE", ""):  # what each of some hundred processes would compile anew
            environment["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "bytecode")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # who interrupts us does not interrupt it too: hearing that twice, it ends at once
        )
        self._running.add(process)
        try:
            return process.wait()
        finally:
            self._running.discard(process)

    def stop(self) -> None:
        """Ends all parts; they end what they have started."""
        self._stopped = True
        for process in list(self._running):
            process.send_signal(signal.SIGINT)


def report(ran: Ran, number: str, counts: dict[str, int]) -> None:
    """Prints what became of a part: all of it if it failed, else what was skipped; adds to the counts."""
    lines = ran.output.rstrip().splitlines() or [""]
    print(f"[{number}] {_name(ran.files)}: {lines[-1]}", flush=True)
    for count, what in re.findall(r"(\d+) (passed|failed|skipped|xfailed|errors?)\b", lines[-1]):
        counts[what] = counts.get(what, 0) + int(count)
    if ran.code:
        print(ran.output, flush=True)
    else:
        print("".join(f"  {line}\n" for line in lines if line.startswith(("SKIPPED", "XFAIL"))), end="", flush=True)


def _name(files: list[str]) -> str:
    folder, _, first = files[0].rpartition("/")
    return files[0] if len(files) == 1 else f"{folder}/ {first} … {files[-1].rpartition('/')[2]}"


def main() -> int:
    """The exit code: 1 if a part fails."""
    if len(sys.argv) > 1:
        return subprocess.call([sys.executable, "-m", "pytest", "-q", *sys.argv[1:]])
    began = time.monotonic()
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    all_parts, counts, failed = parts(files), dict[str, int](), 0
    runner = Runner()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(JOBS) as pool:
        try:
            running = [pool.submit(runner.run, part) for part in all_parts]
            for number, done in enumerate(as_completed(running), 1):
                report(done.result(), f"{number}/{len(all_parts)}", counts)
                failed += done.result().code != 0
        except KeyboardInterrupt:
            runner.stop()
            return 130
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(f"{told} in {time.monotonic() - began:.0f} s, {JOBS} at a time; {failed} of {len(all_parts)} parts failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
