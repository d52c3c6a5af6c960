"""The public tests against what `NODES` names, in place of a node in this process: `NODES=127.0.0.1:8700,…`.

Each call of a stub goes to the next address, so a test that passes here does not depend on which node it asks. What
looks into the memory of a node, or needs one with settings of its own, is no public test and is skipped.
"""

import asyncio
import itertools
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest


def addresses() -> list[str]:
    """The nodes that the tests are to use; empty: one in this process."""
    return [address for address in os.environ.get("NODES", "").split(",") if address]


class Outside:
    """A node of which only the addresses are known."""

    def __init__(self, nodes: list[str]) -> None:
        self.addresses = nodes

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"no public test: it uses `node.{name}`")


HEARD_SECONDS = 0.2
"""Within which the other nodes have heard of an agent that registers at one: until then they let its tasks wait."""


async def heard() -> None:
    """Returns when all nodes know of the agents there are."""
    if addresses():
        await asyncio.sleep(HEARD_SECONDS)  # from outside nobody can see it


class InTurn:
    """A stub for each node, used in turn: each of its methods is that of the next one."""

    def __init__(self, stubs: list[Any]) -> None:
        self._stubs: Iterator[Any] = itertools.cycle(stubs)

    def __getattr__(self, name: str) -> Any:
        method = getattr(next(self._stubs), name)
        if name not in ("Register", "Deregister"):
            return method

        async def changed(*arguments: Any, **options: Any) -> Any:
            answer = await method(*arguments, **options)
            await heard()
            return answer

        return changed
