"""Wake hooks as commands and webhooks (HLT-14)."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from reach.core.effects import Wake
from reach.core.events import WakeAnswered
from reach.core.model import PoolKey
from reach.runtime.wake import WakeHook, WakeHooks

KEY = PoolKey("acme", "echo")


async def woken(hook: WakeHook) -> WakeAnswered:
    """Calls the hook and waits for its outcome."""
    answers: asyncio.Queue[WakeAnswered] = asyncio.Queue()
    hooks = WakeHooks({KEY: hook}, lambda key, answer: answers.put_nowait(answer))
    hooks.wake(Wake(KEY, 4, 17))
    try:
        return await asyncio.wait_for(answers.get(), 20)
    finally:
        await hooks.stop()


async def test_HLT_14_a_command_hears_what_it_is_for(tmp_path: Path) -> None:
    said = "os.environ['AGENT_REACH_WAKE_ID'] + os.environ['AGENT_REACH_WAITING']"
    script = f"import os, sys; open(sys.argv[1], 'w').write({said})"
    answer = await woken(WakeHook((sys.executable, "-c", script, str(tmp_path / "said"))))
    assert (answer.number, answer.error) == (4, "")
    assert (tmp_path / "said").read_text() == "acme/echo/417"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), "the command ended with code 3"),
        (("/nowhere/at-all",), "No such file"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "not done within 0.5 s"),
    ],
)
async def test_HLT_14_a_command_that_fails_says_why(command: tuple[str, ...], error: str) -> None:
    assert error in (await woken(WakeHook(command, timeout_s=0.5 if "sleep" in command[-1] else 10))).error


class Receiver(BaseHTTPRequestHandler):
    """Takes posts; the path says what to answer."""

    seen: list[dict[str, object]]

    def do_POST(self) -> None:
        """One post."""
        self.seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(int(self.path.removeprefix("/")))
        self.send_header("location", "/200")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[str]:
    Receiver.seen = []
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_HLT_14_a_webhook_is_posted_to(receiver: str) -> None:
    assert (await woken(WakeHook(url=f"{receiver}/204"))).error == ""
    assert Receiver.seen == [{"wake_id": "acme/echo/4", "tenant": "acme", "agent_type": "echo", "waiting": 17}]


@pytest.mark.parametrize("code", [307, 302, 404, 500])
async def test_HLT_14_another_answer_is_a_failure_and_redirects_are_not_followed(receiver: str, code: int) -> None:
    assert (await woken(WakeHook(url=f"{receiver}/{code}"))).error == f"the webhook answered {code}"
    assert len(Receiver.seen) == 1


async def test_HLT_14_a_webhook_that_nobody_serves_is_a_failure() -> None:
    assert "cannot be reached" in (await woken(WakeHook(url="http://127.0.0.1:1/"))).error


async def test_what_still_runs_ends_with_the_server() -> None:
    hooks = WakeHooks({KEY: WakeHook((sys.executable, "-c", "import time; time.sleep(60)"))}, lambda *_: None)
    hooks.wake(Wake(KEY, 1, 1))
    await asyncio.sleep(0.2)
    await asyncio.wait_for(hooks.stop(), 5)
