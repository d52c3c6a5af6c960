"""An A2A agent made of the a2a-sdk's own server and a plain executor: in this process, or as one of its own.

    python -m tests.a2a_agent --binding JSONRPC --port 9000

What it does is the first word of the last text that it is told: see `Plain`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2_grpc
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

PATHS = {"JSONRPC": "/rpc", "HTTP+JSON": "/rest", "GRPC": ""}


class Plain(AgentExecutor):
    """Does what it is told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """All that it was told."""
        self.contexts: dict[str, list[list[str]]] = {}
        """What it remembers: the texts of each message of each context."""
        self.cancelled: list[str] = []
        self.running = 0
        self.most = 0
        """Tasks at the same time, at most."""
        self.go_on = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """See the SDK."""
        message = context.message
        assert message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        self.messages.append(message)
        text = next((part.text for part in reversed(message.parts) if part.text), "")
        word, _, rest = text.partition(" ")
        texts = [part.text for part in message.parts if part.text]
        self.contexts.setdefault(context.context_id, []).append(texts)
        if word == "message":
            said = Message(message_id="m", role=Role.ROLE_AGENT, context_id=context.context_id, parts=[Part(text=rest)])
            await event_queue.enqueue_event(said)
            return
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            task = Task(id=context.task_id, context_id=context.context_id, status=status, history=[message])
            await event_queue.enqueue_event(task)
        told = TaskUpdater(event_queue, context.task_id, context.context_id)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await told.start_work()
            await self.act(word, rest, told, context)
        finally:
            self.running -= 1

    async def act(self, word: str, rest: str, told: TaskUpdater, context: RequestContext) -> None:
        """One word."""
        match word:
            case "words":
                for number in range(int(rest)):
                    await told.add_artifact([Part(text=f"w{number} ")], artifact_id="a", append=number > 0)
                    await asyncio.sleep(0.01)
            case "again":
                await told.add_artifact([Part(text="wrong")], artifact_id="a")
                await told.add_artifact([Part(text="right")], artifact_id="a", append=False)
            case "two":
                await told.add_artifact([Part(text="first")], artifact_id="a")
                await told.add_artifact([Part(raw=b"\x00\x01", media_type="image/png")], artifact_id="b")
            case "hold":
                await told.add_artifact([Part(text="begun ")], artifact_id="a")
                await self.go_on.wait()
                await told.add_artifact([Part(text="ended")], artifact_id="a", append=True)
            case "nap":
                await asyncio.sleep(float(rest))
                await told.add_artifact([Part(text="rested")])
            case "ask":
                question = told.new_agent_message([Part(text=f"which {rest}?")])
                await told.requires_input(question)
                return
            case "login":
                await told.requires_auth(told.new_agent_message([Part(text="log in")]))
                return
            case "fail" | "reject" | "said":
                end = {"fail": told.failed, "reject": told.reject, "said": told.complete}[word]
                await end(told.new_agent_message([Part(text=rest)]))
                return
            case "seen":
                assert context.message is not None
                seen: dict[str, Any] = {
                    "message": json_format.MessageToDict(context.message),
                    "context": self.contexts[context.context_id or ""],
                }
                part = Part(media_type="application/json")
                json_format.ParseDict(seen, part.data)
                await told.add_artifact([part])
            case "told":
                texts = [one.parts[-1].text for one in self.messages]
                await told.add_artifact([Part(text=json.dumps({text: texts.count(text) for text in texts}))])
            case _:
                await told.add_artifact([Part(text=f"{word} {rest}".strip())])
        await told.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """See the SDK."""
        assert context.task_id is not None
        self.cancelled.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id or "").cancel()


def card_of(
    binding: str, url: str, *, name: str = "Plain agent", legacy: bool = False, streaming: bool = True
) -> AgentCard:
    """Its card."""
    return AgentCard(
        name=name,
        description="Does what it is told",
        version="1",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version="0.3" if legacy else "1.0")
        ],
        default_input_modes=["*/*"],
        default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=streaming),
        skills=[
            AgentSkill(id="obey", name="Obedience", description="Does as told", tags=["plain"], examples=["words 3"])
        ],
    )


class Locked:
    """Lets nobody in who does not show the key, but to the card."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if dict(scope["headers"]).get(b"x-api-key") == self.key or scope["path"].startswith("/.well-known/"):
            await self.app(scope, receive, send)
        else:
            await Response(status_code=401)(scope, receive, send)


class Served:
    """An agent that is served."""

    def __init__(self, executor: Plain, card: AgentCard, port: int) -> None:
        self.executor = executor
        self.card = card
        self.port = port

    @property
    def card_url(self) -> str:
        """Where its card is."""
        return f"http://127.0.0.1:{self.port}/"


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(
    binding: str = "JSONRPC",
    port: int = 0,
    executor: Plain | None = None,
    *,
    legacy: bool = False,
    streaming: bool = True,
    name: str = "Plain agent",
    host: str = "127.0.0.1",
    key: str = "",
) -> AsyncIterator[Served]:
    """Serves one, with its card on `port`, and gRPC on another. `key`: what calls must show as `x-api-key`; who does
    has a card with another skill."""
    executor, port = executor or Plain(), port or free_port()
    rpc_port = free_port() if binding == "GRPC" else port
    url = f"127.0.0.1:{rpc_port}" if binding == "GRPC" else f"http://127.0.0.1:{port}{PATHS[binding]}"
    card = card_of(binding, url, name=name, legacy=legacy, streaming=streaming)
    extended = AgentCard()
    if key:
        card.capabilities.extended_agent_card = True
        card.security_schemes["key"].api_key_security_scheme.CopyFrom(
            APIKeySecurityScheme(location="header", name="X-Api-Key")
        )
        card.security_requirements.add().schemes["key"].SetInParent()
        extended.CopyFrom(card)
        extended.skills.add(id="secret", name="Secrets", description="For those who know", tags=["hidden"])
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card, extended_agent_card=extended if key else None)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, PATHS["JSONRPC"], enable_v0_3_compat=True),
        *create_rest_routes(handler, path_prefix=PATHS["HTTP+JSON"], enable_v0_3_compat=True),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Locked, key=key)] if key else [])
    config = uvicorn.Config(app, host=host, port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    grpc_server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    if binding == "GRPC":
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), grpc_server)
        grpc_server.add_insecure_port(f"127.0.0.1:{rpc_port}")
        await grpc_server.start()
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield Served(executor, card, port)
    finally:
        executor.go_on.set()
        server.force_exit = server.should_exit = True
        await running
        await grpc_server.stop(0)


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--binding", default="JSONRPC", choices=list(PATHS))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", default="Plain agent")
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--go", action="store_true", help="`hold` does not hold")
    parser.add_argument("--no-streaming", dest="streaming", action="store_false")
    given = parser.parse_args()
    executor = Plain()
    if given.go:
        executor.go_on.set()
    async with serving(
        given.binding, given.port, executor, legacy=given.legacy, streaming=given.streaming, name=given.name
    ) as served:
        sys.stdout.write(json.dumps({"card_url": served.card_url}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
