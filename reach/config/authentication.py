"""From the configuration to who may call."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reach.config.sections import Config
from reach.config.tokens import JwtIssuer
from reach.errors import InvalidRequest, ReachError
from reach.rpc.principal import Authenticator, KeyAuthentication, KeyVerifier, NoAuthentication, PeerProperties
from reach.transports.fetching import fetch
from reach.wire.addresses import AgentRules
from reach.wire.urls import read_url

if TYPE_CHECKING:
    from reach.rpc.issuer_keys import Read


class Authentication(NamedTuple):
    """Who tells who calls."""

    authenticator: Authenticator
    refreshing: list[Callable[[], Any]]
    """Coroutine functions that keep the keys of issuers fresh, for as long as the node serves."""


async def authentication(config: Config, keys: KeyVerifier | None) -> Authentication:
    """By API keys, tokens and certificates; without keys nobody is asked.

    Raises:
        InvalidRequest: tokens are configured, and the package for them is missing, or a file of keys is none.
    """
    if keys is None:
        return Authentication(NoAuthentication(), [])
    identities, jwt = config.server.client_identities, config.jwt
    if not jwt.issuers:
        return Authentication(KeyAuthentication(keys, identities), [])
    try:
        from reach.rpc.issuer_keys import IssuerKeys
        from reach.rpc.tokens import Issuer, Tokens
    except ImportError as error:
        raise InvalidRequest(f"jwt.issuers needs a package: pip install 'agentreach[jwt]' ({error})") from error
    issuers = []
    for one in jwt.issuers:
        known = IssuerKeys(one.issuer, _reader(one))
        if one.keys_file and (why := await known.refresh()):
            raise InvalidRequest(f"jwt.issuers: the keys of {one.issuer!r} in {one.keys_file}: {why}")
        rules = Issuer(
            one.issuer, one.audience, frozenset(one.algorithms), one.tenant, one.tenants, one.tenant_claim,
            one.app_claim, frozenset(one.scopes), one.scope_claim, one.scope_prefix, one.types_claim,
        )  # fmt: skip
        issuers.append((rules, known))
    tokens = Tokens(issuers, jwt.leeway)
    return Authentication(KeyAuthentication(keys, identities, tokens), [known.run for _, known in issuers])


def readers_of(
    authenticator: Authenticator, *, certificate_required: bool
) -> Callable[[str, Callable[[], PeerProperties]], bool]:
    """Who may read `/metrics`: whoever has the scope reader or operator; all where nobody is asked, if they have a
    certificate where one is required."""

    def may_read(authorization: str, certificate: Callable[[], PeerProperties]) -> bool:
        if certificate_required and not certificate():
            return False
        try:
            principal = authenticator.authenticate(authorization, certificate)
        except ReachError:
            return False
        return not principal.scopes.isdisjoint({"reader", "operator"})

    return may_read


def _reader(one: JwtIssuer) -> Callable[[], Awaitable[Read]]:
    """Reads the keys of an issuer, from where the configuration says."""
    from reach.rpc.issuer_keys import DOCUMENT_BYTES, Read

    def from_file() -> Read:
        try:
            with Path(one.keys_file).open("rb") as file:
                return Read(file.read(DOCUMENT_BYTES), cache_control="max-age=60")
        except OSError as error:
            return Read(error=f"cannot read {one.keys_file}: {error.strerror}")

    async def read_file() -> Read:
        return await asyncio.to_thread(from_file)

    async def read_url_of_issuer() -> Read:
        try:
            tls = await asyncio.to_thread(ssl.create_default_context, cafile=one.keys_ca or None)
        except OSError as error:
            return Read(error=f"{one.keys_ca} cannot be used: {error}")
        rules = AgentRules(on_loopback=True)  # it is the configuration that names it
        target = read_url(one.keys_url, "jwt.issuers")
        found = await fetch(target, rules.refusal, tls=tls, limit=DOCUMENT_BYTES)
        return Read(found.body, found.error, found.headers.get("cache-control", ""))

    return read_file if one.keys_file else read_url_of_issuer
