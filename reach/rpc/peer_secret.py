"""How nodes prove themselves to each other: by a secret that all nodes of a cluster have and nobody else.

The secret itself never travels. A node sends its id, the time, and an HMAC of these and of the id of the node that it
speaks to; so what is overheard opens nothing at other nodes, and nothing at all after `SECONDS`. Whoever can also
change what travels can do more than that: over networks that are not trusted, use TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from reach.errors import InvalidRequest, Reason

KEY: Final = "x-reach-peer"
"""The metadata that carries the proof."""
SECONDS: Final = 300
"""How long a proof holds, and how far the clocks of two nodes may differ."""
RENEW_SECONDS: Final = 30
LEAST: Final = 16
"""Bytes that a secret has at least."""
_VERSION: Final = "1"


class PeerSecret:
    """Makes and checks proofs.

    Args:
        secret: What all nodes of the cluster have.
        node_id: This node.
        wall_ms: The clock.

    Raises:
        InvalidRequest: The secret is too short to be one.
    """

    def __init__(self, secret: bytes, node_id: str, wall_ms: Callable[[], int]) -> None:
        if len(secret) < LEAST:
            raise InvalidRequest(f"the secret of a cluster has at least {LEAST} bytes, this one has {len(secret)}")
        self._secret = secret
        self._node_id = node_id
        self._wall_ms = wall_ms
        self._made: dict[str, tuple[int, str]] = {}

    def proof(self, to: str) -> str:
        """What to send to a node."""
        now = self._wall_ms() // 1_000
        at, made = self._made.get(to, (0, ""))
        if not at <= now < at + RENEW_SECONDS:
            made = f"{_VERSION}:{now}:{self._mac(self._node_id, to, now)}:{self._node_id}"
            if len(self._made) >= 1_000:
                self._made.clear()
            self._made[to] = now, made
        return made

    def check(self, proof: str) -> str:
        """The node that sent a proof.

        Raises:
            InvalidRequest: UNAUTHENTICATED. It does not say which part is wrong.
        """
        version, _, rest = proof.partition(":")
        at, _, rest = rest.partition(":")
        mac, _, node_id = rest.partition(":")
        if version == _VERSION and node_id and at.isascii() and at.isdigit() and len(at) < 16:
            sent = int(at)
            good = hmac.compare_digest(mac.encode(), self._mac(node_id, self._node_id, sent).encode())
            if good and abs(self._wall_ms() // 1_000 - sent) <= SECONDS:
                return node_id
        raise InvalidRequest("this is for nodes of this cluster, with its secret and its time", Reason.UNAUTHENTICATED)

    def _mac(self, sender: str, to: str, at: int) -> str:
        parts = (_VERSION, sender, to, str(at))
        said = "".join(f"{len(part)}:{part}" for part in parts).encode()
        return hmac.new(self._secret, said, hashlib.sha256).hexdigest()
