"""A2A agents that become members of the fleet: by their cards, and by what changes in them (API-3)."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Protocol

from agentreach.v1 import agent_pb2
from reach.core.endpoint import Endpoint
from reach.core.joining import Joining
from reach.core.model import Instance, PoolKey
from reach.errors import ReachError
from reach.runtime.reach_api import Reach
from reach.transports.dialled import Dialled
from reach.transports.fetching import fetch
from reach.transports.seam import Way
from reach.transports.ways import load_a2a
from reach.wire.addresses import read_address
from reach.wire.agents import merged, read_registration
from reach.wire.requests import check_id, invalid

if TYPE_CHECKING:
    from reach.transports.a2a.card import Adopting
    from reach.transports.dialler import DialSettings

log = logging.getLogger(__name__)


class Registrar(Protocol):
    """Who dials agents, and registers those that are to be dialled."""

    reach: Reach
    settings: DialSettings

    async def way(self, tenant: str, endpoint: Endpoint) -> tuple[Way | None, list[str]]:
        """Where an endpoint is, and what is odd about it."""

    async def register(self, tenant: str, agent_type: str, joining: Joining) -> tuple[Instance, list[str]]:
        """Registers an instance, and checks it at once."""


async def adopt(
    registrar: Registrar, tenant: str, terms: agent_pb2.AdoptionTerms
) -> tuple[Instance, agent_pb2.Registration, list[str]]:
    """Reads a card and registers what it says.

    Returns:
        The instance, its registration, and what is odd about it.

    Raises:
        ReachError: The terms are wrong, there is no card, or the agent cannot be called.
        Elsewhere: Another node has its pool.
    """
    for field in ("card_url", "agent_id", "agent_type", "instance_id", "url", "auth_reference", "region", "zone"):
        check_id(f"terms.{field}", getattr(terms, field), required=field == "card_url")
    await load_a2a()
    from reach.transports.a2a.card import CARD_BYTES, FIELD, card_target

    settings = registrar.settings
    target = card_target(terms.card_url)
    headers = {"accept": "application/json"}
    if terms.auth_reference:
        address = read_address(f"a2a+{target.origin}")
        # Where the card is on another host than the agent, the credentials may be for that one only.
        try:
            token, _ = settings.credentials.token(tenant, terms.auth_reference, address)
            headers["authorization"] = f"Bearer {token}"
        except ReachError as error:
            log.debug("a card is read without credentials: %s", error.message)
    roots = settings.credentials.tls_roots
    tls = ssl.create_default_context(cadata=roots.decode("ascii")) if roots else None
    got = await fetch(target, settings.rules.refusal, headers=headers, tls=tls, limit=CARD_BYTES)
    if got.error or not got.body:
        raise invalid(FIELD, f"{target.origin}{target.path}: {got.error or 'there is no card'}")
    found = await _whole(registrar, tenant, got.body, terms)
    agent_type, joining = read_registration(found.registration)
    registrar.reach.check_here(PoolKey(tenant, agent_type))
    await registrar.reach.patience.over()
    joining.warnings = (*joining.warnings, *found.warnings)
    instance, wrong = await registrar.register(tenant, agent_type, joining)
    return instance, found.registration, [*instance.warnings, *wrong]


async def _whole(registrar: Registrar, tenant: str, body: bytes, terms: agent_pb2.AdoptionTerms) -> Adopting:
    """What a card says, and what the agent says beyond it to those whose credentials it knows. Raises ReachError."""
    from reach.transports.a2a.calls import CallFailed
    from reach.transports.a2a.card import read_card, registration_of
    from reach.transports.a2a.endpoint import A2aWay

    card = read_card(body)
    found = registration_of(card, terms)
    if not (card.capabilities.extended_agent_card and terms.auth_reference):
        return found
    _, joining = read_registration(agent_pb2.Registration.FromString(found.registration.SerializeToString()))
    assert joining.endpoint is not None
    way, _ = await registrar.way(tenant, joining.endpoint)
    if not isinstance(way, A2aWay):
        return found
    calls = way.calls()
    try:
        extended = await calls.extended_card()
        if not extended.supported_interfaces:  # they are those of the card that it extends
            extended.supported_interfaces.extend(card.supported_interfaces)
        return registration_of(extended, terms)
    except (CallFailed, ReachError) as failure:
        found.warnings.append(f"its extended card cannot be read: {failure}")
        return found
    finally:
        await calls.close()


async def card_changed(registrar: Registrar, target: Dialled, body: bytes) -> None:
    """Takes over what a card says now, on the terms of before. A card that cannot be taken changes nothing."""
    former = target.joining.registration
    terms = agent_pb2.Registration.FromString(former).endpoints[0].card.terms
    try:
        found = await _whole(registrar, target.tenant, body, terms)
        agent_type, joining = read_registration(found.registration)
        if merged(former, joining.registration) == former:
            return
        joining.warnings = (*joining.warnings, *found.warnings)
        await registrar.register(target.tenant, agent_type, joining)
    except ReachError as error:
        log.warning("the new card of %s is not taken: %s", target.joining.instance_id, error.message)
    else:
        log.info("the card of %s has changed", target.joining.instance_id)
