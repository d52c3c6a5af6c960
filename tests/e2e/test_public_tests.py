"""The public tests (tests/rpc) against three real nodes, each call at the next one (CLU-1): what holds on one node
holds on all."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
OF_SEVERAL_NODES = ("test_departures", "test_elsewhere", "test_tunnel", "test_far_sessions", "test_cluster_sdk")
QUICK = ("test_main_job_stubs", "test_main_job_reports", "test_agent_lists", "test_sessions", "test_cases_delivery")
"""What CI runs; PUBLIC=all runs all, in three minutes."""
LEAST = {"all": 600, "quick": 70}


@pytest.mark.timeout(600)
async def test_CLU_1_the_public_tests_pass_against_a_cluster(nodes):
    which = os.environ.get("PUBLIC", "quick")
    files = [f"tests/rpc/{name}.py" for name in QUICK]
    if which == "all":
        files = ["tests/rpc", *(f"--ignore=tests/rpc/{name}.py" for name in OF_SEVERAL_NODES)]
    addresses = ",".join(node.address for node in nodes.all.values())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", "--tb=native", *files]
    run = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env={**os.environ, "NODES": addresses},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said = (await run.communicate())[0].decode()
    finally:
        if run.returncode is None:
            run.kill()
    assert run.returncode == 0, said[-20_000:]
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= LEAST[which], said[-2_000:]
    assert all(not node.tracebacks() for node in nodes.all.values())
