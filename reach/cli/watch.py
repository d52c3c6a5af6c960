"""`reach agents watch`: what changes, as it changes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.agent_views import filter_options, row_of, wanted_of
from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import moment, one_line, say, write, write_json
from reach.cli.values import DURATION

if TYPE_CHECKING:
    from agentreach.v1.registry_pb2 import WatchAgentsRequest, WatchAgentsResponse
    from reach.cli.settings import Settings

PAUSE_S: Final = 1.0
"""Between two tries to reach a server that is away."""


@click.command()
@filter_options
@click.option("--for", "seconds", type=DURATION, help="End after this time (default: with Ctrl-C).")
@server_options
@click.pass_context
def watch(context: click.Context, /, seconds: float | None, **given: Any) -> int:
    """Follow instances: first all, then each one as it changes. `+` came, `~` changed, `-` is gone or does not match.

    A server that is away is waited for, and what changed meanwhile is told when it is back.
    """
    from agentreach.v1 import registry_pb2
    from reach.errors import Unavailable

    settings = settings_of(context)
    end = None if seconds is None else time.monotonic() + seconds
    request = registry_pb2.WatchAgentsRequest(filter=registry_pb2.AgentFilter(**wanted_of(given)))
    shown = _Shown(settings.json)
    away = False
    while end is None or time.monotonic() < end:
        try:
            _follow(settings, request, shown, None if end is None else max(0.01, end - time.monotonic()))
        except Unavailable as error:
            if not shown.synced:
                raise
            if not away:
                say(f"{error.message}; waiting for it")
            away = True
            time.sleep(PAUSE_S)  # until it is asked again
        else:
            away = False
    return Exit.OK


def _follow(settings: Settings, request: WatchAgentsRequest, shown: _Shown, timeout: float | None) -> None:
    """One connection, to its end."""
    from agentreach.v1 import registry_pb2_grpc

    with settings.connect() as server:
        stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
        for answer in server.follow(stub.WatchAgents, request, timeout):
            shown.take(answer)
            request.cursor = answer.cursor or request.cursor


class _Shown:
    """What has been told so far."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._known: set[str] = set()
        self.synced = False

    def take(self, answer: WatchAgentsResponse) -> None:
        """Shows one message."""
        from reach.cli.messages import plain

        if self._json:
            write_json(plain(answer), pretty=False)
            self.synced = True
            return
        if answer.reset and self._known:
            say("the server knows no more what was told: all again")
            self._known.clear()
        for instance_id in answer.removed:
            if instance_id in self._known:
                self._known.discard(instance_id)
                write(f"{_now()} - {one_line(instance_id)}\n")
        for agent in answer.agents:
            instance_id, kind, health, state, slots, score, _, conditions, _, routed = row_of(agent)
            mark = "~" if instance_id in self._known else "+"
            self._known.add(instance_id)
            parts = [f"{mark} {instance_id}", kind, health, state, slots]
            parts += [f"score {score}"] if score else []
            parts += [conditions] if conditions else []
            parts.append("routed" if routed == "yes" else f"not routed: {routed}")
            write(f"{_now()} {one_line(' '.join(parts))}\n")
        if answer.in_sync and not self.synced:
            self.synced = True
            say(f"{len(self._known)} instances; watching")


def _now() -> str:
    return moment(time.time()).partition(" ")[2]
