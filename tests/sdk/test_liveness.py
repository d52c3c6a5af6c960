"""Beats whatever handlers do; signals; fork; several loops; nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reach import Agent, Client, Timeout, errors
from reach.sdk import connection
from reach.sdk.channel import Target
from tests.sdk.fake_server import FakeServer
from tests.sdk.test_agent import default, running
from tests.sdk.test_examples import echo


async def test_beats_go_on_while_handlers_block_threads(server):  # B1
    server.link_welcome = lambda _hello: {"heartbeat_interval": {"nanos": 200_000_000}}

    def handler(task):
        time.sleep(1.5)

    async with running(server, handler) as (_, stream):
        stream.offer("t", method="handler")
        await stream.wait("accepts")
        before = len(stream.items("beats"))
        await asyncio.sleep(1.0)
        beats = stream.items("beats")[before:]
        assert len(beats) >= 3
        assert all(beat.status.inflight == 1 for beat in beats)
        assert not server.beats


async def test_beats_go_on_while_a_handler_blocks_the_loop(free_server):  # B1, F11
    code = """
        import sys, time
        from reach import Agent
        agent = Agent("worker", addr=sys.argv[1], heartbeat_interval=1.0)
        @agent.route()
        async def handler(task):
            time.sleep(4)
            return "done"
        agent.run()
    """
    process = run_python(code, free_server.address)
    try:
        stream = await free_server.agent()
        await stream.wait("beats")
        stream.offer("t")
        await asyncio.sleep(3.0)
        assert [beat.status.loop_stalled.seconds for beat in free_server.beats][:2] == [1, 1] or free_server.beats
        beat = free_server.beats[-1]
        assert beat.status.HasField("loop_stalled")
        assert beat.status.inflight == 1
        registration = stream.items("hellos")[0].registration
        assert (beat.instance_id, beat.boot_id) == (registration.instance_id, registration.boot_id)
        before = len(stream.items("beats"))
        assert (await stream.result("t")).output.text == "done"
        await stream.wait("beats", before + 1)
        assert not stream.items("beats")[-1].status.HasField("loop_stalled")
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 0


@pytest.fixture
async def free_server(server: FakeServer) -> FakeServer:
    """A server that welcomes agents with beats each second."""
    server.link_welcome = lambda _hello: {"heartbeat_interval": {"seconds": 1}}
    return server


def run_python(code: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *arguments])


async def test_sigterm_finishes_what_runs(free_server):  # B3
    code = """
        import sys, time
        from reach import Agent
        agent = Agent("worker", addr=sys.argv[1], heartbeat_interval=1.0)
        @agent.route()
        def handler(task):
            time.sleep(2.5)
            return "done"
        agent.run()
    """
    process = run_python(code, free_server.address)
    stream = await free_server.agent()
    await stream.wait("beats")
    stream.offer("t")
    await stream.wait("accepts")
    process.send_signal(signal.SIGTERM)
    before = len(stream.items("beats"))
    assert (await stream.result("t")).output.text == "done"
    beats = stream.items("beats")[before:]
    assert len(beats) >= 2
    assert all(beat.status.availability == 3 for beat in beats)
    await stream.wait("goodbyes")
    assert await asyncio.to_thread(process.wait, 10) == 0


async def test_a_second_signal_does_not_wait(free_server):
    code = """
        import sys, time
        from reach import Agent
        agent = Agent("worker", addr=sys.argv[1])
        @agent.route()
        def handler(task):
            time.sleep(60)
        agent.run()
    """
    process = run_python(code, free_server.address)
    stream = await free_server.agent()
    await stream.wait("beats")
    stream.offer("t")
    await stream.wait("accepts")
    process.send_signal(signal.SIGINT)
    await stream.until(lambda: stream.items("beats")[-1].status.availability == 3)
    process.send_signal(signal.SIGINT)
    assert (await stream.result("t")).HasField("released")
    assert await asyncio.to_thread(process.wait, 10) == 0


async def test_B4_beats_survive_the_collector(server):
    server.link_welcome = lambda _hello: {"heartbeat_interval": {"nanos": 100_000_000}}
    async with running(server, default) as (_, stream):
        for _ in range(20):
            gc.collect()
            await asyncio.sleep(0.05)
        assert len(stream.items("beats")) >= 7


AWAY = """
    import asyncio, gc, os, sys
    from reach import Agent
    from reach.sdk import connection

    connection.FIRST_WAIT_S = connection.LONGEST_WAIT_S = 0.01
    tries = 0
    honest = connection.Connection._pause_s

    def pause(self, error):
        global tries
        tries += 1
        return honest(self, error)

    connection.Connection._pause_s = pause

    def rss():
        gc.collect()
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def main():
        agent = Agent("worker", addr=sys.argv[1])
        agent.route("default")(lambda task: "done")
        running = asyncio.create_task(agent.serve())
        await asyncio.sleep(1.5)
        before, tried = rss(), tries
        await asyncio.sleep(6)
        print(rss() - before, tries - tried)
        os._exit(0)

    asyncio.run(main())
"""
"""In a process of its own, whose memory nobody else uses. The time is scaled: a try each 10 ms instead of each 5 s."""


async def test_A4_an_agent_that_tries_on_for_long_takes_no_more_memory():
    with socket.socket() as nobody:  # bound, and nobody listens
        nobody.bind(("127.0.0.1", 0))
        await _tries_on(nobody.getsockname()[1])


async def _tries_on(port: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(AWAY), f"127.0.0.1:{port}", stdout=asyncio.subprocess.PIPE
    )
    told, _ = await asyncio.wait_for(process.communicate(), 50)
    grown, tries = map(int, told.split())
    assert tries > 200
    assert grown <= 5 << 20, f"{grown} bytes in {tries} tries"


FORKED = """
    import asyncio, multiprocessing, sys
    from reach import Client, SyncClient

    address = sys.argv[1]

    def in_child(queue, client):
        attempts = (
            lambda: asyncio.run(client.send("m", timeout=1)),
            lambda: SyncClient(address, connect_timeout=1).send("m", timeout=1),
        )
        for attempt in attempts:
            try:
                attempt()
                queue.put("no error")
            except Exception as error:
                queue.put(f"{type(error).__name__}: {error}")

    async def main():
        async with Client(address) as client:
            await client.send("m", "x")
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            child = context.Process(target=in_child, args=(queue, client))
            child.start()
            for _ in range(2):
                print(await asyncio.to_thread(queue.get, True, 20))
            await asyncio.to_thread(child.join, 20)

    asyncio.run(main())
"""
"""In a process of its own: a fork copies whatever else the parent has, and this one's tests have a lot."""


async def test_after_a_fork_there_is_a_clear_error(server):  # A7
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(FORKED), server.address, stdout=asyncio.subprocess.PIPE
    )
    serving = asyncio.create_task(echo(await server.caller()))
    told, _ = await asyncio.wait_for(process.communicate(), 50)
    serving.cancel()
    lines = told.decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["RuntimeError", "RuntimeError"], lines
    assert all("fork" in line for line in lines)


TWO_LOOPS = """
    import asyncio, logging, sys, threading, time
    import uvloop
    from reach import Agent, Client, SyncClient

    logging.basicConfig(level=logging.WARNING)
    address = sys.argv[1]
    answered = {"agent": 0, "client": 0, "sync": 0}
    end = time.monotonic() + 3
    agent = Agent("worker", addr=address, max_concurrency=8)

    @agent.route()
    async def handler(task):
        answered["agent"] += 1

    def traffic():
        with SyncClient(address) as client:
            while time.monotonic() < end:
                assert client.send("m", "x").ok
                answered["sync"] += 1

    async def main():
        async with agent, Client(address) as client:
            thread = asyncio.create_task(asyncio.to_thread(traffic))
            while time.monotonic() < end:
                await client.send("m", "x")
                answered["client"] += 1
            await thread

    uvloop.run(main())
    print(answered)
    assert min(answered.values()) > 50, answered
"""


async def test_two_loops_in_one_process(server):  # A8
    """An agent and a client on uvloop, a SyncClient on an asyncio loop in a thread, all busy for a while."""
    code = textwrap.dedent(TWO_LOOPS)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, server.address, stdout=pipe, stderr=pipe)
    serving = [asyncio.create_task(echo(await server.caller())) for _ in range(2)]
    stream = await server.agent()

    async def offer() -> None:
        number = 0
        while True:
            number += 1
            stream.offer(f"t{number}")
            if results := stream.items("results"):
                stream.acknowledge(*results)
                stream.frames.clear()
            await asyncio.sleep(0.002)

    serving.append(asyncio.create_task(offer()))
    _, errors = await asyncio.wait_for(process.communicate(), 40)
    for task in serving:
        task.cancel()
    assert process.returncode == 0, errors
    assert b"Error" not in errors
    assert b"Exception" not in errors


async def test_nothing_is_left_behind(server):  # A2, A3
    def sockets() -> int:
        return len([fd for fd in os.listdir("/proc/self/fd") if _is_socket(fd)])

    async with running(server, default):
        pass
    await asyncio.sleep(0.2)
    tasks, before = len(asyncio.all_tasks()), sockets()
    for _ in range(10):
        agent = Agent("worker", addr=server.address)
        agent.add_handler(default)
        async with agent, Client(server.address) as client:
            await server.agent()
            sent = asyncio.create_task(client.send("m", timeout=1))
            caller = await server.caller()
            (submit,) = await caller.wait("submits")
            caller.complete(submit.task.task_id)
            await sent
            with pytest.raises(Timeout):
                await client.send("m", timeout=0.05)
    async with asyncio.timeout(3):
        while server.open or len(asyncio.all_tasks()) > tasks or sockets() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _is_socket(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False


async def test_F1_the_wait_between_tries_grows_with_the_time_without_a_server(monkeypatch):
    """A restart of a second costs half of one more at most; an outage of a minute no more than 5 s."""
    monkeypatch.setattr("reach.sdk.connection.random", SimpleNamespace(uniform=lambda least, most: most))
    now = [100.0]
    clock = SimpleNamespace(get_running_loop=lambda: SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr("reach.sdk.connection.asyncio", clock)
    line = connection.Connection(Target("127.0.0.1:1", None, None), "/x/Y", bytes, cast("Any", None))
    gone = errors.Unavailable("gone", errors.Reason.OWNER_UNAVAILABLE)
    waits = []
    for after in (0.0, 1.0, 4.0, 60.0):
        now[0] = 100.0 + after
        waits.append(line._pause_s(gone))
    assert waits == pytest.approx([0.1, 0.6, 2.1, 5.0])
    line.established()
    assert line._pause_s(gone) == pytest.approx(0.1)
