"""The public keys of an issuer of tokens (RFC 7517): read from a file or a URL, kept, and read again (GOV-2).

What was read holds until something better comes: an issuer that is away for a while locks nobody out, but not for ever,
or a key that it has withdrawn would open for ever too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from reach.telemetry.logs import RepeatedLogger

DOCUMENT_BYTES: Final = 256 << 10
KEYS: Final = 100
"""Keys of one issuer; more are passed over."""
LOOK_SECONDS: Final = 300.0
"""How often keys are read again where the issuer does not say how long they hold (`Cache-Control: max-age`)."""
SHORTEST_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 3_600.0
UNKNOWN_SECONDS: Final = 10.0
"""How often an unknown key lets them be read at once, and how soon a reading that failed is tried again."""
STALE_SECONDS: Final = 24 * 3_600.0
"""How long keys hold that cannot be read again."""
RSA_BITS: Final = 2_048

FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    **{f"{family}{size}": ("RSA", "") for family in ("RS", "PS") for size in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Kind and curve of the key that an algorithm needs. All have a public half: what can verify cannot sign."""

_PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age=([0-9]{1,9})(?:$|[\s,;])", re.IGNORECASE)

_log: Final = logging.getLogger(__name__)
_failures: Final = RepeatedLogger(_log)


class Read(NamedTuple):
    """What reading a document came to."""

    body: bytes = b""
    error: str = ""
    """Why there is none."""
    cache_control: str = ""


class IssuerKey(NamedTuple):
    """A key that verifies."""

    kid: str
    kind: tuple[str, str]
    """Kind and curve, as in FAMILIES."""
    alg: str
    """The one algorithm that it is for; empty: any of its kind."""
    public: tuple[tuple[str, str], ...]
    """Its numbers, which tell it apart."""
    key: Any
    """As the library wants it."""

    def fits(self, kid: str, algorithm: str) -> bool:
        """Whether a token with this header may be signed by it."""
        return kid in ("", self.kid) and self.kind == FAMILIES[algorithm] and self.alg in ("", algorithm)


def read_keys(document: bytes) -> list[IssuerKey]:
    """The keys of a JWK Set that can verify; the others are passed over. Raises ValueError if it is none."""
    try:
        entries = msgspec.json.decode(document, type=dict[str, Any]).get("keys")
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no JSON object: {error}") from None
    if not isinstance(entries, list):
        raise ValueError("it has no list 'keys'")
    found = [key for entry in entries[:KEYS] if isinstance(entry, dict) and (key := _read_key(entry)) is not None]
    if not found:
        raise ValueError("none of its keys can verify tokens (RSA from 2048 bits, P-256, P-384, P-521, Ed25519)")
    return found


def _read_key(entry: Mapping[str, Any]) -> IssuerKey | None:
    public = {name: entry[name] for name in _PUBLIC if name in entry}
    kind = (public.get("kty"), public.get("crv", ""))
    algorithm = next((name for name, needed in FAMILIES.items() if needed == kind), "")
    kid, alg = entry.get("kid", ""), entry.get("alg", "")
    verifies = entry.get("use", "sig") == "sig" and "verify" in entry.get("key_ops", ["verify"])
    texts = [*public.values(), kid, alg]
    if not algorithm or not verifies or not all(isinstance(text, str) for text in texts) or alg not in ("", *FAMILIES):
        return None
    try:
        key = PyJWK.from_dict(public, algorithm=algorithm).key
    except (PyJWTError, ValueError, TypeError):
        return None
    if kind[0] == "RSA" and key.key_size < RSA_BITS:
        return None
    return IssuerKey(kid, FAMILIES[algorithm], alg, tuple(sorted(public.items())), key)


class IssuerKeys:
    """The keys of one issuer. Its owner runs `run`.

    Args:
        issuer: Its name, for the log.
        read: Reads the document.
        now_s: Monotonic, in seconds.
    """

    def __init__(
        self, issuer: str, read: Callable[[], Awaitable[Read]], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._read = read
        self._now_s = now_s
        self._keys: list[IssuerKey] = []
        self._read_at: float | None = None
        """When a reading last went well."""
        self._tried_at: float | None = None
        self._due = asyncio.Event()
        self._reading = False
        self._next_s = 0.0

    def find(self, kid: str, algorithm: str) -> list[IssuerKey]:
        """The keys that a token with this header may be signed by."""
        return [key for key in self._current() if key.fits(kid, algorithm)]

    def holds(self, key: IssuerKey) -> bool:
        """Whether a key is still the issuer's."""
        return any(key is one for one in self._current())

    def _current(self) -> list[IssuerKey]:
        if self._read_at is None or self._now_s() > self._read_at + STALE_SECONDS:
            return []
        return self._keys

    def ask(self) -> bool:
        """Somebody shows a token of a key that is not known. Returns whether the keys are being read now, so that it is
        worth his while to come again; not each such token is: whoever makes them up would decide how often we ask."""
        if self._tried_at is None or self._now_s() >= self._tried_at + UNKNOWN_SECONDS:
            self._due.set()
        return self._reading or self._due.is_set()

    async def refresh(self) -> str:
        """Reads the keys again. Returns why they cannot be read; empty if they can."""
        self._due.clear()
        self._reading = True
        try:
            read = await self._read()
        finally:
            self._reading = False
            self._tried_at = self._now_s()
        error = read.error
        if not error:
            try:
                self._take(read_keys(read.body))
            except ValueError as failure:
                error = str(failure)
        self._next_s = UNKNOWN_SECONDS if error else _hold_s(read.cache_control)
        return error

    def _take(self, found: list[IssuerKey]) -> None:
        """What is the same as before stays the same object: tokens that were verified by it go on."""
        before = {(key.kid, key.alg, key.public): key for key in self._keys}
        names = [(key.kid, key.alg, key.public) for key in found]
        new = [before.get(name, key) for name, key in zip(names, found, strict=True)]
        if self._read_at is None or new != self._keys:
            _log.info("keys of an issuer", extra={"issuer": self._issuer, "key_ids": [key.kid[:64] for key in new]})
        self._keys, self._read_at = new, self._now_s()

    async def run(self) -> None:
        """Reads them when it is time, until it is cancelled."""
        while True:
            if self._tried_at is not None:
                try:
                    async with asyncio.timeout(self._next_s):
                        await self._due.wait()
                except TimeoutError:
                    pass  # it is time
            if error := await self.refresh():
                fields = {"issuer": self._issuer, "error": error}
                _failures.warning(
                    self._issuer, "the keys of an issuer cannot be read; those read before hold", **fields
                )


def _hold_s(cache_control: str) -> float:
    said = _MAX_AGE.search(cache_control)
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, float(said[1]))) if said else LOOK_SECONDS
