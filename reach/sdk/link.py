"""The agent's side of Attach: one instance on one stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final

from agentreach.v1 import attach_pb2, attempt_pb2, heartbeat_pb2, task_pb2
from reach.core.instance_states import Availability
from reach.errors import Internal, InvalidRequest, ReachError, Reason
from reach.sdk.attempts import Attempts
from reach.sdk.channel import PROTOCOL_VERSION, Target
from reach.sdk.connection import Broken, Connection, log
from reach.sdk.encoding import LINK
from reach.sdk.figures import Figures, duration
from reach.sdk.handlers import DEFAULT_METHOD, Handler
from reach.sdk.outcomes import RESEND_S, Key, Outcomes
from reach.sdk.payloads import Fields
from reach.sdk.watchdog import Watchdog
from reach.wire.status import error_from_proto

ATTACH: Final = "/agentreach.v1.AgentService/Attach"

_hellos = count(1)
"""Numbers those of this process."""
_LOST: Final = frozenset({Reason.STALE_ATTEMPT, Reason.UNKNOWN_ATTEMPT, Reason.STALE_GENERATION})
"""The server has given the attempt up: stop working on it (case C10)."""

StatusHook = Callable[[], Fields]


class Link:
    """Speaks for one instance. Lives on one loop, from `run` until it is cancelled."""

    def __init__(
        self,
        target: Target,
        registration: Fields,
        handlers: dict[str, Handler],
        figures: Figures,
        heartbeat_interval: float,
        status_hook: StatusHook | None,
    ) -> None:
        self.connection = Connection(target, ATTACH, attach_pb2.AttachResponse.FromString, self)
        self.welcomed = asyncio.Event()
        """The server has taken us in, at least once."""
        self.generation = 0
        self.instance_id: str = registration["instance_id"]
        self.outcomes = Outcomes(self.connection, self._status)
        self.attempts = Attempts(self.connection, handlers, figures, self.outcomes, self.instance_id)
        self.beating = False
        self._target = target
        self._registration = registration
        self._handlers = handlers
        self._figures = figures
        self._status_hook = status_hook
        self._interval = heartbeat_interval
        self._watchdog = Watchdog(target, self._unary_beat, heartbeat_interval)
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._last_frame = 0
        self._new_stream = False
        self._told_warnings: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """Runs until cancelled. Raises the ReachError of a refusal that trying again does not change."""
        self._watchdog.start()
        self._touch()
        self._send_late()
        try:
            await self.connection.run()
        finally:
            self._watchdog.stop()
            for timer in self._timers.values():
                timer.cancel()
            self.attempts.threads.close()

    def start_beating(self) -> None:
        """Beats from now on."""
        if not self.beating:
            self.beating = True
            self._beat_on()

    def beat(self) -> None:
        """Beats now, because something changed."""
        if not self.connection.up:
            return
        beat: Fields = {"link": LINK, "status": self._status(), "last_frame": self._last_frame}
        if self._status_hook is not None:
            try:
                self._put(beats=[{**beat, "status": {**beat["status"], **self._status_hook()}}])
            except Exception:  # noqa: BLE001 - their code must not end the beats
                log.exception("heartbeat_status failed, or does not give the fields of AgentStatus")
            else:
                return
        self._put(beats=[beat])

    def say_goodbye(self) -> None:
        """The link ends in peace; what still runs is given back."""
        if self.connection.up:
            self._put(goodbyes=[{"link": LINK, "release": True}])

    # Peer

    def opening(self) -> Iterable[bytes]:
        """Who speaks, what we are, and all that we run."""
        self._sequence = 0
        self._last_frame = 0
        self._new_stream = True
        opening: Fields = {"opening": {"protocol_version": PROTOCOL_VERSION}, "hellos": [self._hello()]}
        yield self.prefix() + attach_pb2.AttachRequest(**opening).SerializeToString()

    def gather(self) -> None:
        """A frame is about to be made."""
        self.attempts.notes.gather()

    def prefix(self) -> bytes:
        """The number of the frame."""
        self._sequence += 1
        return attach_pb2.AttachRequest(sequence=self._sequence).SerializeToString()

    def received(self, frame: attach_pb2.AttachResponse) -> None:
        """A frame came: offers and acknowledgements first, for nearly all have nothing else."""
        self._last_frame = frame.sequence
        offers, acknowledgements = frame.offers, frame.acknowledgements
        has_more = len(frame.ListFields()) > bool(frame.sequence) + bool(offers) + bool(acknowledgements)
        if has_more:
            self._received_first(frame)
        if offers:  # before the acknowledgements, for which nobody waits
            self.attempts.offered(offers)
        if acknowledgements:
            self.outcomes.acknowledged(acknowledgements)
        if has_more:
            self._received_rest(frame)

    def lost(self, error: ReachError) -> None:
        """The stream broke. What runs goes on; what it says is kept."""

    def _received_first(self, frame: attach_pb2.AttachResponse) -> None:
        if frame.HasField("welcome") and frame.welcome.payload_limit:
            self.attempts.payload_limit = frame.welcome.payload_limit
        if frame.HasField("nodes"):
            self.connection.hear_of(frame.nodes.addresses)
        for welcome in frame.links:
            self._welcome(welcome)
        for refusal in frame.refusals:
            self._refused(refusal)

    def _received_rest(self, frame: attach_pb2.AttachResponse) -> None:
        attempts = self.attempts
        for cancel in frame.cancels:
            attempts.cancel(_key(cancel.key), cancel.key.attempt, silent=False)
        for credit in frame.credits:
            attempts.credited(_key(credit.key), credit.key.attempt, credit.bytes)
        for grant in frame.grants:
            attempts.granted(grant)
        for said in frame.inputs:
            given = task_pb2.TaskInput(input_id=said.input_id, question=said.question, payload=said.payload)
            attempts.answered(_key(said.key), said.key.attempt, given)
        for ping in frame.pings:
            self._put(pongs=[{"link": ping.link, "nonce": ping.nonce}])
        for request in frame.handoffs:
            self._ask_snapshot(request)
        if frame.drains:
            log.info("Agent-Reach asks %s to finish and take nothing new", self.instance_id)
        if frame.resync:
            self._put(hellos=[self._hello()])
            self.connection.welcomed = False
        if frame.reopen:
            self.connection.reopen()

    def _ask_snapshot(self, request: attach_pb2.HandoffRequest) -> None:
        def tell(snapshot: bytes) -> None:
            self._tell_snapshot((request.tenant, request.session), snapshot)

        if self.attempts.handoffs is not None:
            self.attempts.handoffs.ask(request.session, request.tenant, tell)
        else:
            tell(b"")

    def _tell_snapshot(self, name: tuple[str, Any], snapshot: bytes) -> None:
        if self.connection.up:
            self._put(handoffs=[{"link": LINK, "tenant": name[0], "session": name[1], "snapshot": snapshot}])

    async def hand_over(self) -> None:
        """The agent leaves: says what it knows of its sessions, for those who get them next."""
        if self.attempts.handoffs is not None:
            names = ("app_id", "user_id", "session_id")
            await self.attempts.handoffs.tell_all(
                lambda name, snapshot: self._tell_snapshot((name[0], dict(zip(names, name[1:], strict=True))), snapshot)
            )

    def _welcome(self, welcome: attach_pb2.LinkWelcome) -> None:
        new_stream, self._new_stream = self._new_stream, False
        self.generation = welcome.generation
        for warning in welcome.warnings:
            if warning not in self._told_warnings and len(self._told_warnings) < 100:
                self._told_warnings.add(warning)
                log.warning("Agent-Reach says of %s: %s", self.instance_id, warning)
        if welcome.HasField("heartbeat_interval"):
            wanted = welcome.heartbeat_interval
            self._interval = max(0.1, wanted.seconds + wanted.nanos / 1e9)
            self._watchdog.set_interval(self._interval)
        self.connection.established()
        for key in welcome.unknown:
            self.attempts.cancel(_key(key), key.attempt, silent=True)
        self.attempts.restore({(_key(key), key.attempt) for key in welcome.replay}, new_stream)
        self.outcomes.send_all(new_stream)
        if new_stream and self.beating:
            self._beat_on()
        self.welcomed.set()

    def _refused(self, refusal: attach_pb2.LinkRefusal) -> None:
        error = error_from_proto(refusal.error)
        if refusal.HasField("key") and refusal.key.task_id:
            key = _key(refusal.key)
            running = self.attempts.running.get(key)
            if running is None or running.number != refusal.key.attempt:
                self.outcomes.refused(key, refusal.key.attempt, error)
            elif error.reason in _LOST:
                self.attempts.stop(running, silent=True)
            elif not self.attempts.questions.refused(running, error):
                log.warning("Agent-Reach refused an item of task %s: %s", key[1], error.message)
            return
        if not refusal.closed and self.connection.up:
            log.warning("Agent-Reach refused what %s sent: %s", self.instance_id, error.message)
        elif isinstance(error, InvalidRequest | Internal) and not refusal.error.retryable:
            raise error
        else:
            raise Broken(error)

    # Timers

    def _beat_on(self) -> None:
        self.beat()
        self._later("beat", self._interval, self._beat_on)

    def _touch(self) -> None:
        since = self._watchdog.touch()
        every = self._watchdog.touch_every_s
        if self.beating and since > every + 1.0:
            log.warning("the loop of %s was blocked for %.1f s by a handler", self.instance_id, since)
            self.beat()  # takes back what the watchdog said
        self._later("touch", every, self._touch)

    def _send_late(self) -> None:
        self.outcomes.send_late()
        self._later("late", RESEND_S / 5, self._send_late)

    def _later(self, name: str, delay: float, function: Callable[[], None]) -> None:
        timer = self._timers.get(name)
        if timer is not None:
            timer.cancel()
        self._timers[name] = self._loop.call_later(delay, function)

    # Messages

    def _put(self, **items: Any) -> None:
        self.connection.outbox.put(attach_pb2.AttachRequest(**items).SerializeToString())

    def _hello(self) -> Fields:
        return {
            "link": LINK,
            "number": next(_hellos),
            "registration": {**self._registration, "methods": self._methods()},
            "running": self.attempts.running_fields(),
            "status": self._status(),
        }

    def _methods(self) -> list[Fields]:
        if DEFAULT_METHOD in self._handlers:  # it takes any method, and only an empty list says so
            return []
        methods = []
        for handler in self._handlers.values():
            fields: Fields = {"name": handler.name}
            if handler.expected_latency is not None:
                fields["expected_latency"] = duration(handler.expected_latency)
            if handler.concurrency is not None:
                fields["concurrency"] = handler.concurrency
            methods.append(fields)
        return methods

    def _status(self) -> Fields:
        fields = self._figures.fields(time.monotonic(), self.attempts.threads.waiting, self._handlers)
        if self.attempts.draining:
            fields["availability"] = int(Availability.DRAINING)
        return fields

    def _unary_beat(self, stalled: float) -> heartbeat_pb2.HeartbeatRequest:
        status = {**self._status(), "loop_stalled": duration(stalled)}
        beat: Fields = {"instance_id": self.instance_id, "boot_id": self._registration["boot_id"], "status": status}
        request: Fields = {"beat": beat}
        return heartbeat_pb2.HeartbeatRequest(**request)


def _key(key: attempt_pb2.AttemptKey) -> Key:
    return key.tenant, key.task_id
