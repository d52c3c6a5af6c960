"""Keys in the database of a cluster open its nodes (GOV-1)."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from reach import Client, ReachError, Reason
from tests import postgres
from tests.e2e.processes import Server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def keys(*arguments: str) -> str:
    command = [sys.executable, "-m", "reach.cli", "keys", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.fixture
def url() -> str:
    return postgres.server().database()


async def test_GOV_1_a_node_on_postgres_takes_the_keys_of_its_database(tmp_path, url):
    with Server(tmp_path / "data", arguments=("--journal", url, "--auth", "keys")) as server:
        made = await asyncio.to_thread(keys, "create", "--journal", url, "--app", "tests", "--scope", "reader")
        token = made.strip().splitlines()[-1]

        async def answer() -> str:
            async with Client(server.address, api_key=token) as client:
                try:
                    await client.get_task("nothing")
                except ReachError as error:
                    return error.reason.name
            return ""

        async def until(reason: Reason) -> None:
            async with asyncio.timeout(10):
                while await answer() != reason.name:  # noqa: ASYNC110 - another process looks twice a second
                    await asyncio.sleep(0.1)

        await until(Reason.TASK_NOT_FOUND)
        (line,) = (one for one in keys("list", "--journal", url).splitlines() if "tests" in one)
        await asyncio.to_thread(keys, "revoke", "--journal", url, line.split()[0])
        await until(Reason.UNAUTHENTICATED)
