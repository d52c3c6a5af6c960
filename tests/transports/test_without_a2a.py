"""A server without the extra `a2a`: who wants to adopt an agent is told what to install (API-3)."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
sys.modules["a2a"] = None
import reach.node
from reach.errors import Internal
from reach.transports.ways import load_a2a
try:
    asyncio.run(load_a2a())
except Internal as error:
    print(error.reason.name, error.message)
"""


def test_API_3_without_the_extra_there_is_advice() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("NOT_IMPLEMENTED A2A agents need the extra: pip install 'agentreach[a2a]'")
