"""The audit log: who of the operators did what (GOV-2). Lines of the logger `reach.audit`, at INFO."""

from __future__ import annotations

import logging

from reach.rpc.principal import Principal

log = logging.getLogger("reach.audit")


def audit(principal: Principal, act: str, **details: object) -> None:
    """An operator's act was done.

    Args:
        principal: Who.
        act: What, as the method is called.
        **details: To what, and how much; ids and counts, never content.
    """
    log.info(act, extra={"tenant": principal.tenant, "app_id": principal.app_id, **details})
