"""What clients show: keys, and tokens that are another one after a while (GOV-2)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from reach import Agent, Client, Task
from reach.errors import InvalidRequest, Reason
from reach.rpc import services
from reach.sdk.showing import Shown
from tests.http.test_tokens import KEY, issuer, node_with
from tests.rpc.tokens import token


def test_a_key_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_REACH_API_KEY", raising=False)
    assert Shown("ar_x").metadata() == (("authorization", "Bearer ar_x"),)
    assert Shown(None).metadata() == Shown("").metadata() == ()
    monkeypatch.setenv("AGENT_REACH_API_KEY", "ar_y")
    assert Shown(None).metadata() == (("authorization", "Bearer ar_y"),)
    assert Shown("").metadata() == ()  # no key was given, and that is what counts
    assert not Shown(None).renews


def test_a_token_comes_from_a_file_that_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_REACH_API_KEY", raising=False)
    file = tmp_path / "token"
    monkeypatch.setenv("AGENT_REACH_API_KEY_FILE", str(file))
    with pytest.raises(FileNotFoundError):
        Shown(None)
    file.write_text("one\n")
    shown = Shown(None)
    assert shown.renews
    assert shown.metadata() == (("authorization", "Bearer one"),)
    file.unlink()
    assert shown.metadata() == (("authorization", "Bearer one"),)
    file.write_text("two")
    assert shown.metadata() == (("authorization", "Bearer two"),)
    assert Shown("ar_x").metadata() == (("authorization", "Bearer ar_x"),)


def test_a_token_comes_from_a_function() -> None:
    given = iter(["one", "two"])
    shown = Shown(lambda: next(given))
    assert [shown.metadata()[0][1] for _ in "12"] == ["Bearer one", "Bearer two"]


async def test_GOV_2_agents_and_callers_outlive_their_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "RECHECK_SECONDS", 0.1)
    made: list[str] = []

    def fresh() -> str:
        made.append(token(KEY, scope="agent caller", exp=time.time() + 0.7, jti=str(len(made))))
        return made[-1]

    async with node_with(tmp_path, issuer(tmp_path)) as node:
        address = f"127.0.0.1:{node.port}"
        agent = Agent("echo", addr=address, api_key=fresh)

        @agent.route()
        async def echo(task: Task) -> str:
            return f"{task.text}!"

        running = asyncio.create_task(agent.serve())
        async with Client(address, api_key=fresh) as client:
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                assert await client.call("", "x", agent_id="echo", timeout=20) == "x!"
                await asyncio.sleep(0.1)
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})
    assert len(set(made)) >= 6


async def test_a_token_that_was_never_good_is_told_at_once(tmp_path: Path) -> None:
    made = node_with(tmp_path, issuer(tmp_path))
    async with made as node, Client(f"127.0.0.1:{node.port}", api_key=lambda: "eyJ") as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.call("echo", "x", timeout=20)
    assert refused.value.reason is Reason.UNAUTHENTICATED
