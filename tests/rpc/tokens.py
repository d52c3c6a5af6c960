"""An issuer of tokens for tests: keys, their JWK Set, and tokens as good or bad as a test wants them."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://login.example/"
AUDIENCE = "agent-reach"


def new_key(algorithm: str, bits: int = 2_048) -> Any:
    """A private key for an algorithm."""
    if algorithm[:2] in ("RS", "PS"):
        return rsa.generate_private_key(65_537, bits)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
    return ec.generate_private_key(curve)


def public(key: Any, **fields: Any) -> dict[str, Any]:
    """The public half of a key as a JWK."""
    half = key.public_key()
    if isinstance(key, rsa.RSAPrivateKey):
        made = jwt.algorithms.RSAAlgorithm.to_jwk(half, as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        made = jwt.algorithms.ECAlgorithm.to_jwk(half, as_dict=True)
    else:
        made = jwt.algorithms.OKPAlgorithm.to_jwk(half, as_dict=True)
    return {name: value for name, value in made.items() if name != "key_ops"} | fields


def key_set(*keys: dict[str, Any]) -> bytes:
    """A JWK Set."""
    return json.dumps({"keys": list(keys)}).encode()


def claims(**fields: Any) -> dict[str, Any]:
    """What a good token says; a field that is None is left out."""
    now = int(time.time())
    usual = {
        "iss": ISSUER, "aud": AUDIENCE, "exp": now + 300, "sub": "user|1", "tenant": "acme", "scope": "caller reader",
    }  # fmt: skip
    return {name: value for name, value in (usual | fields).items() if value is not None}


def token(key: Any, algorithm: str = "ES256", kid: str | None = "k1", header: Any = None, **fields: Any) -> str:
    """A signed token."""
    headers = {**({"kid": kid} if kid is not None else {}), **(header or {})}
    return jwt.encode(claims(**fields), key, algorithm, headers=headers)


def unsigned(header: dict[str, Any], **fields: Any) -> str:
    """A token with any header, and without a signature."""
    parts = (json.dumps(part).encode() for part in (header, claims(**fields)))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), ""])
