"""The examples in the docstrings of the SDK run."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import types

import pytest

import reach
from reach import Agent, Client, SyncClient
from reach.sdk import agent as agent_module
from reach.sdk import client as client_module
from reach.sdk import sync as sync_module
from tests.sdk.fake_server import CallerStream, FakeServer

MODULES = (agent_module, client_module, sync_module)


def examples() -> list:
    found = []
    for module in MODULES:
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
            if test.examples:
                source = "".join(one.source for one in test.examples)
                found.append(pytest.param(source, id=test.name))
    return found


async def echo(stream: CallerStream) -> None:
    """Answers every task with its own payload."""
    while True:
        await stream.until(lambda: stream.items("submits") or stream.items("subscribes"), 30)
        submits, subscribes = stream.items("submits"), stream.items("subscribes")
        stream.frames.clear()
        for submit in submits:
            task_id, content = submit.task.task_id, submit.task.payload
            stream.send(acknowledgements=[{"reference": submit.reference, "task_id": task_id, "state": 1}])
            if submit.interest == 3:
                stream.delta(task_id, 2, content.text)
            if submit.interest > 1:
                stream.complete(task_id, {"text": content.text, "media_type": content.media_type})
        for subscribe in subscribes:
            stream.complete(subscribe.task_id, "done")


@pytest.mark.parametrize("source", examples())
async def test_example(server: FakeServer, monkeypatch, capsys, source):
    monkeypatch.setenv("AGENT_REACH_ADDR", server.address)

    async def serve() -> None:
        while True:
            await echo(await server.caller(30))

    serving = asyncio.create_task(serve())
    code = compile(source, "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with Client() as client:
        names = {"client": client, "Client": Client, "SyncClient": SyncClient, "Agent": Agent}
        names |= {"text": "some text", "shown": ""}
        run = types.FunctionType(code, names)
        made = run() if code.co_flags & inspect.CO_COROUTINE else await asyncio.to_thread(run)
        if inspect.isawaitable(made):
            await asyncio.wait_for(made, 10)
    serving.cancel()


def test_every_public_name_is_there():
    assert all(getattr(reach, name) is not None for name in reach.__all__)
    assert set(reach.__all__) <= set(dir(reach))
    with pytest.raises(AttributeError):
        reach.nothing  # noqa: B018
