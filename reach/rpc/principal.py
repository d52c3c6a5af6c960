"""Who is calling: an API key, a client certificate, or on a server without authentication the local one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from reach.errors import InvalidRequest, Reason
from reach.rpc.access import SCOPES

if TYPE_CHECKING:
    import grpc

LOCAL_TENANT: Final = "default"
LOCAL_APP: Final = "local"
_SCHEME: Final = "bearer "
_LONGEST_TOKEN: Final = 512

PeerProperties = Mapping[str, Iterable[bytes]]
"""What gRPC tells of the peer's certificate: `ServicerContext.auth_context()`."""


class Rights(Protocol):
    """What a key or a certificate opens."""

    @property
    def tenant(self) -> str: ...
    @property
    def app_id(self) -> str: ...
    @property
    def scopes(self) -> frozenset[str]: ...


class VerifiedKey(Rights, Protocol):
    """A key that was good when it was asked for."""

    @property
    def key_id(self) -> str: ...


class KeyVerifier(Protocol):
    """Where keys are checked (store/keys.py); both methods answer from memory."""

    def verify(self, token: str) -> VerifiedKey | None:
        """The key that a token opens now, or None."""

    def is_valid(self, key_id: str) -> bool:
        """Whether a key still opens anything."""


class Principal:
    """Who calls, for the length of the call.

    Attributes:
        tenant: Whose tasks, agents and sessions this caller sees.
        app_id: The application, for limits and session keys.
        scopes: What it may do.
        key_id: Public part of its API key; empty for certificates and the local principal.
    """

    __slots__ = ("_keys", "app_id", "key_id", "scopes", "tenant")

    def __init__(
        self, tenant: str, app_id: str, scopes: frozenset[str], key_id: str = "", keys: KeyVerifier | None = None
    ) -> None:
        self.tenant = tenant
        self.app_id = app_id
        self.scopes = scopes
        self.key_id = key_id
        self._keys = keys

    def still_valid(self) -> bool:
        """Whether the key was neither revoked nor expired since the call began.

        Servicers of calls that stay open ask at least every 60 s, and raise `credentials_ended()` if not. It costs
        about 0.5 µs, so asking with every frame is fine too.
        """
        return self._keys is None or self._keys.is_valid(self.key_id)

    def __repr__(self) -> str:
        return f"Principal({self.tenant}/{self.app_id} {' '.join(sorted(self.scopes))})"


def credentials_ended() -> InvalidRequest:
    """What ends an open call whose key is no longer valid."""
    return InvalidRequest("the API key was revoked or has expired", Reason.UNAUTHENTICATED)


class Authenticator(Protocol):
    """Tells who calls."""

    def authenticate(self, authorization: str, peer: Callable[[], PeerProperties]) -> Principal:
        """The principal; InvalidRequest with UNAUTHENTICATED if nobody is known by these credentials.

        Args:
            authorization: The header as it came; empty if there was none.
            peer: Asks for the peer's certificate, which costs a few µs.
        """


class NoAuthentication:
    """Everybody is the local principal and may do everything: for loopback, or where it was asked for."""

    def __init__(self) -> None:
        self._local = Principal(LOCAL_TENANT, LOCAL_APP, SCOPES)

    def authenticate(self, authorization: str, peer: Callable[[], PeerProperties]) -> Principal:
        """See Authenticator. Credentials are not looked at."""
        return self._local


class Identity(Rights, Protocol):
    """A row of the configuration: who a client certificate stands for."""

    @property
    def identity(self) -> str: ...


class KeyAuthentication:
    """API keys, and client certificates that the configuration names. If a call brings both, the key counts."""

    def __init__(self, keys: KeyVerifier, identities: Iterable[Identity] = ()) -> None:
        self._keys = keys
        self._identities = {
            row.identity.encode(): Principal(row.tenant, row.app_id, frozenset(row.scopes)) for row in identities
        }

    def authenticate(self, authorization: str, peer: Callable[[], PeerProperties]) -> Principal:
        """See Authenticator. One answer for all that is wrong: it tells nobody which part was right."""
        if authorization:
            token = authorization[len(_SCHEME) :]
            if authorization[: len(_SCHEME)].lower() == _SCHEME and len(token) <= _LONGEST_TOKEN:
                key = self._keys.verify(token)
                if key is not None:
                    return Principal(key.tenant, key.app_id, key.scopes, key.key_id, self._keys)
            raise InvalidRequest("the credentials are not valid", Reason.UNAUTHENTICATED)
        if self._identities:
            properties = peer()
            # gRPC fills these only from a certificate that the configured authority signed.
            for name in ("x509_subject_alternative_name", "x509_common_name"):
                for identity in properties.get(name, ()):
                    principal = self._identities.get(identity)
                    if principal is not None:
                        return principal
        raise InvalidRequest(
            "credentials are needed: send the metadata 'authorization: Bearer <API key>'", Reason.UNAUTHENTICATED
        )


_principal: Final[ContextVar[Principal]] = ContextVar("reach_principal")
set_principal: Final = _principal.set


def principal_of(context: grpc.aio.ServicerContext[Any, Any] | None) -> Principal:
    """Who makes the call that is being handled. The interceptor has set it before any servicer runs."""
    return _principal.get()
