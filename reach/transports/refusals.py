"""Whether nobody listens at an agent's address: that is certain, where no answer is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

REFUSED_S: Final = 2.0
"""How long to find out whether a connection is refused."""


async def all_refuse(ips: Iterable[str], port: int, timeout_s: float = REFUSED_S) -> bool:
    """Whether all addresses refuse a connection: the machine is there, and nobody listens."""
    return all([await _refuses(ip, port, timeout_s) for ip in ips])


async def _refuses(ip: str, port: int, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(ip, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
