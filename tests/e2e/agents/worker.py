"""The agent of the fault tests. What it does is told by the method and the payload; what it begins and ends is logged.

Each line of the log is one JSON object, written at once with O_APPEND, so that a kill -9 loses none of those before it:
`{"at": seconds, "pid": …, "what": "up" | "begin" | "end" | "stopped", "task": task_id, "attempt": number}`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from reach import Agent, Delta, Task, Tls


def main() -> None:
    """Reads the arguments, and works until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--addr", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--agent", default="worker")
    parser.add_argument("--type", default="worker")
    parser.add_argument("--instance")
    parser.add_argument("--heartbeat", type=float, default=5.0)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--listen")
    for name in ("--ca", "--cert", "--key"):
        parser.add_argument(name)
    given = parser.parse_args()
    agent = Agent(
        given.agent,
        agent_type=given.type,
        addr=given.addr,
        instance_id=given.instance,
        heartbeat_interval=given.heartbeat,
        max_concurrency=given.slots,
        listen=given.listen,
        tls=Tls(given.ca, given.cert, given.key) if given.ca else None,
    )
    log = Log(given.log)
    for name, handler in (("echo", echo), ("sleep", sleep), ("report", report), ("block", block)):
        agent.add_handler(logged(log, handler), name)
    agent.add_handler(hold, "hold")
    for name, generator in (("stream", stream), ("replace", replace)):
        agent.add_handler(logged_pieces(log, generator), name)
    log.write("up", instance=agent.instance_id)
    agent.run()


class Log:
    """Appends lines to a file that other processes may append to as well."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, task: Task | None = None, **more: Any) -> None:
        """One line."""
        line: dict[str, Any] = {"at": time.time(), "pid": os.getpid(), "what": what, **more}
        if task is not None:
            line["task"], line["attempt"] = task.task_id, task.attempt
        os.write(self._file, json.dumps(line).encode() + b"\n")


def logged(log: Log, handler: Callable[[Task], Awaitable[Any]]) -> Callable[[Task], Awaitable[Any]]:
    """A handler that logs its begin and its end."""

    @functools.wraps(handler)
    async def run(task: Task) -> Any:
        log.write("begin", task)
        try:
            answer = await handler(task)
        except asyncio.CancelledError:
            log.write("stopped", task)
            raise
        log.write("end", task)
        return answer

    return run


def logged_pieces(
    log: Log, generator: Callable[[Task], AsyncIterator[str | Delta]]
) -> Callable[[Task], AsyncIterator[str | Delta]]:
    """The same for a generator; the end says how many pieces it made, and how long that took."""

    @functools.wraps(generator)
    async def run(task: Task) -> AsyncIterator[str | Delta]:
        log.write("begin", task)
        begun, count = time.monotonic(), 0
        try:
            async for piece in generator(task):
                yield piece
                count += 1
        except (asyncio.CancelledError, GeneratorExit):
            log.write("stopped", task)
            raise
        log.write("end", task, pieces=count, took=time.monotonic() - begun)

    return run


async def echo(task: Task) -> str:
    """Answers with what it got."""
    return task.text


async def sleep(task: Task) -> str:
    """Takes `seconds`, and says nothing meanwhile."""
    await asyncio.sleep(task.data["seconds"])
    return f"slept {task.data['seconds']}"


async def report(task: Task) -> str:
    """Takes `seconds`, and reports progress every `every` seconds."""
    every, left = task.data["every"], task.data["seconds"]
    while left > 0:
        await asyncio.sleep(min(every, left))
        left -= every
        task.progress(None, f"{left:.1f} s left")
    return "reported"


async def block(task: Task) -> str:
    """Blocks the loop of the whole agent (case B1)."""
    time.sleep(task.data["seconds"])  # noqa: ASYNC251 - that is the point
    return "blocked"


def hold(task: Task) -> str:
    """Takes `seconds` of a worker thread, and says nothing meanwhile."""
    time.sleep(task.data["seconds"])
    return "held"


async def stream(task: Task) -> AsyncIterator[str]:
    """`count` pieces with `pause` seconds between them."""
    asked = task.data
    for number in range(asked["count"]):
        yield piece(task.task_id, number)
        if asked["pause"]:
            await asyncio.sleep(asked["pause"])


def piece(task_id: str, number: int) -> str:
    """What each piece says: no two are alike, so that a missing or doubled one shows."""
    return f"{task_id}:{number}é;"


def text_of(task_id: str, count: int) -> str:
    """The whole of a stream."""
    return "".join(piece(task_id, number) for number in range(count))


async def replace(task: Task) -> AsyncIterator[Delta]:
    """`count` REPLACE deltas of `size` characters, as fast as they are taken, or with a `pause` between them.

    Each begins with its number and the time it was made.
    """
    asked = task.data
    for number in range(1, asked["count"]):
        yield Delta(data=f"{number} {time.time()} ".ljust(asked["size"], "x"), mode="replace")
        await asyncio.sleep(asked.get("pause", 0))
    yield Delta(data=f"{asked['count']} {time.time()} last", mode="replace")


if __name__ == "__main__":
    main()
