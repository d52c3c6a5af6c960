"""Floods below gRPC, made of bare HTTP/2 frames: streams that are reset at once, headers without end, settings, pings
and windows (A18, GOV-5; "Bad inputs" of the cases). Whoever floods may be cut; others are served, and memory stays.

`FLOOD=10` makes ten times as many.
"""

import asyncio
import contextlib
import os
import struct
import time

import pytest

from reach.telemetry.metrics import resident_bytes
from tests.e2e.processes import tell
from tests.rpc.hostile import MIB
from tests.rpc.peers import TIMEOUT, Stubs, golden, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMES = int(os.environ.get("FLOOD", "1"))
STREAMS = 10_000 * TIMES
FRAMES = 20_000 * TIMES
MOST_GROWTH = 200 * MIB
"""Of server and flood in one process: a node of 120 MiB stays far below the 512 of the cases."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 1, 3, 4, 6, 8, 9
END_HEADERS = 4


def frame(kind: int, flags: int = 0, stream: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def headers(path: bytes) -> bytes:
    """The head of a gRPC call: POST, http, and literals that no table keeps."""
    fields = b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x01\x01x"
    for name, value in ((b"te", b"trailers"), (b"content-type", b"application/grpc")):
        fields += b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
    return fields


CALL = headers(b"/agentreach.v1.DispatchService/Run")


def resets() -> list[bytes]:
    """Each stream begun and reset."""
    cancelled = struct.pack(">I", 8)
    return [
        frame(HEADERS, END_HEADERS, 2 * number + 1, CALL) + frame(RST_STREAM, 0, 2 * number + 1, cancelled)
        for number in range(STREAMS)
    ]


def endless_headers() -> list[bytes]:
    """One head that goes on and on."""
    field = b"\x00\x04name\x7f\x00" + b"v" * 127
    return [frame(HEADERS, 0, 1, CALL)] + [frame(CONTINUATION, 0, 1, field * 100)] * (FRAMES // 10)


def empty_continuations() -> list[bytes]:
    """The same, of nothing."""
    return [frame(HEADERS, 0, 1, CALL)] + [frame(CONTINUATION, 0, 1)] * FRAMES


FLOODS = {
    "resets": resets,
    "endless_headers": endless_headers,
    "empty_continuations": empty_continuations,
    "settings": lambda: [frame(SETTINGS, data=struct.pack(">HI", 4, 65_535 + number % 9)) for number in range(FRAMES)],
    "pings": lambda: [frame(PING, data=bytes(8))] * FRAMES,
    "windows": lambda: [frame(WINDOW_UPDATE, data=struct.pack(">I", 1))] * FRAMES,
}


async def flood(port: int, frames: list[bytes]) -> int:
    """Sends all of it, over as many connections as that takes; how many there were. Nothing that comes is read."""
    connections, at = 0, 0
    while at < len(frames) and connections < 50:
        connections += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + frame(SETTINGS))
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(2):
                while at < len(frames) and not reader.at_eof():
                    writer.write(b"".join(frames[at : at + 500]))
                    at += 500
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.transport.abort()
    return connections


@pytest.mark.parametrize("what", FLOODS)
async def test_A18_a_flood_of_frames_costs_little_and_others_are_served(tmp_path, what):
    async with running(tmp_path, server__max_streams=50) as node, Stubs(node.port) as stubs:
        await golden(stubs)
        frames, before = FLOODS[what](), resident_bytes()
        flooding = asyncio.ensure_future(flood(node.port, frames))
        most, longest = 0, 0.0
        while not flooding.done():
            began = time.perf_counter()
            async with asyncio.timeout(TIMEOUT):
                await golden(stubs)
            longest = max(longest, time.perf_counter() - began)
            most = max(most, node.metrics.sources.streams()["streams"])
            await asyncio.sleep(0.01)
        await flooding
        await golden(stubs)
        assert most <= 50
        assert resident_bytes() - before < MOST_GROWTH
        grown = (resident_bytes() - before) // MIB
        tell(
            f"{what}: {len(frames)} frames over {flooding.result()} connections; {grown} MiB,"
            f" the longest of the golden tasks beside it took {longest:.3f} s"
        )
