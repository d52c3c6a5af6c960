"""docs/http.md, run: each command of the page with curl against a real node, in the order of the page."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from reach.http.routes import ROWS, UNROUTED
from tests.rpc.peers import AgentByHand

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
_BLOCK = re.compile(r"^<!-- (?P<name>[a-z ]+) -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def says(printed, promised):
    """Whether all that the page shows is in what was printed."""
    if isinstance(promised, dict):
        return isinstance(printed, dict) and all(says(printed.get(name), value) for name, value in promised.items())
    return printed == promised


async def echo(agent):
    """Answers with what it is asked, as `reach agents echo`."""
    while True:
        offer = await agent.next("offers")
        await agent.accept(offer)
        payload = offer.task.payload
        output = {"text": payload.text, "media_type": payload.media_type}
        await agent.send(
            results=[{"link": offer.link, "key": {"task_id": offer.task.task_id, "attempt": 1}, "output": output}]
        )
        await agent.next("acknowledgements")


async def test_the_page_is_true(node, agent):
    if shutil.which("curl") is None:
        pytest.skip("NO CURL, SO docs/http.md IS NOT TESTED")
    blocks = {block["name"]: block["text"] for block in _BLOCK.finditer(PAGE.read_text())}
    await agent.join("echo")
    answering = asyncio.ensure_future(echo(agent))
    printed = {}
    for name, text in blocks.items():
        if not text.startswith("curl"):
            continue
        command = text.replace("localhost:8800", f"127.0.0.1:{node.admin_port}")
        process = await asyncio.create_subprocess_exec("sh", "-c", command, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(20):
            printed[name] = (await process.communicate())[0].decode()
        if f"{name} prints" in blocks:
            promised = json.loads(blocks[f"{name} prints"])
            assert says(json.loads(printed[name]), promised), (name, printed[name])
    answering.cancel()
    assert len(printed) == PAGE.read_text().count("\ncurl ")
    assert "event: complete" in printed["follow"]
    assert "event: accepted" not in printed["follow"]
    assert len(json.loads(printed["list"])["tasks"]) == 1
    assert isinstance(agent, AgentByHand)


async def test_the_example_of_a_socket_is_true(node, agent):
    script = {block["name"]: block["text"] for block in _BLOCK.finditer(PAGE.read_text())}["socket"]
    path = shutil.which("node")
    if path is None:
        pytest.skip("NO NODE, SO THE SOCKET OF docs/http.md IS NOT TESTED")
    await agent.join("echo")
    answering = asyncio.ensure_future(echo(agent))
    command = script.replace("localhost:8800", f"127.0.0.1:{node.admin_port}")
    process = await asyncio.create_subprocess_exec(
        path, "--experimental-websocket", "-e", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(20):
        printed, complaints = await process.communicate()
    if b"bad option" in complaints:
        pytest.skip("THIS NODE HAS NO WebSocket, SO THE SOCKET OF docs/http.md IS NOT TESTED")
    answering.cancel()
    lines = printed.decode().splitlines()
    assert [line.split()[:2] for line in lines] == [["1", "1"], ["1", "2"], ["1", "3"]], (printed, complaints)
    assert lines[-1].endswith("hello")


async def test_the_page_has_all_paths():
    listed = re.findall(r"^\| `([A-Z]+) (/v1/\S+)` \| (.+) \| `(\w+/\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert listed == [(row.verb, f"/v1{row.shown}", row.says, row.rpc) for row in ROWS]
    reasons = re.findall(r"^\* `(\w+/\w+)`: (.+)\.$", PAGE.read_text(), re.MULTILINE)
    assert dict(reasons) == UNROUTED
