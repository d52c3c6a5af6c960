"""Who is calling: an API key, a token, a client certificate, or on a server without authentication the local one."""

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
_SEND: Final = "send 'authorization: Bearer <API key or token>' (SDKs, reach: AGENT_REACH_API_KEY)"
_STRANGER: Final = "this client certificate is none of server.client_identities: have it added there"
_NAMES: Final = ("x509_subject_alternative_name", "x509_common_name")
_LONGEST_TOKEN: Final = 512
KEY_PREFIX: Final = "ar_"
"""Of all API keys; a token of an issuer begins with `ey`."""

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


class Validity(Protocol):
    """Tells whether credentials that were good are good still, from memory."""

    def is_valid(self, key_id: str) -> bool:
        """Whether a key still opens anything."""


class KeyVerifier(Validity, Protocol):
    """Where keys are checked (store/keys.py); both methods answer from memory."""

    def verify(self, token: str) -> VerifiedKey | None:
        """The key that a token opens now, or None."""


class TokenVerifier(Protocol):
    """Where JSON Web Tokens are checked (rpc/tokens.py), from memory."""

    def verify(self, token: str) -> Principal:
        """Who shows a token. Raises ReachError: nobody, or it cannot be told yet."""


class Principal:
    """Who calls, for the length of the call.

    Attributes:
        tenant: Whose tasks, agents and sessions this caller sees.
        app_id: The application, for limits and session keys.
        scopes: What it may do.
        key_id: Public part of its API key; empty for all others.
        agent_types: The only types of agents that it may be, and may give tasks to; empty: all.
    """

    __slots__ = ("_keys", "agent_types", "app_id", "key_id", "scopes", "tenant")

    def __init__(
        self,
        tenant: str,
        app_id: str,
        scopes: frozenset[str],
        key_id: str = "",
        keys: Validity | None = None,
        agent_types: frozenset[str] = frozenset(),
    ) -> None:
        self.tenant = tenant
        self.app_id = app_id
        self.scopes = scopes
        self.key_id = key_id
        self.agent_types = agent_types
        self._keys = keys

    @property
    def can_end(self) -> bool:
        """Whether it may be told no more at some time: certificates are looked at once, in the handshake."""
        return self._keys is not None

    def still_valid(self) -> bool:
        """Whether the key was neither revoked nor expired since the call began.

        Servicers of calls that stay open ask at least every 60 s, and raise `credentials_ended()` if not. It costs
        about 0.5 µs, so asking with every frame is fine too.
        """
        return self._keys is None or self._keys.is_valid(self.key_id)

    def check_type(self, agent_type: str) -> None:
        """Raises InvalidRequest (PERMISSION_DENIED) for a type of agents that is none of its own: for one that it wants
        to be, or gives a task to. A task must name its type then: what else selects agents may come to any."""
        if self.agent_types and agent_type not in self.agent_types:
            known = ", ".join(sorted(self.agent_types)[:10])
            message = f"these credentials are for agents of the types {known}"
            raise InvalidRequest(f"{message}, not for {agent_type!r}", Reason.PERMISSION_DENIED)

    def __repr__(self) -> str:
        return f"Principal({self.tenant}/{self.app_id} {' '.join(sorted(self.scopes))})"


def credentials_ended() -> InvalidRequest:
    """What ends an open call whose credentials are no longer valid."""
    return InvalidRequest("the API key or token was revoked or has expired", Reason.UNAUTHENTICATED)


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
    @property
    def agent_types(self) -> frozenset[str]: ...


class KeyAuthentication:
    """API keys, tokens of issuers, and client certificates that the configuration names. If a call brings a key or
    token and a certificate, the certificate does not count."""

    def __init__(
        self, keys: KeyVerifier, identities: Iterable[Identity] = (), tokens: TokenVerifier | None = None
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._identities = {
            row.identity.encode(): Principal(
                row.tenant, row.app_id, frozenset(row.scopes), agent_types=frozenset(row.agent_types)
            )
            for row in identities
        }

    def authenticate(self, authorization: str, peer: Callable[[], PeerProperties]) -> Principal:
        """See Authenticator. One answer for all that is wrong: it tells nobody which part was right."""
        if authorization:
            token = authorization[len(_SCHEME) :]
            is_bearer = authorization[: len(_SCHEME)].lower() == _SCHEME
            if is_bearer and self._tokens is not None and not token.startswith(KEY_PREFIX):
                return self._tokens.verify(token)
            if is_bearer and len(token) <= _LONGEST_TOKEN:
                key = self._keys.verify(token)
                if key is not None:
                    return Principal(key.tenant, key.app_id, key.scopes, key.key_id, self._keys)
            said = "the credentials are not valid" if is_bearer else f"these are no credentials: {_SEND}"
            raise InvalidRequest(said, Reason.UNAUTHENTICATED)
        if self._identities:
            properties = peer()
            # gRPC fills these only from a certificate that the configured authority signed.
            for name in _NAMES:
                for identity in properties.get(name, ()):
                    principal = self._identities.get(identity)
                    if principal is not None:
                        return principal
            if any(properties.get(name) for name in _NAMES):
                raise InvalidRequest(f"{_STRANGER}; or {_SEND}", Reason.UNAUTHENTICATED)
        raise InvalidRequest(f"credentials are needed: {_SEND}", Reason.UNAUTHENTICATED)


_principal: Final[ContextVar[Principal]] = ContextVar("reach_principal")
set_principal: Final = _principal.set


def principal_of(context: grpc.aio.ServicerContext[Any, Any] | None) -> Principal:
    """Who makes the call that is being handled. The interceptor has set it before any servicer runs."""
    return _principal.get()
