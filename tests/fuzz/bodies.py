"""Odd bodies in bulk for the JSON door of a real server."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from typing import Any, Protocol

import httpx

from tests.fuzz.worker import FuzzWorker
from tests.http.bodies import hostile
from tests.rpc.peers import TIMEOUT, Stubs, golden

BATCH = 1_000
"""Bodies between two golden requests."""
AT_ONCE = 16
OK_OR_REFUSED = (200, 400, 403, 404, 409, 413, 415, 429, 499, 501, 503, 504, 507)


class Target(Protocol):
    """The server under fire."""

    server: Any

    def faults(self) -> list[str]: ...
    def look(self, sent: int) -> None: ...


async def fire(target: Target, count: int, seed: int) -> dict[str, object]:
    """Sends so many bodies; what came of them."""
    wrong: list[str] = []
    statuses: Counter[int] = Counter()
    given, sent, room = hostile(seed), 0, asyncio.Semaphore(AT_ONCE)
    base = f"http://127.0.0.1:{target.server.admin_port}"

    async with httpx.AsyncClient(base_url=base, timeout=TIMEOUT) as http, Stubs(target.server.port) as stubs:

        async def send(path: str, body: bytes) -> None:
            async with room:
                answer = await http.post(path, content=body)
            statuses[answer.status_code] += 1
            refused = answer.status_code != 200
            if answer.status_code not in OK_OR_REFUSED or (refused and not answer.json()["reason"]):
                wrong.append(f"{path} {body!r:.2000}: {answer.status_code} {answer.text:.300}")
            elif not refused:
                answer.json()

        # What A2A needs is loaded with the first card, once, and takes 24 MB: before memory is looked at.
        await http.post("/v1/adoptions", json={"terms": {"card_url": "http://127.0.0.1:9/card"}})
        async with FuzzWorker(stubs):
            while sent < count and len(wrong) < 50:
                batch = list(itertools.islice(given, min(BATCH, count - sent)))
                await asyncio.gather(*(send(*one) for one in batch))
                sent += len(batch)
                wrong += target.faults()
                await golden(stubs)
                assert (await http.post("/v1/routes/preview", json={"task": {"payload": {}}})).status_code in (200, 400)
                target.look(sent)
    for line in wrong:
        print(line, file=sys.stderr)
    return {"sent": sent, "found": len(wrong), "statuses": {str(one): n for one, n in statuses.most_common()}}
