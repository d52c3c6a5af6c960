"""Beats while the loop is blocked.

The agent lives on one loop: the connection, the coroutine handlers and the beats. A second loop for the connection
would beat on while a handler blocks the first, but every task would cross threads twice, and several loops of grpc.aio
in one process wake each other up in vain (case A8). So a thread watches instead: the loop touches it a few times a
second, and when that stops, the thread beats by unary calls over a channel of its own and says for how long the loop
has been blocked (case B1). The server then knows both: the process lives, and it takes nothing new.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import grpc

from agentreach.v1 import heartbeat_pb2, heartbeat_pb2_grpc
from reach.sdk.channel import Target

log = logging.getLogger("reach.sdk")

BeatMaker = Callable[[float], heartbeat_pb2.HeartbeatRequest]


class Watchdog:
    """A thread that beats in the loop's stead. `beat` makes the request from the seconds of the stall; it runs in the
    thread, while the loop stands still."""

    def __init__(self, target: Target, beat: BeatMaker, interval_s: float) -> None:
        self._target = target
        self._beat = beat
        self._interval_s = interval_s
        self._touched = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reach-sdk-watchdog", daemon=True)

    @property
    def touch_every_s(self) -> float:
        """How often the loop should touch."""
        return min(0.5, self._interval_s / 8)

    def set_interval(self, interval_s: float) -> None:
        """The server wants beats this often."""
        self._interval_s = interval_s

    def start(self) -> None:
        """Begins to watch."""
        self.touch()
        self._thread.start()

    def touch(self) -> float:
        """The loop runs. Returns how long ago it said so before, in seconds."""
        now = time.monotonic()
        since, self._touched = now - self._touched, now
        return since

    def stop(self) -> None:
        """Ends the thread, soon."""
        self._stop.set()

    def _run(self) -> None:
        channel: grpc.Channel | None = None
        beaten, address = 0.0, ""
        try:
            while not self._stop.wait(self.touch_every_s):
                now = time.monotonic()
                stalled = now - self._touched
                if stalled < max(1.0, self._interval_s / 2) or now - beaten < self._interval_s / 2:
                    continue
                beaten = now
                if channel is None or self._target.told.works not in ("", address):
                    if channel is not None:
                        channel.close()
                    address = self._target.rotation().current
                    channel = self._target.channel(address)
                self._send(channel, stalled)
        finally:
            if channel is not None:
                channel.close()

    def _send(self, channel: grpc.Channel, stalled: float) -> None:
        stub = heartbeat_pb2_grpc.HeartbeatServiceStub(channel)
        try:
            stub.Heartbeat(self._beat(stalled), timeout=self._interval_s, metadata=self._target.metadata)
        except grpc.RpcError as error:
            log.debug("a beat while the loop was blocked did not arrive: %s", error)
