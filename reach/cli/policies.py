"""Own policies of a configuration, for commands that need no server: `reach route check` and `simulate`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from reach.core.policies import Policy

config_option: Final = click.option(
    "--config", metavar="FILE", help="Configuration with own policies (router.policies), as `reach serve` takes it."
)


def policies_in(config: str | None) -> Mapping[str, Policy]:
    """All routing policies by name: those that are built in, and those of a file."""
    from reach.config import ConfigError, load
    from reach.config.watching import policies_of
    from reach.core.policies import POLICIES

    if config is None:
        return POLICIES
    try:
        loaded = load(config, os.environ)
    except ConfigError as error:
        raise click.ClickException(error.message) from error
    return policies_of(loaded.router, loaded.matcher).known
