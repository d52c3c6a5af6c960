"""A server by `reach.node` alone, for the time until `reach serve` is there."""

import os
import sys

from reach.config import load
from reach.node import run

if __name__ == "__main__":
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    names = {"--data": "storage.path", "--port": "server.port", "--admin-port": "server.admin_port"}
    sys.exit(run(load(None, os.environ, {names[name]: value for name, value in given.items()})))
