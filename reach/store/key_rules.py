"""API keys: what holds whatever keeps them.

A key is `ar_<key_id>_<secret>`. The key_id is public: it is listed, logged and revoked. The secret is 32 random bytes,
shown once. What is kept of it is a plain SHA-256: that is right for 256 random bits, which nobody can guess however
fast the hash is (slow salted hashes are for passwords, which people choose), and lets a call be checked in about 2 µs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from reach.errors import InvalidRequest, Reason, ResourceExhausted
from reach.store.base import ApiKey

SCOPES: Final = frozenset({"agent", "caller", "reader", "operator"})
MAX_KEYS: Final = 10_000
"""Keys in one store, ended ones too. When it is full, keys that ended more than 30 days ago make room."""
COLUMNS: Final = "key_id, hash, tenant, app_id, scopes, created_ms, expires_ms, revoked_ms"
Row = tuple[str, bytes, str, str, str, int, int | None, int | None]
"""The values of COLUMNS."""
Keys = Mapping[str, tuple[ApiKey, bytes]]
"""Keys and the hashes of their secrets, by key_id."""

_NAME: Final = re.compile(r"[a-z0-9._-]{1,64}")
_TOKEN: Final = re.compile(r"ar_([a-z2-7]{13})_([a-z2-7]{52})")
_KEEP_ENDED_MS: Final = 30 * 86_400_000
_MAX_TTL_MS: Final = 100 * 366 * 86_400_000
_NO_HASH: Final = bytes(32)


def check_name(field: str, value: str) -> str:
    """A tenant or app_id of the documented grammar, 1–64 of a–z, 0–9, dot, underscore, hyphen; else InvalidRequest."""
    if not _NAME.fullmatch(value):
        raise InvalidRequest(f"{field} must be 1 to 64 of a-z, 0-9, '.', '_' and '-'", field=field)
    return value


def wall_ms() -> int:
    """Now, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def keys_of(rows: Iterable[Row]) -> Keys:
    """Keys as a store reads them."""
    return {row[0]: (_key_of(row), row[1]) for row in rows}


def _key_of(row: Row) -> ApiKey:
    key_id, _, tenant, app_id, scopes, created_ms, expires_ms, revoked_ms = row
    return ApiKey(key_id, tenant, app_id, frozenset(scopes.split()), created_ms, expires_ms, revoked_ms)


class Change(NamedTuple):
    """What is to be done to the keys, all or nothing."""

    make: Row | None = None
    end: tuple[str, int] | None = None
    """The key_id of one that ends, and when (ms since the epoch)."""
    drop_ended_before: int | None = None
    """Keys that ended before this make room (ms since the epoch)."""


class HashedKeys(ABC):
    """A KeyStore but for keeping: the subclass reads keys and changes them.

    Invariant: `_keys` is replaced whole, never changed, so that it can be read without a lock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._keys: Keys = {}

    @abstractmethod
    def _change(self, decide: Callable[[Keys], Change]) -> None:
        """Does what is decided from the keys as they are, so that nobody changes them in between; then reads them
        again. It may decide anew when somebody else was faster, also after its own change was kept."""

    @abstractmethod
    def _refresh(self) -> None:
        """Reads what others have changed."""

    @abstractmethod
    def _refresh_if_due(self) -> None:
        """The same as far as it is time; in no case may it wait for long, or fail."""

    def create(self, tenant: str, app_id: str, scopes: Iterable[str], ttl_ms: int | None = None) -> tuple[ApiKey, str]:
        """See KeyStore. InvalidRequest for bad names, scopes or times, ResourceExhausted over MAX_KEYS."""
        wanted = frozenset(scopes)
        if not wanted or not wanted <= SCOPES:
            raise InvalidRequest(f"scopes must be some of {', '.join(sorted(SCOPES))}", field="scopes")
        if ttl_ms is not None and not 0 < ttl_ms <= _MAX_TTL_MS:
            raise InvalidRequest("ttl must be more than 0 and at most 100 years", field="ttl")
        now = self._now_ms()
        expires_ms = None if ttl_ms is None else now + ttl_ms
        check_name("tenant", tenant)
        check_name("app_id", app_id)
        fresh = ApiKey(_random_text(8), tenant, app_id, wanted, now, expires_ms)
        secret = _random_text(32)
        self._change(lambda keys: _made(keys, fresh, secret))
        return fresh, f"ar_{fresh.key_id}_{secret}"

    def list_keys(self, tenant: str | None = None, *, after: str = "", limit: int = 100) -> list[ApiKey]:
        """See KeyStore."""
        self._refresh()
        keys = sorted((key for key, _ in self._keys.values()), key=lambda key: (key.created_ms, key.key_id))
        keys = [key for key in keys if tenant is None or key.tenant == tenant]
        start = next((place + 1 for place, key in enumerate(keys) if key.key_id == after), 0)
        return keys[start : start + limit]

    def revoke(self, key_id: str, tenant: str | None = None) -> ApiKey:
        """See KeyStore. InvalidRequest if there is no such key."""
        now = self._now_ms()

        def ended(keys: Keys) -> Change:
            return Change(end=(key_id, now) if _known(keys, key_id, tenant).valid_at(now) else None)

        self._change(ended)
        return _known(self._keys, key_id, tenant)

    def rotate(self, key_id: str, tenant: str | None = None, *, overlap_ms: int = 0) -> tuple[ApiKey, str]:
        """See KeyStore. InvalidRequest if there is no such key or it has ended."""
        if not 0 <= overlap_ms <= _MAX_TTL_MS:
            raise InvalidRequest("overlap must be 0 to 100 years", field="overlap")
        now = self._now_ms()
        fresh_id, secret = _random_text(8), _random_text(32)

        def turned(keys: Keys) -> Change:
            if fresh_id in keys:
                return Change()
            old = _known(keys, key_id, tenant)
            if not old.valid_at(now):
                raise InvalidRequest("the key has ended; create a new one", Reason.WRONG_STATE, key_id=key_id)
            ends = now + overlap_ms
            expires_ms = None if old.expires_ms is None else now + old.expires_ms - old.created_ms
            fresh = ApiKey(fresh_id, old.tenant, old.app_id, old.scopes, now, expires_ms)
            sooner = old.revoked_ms is None or ends < old.revoked_ms
            return _made(keys, fresh, secret)._replace(end=(key_id, ends) if sooner else None)

        self._change(turned)
        return _known(self._keys, fresh_id, None), f"ar_{fresh_id}_{secret}"

    def verify(self, token: str) -> ApiKey | None:
        """See KeyStore. The comparison takes the same time whether the key_id, the secret or nothing is right."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        self._refresh_if_due()
        found = self._keys.get(parts[1])
        key, kept = found if found is not None else (None, _NO_HASH)
        right = hmac.compare_digest(hashlib.sha256(parts[2].encode()).digest(), kept)
        return key if right and key is not None and key.valid_at(self._now_ms()) else None

    def is_valid(self, key_id: str) -> bool:
        """See KeyStore."""
        self._refresh_if_due()
        found = self._keys.get(key_id)
        return found is not None and found[0].valid_at(self._now_ms())


def _known(keys: Keys, key_id: str, tenant: str | None) -> ApiKey:
    found = keys.get(key_id)
    if found is None or (tenant is not None and found[0].tenant != tenant):
        raise InvalidRequest("there is no such key", field="key_id")
    return found[0]


def _made(keys: Keys, key: ApiKey, secret: str) -> Change:
    """Makes the key, and room for it. Nothing is to be done if it is there."""
    if key.key_id in keys:
        return Change()
    row = (key.key_id, hashlib.sha256(secret.encode()).digest(), key.tenant, key.app_id, " ".join(sorted(key.scopes)),
           key.created_ms, key.expires_ms, None)  # fmt: skip
    if len(keys) < MAX_KEYS:
        return Change(row)
    before = key.created_ms - _KEEP_ENDED_MS
    if all(one.valid_at(before - 1) for one, _ in keys.values()):
        raise ResourceExhausted(f"there are {MAX_KEYS} API keys already", Reason.STORE_FULL, limit=str(MAX_KEYS))
    return Change(row, drop_ended_before=before)


def _random_text(size: int) -> str:
    """`size` random bytes as a–z and 2–7: without padding or underscore, and selected whole by a double click."""
    return base64.b32encode(secrets.token_bytes(size)).decode().rstrip("=").lower()
