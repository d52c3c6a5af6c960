"""A node whose process is dead is taken out of the cluster before its lease lapses (CLU-3).

The proof is that its machine refuses connections where it was reached before; silence proves nothing, for it is also
what a cut line looks like from one side. A conviction that is wrong all the same (a firewall may refuse in somebody's
name) costs a move, never data: epochs fence the owner, and it joins again by itself. It then has proved that it lives,
so that no process is convicted twice by one node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from reach.cluster.base import ClusterError, Membership, NodeInfo, Standing
from reach.runtime.ownership import Peer

log = logging.getLogger(__name__)

LOOKS_MS: Final = (0, 20, 50, 100, 200, 400)
"""Waits before each look at the address: a process that dies may close its links a little before what listens."""
PROBE_SECONDS: Final = 1.0
"""How long a look may take; longer is no answer, and no proof."""
PROCESSES: Final = 1_000
"""Processes that are remembered as convicted; the oldest are forgotten."""

Refuses = Callable[[str], Awaitable[bool | None]]


class Convictions:
    """See the module.

    Args:
        membership: Who is there; and this node is one of them.
        refuses: Whether an address refuses connections; None: there is no answer.
    """

    def __init__(self, membership: Membership, refuses: Refuses | None = None) -> None:
        self._membership = membership
        self._refuses = refuses if refuses is not None else refuses_connections
        self._convicted: dict[tuple[str, str], None] = {}
        self._looking: dict[tuple[str, str], asyncio.Task[None]] = {}

    def suspect(self, peer: Peer) -> None:
        """A link to a node broke that had answered on it."""
        info = self._membership.nodes().get(peer.node_id)
        if info is None or info.peer_address != peer.address:
            return  # it left, or another process has its name
        key = info.node_id, info.boot
        if key in self._convicted or key in self._looking:
            return
        looking = self._looking[key] = asyncio.create_task(self._look(info), name="convict")
        looking.add_done_callback(lambda _: self._looking.pop(key, None))

    async def _look(self, info: NodeInfo) -> None:
        for wait_ms in LOOKS_MS:
            await asyncio.sleep(wait_ms / 1000)
            refused = await self._refuses(info.peer_address)
            if refused is None:
                return
            if refused:
                break
        else:
            return
        if self._membership.standing is not Standing.MEMBER:
            return  # it may be us who are not there
        while len(self._convicted) >= PROCESSES:
            del self._convicted[next(iter(self._convicted))]
        self._convicted[info.node_id, info.boot] = None
        try:
            convicted = await self._membership.convict(info.node_id, info.boot)
        except ClusterError as error:
            log.warning("a dead node cannot be taken out, its lease will lapse: %s", error)
            return
        if convicted:
            log.warning(
                "a node is dead: its machine refuses connections, and others take over",
                extra={"node": info.node_id, "address": info.peer_address},
            )

    async def stop(self) -> None:
        """Ends all looks."""
        looking = list(self._looking.values())
        for one in looking:
            one.cancel()
        await asyncio.gather(*looking, return_exceptions=True)


async def refuses_connections(address: str) -> bool | None:
    """Whether a machine refuses connections at `host:port`; None: it does not answer, or the address leads nowhere."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return None
    writer.close()
    return False
