"""Published agent frameworks that serve A2A, each in a virtual environment of its own: their versions do not fit ours.

    python -m tests.interop.frameworks               makes all of them (a few minutes, some hundred MB)
    python -m tests.interop.frameworks pydantic_ai   makes one
    make interop                                     makes what is missing, and runs the tests

They are kept in `.interop/`, or where INTEROP_ENVIRONMENTS says. Tests skip, and say so, where one is not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
FOLDER: Final = Path(os.environ.get("INTEROP_ENVIRONMENTS") or HERE.parents[1] / ".interop")


class Framework(NamedTuple):
    """One framework, with an agent that needs no model."""

    name: str
    requirements: tuple[str, ...]
    speaks: str
    """The version of A2A that its card says."""

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return FOLDER / self.name / "bin" / "python"

    @property
    def caller(self) -> Path:
        """Its program that calls an A2A agent, if it has one: `BASE_URL TEXT…`; prints the answers as JSON. The client
        of fasta2a 2.1 sends what is neither 0.3 nor 1.0 (methods of the one, messages of the other), and has none."""
        return HERE / "callers" / f"{self.name}_caller.py"

    @property
    def agent(self) -> Path:
        """Its program: `--port PORT [--go]`."""
        return HERE / "agents" / f"{self.name}_agent.py"

    def make(self) -> None:
        """Makes its environment."""
        venv.create(FOLDER / self.name, with_pip=True, clear=True)
        subprocess.run([self.python, "-m", "pip", "install", "-q", *self.requirements], check=True)


FRAMEWORKS: Final = (
    Framework("pydantic_ai", ("pydantic-ai-slim==2.68.0", "fasta2a==2.1.1", "uvicorn"), "1.0"),
    Framework("adk", ("google-adk[a2a]==2.13.0",), "1.0"),
    Framework("strands", ("strands-agents[a2a]==1.62.0",), "0.3.0"),
)


def main(names: list[str]) -> int:
    """Makes the named ones, or all; with `--missing` those that are not there."""
    known = {one.name: one for one in FRAMEWORKS}
    missing, names = "--missing" in names, [name for name in names if name != "--missing"]
    for name in names or known:
        if missing and known[name].python.exists():
            continue
        sys.stdout.write(f"{name}: {' '.join(known[name].requirements)}\n")
        sys.stdout.flush()
        known[name].make()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
