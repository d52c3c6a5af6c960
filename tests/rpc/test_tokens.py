"""JSON Web Tokens as credentials (GOV-2): which are taken, what they open, and how keys of issuers come and go."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.errors import InvalidRequest, ReachError, Reason, Unavailable
from reach.rpc import issuer_keys
from reach.rpc.issuer_keys import IssuerKeys, Read, read_keys
from reach.rpc.tokens import KEPT, Issuer, Tokens, claim
from tests.rpc.tokens import AUDIENCE, ISSUER, claims, key_set, new_key, public, token, unsigned

KEY, OTHER = new_key("ES256"), new_key("ES256")
RSA = new_key("RS256")
ALL = frozenset(issuer_keys.FAMILIES)
RULES = Issuer(
    ISSUER, AUDIENCE, ALL, "", frozenset({"acme", "globex"}), "tenant", "sub", frozenset(), "scope", "", "agent_types"
)


class Source:
    """Where the keys of an issuer come from, and a clock."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self.error = ""
        self.cache_control = ""
        self.reads = 0
        self.now = 1_000.0
        self.keys = IssuerKeys(ISSUER, self.read, lambda: self.now)

    async def read(self) -> Read:
        self.reads += 1
        return Read(b"" if self.error else self.document, self.error, self.cache_control)


async def tokens(*keys: dict[str, Any], rules: Issuer = RULES, **settings: Any) -> Tokens:
    source = Source(key_set(*(keys or (public(KEY, kid="k1"),))))
    assert await source.keys.refresh() == ""
    return Tokens([(rules, source.keys)], **settings)


def refusal(known: Tokens, shown: str) -> tuple[Reason, str]:
    with pytest.raises(ReachError) as caught:
        known.verify(shown)
    return caught.value.reason, caught.value.message


async def test_GOV_2_a_good_token_says_who_calls_and_what_he_may() -> None:
    principal = (await tokens()).verify(token(KEY))
    assert (principal.tenant, principal.app_id, principal.key_id) == ("acme", "user|1", "")
    assert principal.scopes == {"caller", "reader"}
    assert principal.agent_types == frozenset()
    assert principal.still_valid()


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "RS512", "ES256", "ES384", "ES512", "EdDSA"])
async def test_every_family_of_keys_with_and_without_a_name(algorithm: str) -> None:
    key = RSA if algorithm[:2] in ("RS", "PS") else new_key(algorithm)
    for fields in ({"kid": "k1"}, {"kid": "k1", "alg": algorithm, "use": "sig"}, {}):
        known = await tokens(public(OTHER, kid="other"), public(key, **fields))
        kid = "k1" if fields else None
        assert known.verify(token(key, algorithm, kid)).tenant == "acme"


def forged() -> list[tuple[str, str]]:
    """Tokens that somebody without the key could make."""
    good = token(KEY)
    head, body, signature = good.split(".")
    pem = KEY.public_key()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    secret = pem.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    confused = unsigned({"alg": "HS256", "kid": "k1", "typ": "JWT"}).rstrip(".")
    mac = base64.urlsafe_b64encode(hmac.digest(secret, confused.encode(), hashlib.sha256)).decode().rstrip("=")
    return [
        ("none", unsigned({"alg": "none"})),
        ("None", unsigned({"alg": "None", "kid": "k1"})),
        ("no alg", unsigned({"kid": "k1"})),
        ("alg is a list", unsigned({"alg": ["ES256"], "kid": "k1"})),
        ("hmac with the public key", f"{confused}.{mac}"),
        ("another key", token(OTHER)),
        ("another key of its own", token(OTHER, header={"jwk": public(OTHER)})),
        ("another key by a URL", token(OTHER, header={"jku": "http://127.0.0.1/x"})),
        ("a name of no key", token(OTHER, kid="k2")),
        ("a name that is none", token(KEY, kid=None, header={"kid": "../../k1"})),
        ("a critical word", token(KEY, header={"crit": ["b64"], "b64": False})),
        ("no signature", f"{head}.{body}."),
        ("half a signature", f"{head}.{body}.{signature[:40]}"),
        ("another body", f"{head}.{unsigned({}, tenant='globex').split('.')[1]}.{signature}"),
        ("another issuer", token(KEY, iss="https://evil.example/")),
        ("an issuer that is almost the same", token(KEY, iss=ISSUER[:-1])),
        ("no issuer", token(KEY, iss=None)),
        ("an issuer that is no text", _raw({**claims(), "iss": [ISSUER]})),
        ("two parts", f"{head}.{body}"),
        ("nothing", ""),
        ("dots", ".."),
        ("no JSON", "eyJ.eyJ.eyJ"),
        ("not ASCII", "ü.ü.ü"),
        ("a surrogate", "\ud800.a.b"),
        ("too long", token(KEY, x="x" * 9_000)),
    ]


def _raw(body: dict[str, Any]) -> str:
    part = base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")
    return f"{token(KEY).split('.')[0]}.{part}.AAAA"


@pytest.mark.parametrize(("name", "shown"), forged(), ids=[name for name, _ in forged()])
async def test_GOV_2_what_the_issuer_did_not_sign_is_not_told_what_is_wrong(name: str, shown: str) -> None:
    known = await tokens(public(KEY, kid="k1"))
    assert refusal(known, shown) == (Reason.UNAUTHENTICATED, "the credentials are not valid")


async def test_only_the_algorithms_that_are_allowed() -> None:
    known = await tokens(public(RSA, kid="k1"), rules=RULES._replace(algorithms=frozenset({"RS256"})))
    assert known.verify(token(RSA, "RS256")).tenant == "acme"
    assert refusal(known, token(RSA, "PS256"))[0] is Reason.UNAUTHENTICATED
    known = await tokens(public(RSA, kid="k1", alg="RS256"))
    assert refusal(known, token(RSA, "PS256"))[0] is Reason.UNAUTHENTICATED  # the key is for one of them


WRONG: list[tuple[dict[str, Any], Reason, str]] = [
    ({"exp": 1}, Reason.UNAUTHENTICATED, "has expired"),
    ({"exp": None}, Reason.UNAUTHENTICATED, "does not end"),
    ({"exp": "soon"}, Reason.UNAUTHENTICATED, "not valid|no numbers"),
    ({"exp": 1e300}, Reason.UNAUTHENTICATED, "no numbers"),
    ({"exp": True}, Reason.UNAUTHENTICATED, "no numbers"),
    ({"nbf": 9e9}, Reason.UNAUTHENTICATED, "not good yet"),
    ({"aud": "another"}, Reason.UNAUTHENTICATED, "is not for 'agent-reach'"),
    ({"aud": None}, Reason.UNAUTHENTICATED, "is not for 'agent-reach'"),
    ({"aud": ["a", "b"]}, Reason.UNAUTHENTICATED, "is not for 'agent-reach'"),
    ({"tenant": None}, Reason.UNAUTHENTICATED, "names no tenant"),
    ({"tenant": "initech"}, Reason.UNAUTHENTICATED, "names no tenant"),
    ({"tenant": "*"}, Reason.UNAUTHENTICATED, "names no tenant"),
    ({"tenant": ["acme"]}, Reason.UNAUTHENTICATED, "names no tenant"),
    ({"tenant": "acme\n"}, Reason.UNAUTHENTICATED, "names no tenant"),
    ({"sub": ""}, Reason.UNAUTHENTICATED, "names nobody"),
    ({"sub": "a\r\nb"}, Reason.UNAUTHENTICATED, "names nobody"),
    ({"sub": "x" * 300}, Reason.UNAUTHENTICATED, "names nobody"),
    ({"scope": None}, Reason.PERMISSION_DENIED, "'scope' opens nothing"),
    ({"scope": "admin root"}, Reason.PERMISSION_DENIED, "'scope' opens nothing"),
    ({"scope": {"operator": True}}, Reason.PERMISSION_DENIED, "'scope' opens nothing"),
    ({"agent_types": []}, Reason.PERMISSION_DENIED, "'agent_types' opens nothing"),
    ({"agent_types": 7}, Reason.PERMISSION_DENIED, "'agent_types' opens nothing"),
]


@pytest.mark.parametrize(("fields", "reason", "text"), WRONG, ids=[str(row[0]) for row in WRONG])
async def test_GOV_2_a_signed_token_is_told_what_is_wrong(fields: dict[str, Any], reason: Reason, text: str) -> None:
    known = await tokens()
    with pytest.raises(InvalidRequest, match=text) as caught:
        known.verify(token(KEY, **fields))
    assert caught.value.reason is reason


async def test_clocks_may_be_apart_by_the_leeway_and_no_more() -> None:
    now = 1_800_000_000.0
    known = await tokens(leeway_s=30.0, now_s=lambda: now)
    assert known.verify(token(KEY, exp=int(now) - 29, nbf=int(now) + 29)).tenant == "acme"
    late: list[dict[str, Any]] = [{"exp": int(now) - 30}, {"exp": int(now) + 9, "nbf": int(now) + 31}]
    for fields in late:
        assert refusal(known, token(KEY, **fields))[0] is Reason.UNAUTHENTICATED


async def test_GOV_2_a_token_ends_in_the_middle_of_a_call() -> None:
    now = 1_800_000_000.0
    known = await tokens(leeway_s=5.0, now_s=lambda: now)
    shown = token(KEY, exp=int(now) + 10)
    principal = known.verify(shown)
    now += 14
    assert principal.still_valid()
    now += 2
    assert not principal.still_valid()
    assert refusal(known, shown)[1] == "the token has expired"


async def test_claims_by_other_names() -> None:
    rules = RULES._replace(
        tenant="acme", tenants=frozenset(), app_claim="azp", scope_claim="realm_access.roles", scope_prefix="reach:",
        types_claim="types", scopes=frozenset({"reader"}),
    )  # fmt: skip
    known = await tokens(rules=rules)
    roles = {"roles": ["reach:agent", "operator", "reach:root"]}
    principal = known.verify(token(KEY, tenant="globex", azp="App.7", realm_access=roles, types="echo sum"))
    assert (principal.tenant, principal.app_id) == ("acme", "App.7")
    assert principal.scopes == {"agent", "reader"}
    assert principal.agent_types == {"echo", "sum"}
    assert known.verify(token(KEY, azp="b")).scopes == {"reader"}
    assert claim({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert claim({"a": 1}, "a.b") is None


async def test_GOV_2_types_of_agents() -> None:
    principal = (await tokens()).verify(token(KEY, agent_types=["echo"]))
    principal.check_type("echo")
    for other in ("", "sum", "echo2"):
        with pytest.raises(InvalidRequest, match="types echo") as caught:
            principal.check_type(other)
        assert caught.value.reason is Reason.PERMISSION_DENIED


async def test_any_tenant_where_that_is_said() -> None:
    known = await tokens(rules=RULES._replace(tenants=frozenset({"*"})))
    assert known.verify(token(KEY, tenant="initech")).tenant == "initech"


async def test_tokens_that_were_verified_are_found_again_and_not_too_many_are_kept(monkeypatch) -> None:
    known = await tokens()
    shown = token(KEY)
    assert known.verify(shown) is known.verify(shown)
    monkeypatch.setattr("reach.rpc.tokens.KEPT", 3)
    for number in range(5):
        known.verify(token(KEY, sub=f"user{number}"))
    assert len(known._kept) == 3 < KEPT


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_GOV_2_a_key_that_is_replaced_opens_nothing_any_more() -> None:
    source = Source(key_set(public(KEY, kid="k1")))
    await source.keys.refresh()
    known = Tokens([(RULES, source.keys)])
    old, new = token(KEY), token(OTHER, kid="k2")
    principal = known.verify(old)
    source.document = key_set(public(KEY, kid="k1"), public(OTHER, kid="k2"))
    await source.keys.refresh()
    assert principal.still_valid()
    assert known.verify(old) is principal  # the same key is the same
    fresh = known.verify(new)
    source.document = key_set(public(OTHER, kid="k2"))
    await source.keys.refresh()
    assert not principal.still_valid()
    assert fresh.still_valid()
    assert refusal(known, old) == (Reason.UNAUTHENTICATED, "the credentials are not valid")
    source.document = key_set(public(KEY, kid="k2"))  # another key by the same name
    await source.keys.refresh()
    assert not fresh.still_valid()


async def test_an_unknown_key_is_asked_for_at_once_but_not_each_time() -> None:
    source = Source(key_set(public(KEY, kid="k1")))
    known = Tokens([(RULES, source.keys)])
    running = asyncio.ensure_future(source.keys.run())
    with pytest.raises(Unavailable, match="being read") as caught:
        known.verify(token(KEY))  # nothing was read yet
    assert caught.value.retry_after_ms == 1_000
    await _until(lambda: source.reads == 1)
    assert known.verify(token(KEY)).tenant == "acme"
    source.document = key_set(public(OTHER, kid="k2"))
    assert refusal(known, token(OTHER, kid="k2"))[0] is Reason.UNAUTHENTICATED  # it was read a moment ago
    source.now += issuer_keys.UNKNOWN_SECONDS
    assert refusal(known, token(OTHER, kid="k2"))[0] is Reason.STORE_UNAVAILABLE
    await _until(lambda: source.reads == 2)
    assert known.verify(token(OTHER, kid="k2")).tenant == "acme"
    for number in range(100):
        assert refusal(known, token(OTHER, kid=f"x{number}"))[0] is Reason.UNAUTHENTICATED
    await asyncio.sleep(0)
    assert source.reads == 2
    running.cancel()


async def _until(done: Any) -> None:
    for _ in range(1_000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError


async def test_keys_that_cannot_be_read_again_hold_for_a_day() -> None:
    source = Source(key_set(public(KEY, kid="k1")))
    await source.keys.refresh()
    known = Tokens([(RULES, source.keys)])
    for error, document in (("away", b""), ("", b"<html>"), ("", b'{"keys": []}'), ("", b"[]")):
        source.error, source.document = error, document
        assert await source.keys.refresh()
        assert known.verify(token(KEY)).tenant == "acme"
    source.now += issuer_keys.STALE_SECONDS + 1
    assert refusal(known, token(KEY))[0] is Reason.STORE_UNAVAILABLE


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("", 300), ("no-store", 300), ("public, max-age=600", 600), ("max-age=1", 60), ("max-age=999999", 3_600),
     ("MAX-AGE=120", 120), ("s-maxage=120", 300), ("max-age=" + "9" * 50, 300)],
)  # fmt: skip
def test_an_issuer_says_how_long_its_keys_hold_within_bounds(said: str, seconds: float) -> None:
    assert issuer_keys._hold_s(said) == seconds


def test_keys_that_cannot_verify_are_passed_over() -> None:
    good = public(KEY, kid="good")
    odd: list[Any] = [
        None, 7, [], {}, {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}, {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        public(new_key("RS256", 1_024), kid="weak"), {**good, "use": "enc"}, {**good, "key_ops": ["sign"]},
        {**good, "kid": 7}, {**good, "alg": "HS256"}, {**good, "alg": "ES384x"}, {**good, "crv": "P-999"},
        {**good, "crv": "secp256k1"}, {**good, "x": "AAAA"}, {**good, "x": 7},
        {"kty": "OKP", "crv": "X25519", "x": good["x"]},
    ]  # fmt: skip
    assert [key.kid for key in read_keys(key_set(*odd, good))] == ["good"]
    with pytest.raises(ValueError, match="none of its keys"):
        read_keys(key_set(*odd))
    assert len(read_keys(key_set(*([good] * 500)))) == issuer_keys.KEYS


def test_a_private_key_in_the_set_is_used_by_its_public_half() -> None:
    whole = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY))
    assert "d" in whole
    (key,) = read_keys(key_set({**whole, "kid": "k1"}))
    assert "d" not in dict(key.public)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_HEADERS = st.fixed_dictionaries(
    {}, optional={"alg": st.sampled_from([*ALL, "none", "HS256"]) | _JSON, "kid": st.just("k1") | _JSON, "typ": _JSON,
                  "crit": _JSON, "b64": _JSON},
)  # fmt: skip
_CLAIMS = st.fixed_dictionaries(
    {}, optional={name: st.just(value) | _JSON for name, value in {**claims(), "nbf": 0, "agent_types": ["a"]}.items()}
)


@pytest.fixture(scope="module")
def known_once() -> Tokens:
    return asyncio.run(tokens())


@settings(max_examples=int(os.environ.get("REACH_HOSTILE", "100")), deadline=None)
@given(header=_HEADERS, said=_CLAIMS, signs=st.booleans())
def test_GOV_5_whatever_a_token_says_it_is_taken_or_refused(
    known_once: Tokens, header: dict[str, Any], said: dict[str, Any], signs: bool
) -> None:
    shown = _signed(header, said) if signs else unsigned(header, **said)
    try:
        principal = known_once.verify(shown)
    except InvalidRequest:
        return
    assert signs, "nobody signed it"
    assert principal.tenant in ("acme", "globex")
    assert principal.scopes <= {"agent", "caller", "reader", "operator"}


def _signed(header: dict[str, Any], said: dict[str, Any]) -> str:
    """Signed by the right key, whatever it says of itself."""
    parts = (json.dumps(part).encode() for part in ({**header, "alg": "ES256", "kid": "k1"}, said))
    text = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    made = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).sign(text.encode(), KEY)
    return f"{text}.{base64.urlsafe_b64encode(made).decode().rstrip('=')}"
