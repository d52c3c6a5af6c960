"""How gRPC is loaded: each case in a process of its own, for it is loaded once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SWITCHES = """
import asyncio, os
{first}
import grpc
def switches():
    lines = [l for t in os.listdir("/proc/self/task") for l in open(f"/proc/self/task/{{t}}/status")]
    return sum(int(l.split()[1]) for l in lines if l.startswith("voluntary"))
class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        async def echo(request, context):
            return request
        return grpc.unary_unary_rpc_method_handler(echo)
async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        call = channel.unary_unary("/a/b")
        for _ in range(20):
            await call(b"x")
        before = switches()
        for _ in range(200):
            await call(b"x")
        print((switches() - before) / 200)
    await server.stop(0)
asyncio.run(main())
print(os.environ.get("GRPC_EXPERIMENTS"))
"""


def run(first: str, **variables: str) -> tuple[float, str]:
    """(switches of threads per call, the variable afterwards)"""
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_EXPERIMENTS"}
    done = subprocess.run(
        [sys.executable, "-c", SWITCHES.format(first=first)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    switches, variable = done.stdout.split()
    return float(switches), variable


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="counts switches of threads in /proc")
def test_fewer_threads_are_woken_by_what_comes_from_the_network() -> None:
    usual, _ = run("")
    for first in ("from reach import Agent", "import reach.node", "import reach.transports.dialled"):
        ours, variable = run(first)
        assert ours < 0.75 * usual
        assert variable == "None", "children have their own gRPC"


def test_the_version_is_known_without_loading_what_knows_all_of_them() -> None:
    """To load `importlib.metadata` takes a tenth of the time in which an agent starts."""
    code = """
import sys
from reach import Agent
from reach.wire import grpc_start
print("importlib.metadata" in sys.modules, grpc_start.version())
import importlib.metadata
print(importlib.metadata.version("grpcio"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded, ours, theirs = done.stdout.split()
    assert (loaded, ours) == ("False", theirs)


def test_whoever_chose_keeps_it() -> None:
    assert run("import reach.sdk", GRPC_EXPERIMENTS="event_engine_client")[1] == "event_engine_client"
    code = "import grpc; from reach.wire import grpc_start; print(grpc_start.start())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
