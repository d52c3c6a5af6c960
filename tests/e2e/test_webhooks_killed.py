"""kill -9 of the server while it tells of ends (DLV-12, F1): each is told at least once, all under one name."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from reach import Client
from tests.e2e.processes import Server
from tests.transports.receivers import OK, Got, answered, receiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = 5
EACH = 40


@pytest.mark.timeout(150)
async def test_F1_DLV_12_each_end_is_told_under_one_name_whenever_the_server_dies(tmp_path: Path) -> None:
    chance = random.Random(5)
    (tmp_path / "secret").write_text("hush")

    def answer(_: Got) -> bytes | None:
        return answered(503) if chance.random() < 0.02 else OK

    environment = {
        "AGENT_REACH_WEBHOOKS_SECRETS": f"[{{name: main, file: {tmp_path}/secret}}]",
        "AGENT_REACH_WEBHOOKS_HOSTS": "[127.0.0.1]",
        "AGENT_REACH_WEBHOOKS_TIMEOUT": "1",
    }
    async with receiver(answer) as target:
        server = Server(tmp_path / "data", environment=environment)
        await asyncio.to_thread(server.start)
        wanted: list[str] = []
        try:
            async with Client(server.address, reconnect_timeout=None) as client:

                async def one(task_id: str) -> None:
                    await asyncio.sleep(chance.random())
                    handle = await client.submit(agent_id="nobody", task_id=task_id, webhook=target.url)
                    wanted.append(task_id)
                    await handle.cancel()

                running: list[asyncio.Task[None]] = []
                for phase in range(KILLS):
                    running += [asyncio.create_task(one(f"{phase}-{number}")) for number in range(EACH)]
                    await asyncio.sleep(chance.uniform(0.1, 1.2))
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                await asyncio.wait_for(asyncio.gather(*running), 60)
                assert len(wanted) == KILLS * EACH
                names: dict[str, set[str]] = {}
                async with asyncio.timeout(40):
                    while set(names) != set(wanted):
                        await asyncio.sleep(0.1)
                        for got in target.got:
                            told = json.loads(got.body)["result"]
                            assert told["state"] == "TASK_STATE_CANCELLED"
                            names.setdefault(told["task_id"], set()).add(got.name)
                assert all(len(one) == 1 for one in names.values())
                assert len({name for one in names.values() for name in one}) == len(wanted)
        finally:
            await asyncio.to_thread(server.stop)
