"""`reach backup` and `reach restore`: the journal and the API keys of a server or a cluster, while it serves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.settings import json_option, settings_of
from reach.cli.terminal import write, write_facts, write_json

if TYPE_CHECKING:
    from reach.config import Config

_FILE: Final = click.Path(exists=True, dir_okay=False)
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


def _place_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        click.option("--config", "file", type=_FILE, metavar="FILE", help="The server's configuration file."),
        click.option("--journal", metavar="URL", help="The database of a cluster, postgres://USER@HOST:PORT/DATABASE."),
        click.option("--data", type=click.Path(file_okay=False), metavar="DIR", help="The server's data folder."),
    ):
        command = option(command)
    return json_option(command)


@click.command()
@click.argument("target", type=_FOLDER)
@_place_options
@click.pass_context
def backup(context: click.Context, target: Path, file: str | None, journal: str | None, data: str | None) -> int:
    """Copy all tasks, agents, sessions and API keys into the new folder TARGET, while the server serves.

    What was acknowledged before this command began is in the backup. It holds payloads: keep it as safe as the server.
    """
    from reach.backups import back_up

    said = back_up(_config(file, journal, data), target)
    if settings_of(context).json:
        write_json({key: value for key, value in said.items() if key not in ("columns", "sequences")})
        return Exit.OK
    size = sum(one["bytes"] for one in said["files"].values())
    write(f"{target}: {said['counts']['tasks']} tasks, {size} bytes, schema version {said['schema']}\n")
    return Exit.OK


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_place_options
@click.pass_context
def restore(context: click.Context, source: Path, file: str | None, journal: str | None, data: str | None) -> int:
    """Put the backup SOURCE into an empty data folder or database, before a server is started on it.

    Nothing is overwritten. Who owned shards of a cluster before is fenced. What was accepted after the backup is not
    there; what ended after it runs again.
    """
    from reach.backups import restore as put

    said = put(_config(file, journal, data), source)
    counts = said["counts"]
    if settings_of(context).json:
        write_json({"made": said["made"], "schema": said["schema"], **counts})
        return Exit.OK
    write_facts(
        [
            ("backup of", f"{said['made']}, by version {said['program']}"),
            ("tasks", str(counts["tasks"])),
            ("wait", f"{counts['waiting']}, for an agent as before"),
            ("had begun", f"{counts['begun']}: run again, unless their agent comes back within 30 s and names them"),
            ("of these", f"{counts['granted']} whose irreversible effect had begun: dead letters (OUTCOME_UNKNOWN)"),
            ("to be told", f"{counts['facts']} ends (webhooks, turns), again under the same ids"),
        ]
    )
    return Exit.OK


def _config(file: str | None, journal: str | None, data: str | None) -> Config:
    """The configuration that says where the journal is."""
    from reach.cli.serve import overrides_of
    from reach.config import ConfigError, load

    if journal is not None and data is not None:
        raise click.UsageError("--journal and --data name two places: give one")
    overrides: dict[str, Any] = {"storage.path": data, "storage.type": "sqlite" if data is not None else None}
    if journal is not None:
        overrides = overrides_of(journal, None)
    try:
        return load(file, os.environ, overrides)
    except ConfigError as error:
        raise click.ClickException(error.message) from error
