"""`make fuzz`: bad input in bulk against a real server process.

    python -m tests.fuzz bytes --count 100000 [--seed 1]        odd messages, damaged messages, no messages
    python -m tests.fuzz orders --longest 5 [--path Attach]     every order of stream frames up to that length
    python -m tests.fuzz live --longest 3                       every order of frames about work that an agent has
    python -m tests.fuzz http --count 50000 [--seed 1]          odd bodies for every path of the JSON door

After each 1,000 inputs a golden request must be answered, the server must have logged nothing as a fault of its own,
and its memory must not have grown by more than 20 MB since the first 5,000. What breaks this is written into
tests/corpus, which CI runs. One line of JSON at the end says what was sent and how it ended. Exit code 1: something
was found.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from reach.testing.server import LocalServer
from tests.fuzz import bodies, corpus, orders
from tests.fuzz.hail import Hail, Input, Wrong
from tests.fuzz.live import Live
from tests.fuzz.mutants import inputs
from tests.fuzz.worker import FuzzWorker
from tests.rpc.peers import Stubs, golden

BATCH = 1_000
WARM_UP = 5_000
"""Inputs after which memory is looked at for the first time: caches and pools have their size by then."""
MOST_GROWTH = 20 << 20
OPEN_FOR = 0.1
AT_ONCE = 100
FAULTS = ('"level":"error"', '"level":"critical"', "Traceback")
NO_FAULTS = ("a task was given up",)
"""Logged as an error, and not a fault of the server."""


class Target:
    """The server under fire, and what is known of it."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self._seen = 0
        self.first_rss = 0
        self.last_rss = 0

    def rss(self) -> int:
        """Bytes of memory that it takes."""
        return int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def faults(self) -> list[str]:
        """What it has logged since the last look that it should not."""
        lines = self.server.log_text()[self._seen :].splitlines()
        self._seen = len(self.server.log_text())
        return [
            line[:2_000]
            for line in lines
            if any(word in line for word in FAULTS) and not any(word in line for word in NO_FAULTS)
        ]

    def look(self, sent: int) -> None:
        """Notes how much memory it takes."""
        self.last_rss = self.rss()
        if self.first_rss == 0 or sent <= WARM_UP:
            self.first_rss = self.last_rss


async def fire(target: Target, given: Iterable[Input], open_for: float) -> dict[str, object]:
    """Sends all of it; what came of it."""
    found: list[Wrong] = []
    async with Stubs(target.server.port) as stubs, FuzzWorker(stubs):
        hail = Hail(stubs, open_for, AT_ONCE)
        for batch in _batches(given, BATCH):
            await hail.all(batch)
            if faults := target.faults():
                found += await _who(target, stubs, batch, open_for, faults)
            await golden(stubs)
            target.look(hail.sent)
            if (found or hail.wrong) and len(found) + len(hail.wrong) > 50:
                break
    found += hail.wrong
    for wrong in found:
        print(f"{wrong}\n  kept as {corpus.keep(wrong.given, wrong.answer[:300])}", file=sys.stderr)
    return {"sent": hail.sent, "found": len(found), "ends": dict(hail.ends.most_common())}


async def _who(target: Target, stubs: Stubs, batch: list[Input], open_for: float, faults: list[str]) -> list[Wrong]:
    """Which input of a batch makes the server log a fault: each is sent again, alone."""
    found: list[Wrong] = []
    alone = Hail(stubs, open_for, 1)
    for one in batch:
        await alone.send(one)
        if lines := target.faults():
            found.append(Wrong(one, lines[0]))
            if len(found) == 5:
                break
    return found or [Wrong(batch[0], f"one of {len(batch)} inputs, in company only: {faults[0]}")]


def _batches(given: Iterable[Input], size: int) -> Iterator[list[Input]]:
    everything = iter(given)
    while batch := list(itertools.islice(everything, size)):
        yield batch


def _asked(chosen: argparse.Namespace) -> Iterator[Input]:
    if chosen.what == "bytes":
        return itertools.islice(inputs(chosen.seed), chosen.count)
    paths = [path for path in orders.ALPHABETS if chosen.path in path]
    every = itertools.chain.from_iterable(orders.orders(path, chosen.longest, chosen.shortest) for path in paths)
    return itertools.islice(every, chosen.skip, chosen.skip + chosen.count if chosen.count else None)


async def _run(chosen: argparse.Namespace, target: Target) -> dict[str, object]:
    if chosen.what == "live":
        async with Stubs(target.server.port) as stubs:
            return await Live(stubs).run(chosen.longest, chosen.count or None, target.look)
    if chosen.what == "http":
        return await bodies.fire(target, chosen.count, chosen.seed)
    return await fire(target, _asked(chosen), chosen.open_for)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["bytes", "orders", "live", "http"])
    parser.add_argument("--count", type=int, default=0, help="how many inputs (bytes and http: 10000 unless given)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=3)
    parser.add_argument("--shortest", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="orders that were tried before")
    parser.add_argument("--path", default="", help="streams whose name has this in it")
    parser.add_argument("--open-for", type=float, default=OPEN_FOR, help="seconds until an open call is left")
    chosen = parser.parse_args()
    if chosen.what in ("bytes", "http"):
        chosen.count = chosen.count or 10_000
    began = time.monotonic()
    settings = {"AGENT_REACH_ROUTER_QUEUE_LIMIT": "200"}
    with LocalServer(environment=settings) as server:
        target = Target(server)
        came = asyncio.run(_run(chosen, target))
        faults = target.faults()
        growth = target.last_rss - target.first_rss
    answer = {"what": chosen.what, **came, "faults": len(faults), "rss_mb": target.last_rss >> 20}
    answer |= {"growth_mb": round(growth / (1 << 20), 1), "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(answer))
    for line in faults:
        print(line, file=sys.stderr)
    return 1 if came["found"] or faults or growth > MOST_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
