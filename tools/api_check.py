"""Asks a server of its own all that its OpenAPI document promises, and what it does not: `make api-check`.

schemathesis makes the requests, in an environment of its own (it wants other versions of what we use than we do), which
is made on the first run. Answers must be those that the document names; a server error, or a fault in the server's log,
is a finding. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

from reach.testing.server import LocalServer

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".schemathesis"
WANTED = "schemathesis==4.32.5"
LEFT_OUT = ("negative_data_rejection", "positive_data_acceptance")
"""We are lenient with what comes, and refuse what is well formed and makes no sense."""
STREAMS = r"/watch/|/run$|/events$|/result$"
"""Answers that go on, or wait."""


def command() -> Path:
    """The program, installed if it is not there yet."""
    if not (PLACE / WANTED).exists():
        venv.create(PLACE, with_pip=True, clear=True)
        subprocess.run([PLACE / "bin" / "python", "-m", "pip", "install", "--quiet", WANTED], check=True)
        (PLACE / WANTED).touch()
    return PLACE / "bin" / "schemathesis"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python tools/api_check.py", description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="requests of each kind for each path")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    program = command()
    with LocalServer(environment={"AGENT_REACH_ROUTER_QUEUE_LIMIT": "200"}) as server:
        address = f"http://127.0.0.1:{server.admin_port}/openapi.json"
        found = subprocess.run(
            [
                program, "run", address, "--checks", "all", "--exclude-checks", ",".join(LEFT_OUT),
                "-n", str(chosen.each), "--seed", str(chosen.seed), "--request-timeout", "20",
                "--continue-on-failure", "--warnings", "off",
                "--exclude-path-regex", STREAMS,
            ],
            check=False, cwd=PLACE,
        ).returncode  # fmt: skip
        faults = [line for line in server.log_text().splitlines() if '"level":"error"' in line or "Traceback" in line]
    for line in faults:
        print(line, file=sys.stderr)
    return 1 if found or faults else 0


if __name__ == "__main__":
    sys.exit(main())
