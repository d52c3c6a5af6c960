"""One node: builds every part, starts them in order, and stops them in the reverse order.

The only place that chooses concrete stores and servers. `run` is what `reach serve` calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvloop

from reach.collector import made_to_stay
from reach.config import Config
from reach.config.authentication import authentication, readers_of
from reach.config.models import classifier_of, matcher_of
from reach.config.parts import Seen, dial_settings, host_settings, http_server, kept, listen, server_tls, webhook_rules
from reach.config.watching import Policies, Rules
from reach.core.intents import Routes
from reach.core.vocabulary import Vocabulary
from reach.errors import ErrorClass, InvalidRequest, ReachError
from reach.rpc.access import Admission
from reach.rpc.interceptors import Interceptor
from reach.rpc.principal import Authenticator
from reach.rpc.server import GrpcServer
from reach.rpc.services import Services
from reach.runtime.clock import Clock
from reach.runtime.host import Host
from reach.runtime.idle_pools import IdlePools
from reach.runtime.loading import restore, unapplied_turns
from reach.runtime.probes import Probes
from reach.runtime.reach_api import Reach
from reach.runtime.retention import Retention
from reach.runtime.rules import take_rules
from reach.runtime.standing import NodeStanding
from reach.runtime.standing_alerts import StandingAlerts
from reach.store.base import Journal, KeyStore, SharedJournal, StoreError
from reach.stores import open_journal, open_keys
from reach.telemetry.exposition import OtlpMetrics, prometheus_text
from reach.telemetry.logs import setup_logging
from reach.telemetry.metrics import Metrics
from reach.telemetry.notes import TelemetryNotes
from reach.telemetry.tracing import Tracing, to_collector
from reach.transports.dialler import Dialler
from reach.transports.posting import Poster
from reach.transports.webhooks import BOUNDS, Webhooks, WebhookSettings
from reach.version import VERSION
from reach.wire.codec import ProtoCodec
from reach.wire.requests import Limits, TaskReader
from reach.wire.webhooks import FAILED, KIND

if TYPE_CHECKING:
    from reach.membership import Membership

log = logging.getLogger("reach.node")

GC_THRESHOLDS = (50_000, 20, 20)
"""Collections are rarer, and what was loaded is not looked at again: pauses of 5 ms instead of 126."""
SWITCH_SECONDS = 0.0005
"""How soon the journal's thread gets the interpreter beside a busy loop; the default of 5 ms would be added to each
statement of a commit."""
EXIT_BROKEN_STORE = 70
ConfigFile = tuple[Path, Callable[[], Config]]
"""A file of the configuration, and what reads it again."""
CLOSE_SECONDS = 2.0
"""What is left of the drain time to end streams and close the store."""


class Node:
    """See the module."""

    def __init__(self, config: Config, file: ConfigFile | None = None) -> None:
        self.config = config
        self.rules = Rules(config, self._new_rules, file)
        self.port = 0
        self.admin_port = 0
        self._stack = contextlib.AsyncExitStack()
        self._serving = False
        self.membership: Membership | None = None
        """Of a node whose journal others share."""

    async def start(self) -> None:
        """Everything up to SERVING.

        Raises:
            ReachError: a port or the data folder is taken, a file cannot be read: the message says what to do.
        """
        try:
            with made_to_stay():
                await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        config = self.config
        server = config.server
        self.node_id = server.node_id or f"{socket.gethostname()}-{server.port}"
        self.metrics = Metrics()
        self._stack.callback(self.metrics.watch_gc())
        tracing = self._tracing()
        self._stack.push_async_callback(tracing.stop)
        journal, keys = await asyncio.to_thread(self._open_store)
        limits = Limits(
            payload=server.payload_limit,
            max_retry=config.router.max_retry,
            retry_on=frozenset(ErrorClass[name] for name in config.router.retry_on.replace(",", " ").split()),
            full_jitter=config.router.full_jitter,
            silence_ms=int(config.router.silence * 1_000) or None,
            policies=tuple(self.rules.policies.known),
        )
        reader = self.reader = TaskReader(limits)
        codec = ProtoCodec(reader)
        notes = TelemetryNotes(self.metrics, tracing, lambda spec: codec.selector_of(spec).intent)
        settings = host_settings(self.config, self.rules.policies)
        self.host = Host(journal, codec, notes, Clock(), settings, _store_broken)
        self._stack.push_async_callback(self.host.stop)
        self.host.level_1.default_retry = reader.default_retry
        self.reach = Reach(self.host, self.node_id)
        self.standing = NodeStanding(self.host, self.reach, config.cluster.weight if config.cluster.endpoints else 1)
        self.standing.operators = frozenset(config.cluster.operators)
        self._stack.callback(self.reach.patience.stop)
        self._start_webhooks()
        await self._load_rules()
        gc.collect()  # while there is little to look through
        restored = await self._restore(journal)
        matcher = config.matcher
        self.host.directory.configure(
            strict=config.registry.strict, threshold=matcher.threshold, generic_type=matcher.generic_type
        )
        notes.watchers = self.reach.changes.touched
        self._start_models()
        self._sources()
        services = Services(self.reach, reader, tracing, self.metrics, self.standing)
        services.dialler = self._dialler()
        admission = {
            Admission.CONTROL: server.max_control,
            Admission.STREAMS: server.max_streams,
            Admission.SUBMITS: server.max_submits,
        }
        who = await authentication(config, keys)
        for refresh in who.refreshing:
            self._own(refresh(), "issuer-keys")
        shares = {Admission.STREAMS: server.max_streams_per_tenant}
        metrics = self.metrics
        interceptor = Interceptor(who.authenticator, tracing, admission, metrics.called, metrics.refused, shares)
        self.metrics.sources.streams = interceptor.open_calls
        self._join(services, interceptor)
        self._tls = server_tls(config)
        self._grpc = GrpcServer(listen(config, self._tls), services, interceptor, keys, VERSION, config.storage.type)
        if not config.cluster.endpoints:  # with nobody to ask, all is here before anything is served
            await self._take_part("")
        await self._grpc.start()
        self._stack.push_async_callback(self._grpc.stop, CLOSE_SECONDS)
        self.port = self._grpc.port
        if config.cluster.endpoints:
            await self._take_part(server.advertise or f"{server.host}:{self.port}")
        await self._start_http(who.authenticator)
        self._own(self.metrics.watch_loop(), "watch-loop")
        self._own(self.rules.watch(), "watch-rules")
        clock = self.host.clock
        self.retention = Retention(journal, self.reach.tending, clock.wall_ms, kept(config), FAILED, clock.now_ms)
        self._own(self.retention.run(), "retention")
        self._own(IdlePools(self.host).run(), "idle-pools")
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_SECONDS)
        self._serving = self.standing.is_open = True
        await self._grpc.tell_health(serving=self.standing.is_ready())
        self._own(self._grpc.follow(self.standing.is_ready), "health")
        self._own(StandingAlerts(self.standing, self.metrics.alerted).run(), "alerts")
        log.info(
            "serving",
            extra={"grpc": self.port, "http": self.admin_port, "store": config.storage.type, "restored": restored},
        )

    def _join(self, services: Services, interceptor: Interceptor) -> None:
        """Brings to the other nodes of the cluster what is theirs, and takes from them what is ours."""
        if self.membership is not None and self.config.cluster.endpoints:
            self.membership.join(services, interceptor, self._stack)

    async def _restore(self, journal: Journal) -> int:
        """Brings back what the journal holds: now, or shard by shard as this node claims them."""
        if self.config.storage.type != "postgres":
            loaded = await asyncio.to_thread(journal.load)
            return restore(self.host, loaded, await asyncio.to_thread(unapplied_turns, journal))
        from reach.membership import Membership  # what only a cluster needs would delay the start of all others

        shared = cast("SharedJournal", journal)
        self.membership = Membership(self.config, self.host, shared, self.node_id, self.host.clock.new_id())
        self.membership.tell(self.standing)
        nothing = await asyncio.to_thread(shared.load_shards, ())
        # Agents come with their shards: until then they are others', who dial them and know what they run.
        return restore(self.host, nothing._replace(agents=[]))

    async def _take_part(self, address: str) -> None:
        if self.membership is not None:
            self._stack.push_async_callback(self.membership.stop)
            await self.membership.start(address, self.rules)

    async def _load_rules(self) -> None:
        """Vocabulary and routes, before anything is read that they give a meaning."""
        await asyncio.to_thread(self.rules.load)
        await take_rules(self.host, self.rules.vocabulary, self.rules.routes)

    async def _new_rules(self, vocabulary: Vocabulary, routes: Routes, policies: Policies) -> None:
        self.reader.limits = self.reader.limits._replace(policies=tuple(policies.known))
        self.host.redefine(*policies)
        await take_rules(self.host, vocabulary, routes)

    def _start_models(self) -> None:
        texts = self.reach.texts
        texts.matcher, texts.classifier = matcher_of(self.config, self.host), classifier_of(self.config, self.host)
        if texts.matcher is not None:
            self._stack.callback(texts.matcher.stop)
            self._own(texts.matcher.run(), "matcher")
        if texts.classifier is not None:
            self._stack.callback(texts.classifier.stop)

    def _start_webhooks(self) -> None:
        """Before the journal's facts are handed over."""
        webhooks, host, rules = self.config.webhooks, self.host, webhook_rules(self.config)
        poster = Poster(rules.refusal, webhooks.timeout)
        self._stack.push_async_callback(poster.close)
        settings = WebhookSettings(int(webhooks.give_up_hours * 3_600_000))
        deliveries = Webhooks(
            host.outbox.done, host.committer.submit, self.reach.tasks.get, poster.post, rules, host.clock, self.metrics,
            settings,
        )  # fmt: skip
        self._stack.push_async_callback(deliveries.stop)
        host.outbox.register(KIND, deliveries, BOUNDS)
        self.reader.take_webhooks(rules.read)

    async def _start_http(self, authenticator: Authenticator) -> None:
        may_read = readers_of(authenticator, certificate_required=self.config.server.client_cert_required)
        seen = Seen(self.standing.ready, self._metrics_text(), may_read)
        http = http_server(self.config, self._grpc, seen, lambda: (self.admin_port, self.port), self._tls)
        self.admin_port = http.bind()
        self._own(http.serve(), "http")
        self._stack.push_async_callback(http.stop)

    def _tracing(self) -> Tracing:
        telemetry = self.config.telemetry
        if not telemetry.otlp_endpoint:
            return Tracing()
        exporter = OtlpMetrics(
            self.metrics,
            telemetry.otlp_endpoint,
            node_id=self.node_id,
            version=VERSION,
            every_s=telemetry.metrics_interval,
        )
        self._stack.push_async_callback(exporter.stop)
        self._own(exporter.run(), "otlp-metrics")
        return to_collector(telemetry.otlp_endpoint, telemetry.sample_ratio, node_id=self.node_id, version=VERSION)

    def _open_store(self) -> tuple[Journal, KeyStore | None]:
        journal = open_journal(self.config)
        self._stack.push_async_callback(asyncio.to_thread, journal.close)
        keys = open_keys(self.config)
        if keys is not None:
            self._stack.push_async_callback(asyncio.to_thread, keys.close)
        return journal, keys

    def _dialler(self) -> Dialler:
        """Dials agents, those of the journal at once."""
        probe = self.config.probe
        probes = Probes(self.host.clock.now_ms, probe.at_once, int(probe.check_interval * 1_000))
        dialler = Dialler(self.reach, probes, dial_settings(self.config))
        self._stack.push_async_callback(dialler.stop)
        self._own(probes.run(), "probes")
        dialler.resume()
        self.host.on_taken = dialler.resume
        return dialler

    def _sources(self) -> None:
        """What metrics ask for when they are read."""
        sources, host = self.metrics.sources, self.host
        sources.queue_length = lambda: sum(len(pool.queue) for pool in host.pools())
        sources.inflight = lambda: sum(one.inflight for pool in host.pools() for one in pool.instances.values())
        sources.late_outcomes = lambda: sum(pool.late_outcomes for pool in host.pools())
        sources.agents = host.by_health
        sources.sessions = self.reach.sessions.figures
        sources.dead_letters = lambda: self.retention.dead_letters
        sources.store_bytes = lambda: self.retention.store_bytes
        sources.buffer_bytes = lambda: sum(pool.queue.bytes for pool in host.pools())
        sources.node = self.standing.figures

    def _metrics_text(self) -> Callable[[], bytes] | None:
        return (lambda: prometheus_text(self.metrics)) if self.config.telemetry.metrics else None

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs something until the node stops."""
        task = asyncio.create_task(work, name=name)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(end)

    async def stop(self) -> None:
        """Takes nothing new, lets running work finish for a while, says goodbye to streams, closes everything.

        Work that is still running goes on at the agents: they come back to the next server and it is kept.
        """
        if not self._serving:
            return
        self._serving = False
        self.reach.stopping = True
        drain_s = max(self.config.server.drain_seconds - CLOSE_SECONDS, self.config.server.drain_seconds / 2)
        deadline = time.monotonic() + drain_s
        await self._grpc.not_serving()
        if self.membership is not None:
            await self.membership.leave(drain_s)
        while self._running() and time.monotonic() < deadline:  # noqa: ASYNC110 - many reasons end a task
            await asyncio.sleep(0.05)
        if self.membership is not None:
            await self.membership.give_up()
        await self._stack.aclose()

    def _running(self) -> bool:
        """Whether there is work to wait for. Who is not attached now will not be any more: the next server gets it."""
        instances = (one for pool in self.host.pools() for one in pool.instances.values())
        return any(one.running and one.link is not None for one in instances)


def _store_broken(error: StoreError) -> None:
    """A sync failed: nothing that was promised can be trusted, and asking again could lie. End at once."""
    log.critical("the store is broken, the process ends: %s", error)
    logging.shutdown()
    os._exit(EXIT_BROKEN_STORE)


async def serve(config: Config, file: ConfigFile | None = None) -> int:
    """Runs a node until SIGTERM or SIGINT; a second signal ends it at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: os._exit(1) if stop.is_set() else stop.set())
    node = Node(config, file)
    try:
        await node.start()
    except ReachError as error:
        log.error("%s", error)
        return 2 if isinstance(error, InvalidRequest) else 1
    reloads: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        work = asyncio.create_task(node.rules.reload(), name="reload")
        reloads.add(work)
        work.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    await stop.wait()
    log.info("stopping")
    await node.stop()
    return 0


def run(config: Config, file: ConfigFile | None = None) -> int:
    """Runs a node in this process; returns the exit code. `file` is looked at for other policies while it runs."""
    setup_logging(config.telemetry.log_level, config.telemetry.log_format)
    return uvloop.run(serve(config, file))
