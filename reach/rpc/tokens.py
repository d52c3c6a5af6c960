"""JSON Web Tokens as credentials (GOV-2, RFC 7519): an issuer that the configuration names says who calls and what he
may do; only its public keys are known here, so that nobody who reads them can make tokens.

Imported where an issuer is configured: `pip install 'agentreach[jwt]'`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import jwt

from reach.errors import InvalidRequest, Reason, Unavailable
from reach.rpc.access import SCOPES
from reach.rpc.issuer_keys import FAMILIES, IssuerKey, IssuerKeys
from reach.rpc.principal import Principal
from reach.telemetry.logs import RepeatedLogger

TOKEN_BYTES: Final = 8 << 10
KEPT: Final = 10_000
"""Verified tokens that are remembered: verifying one takes some 100 µs, finding it again 2."""
CLAIM_BYTES: Final = 256
TYPES: Final = 100
ANY: Final = "*"
_TENANT: Final = re.compile(r"[a-z0-9._-]{1,64}")

_log: Final = logging.getLogger(__name__)
_refusals: Final = RepeatedLogger(_log)


class Issuer(NamedTuple):
    """What the configuration says of an issuer."""

    issuer: str
    """The claim `iss`, exactly."""
    audience: str
    """What the claim `aud` must have."""
    algorithms: frozenset[str]
    tenant: str
    """Of all its tokens; empty: the claim says it."""
    tenants: frozenset[str]
    """The tenants that the claim may name; `*`: all."""
    tenant_claim: str
    app_claim: str
    scopes: frozenset[str]
    """What every token opens, beside what its claim says."""
    scope_claim: str
    scope_prefix: str
    types_claim: str


class _Verified(NamedTuple):
    """A token that was good: as long as its time lasts and its key is the issuer's (`principal.Validity`)."""

    until_s: float
    key: IssuerKey
    keys: IssuerKeys
    now_s: Callable[[], float]

    def is_valid(self, key_id: str) -> bool:
        return self.now_s() < self.until_s and self.keys.holds(self.key)


class Tokens:
    """All issuers.

    Args:
        issuers: Each with its keys.
        leeway_s: How far clocks may be apart.
        now_s: The wall clock, in seconds.
    """

    def __init__(
        self,
        issuers: Iterable[tuple[Issuer, IssuerKeys]],
        leeway_s: float = 30.0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._issuers = {issuer.issuer: (issuer, keys) for issuer, keys in issuers}
        self._leeway_s = leeway_s
        self._now_s = now_s
        self._kept: OrderedDict[bytes, tuple[_Verified, Principal]] = OrderedDict()

    def verify(self, token: str) -> Principal:
        """Who shows this token.

        Raises:
            InvalidRequest: UNAUTHENTICATED: it is none of a known issuer, or not good now; what is said of it before
                its signature was good tells nobody which part was right. PERMISSION_DENIED: it opens nothing here.
            Unavailable: its key is not known yet, and is being asked for.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        kept = self._kept.get(digest)
        if kept is not None:
            if kept[0].is_valid(""):
                self._kept.move_to_end(digest)
                return kept[1]
            del self._kept[digest]
        issuer, keys, key, claims = self._claims(token)
        until_s = self._time(claims)
        principal = _principal(issuer, claims, _Verified(until_s, key, keys, self._now_s))
        self._kept[digest] = (_Verified(until_s, key, keys, self._now_s), principal)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return principal

    def _claims(self, token: str) -> tuple[Issuer, IssuerKeys, IssuerKey, Mapping[str, Any]]:
        """What it says, once its signature was found good."""
        try:
            if len(token) > TOKEN_BYTES:
                raise jwt.InvalidTokenError("too long")
            told = jwt.decode_complete(token, options={"verify_signature": False})
        except (jwt.InvalidTokenError, ValueError, RecursionError):
            raise _refused("malformed") from None
        header, name = told["header"], told["payload"].get("iss")
        algorithm, kid = header.get("alg"), header.get("kid", "")
        issuer, keys = self._issuers.get(name if isinstance(name, str) else "", (None, None))
        if issuer is None or keys is None:
            raise _refused("issuer")
        is_known = isinstance(algorithm, str) and algorithm in issuer.algorithms
        if not is_known or not isinstance(kid, str) or "crit" in header:
            raise _refused("header", issuer)
        candidates = keys.find(kid, algorithm)
        if not candidates and keys.ask():
            raise Unavailable(
                "the keys of the token's issuer are being read: try again", Reason.STORE_UNAVAILABLE,
                retry_after_ms=1_000,
            )  # fmt: skip
        for key in candidates:
            try:
                claims = jwt.decode(
                    token, key.key, algorithms=[algorithm], audience=issuer.audience, issuer=issuer.issuer,
                    options={"require": ["exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
                )  # fmt: skip
            except jwt.InvalidSignatureError:
                continue
            except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError) as error:
                lacks = getattr(error, "claim", "aud")
                raise _refused(lacks, issuer, f"the token is not for {issuer.audience!r}, or does not end") from None
            except (jwt.InvalidTokenError, ValueError):
                raise _refused("claims", issuer) from None
            return issuer, keys, key, claims
        raise _refused("signature" if candidates else "key", issuer)

    def _time(self, claims: Mapping[str, Any]) -> float:
        """Until when it is good. Raises InvalidRequest if it is not good now."""
        now = self._now_s()
        until: Any = claims.get("exp")
        since: Any = claims.get("nbf", 0)
        if not _is_time(until) or not _is_time(since):
            raise _refused("time", said="the token's times are no numbers")
        if now >= until + self._leeway_s:
            raise _refused("exp", said="the token has expired")
        if now < since - self._leeway_s:
            raise _refused("nbf", said="the token is not good yet")
        return float(until) + self._leeway_s


def _principal(issuer: Issuer, claims: Mapping[str, Any], verified: _Verified) -> Principal:
    """Who it is, by the claims."""
    tenant = issuer.tenant or claim(claims, issuer.tenant_claim)
    allowed = {issuer.tenant} if issuer.tenant else issuer.tenants
    is_name = isinstance(tenant, str) and _TENANT.fullmatch(tenant) is not None
    if not is_name or allowed.isdisjoint({tenant, ANY}):
        said = f"the token's claim {issuer.tenant_claim!r} names no tenant that its issuer may speak for"
        raise _refused("tenant", issuer, said)
    app = claim(claims, issuer.app_claim)
    if not isinstance(app, str) or not 0 < len(app) <= CLAIM_BYTES or not app.isprintable():
        raise _refused("app", issuer, f"the token's claim {issuer.app_claim!r} names nobody")
    words = {word.removeprefix(issuer.scope_prefix) for word in _words(claims, issuer.scope_claim, issuer.scope_prefix)}
    scopes = issuer.scopes | (words & SCOPES)
    types = frozenset(_words(claims, issuer.types_claim))
    limited = claim(claims, issuer.types_claim) is not None
    if not scopes or len(types) > TYPES or (limited and not types):
        what = issuer.types_claim if scopes else issuer.scope_claim
        _refusals.warning(f"{issuer.issuer} {what}", "a token opens nothing", issuer=issuer.issuer, claim=what)
        raise InvalidRequest(f"the token's claim {what!r} opens nothing here", Reason.PERMISSION_DENIED)
    return Principal(tenant, app, scopes, keys=verified, agent_types=types)


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by its way through objects (`realm_access.roles`); None if there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _words(claims: Mapping[str, Any], name: str, prefix: str = "") -> list[str]:
    """The words of a claim that is a list, or a text with spaces; those with the prefix."""
    found = claim(claims, name)
    words = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
    return [
        word for word in words if isinstance(word, str) and 0 < len(word) <= CLAIM_BYTES and word.startswith(prefix)
    ]


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def _refused(why: str, issuer: Issuer | None = None, said: str = "the credentials are not valid") -> InvalidRequest:
    name = issuer.issuer if issuer is not None else ""
    _refusals.warning(f"{name} {why}", "a token was refused", issuer=name, by=why)
    return InvalidRequest(said, Reason.UNAUTHENTICATED)


ALGORITHMS: Final = frozenset(FAMILIES)
"""All that may be allowed."""
