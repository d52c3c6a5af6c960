"""Cards: what agents there are, as the one who asks may see it.

A card is of a route: of a type of agents, or of the whole fleet. Its skills are the capabilities of the instances that
are not gone; instances themselves are never shown. What changes with their liveness alone changes no card.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import a2a_pb2

from agentreach.v1 import agent_pb2, registry_pb2
from reach.a2a.caller import Caller
from reach.a2a.settings import A2aSettings
from reach.errors import InvalidRequest, Reason
from reach.rpc.access import CARDS
from reach.rpc.inner_calls import InnerCalls
from reach.wire.a2a.parts import BYTES, JSON, TEXT
from reach.wire.a2a.words import CURSOR, DISPATCH, VERSION, RouteTo

KEEP_SECONDS: Final = 2.0
"""How old a list of agents may be."""
KEPT: Final = 256
"""Lists of agents that are kept."""
LOOKED_AT: Final = 10_000
"""Instances that a card looks at."""
SKILLS: Final = 500
"""Skills of one card."""
OLD: Final = "0.3"
PREFIX: Final = "/a2a"
"""Under which JSON-RPC and REST are."""
CARD: Final = "/.well-known/agent-card.json"
CATALOG: Final = "/.well-known/ai-catalog.json"

_LIST: Final = "/agentreach.v1.RegistryService/ListAgents"


class Cards:
    """See the module.

    Args:
        calls: What is behind all doors.
        settings: Where we are, and what we are called.
    """

    def __init__(self, calls: InnerCalls, settings: A2aSettings) -> None:
        self._calls = calls
        self._settings = settings
        self._kept: dict[tuple[str, str, str], tuple[float, list[agent_pb2.Registration]]] = {}

    async def card(self, caller: Caller, route: RouteTo, *, extended: bool = False) -> a2a_pb2.AgentCard:
        """The card of a route; the extended one names gRPC in any case.

        Raises:
            ReachError: who asks may not see it, or there is nobody of this type.
        """
        agents = await self._agents(caller, route)
        if route.kind and not agents:
            raise InvalidRequest(f"no agent is on the route {route.token!r}", Reason.NO_ROUTE, field="tenant")
        return self._made(route, agents, grpc=extended or self._settings.shows_grpc)

    def bare(self) -> a2a_pb2.AgentCard:
        """The card of the fleet for those who have shown no credentials: where to ask, and with what."""
        return self._made(RouteTo(""), [], grpc=self._settings.shows_grpc)

    async def refuses(self, caller: Caller, route: RouteTo, media_types: Iterable[str]) -> str:
        """A media type that no agent of a type takes; empty if there is none, or nobody is there to say."""
        if route.kind != "t":
            return ""
        agents = await self._agents(caller, route)
        if not agents or not all(one.input_media_types for one in agents):
            return ""
        taken = {one.partition(";")[0].strip().lower() for agent in agents for one in agent.input_media_types}
        for media_type in media_types:
            essence = media_type.partition(";")[0].strip().lower()
            if taken.isdisjoint({essence, f"{essence.partition('/')[0]}/*", "*/*"}):
                return media_type
        return ""

    async def catalog(self, caller: Caller) -> dict[str, Any]:
        """All cards, as the draft of AI Catalog lists them (`/.well-known/ai-catalog.json`)."""
        agents = await self._agents(caller, RouteTo(""))
        routes = [RouteTo("")] + [RouteTo("t", name) for name in sorted({type_of(agent) for agent in agents})]
        host = self._settings.url.partition("://")[2].partition("/")[0].partition(":")[0]
        entries = [
            {
                "identifier": f"urn:air:{host}:a2a:{quote(route.name) if route.kind else 'fleet'}",
                "displayName": route.name or self._settings.name,
                "type": "application/a2a-agent-card+json",
                "url": self.url_of(route),
            }
            for route in routes
        ]
        return {"specVersion": "1.0", "host": {"displayName": self._settings.name}, "entries": entries}

    def url_of(self, route: RouteTo) -> str:
        """Where the card of a route is."""
        return f"{self._settings.url}{PREFIX}/{route.token}{CARD}" if route.kind else f"{self._settings.url}{CARD}"

    async def _agents(self, caller: Caller, route: RouteTo) -> list[agent_pb2.Registration]:
        """What the live instances of a route registered, as the tenant of the caller may see it."""
        authorization, _, peer, certificate = caller.credentials
        principal = self._calls.who(authorization, peer, certificate)
        key = principal.tenant, route.kind, route.name
        kept = self._kept.get(key)
        now = time.monotonic()
        request = registry_pb2.ListAgentsRequest(page_size=1 if kept and now - kept[0] < KEEP_SECONDS else 1_000)
        if route.kind == "t":
            request.filter.agent_type = route.name
        elif route.kind == "c":
            request.filter.capability = route.name
        answer = await self._calls.unary(_LIST, request, *caller.credentials, access=CARDS)  # asks who may, too
        if kept is not None and now - kept[0] < KEEP_SECONDS:
            return _for_types(kept[1], principal.agent_types)
        rows = list(answer.agents)
        while answer.next_page_token and len(rows) < LOOKED_AT:
            request.page_token = answer.next_page_token
            answer = await self._calls.unary(_LIST, request, *caller.credentials, access=CARDS)
            rows.extend(answer.agents)
        found = [one.registration for one in rows if one.health != agent_pb2.HEALTH_OFFLINE]
        while len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = now, found
        return _for_types(found, principal.agent_types)

    def _made(self, route: RouteTo, agents: Sequence[agent_pb2.Registration], *, grpc: bool) -> a2a_pb2.AgentCard:
        settings = self._settings
        takes = _modes((agent.input_media_types for agent in agents), TEXT, JSON, BYTES)
        answers = _modes((agent.output_media_types for agent in agents), TEXT, JSON)
        card = a2a_pb2.AgentCard(
            name=route.name or settings.name,
            description=_description(route, agents) or settings.description,
            version=max((agent.version for agent in agents if route.kind), default="") or "1",
            supported_interfaces=self._interfaces(route, grpc=grpc),
            capabilities=a2a_pb2.AgentCapabilities(
                streaming=True,
                push_notifications=False,
                extended_agent_card=True,
                extensions=[
                    a2a_pb2.AgentExtension(uri=CURSOR, description="Where in a task's events an update stands"),
                    a2a_pb2.AgentExtension(uri=DISPATCH, description="How a task is dispatched"),
                ],
            ),
            default_input_modes=takes,
            default_output_modes=answers,
            skills=_skills(route, agents, takes, answers),
        )
        if settings.keys:
            card.security_schemes["bearer"].http_auth_security_scheme.scheme = "bearer"
            card.security_requirements.add().schemes["bearer"].SetInParent()
        return card

    def _interfaces(self, route: RouteTo, *, grpc: bool) -> list[a2a_pb2.AgentInterface]:
        settings = self._settings
        tenant = route.token if route.kind else ""
        # Over HTTP the path says the route: 0.3 has no tenant, and some who know 1.0 forget it.
        url = f"{settings.url}{PREFIX}" + (f"/{tenant}" if tenant else "")
        asked = [(url, "JSONRPC", "", VERSION), (url, "HTTP+JSON", "", VERSION)]
        if grpc:
            asked.append((settings.grpc, "GRPC", tenant, VERSION))
        asked.append((url, "JSONRPC", "", OLD))
        return [
            a2a_pb2.AgentInterface(url=at, protocol_binding=binding, tenant=told, protocol_version=version)
            for at, binding, told, version in asked
        ]


def _for_types(agents: list[agent_pb2.Registration], types: frozenset[str]) -> list[agent_pb2.Registration]:
    """Those that credentials are for; none named: all."""
    return [one for one in agents if type_of(one) in types] if types else agents


def type_of(agent: agent_pb2.Registration) -> str:
    """The type of an agent; by default it is its id."""
    return agent.agent_type or agent.agent_id


def document_of(card: a2a_pb2.AgentCard) -> tuple[bytes, str]:
    """A card as JSON, with what those look for who know version 0.3 only; and its ETag."""
    text = json.dumps(agent_card_to_dict(card), ensure_ascii=False, sort_keys=True).encode()
    return text, tag_of(text)


def tag_of(text: bytes) -> str:
    """The ETag of a document."""
    return f'"{hashlib.sha256(text).hexdigest()[:32]}"'


def _description(route: RouteTo, agents: Sequence[agent_pb2.Registration]) -> str:
    if not route.kind:
        return ""
    said = sorted({one.description for agent in agents for one in agent.capabilities if one.description})
    return " ".join(said)[:2_000] or f"Agents of the type {route.name}."


def _modes(said: Iterable[Iterable[str]], *otherwise: str) -> list[str]:
    """Media types of which one is enough; those who say nothing take any."""
    listed = [list(one) for one in said]
    if not listed or not all(listed):
        return list(otherwise)
    return sorted({media_type for one in listed for media_type in one})


def _skills(
    route: RouteTo, agents: Sequence[agent_pb2.Registration], takes: Sequence[str], answers: Sequence[str]
) -> list[a2a_pb2.AgentSkill]:
    """The union of what they can do, by name; who says nothing of it can do what its type is called. All fields are
    filled: there are callers who miss one that is empty."""
    found: dict[str, a2a_pb2.AgentSkill] = {}
    for agent in sorted(agents, key=lambda one: (type_of(one), one.instance_id)):
        capabilities = agent.capabilities or [agent_pb2.Capability(name=type_of(agent))]
        for capability in capabilities:
            if len(found) >= SKILLS and capability.name not in found:
                continue
            skill = found.setdefault(capability.name, a2a_pb2.AgentSkill(id=capability.name, name=capability.name))
            skill.description = skill.description or capability.description
            _add(skill.tags, (*capability.tags, *agent.tags))
            _add(skill.examples, capability.examples)
            _add(skill.input_modes, capability.input_media_types)
            _add(skill.output_modes, capability.output_media_types)
    for skill in found.values():
        skill.description = skill.description or f"What {route.name or 'the fleet'} calls {skill.name}."
        _add(skill.tags, () if skill.tags else (route.name or "agent",))
        _add(skill.input_modes, () if skill.input_modes else takes)
        _add(skill.output_modes, () if skill.output_modes else answers)
        for field in (skill.tags, skill.input_modes, skill.output_modes):
            field.sort()
    return [found[name] for name in sorted(found)]


def _add(field: Any, values: Iterable[str]) -> None:
    field.extend(one for one in dict.fromkeys(values) if one not in field)
