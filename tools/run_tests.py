"""Runs the tests: the end-to-end ones, which mostly wait, beside all others. Arguments go to one pytest instead."""

from __future__ import annotations

import subprocess
import sys
import tempfile

PYTEST = [sys.executable, "-m", "pytest", "-q"]
WAITING = [*PYTEST, "-o", "cache_dir=.pytest_cache/e2e", "tests/e2e"]
OTHERS = [*PYTEST, "--ignore=tests/e2e"]


def main() -> int:
    """The exit code: that of the first that fails."""
    if len(sys.argv) > 1:
        return subprocess.call([*PYTEST, *sys.argv[1:]])
    with tempfile.TemporaryFile("w+") as output:
        waiting = subprocess.Popen(WAITING, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.call(OTHERS)
            code = waiting.wait() or code
        finally:
            if waiting.poll() is None:
                waiting.terminate()
                waiting.wait()
        output.seek(0)
        print("end to end:", output.read(), sep="\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
