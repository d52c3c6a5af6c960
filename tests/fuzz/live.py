"""Every order of an agent's frames about an attempt that it really has.

Each order has an instance and a task of its own. The instance says hello, is offered the task, says the frames of the
order and half-closes. Whatever it said: the stream ends as the contract says, the task is known, ends once, and a
second look says the same.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from tests.rpc.peers import TIMEOUT, AgentByHand, Ended, Stubs, golden, key_of, pb

AT_ONCE = 30
EVERY = 500
"""Orders between two golden requests."""
LETTERS = (
    "accept", "first delta", "second delta", "progress", "result", "failure", "given back", "fold", "bad fold",
    "effect", "next attempt", "goodbye", "hello that omits it", "hello that names it",
)  # fmt: skip


class Live:
    """See the module."""

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs
        self._room = asyncio.Semaphore(AT_ONCE)
        self.wrong: list[str] = []
        self.states: Counter[str] = Counter()

    async def run(
        self, longest: int, most: int | None = None, look: Callable[[int], object] = int
    ) -> dict[str, object]:
        """All orders up to a length, or the first `most` of them; what came of them."""
        every = itertools.chain.from_iterable(itertools.product(LETTERS, repeat=n) for n in range(longest + 1))
        numbered = enumerate(itertools.islice(every, most))
        sent = 0
        while batch := list(itertools.islice(numbered, EVERY)):
            await asyncio.gather(*(self._order(number, letters) for number, letters in batch))
            await golden(self._stubs)
            sent += len(batch)
            look(sent)
        for line in self.wrong[:20]:
            print(line)
        return {"sent": sent, "found": len(self.wrong), "states": dict(self.states)}

    async def _order(self, number: int, letters: tuple[str, ...]) -> None:
        async with self._room:
            try:
                await self._play(f"live-{number}", letters)
            except (Ended, AssertionError, TimeoutError, grpc.aio.AioRpcError) as error:
                where = traceback.extract_tb(error.__traceback__)[-1 if isinstance(error, AssertionError) else 1]
                self.wrong.append(
                    f"{' → '.join(letters)}: {type(error).__name__} {error} ({where.lineno} {where.line})"
                )

    async def _play(self, name: str, letters: tuple[str, ...]) -> None:
        agent = AgentByHand(self._stubs)
        try:
            await agent.join(name, instance_id=name, boot_id="b")
            await self._stubs.dispatch.Dispatch(
                pb.DispatchRequest(
                    task={
                        "task_id": name,
                        "selector": {"instance_id": name},
                        "retry": {"delays": [{"nanos": 1_000_000}]},
                        "timeouts": {"schedule_to_close": {"nanos": 500_000_000}},
                    }
                ),
                timeout=TIMEOUT,
            )
            offer = await agent.next("offers")
            for letter in letters:
                await agent.call.write(pb.AttachRequest(**frame(letter, offer, name)))
            await agent.half_close()
            code, _ = await agent.ended()
            assert code is grpc.StatusCode.OK, code
        finally:
            await agent.close()
        answer = await self._stubs.dispatch.WaitForResult(pb.WaitForResultRequest(task_id=name), timeout=TIMEOUT)
        found = (await self._stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=name), timeout=TIMEOUT)).task
        assert found.state == answer.result.state, (found.state, answer.result.state)
        self.states[pb.TaskState.Name(found.state)] += 1
        ending = [letter for letter in letters if letter in ("result", "failure", "goodbye", "hello that omits it")]
        if ending[:1] == ["result"] and not {"given back", "fold", "bad fold"} & set(letters):
            assert found.state == pb.TASK_STATE_SUCCEEDED, found.state
            assert found.result.output.text == "x"


def frame(letter: str, offer: Any, name: str) -> dict[str, Any]:
    """One frame of the alphabet."""
    key = key_of(offer)
    item: dict[str, Any] = {"link": 1, "key": key}
    registration = {"agent_id": name, "instance_id": name, "boot_id": "b", "ready": True}
    delta = {"payload": {"text": "x"}, "mode": "DELTA_MODE_APPEND"}
    frames: dict[str, dict[str, Any]] = {
        "accept": {"accepts": [item]},
        "first delta": {"deltas": [{**item, "attempt_sequence": 1, "delta": delta}]},
        "second delta": {"deltas": [{**item, "attempt_sequence": 2, "delta": delta}]},
        "progress": {"progress": [{**item, "progress": {"fraction": 0.5}, "checkpoint": b"c"}]},
        "result": {"results": [{**item, "output": {"text": "x"}}]},
        "failure": {"results": [{**item, "error": {"message": "no"}}]},
        "given back": {"results": [{**item, "released": {}}]},
        "fold": {"results": [{**item, "folded": {"last_attempt_sequence": 1}}]},
        "bad fold": {"results": [{**item, "folded": {"last_attempt_sequence": 7}}]},
        "effect": {"effects": [{**item, "effect": "pay"}]},
        "next attempt": {"results": [{**item, "key": {**key, "attempt": 2}, "output": {"text": "stale"}}]},
        "goodbye": {"goodbyes": [{"link": 1}]},
        "hello that omits it": {"hellos": [{"link": 1, "registration": registration}]},
        "hello that names it": {"hellos": [{"link": 1, "registration": registration, "running": [{"key": key}]}]},
    }
    return frames[letter]
