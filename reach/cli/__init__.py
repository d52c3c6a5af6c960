"""The command line: `reach`. One file per noun: arguments become one call, and the answer a table or JSON.

`reach --help` lists the commands and the exit codes. What is heavy (gRPC, tables, the server) is imported inside of the
commands that need it, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from reach.collector import made_to_stay


def main() -> NoReturn:
    """The entry point of `reach` and of `python -m reach.cli`."""
    try:
        with made_to_stay():
            from reach.cli.app import run
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are loaded, or in the last steps
        code = 130
    sys.exit(code)
