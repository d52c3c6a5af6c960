"""docs/grpcurl.md, run: each command of the page with a real grpcurl against a real node, in the order of the page."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import json_format

from tests.rpc import grpcurl
from tests.rpc.peers import TIMEOUT, pb, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(500)]

PAGE = Path(__file__).parents[2] / "docs" / "grpcurl.md"
ADDRESS = "localhost:8900"
_BLOCK = re.compile(r"^<!-- (?P<name>[a-z ]+) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ORDER = [
    "list", "list prints", "describe service", "describe message", "register", "register prints", "attach", "hello",
    "hello prints", "beat", "run", "offer prints", "accept", "result", "run prints", "result prints", "book", "ask",
    "input", "input prints", "heard prints", "booked", "conversation", "conversation prints", "again", "get",
    "dispatch", "cancel", "cancel prints", "missing", "missing prints",
]  # fmt: skip
"""Every block of the page; the test below runs them in this order."""


def blocks() -> dict[str, str]:
    return {block["name"]: block["text"] for block in _BLOCK.finditer(PAGE.read_text())}


@pytest.fixture(scope="module")
def binary() -> str:
    try:
        return grpcurl.grpcurl()
    except grpcurl.NotFoundError as error:
        pytest.skip(f"NO GRPCURL, SO docs/grpcurl.md IS NOT TESTED: {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory):
    async with running(tmp_path_factory.mktemp("grpcurl")) as made:
        yield made


class Terminal:
    """One command, with what it has printed so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.text = ""
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, command: str, binary: str, port: int) -> "Terminal":
        """Starts a command of the page."""
        assert ADDRESS in command
        command = re.sub(r"^grpcurl\b", binary, command).replace(ADDRESS, f"localhost:{port}")
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                "sh", "-c", f"exec {command}", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
            )
        )

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65_536):
            self.text += data.decode()
            self._news.set()
        self._news.set()

    async def type(self, text: str) -> None:
        """What a person types."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        await self.process.stdin.drain()

    async def until(self, condition: Any) -> None:
        """Waits until what it printed is enough."""
        async with asyncio.timeout(TIMEOUT):
            while not condition(self.text):
                assert not self._reading.done(), self.text
                self._news.clear()
                await self._news.wait()

    async def end(self) -> str:
        """Ctrl-D, and all that it printed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(TIMEOUT):
            await self.process.wait()
            await self._reading
        return self.text


def documents(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text, one after the other; the last may be there only in part."""
    found, decoder, place = [], json.JSONDecoder(), 0
    while (start := text.find("{", place)) >= 0:
        try:
            one, place = decoder.raw_decode(text, start)
        except ValueError:
            break
        found.append(one)
    return found


def messages(kind: Any, text: str) -> Any:
    """All messages in a text as one; repeated fields of several follow each other."""
    whole = kind()
    for document in documents(text):
        whole.MergeFrom(json_format.ParseDict(document, kind()))
    return whole


def assert_says(printed: Any, promised: Any, path: str = "") -> None:
    """Whether all that the page shows of a message is in the message that was printed."""
    for field, value in promised.ListFields():
        real = getattr(printed, field.name)
        name = f"{path}.{field.name}"
        if field.is_repeated and field.message_type is not None:
            assert len(real) == len(value), (name, printed)
            for one, other in zip(real, value, strict=True):
                assert_says(one, other, name)
        elif field.message_type is not None and not hasattr(value, "ToTimedelta"):
            assert printed.HasField(field.name), name
            assert_says(real, value, name)
        else:
            assert real == value, (name, real, value)


async def test_the_page_has_the_blocks_that_are_tested_here():
    assert list(blocks()) == ORDER
    commands = [text for name, text in blocks().items() if text.startswith("grpcurl")]
    assert len(commands) == PAGE.read_text().count("\ngrpcurl ")


async def test_the_page_is_true(binary, node):
    page = blocks()

    async def run(name: str) -> str:
        return await (await Terminal.open(page[name], binary, node.port)).end()

    def says(kind: Any, printed: str, promised: str) -> None:
        assert_says(messages(kind, printed), messages(kind, page[promised]), promised)

    assert await run("list") == page["list prints"]
    assert "rpc Run ( .agentreach.v1.RunRequest ) returns ( stream .agentreach.v1.RunResponse );" in await run(
        "describe service"
    )
    assert ".agentreach.v1.Payload payload = 4;" in await run("describe message")
    says(pb.RegisterResponse, await run("register"), "register prints")

    agent = await Terminal.open(page["attach"], binary, node.port)
    await agent.type(page["hello"])
    await agent.until(lambda text: messages(pb.AttachResponse, text).links)
    says(pb.AttachResponse, agent.text, "hello prints")
    assert documents(agent.text)[0]["welcome"]["protocol_version"] == "1"
    await agent.type(page["beat"])
    caller = await Terminal.open(page["run"], binary, node.port)
    await agent.until(lambda text: messages(pb.AttachResponse, text).offers)
    says(pb.AttachResponse, agent.text, "offer prints")
    await agent.type(page["accept"])
    await caller.until(lambda text: "Let me see" in text)
    await agent.type(page["result"])
    await agent.until(lambda text: messages(pb.AttachResponse, text).acknowledgements)
    says(pb.AttachResponse, agent.text, "result prints")
    printed = await caller.end()
    says(pb.RunResponse, printed, "run prints")
    assert caller.process.returncode == 0

    await run("book")
    await agent.until(lambda text: len(messages(pb.AttachResponse, text).offers) == 2)
    await agent.type(page["ask"])
    await agent.until(lambda text: len(messages(pb.AttachResponse, text).acknowledgements) == 2)
    says(pb.SendInputResponse, await run("input"), "input prints")
    await agent.until(lambda text: messages(pb.AttachResponse, text).inputs)
    says(pb.AttachResponse, agent.text, "heard prints")
    await agent.type(page["booked"])
    await agent.until(lambda text: len(messages(pb.AttachResponse, text).acknowledgements) == 3)
    says(pb.GetSessionResponse, await run("conversation"), "conversation prints")

    again = messages(pb.StreamResultResponse, await run("again"))
    assert again.events == messages(pb.RunResponse, printed).events[3:]
    found = messages(pb.GetTaskResponse, await run("get"))
    assert (found.task.spec.payload.text, found.task.result.output.text) == ("What is 2 + 2?", "4")
    dispatched = messages(pb.DispatchResponse, await run("dispatch"))
    assert (dispatched.task_id, dispatched.state) == ("sum-2", pb.TASK_STATE_PENDING)
    says(pb.CancelTaskResponse, await run("cancel"), "cancel prints")
    missing = await run("missing")
    assert missing.startswith(page["missing prints"])
    assert '"reason":"TASK_NOT_FOUND"' in missing

    await agent.end()
    assert agent.process.returncode == 0
    async with asyncio.timeout(TIMEOUT):
        while node.reach.instance("default", "by-hand-1")[1].blocked_by != "no_link":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
