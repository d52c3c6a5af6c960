"""What an AgentCard says, as a registration of ours.

The operator's word beats the card's: its URL, its names, its slots. The card's own URL is often one that only the agent
itself can use (`0.0.0.0`); where it is no address at all, the host that the card came from is taken.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from a2a.client.card_resolver import parse_agent_card
from a2a.types.a2a_pb2 import AgentCard, AgentInterface, AgentSkill, SecurityScheme
from google.protobuf import json_format

from agentreach.v1 import agent_pb2
from reach.transports.a2a.calls import BINDINGS
from reach.wire.a2a.words import CURSOR, RUNTIME
from reach.wire.agents import BOUNDS, CAPABILITIES, EXAMPLES
from reach.wire.requests import ID_BYTES, TAGS, VALUE_BYTES, invalid
from reach.wire.status import bounded_text
from reach.wire.urls import Target, read_url

FIELD: Final = "terms.card_url"
WELL_KNOWN: Final = "/.well-known/agent-card.json"
CARD_BYTES: Final = 256 << 10
DESCRIPTION_BYTES: Final = 2 << 10
EXAMPLE_BYTES: Final = 1 << 10

_MODES: Final = {"text": "text/plain", "data": "application/json", "json": "application/json"}
"""Modes of cards that are no media types, as examples of A2A 0.2 had them."""
_ANY: Final = frozenset({"*", "*/*", "file"})
_GRPC: Final = re.compile(
    r"(?:(grpcs?|https?|a2a\+https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?/?\Z"
)
_OURS: Final = (
    "its card is of an Agent-Reach: if that is this one, tasks that nobody takes go in circles; remove it then"
)
_SLUG: Final = re.compile(r"[^a-z0-9._]+")


class Adopting(NamedTuple):
    """A card as a registration."""

    registration: agent_pb2.Registration
    warnings: list[str]


def card_target(card_url: str) -> Target:
    """Where a card is. Raises InvalidRequest."""
    target = read_url(card_url.removeprefix("a2a+"), FIELD)
    return target._replace(path=WELL_KNOWN) if target.path == "/" else target


def read_card(body: bytes) -> AgentCard:
    """A card of version 1.0 or 0.3, with whatever else is in it. Raises InvalidRequest."""
    try:
        said = json.loads(body)
        if not isinstance(said, dict) or not said.get("name"):
            raise ValueError("it is no object with a name")
        return parse_agent_card(said)
    except (ValueError, TypeError, AttributeError, RecursionError, json_format.Error) as error:
        why = bounded_text(str(error), 256)
        raise invalid(FIELD, f"there is no agent card that can be read: {why}") from error


def registration_of(card: AgentCard, terms: agent_pb2.AdoptionTerms) -> Adopting:
    """What a card comes to, on the operator's terms.

    Raises:
        InvalidRequest: It names no interface that we can call.
    """
    warnings: list[str] = []
    target = card_target(terms.card_url)
    r = agent_pb2.Registration(agent_type=terms.agent_type, region=terms.region, zone=terms.zone)
    r.agent_id = terms.agent_id or _slug(card.name)
    interface = _interface_of(card, terms)
    url = _url_of(interface, terms.url, target, warnings)
    endpoint = r.endpoints.add(url=url, auth_reference=terms.auth_reference)
    endpoint.card.CopyFrom(
        agent_pb2.AdoptedCard(
            terms=terms,
            binding=interface.protocol_binding,
            protocol_version=bounded_text(interface.protocol_version or "1.0", 32),
            tenant=bounded_text(interface.tenant, ID_BYTES),
            streaming=card.capabilities.streaming,
            name=bounded_text(card.name, ID_BYTES),
            organization=bounded_text(card.provider.organization, ID_BYTES),
            documentation_url=bounded_text(card.documentation_url, VALUE_BYTES),
        )
    )
    _credentials(card, terms, endpoint.card, warnings)
    kept = endpoint.card.terms  # what was made of a name stays, also when the name changes
    kept.agent_id, kept.agent_type = r.agent_id, terms.agent_type or r.agent_id
    mark = hashlib.blake2b(f"{target.origin}{target.path}".encode(), digest_size=8).hexdigest()
    address = urlsplit(url.removeprefix("a2a+")).netloc
    r.instance_id = terms.instance_id or f"{r.agent_id}@{address}#{mark[:6]}"
    kept.instance_id = r.instance_id
    r.boot_id = f"a2a-{mark}"  # it does not say which process it is
    r.version = bounded_text(card.version, ID_BYTES)
    r.sdk = f"a2a {endpoint.card.protocol_version} {endpoint.card.binding}"
    r.tags.extend(terms.tags)
    r.labels.update(terms.labels)
    r.allowed_tenants.extend(terms.allowed_tenants)
    r.input_media_types.extend([] if terms.any_media else _modes(card.default_input_modes))
    r.output_media_types.extend(_modes(card.default_output_modes))
    if len(card.skills) > CAPABILITIES:
        warnings.append(f"the card has {len(card.skills)} skills; the first {CAPABILITIES} are taken")
    for skill in card.skills[:CAPABILITIES]:
        if skill.id:
            _fill_capability(r.capabilities.add(), card, skill)
    for capability in r.capabilities if terms.any_media else ():
        del capability.input_media_types[:]
    _runtime(card, r)
    if any(extension.uri == CURSOR for extension in card.capabilities.extensions):
        warnings.append(_OURS)
    for name in ("weight", "priority", "max_concurrency"):
        if terms.HasField(name):
            setattr(r, name, getattr(terms, name))
    return Adopting(r, warnings)


def _slug(name: str) -> str:
    """A name as an id: it is not unique, so an operator with two agents of one name gives them ids."""
    return bounded_text(_SLUG.sub("-", name.lower()).strip("-."), 128) or "a2a-agent"


def _fill_capability(capability: agent_pb2.Capability, card: AgentCard, skill: AgentSkill) -> None:
    """A skill; what it does not say of media is said by its card."""
    capability.name = bounded_text(skill.id, ID_BYTES)
    words = [one for one in (skill.name, skill.description) if one] or [card.description]
    capability.description = bounded_text(": ".join(words), DESCRIPTION_BYTES)
    capability.examples.extend(bounded_text(one, EXAMPLE_BYTES) for one in skill.examples[:EXAMPLES])
    capability.tags.extend(bounded_text(tag, ID_BYTES) for tag in dict.fromkeys(skill.tags[:TAGS]) if tag)
    capability.input_media_types.extend(_modes(skill.input_modes))
    capability.output_media_types.extend(_modes(skill.output_modes))


def _modes(modes: Iterable[str]) -> list[str]:
    """Media types; empty where it takes any."""
    said = [_MODES.get(mode.strip().lower(), mode.strip().lower()) for mode in modes if mode.strip()]
    return [] if _ANY.intersection(said) else [bounded_text(one, ID_BYTES) for one in dict.fromkeys(said)][:TAGS]


def _runtime(card: AgentCard, r: agent_pb2.Registration) -> None:
    """What a card of another Agent-Reach, or one that knows us, says beyond A2A."""
    for extension in card.capabilities.extensions:
        if extension.uri != RUNTIME:
            continue
        said: dict[str, Any] = json_format.MessageToDict(extension.params)
        r.region = r.region or bounded_text(str(said.get("region", "")), ID_BYTES)
        for name in ("weight", "max_concurrency"):
            value, (least, most) = said.get(name), BOUNDS[name]
            if isinstance(value, int | float) and least <= value <= most:
                setattr(r, name, int(value))


# -- where, and with what ----------------------------------------------------------------------------------------------


def _interface_of(card: AgentCard, terms: agent_pb2.AdoptionTerms) -> AgentInterface:
    """The first interface that we can call."""
    for interface in card.supported_interfaces:
        version = interface.protocol_version or "1.0"
        if interface.protocol_binding in BINDINGS and version.startswith(("1.", "0.3")):
            return interface
    said = [f"{one.protocol_binding} {one.protocol_version}" for one in card.supported_interfaces]
    known = ", ".join(BINDINGS)
    text = f"the card names {', '.join(said) or 'no interface'}; {known} of A2A 1.0 and 0.3 can be called"
    raise invalid(FIELD, bounded_text(text, 512))


def _url_of(interface: AgentInterface, given: str, target: Target, warnings: list[str]) -> str:
    """Where calls go: what the operator says, else what the card says, if that is an address."""
    said = given or interface.url
    field = "terms.url" if given else FIELD
    if interface.protocol_binding == "GRPC":
        found = _GRPC.match(said)
        if found is None:
            raise invalid(field, f"the interface {bounded_text(said, 128)!r} is no host and port")
        scheme, host, port = found[1] or "", found[2], found[3]
        tls = scheme.removeprefix("a2a+") in ("grpcs", "https") if scheme else target.tls
        path = ""
        port = port or ("443" if tls else "80")
    else:
        there = read_url(said.removeprefix("a2a+"), field)
        tls, port, path = there.tls, str(there.port), "" if there.path == "/" and not said.endswith("/") else there.path
        host = f"[{there.host}]" if ":" in there.host else there.host
    if not given and _is_nowhere(host):
        warnings.append(f"the card says {interface.url}, which is no address: {target.host} is taken, or say --url")
        host = f"[{target.host}]" if ":" in target.host else target.host
    return f"a2a+{'https' if tls else 'http'}://{host}:{port}{path}"


def _is_nowhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _credentials(
    card: AgentCard, terms: agent_pb2.AdoptionTerms, kept: agent_pb2.AdoptedCard, warnings: list[str]
) -> None:
    """Where the credentials go that the operator names, by what the card asks for first."""
    asked = [name for requirement in card.security_requirements[:1] for name in requirement.schemes]
    if asked and not terms.auth_reference:
        warnings.append(f"the card asks for credentials ({', '.join(asked)}): say --credential")
    for name in asked:
        scheme: SecurityScheme = card.security_schemes[name]
        match scheme.WhichOneof("scheme"):
            case "api_key_security_scheme":
                key = scheme.api_key_security_scheme
                if key.location.lower() == "header" and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key.name):
                    kept.credential_header = key.name.lower()
                else:
                    warnings.append(f"credentials in the {key.location or 'request'} are not sent ({name})")
            case "http_auth_security_scheme":
                said = scheme.http_auth_security_scheme.scheme
                if said.lower() != "bearer" and re.fullmatch(r"[A-Za-z0-9_-]{1,32}", said):
                    kept.credential_scheme = said
            case "mtls_security_scheme":
                warnings.append(f"certificates are not shown to agents ({name})")
