"""The section about tokens, and what its fields must hold together."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from reach.config.fields import Scope, Section, Text
from reach.errors import InvalidRequest
from reach.wire.urls import read_url

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip
Claim = Annotated[str, Meta(min_length=1, max_length=256)]


class JwtIssuer(Section, frozen=True):
    """Who makes tokens, and what they open."""

    issuer: Annotated[str, Meta(min_length=1, max_length=1024)]
    audience: Annotated[str, Meta(min_length=1, max_length=1024)]
    keys_file: Text = ""
    keys_url: Annotated[str, Meta(max_length=2048)] = ""
    keys_ca: Text = ""
    algorithms: Annotated[frozenset[Algorithm], Meta(min_length=1)] = frozenset(
        {"RS256", "PS256", "ES256", "ES384", "EdDSA"}
    )
    tenant: Annotated[str, Meta(pattern=r"^[a-z0-9._-]{0,64}\Z")] = ""
    tenants: Annotated[
        frozenset[Annotated[str, Meta(pattern=r"^(?:\*|[a-z0-9._-]{1,64})\Z")]], Meta(max_length=1000)
    ] = frozenset()
    tenant_claim: Claim = "tenant"
    app_claim: Claim = "sub"
    scopes: frozenset[Scope] = frozenset()
    scope_claim: Claim = "scope"
    scope_prefix: Annotated[str, Meta(max_length=256)] = ""
    types_claim: Claim = "agent_types"


class Jwt(Section, frozen=True):
    """JSON Web Tokens as credentials, beside API keys (docs/operations.md). Needs `server.auth: keys`, and
    `pip install 'agentreach[jwt]'`."""

    issuers: Annotated[list[JwtIssuer], Meta(max_length=100)] = field(default_factory=list)
    """Who makes tokens: a list of `issuer` (the claim `iss`, exactly), `audience` (what `aud` must have), its public
    keys as `keys_file` or `keys_url` (a JWK Set; read anew by itself; `keys_ca`: who signs the certificate of the
    URL, else the system's), `algorithms` (without it RS256, PS256, ES256, ES384, EdDSA), `tenant` (of all its
    tokens), or `tenants` (those that the claim `tenant_claim` may name; `*`: all), `app_claim` (who it is; else
    `sub`), `scopes` (what every token opens), `scope_claim` and `scope_prefix` (what more it opens; else `scope`, and
    no prefix) and `types_claim` (the only types of agents that it may be and may give tasks to; else
    `agent_types`)."""
    leeway: Annotated[float, Meta(ge=0, le=300)] = 30.0
    """Seconds that the clocks of issuers may be apart from ours. Too small: fresh tokens are refused. Too large:
    expired ones are not."""


def broken_issuers(jwt: Jwt, auth: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """What does not fit together."""
    fields = ("jwt.issuers",)
    if jwt.issuers and auth != "keys":
        yield (*fields, "server.auth"), "jwt.issuers needs server.auth keys"
    names = [one.issuer for one in jwt.issuers]
    for name in sorted({one for one in names if names.count(one) > 1}):
        yield fields, f"jwt.issuers has {name!r} twice"
    for one in jwt.issuers:
        if bool(one.keys_file) == bool(one.keys_url):
            yield fields, f"jwt.issuers: {one.issuer!r} needs either keys_file or keys_url"
        if bool(one.tenant) == bool(one.tenants):
            yield fields, f"jwt.issuers: {one.issuer!r} needs either tenant or tenants"
        for path in filter(None, (one.keys_file, one.keys_ca)):
            if not os.access(path, os.R_OK):
                yield fields, f"jwt.issuers: a file of {one.issuer!r} cannot be read: {path}"
        if one.keys_url and not _is_safe(one.keys_url):
            yield fields, f"jwt.issuers: keys_url of {one.issuer!r} must be https://host[:port]/path, without a user"


def _is_safe(url: str) -> bool:
    """Who can change what comes on the way can make tokens, so it comes by TLS, or from this machine."""
    try:
        target = read_url(url, "jwt.issuers")
    except InvalidRequest:
        return False
    try:
        return target.tls or ipaddress.ip_address(target.host).is_loopback
    except ValueError:
        return target.host == "localhost"
