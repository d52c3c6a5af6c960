"""Errors as data."""

from __future__ import annotations

from reach.core.model import Fault
from reach.errors import ReachError


def fault_of(error: ReachError) -> Fault:
    """An error as data."""
    metadata = dict(error.metadata) or None
    return Fault(error.error_class, error.reason, error.message, metadata, error.retry_after_ms)
