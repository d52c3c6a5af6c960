"""`reach keys`: who may call. Works on the data folder of a server, or the database of a cluster; servers notice within
a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from reach.cli.exits import Exit
from reach.cli.settings import json_option, settings_of
from reach.cli.terminal import moment, say, write, write_json, write_table
from reach.cli.values import DURATION

if TYPE_CHECKING:
    from reach.store.base import ApiKey, KeyStore

_PAGE: Final = 1_000
_SCOPES: Final = ("agent", "caller", "reader", "operator")


@click.group(short_help="Make, list, end and renew API keys.")
def keys() -> None:
    """Make, list, end and renew API keys, for a server with `--auth keys`.

    Scopes: `agent` joins and works, `caller` gives tasks, `reader` looks, `operator`
    looks, drains, cancels, and manages dead letters, sessions and keys.
    """


class Place(NamedTuple):
    """Where keys are kept, as the options say."""

    data: str | None
    file: str | None
    journal: str | None


def _place_options(command: Callable[..., int]) -> Callable[..., int]:
    """Options that name the place, which the command gets as one argument."""

    @wraps(command)
    def placed(*given: Any, data: str | None, file: str | None, journal: str | None, **others: Any) -> int:
        return command(*given, place=Place(data, file, journal), **others)

    for option in (
        click.option(
            "--config", "file", type=click.Path(exists=True, dir_okay=False), help="The server's configuration file."
        ),
        click.option("--journal", metavar="URL", help="The database of a cluster, postgres://USER@HOST:PORT/DATABASE."),
        click.option("--data", type=click.Path(file_okay=False), metavar="DIR", help="The server's data folder."),
    ):
        placed = option(placed)
    return json_option(placed)


@keys.command()
@click.option("--tenant", default="default", show_default=True, help="Whose tasks and agents it opens.")
@click.option("--app", "app_id", required=True, help="Who uses it: the application.")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(_SCOPES), help="Repeatable.")
@click.option("--ttl", type=DURATION, help="How long it is valid, such as 30d (default: for ever).")
@_place_options
@click.pass_context
def create(
    context: click.Context,
    tenant: str,
    app_id: str,
    scopes: tuple[str, ...],
    ttl: float | None,
    place: Place,
) -> int:
    """Make a key. Its secret goes to stdout, this once; it is kept nowhere."""
    with _store(place, make=True) as store:
        key, token = store.create(tenant, app_id, scopes, None if ttl is None else round(ttl * 1000))
    return _show_secret(context, key, token)


@keys.command("list")
@click.option("--tenant", help="Only of this tenant.")
@_place_options
@click.pass_context
def list_keys(context: click.Context, tenant: str | None, place: Place) -> int:
    """All keys, oldest first, without their secrets."""
    found: list[ApiKey] = []
    with _store(place) as store:
        while page := store.list_keys(tenant, after=found[-1].key_id if found else "", limit=_PAGE):
            found.extend(page)
    if settings_of(context).json:
        write_json({"keys": [_fields(key) for key in found]})
        return Exit.OK
    if not found:
        write("No keys. `reach keys create` makes one.\n")
        return Exit.OK
    write_table(("KEY", "TENANT", "APP", "<SCOPES", "CREATED", "ENDS", "STATE"), map(_row, found))
    return Exit.OK


@keys.command()
@click.argument("key_id", metavar="KEY_ID")
@_place_options
@click.pass_context
def revoke(context: click.Context, key_id: str, place: Place) -> int:
    """End a key at once. KEY_ID is its public part, as `list` shows it; the whole key will do too."""
    with _store(place) as store:
        key = store.revoke(_public_part(key_id))
    if settings_of(context).json:
        write_json(_fields(key))
    else:
        write(f"{key.key_id} {_state(key)}\n")
    return Exit.OK


@keys.command()
@click.argument("key_id", metavar="KEY_ID")
@click.option("--overlap", type=DURATION, default=0.0, help="How long the old key goes on (default: not at all).")
@_place_options
@click.pass_context
def rotate(context: click.Context, key_id: str, overlap: float, place: Place) -> int:
    """Make a key with the same rights and lifetime, and end the old one."""
    with _store(place) as store:
        key, token = store.rotate(_public_part(key_id), overlap_ms=round(overlap * 1000))
    return _show_secret(context, key, token)


@contextmanager
def _store(place: Place, *, make: bool = False) -> Iterator[KeyStore]:
    """The keys that a server would use with the same options."""
    data, file, journal = place
    if journal is not None:
        if data is not None:
            raise click.UsageError("--journal and --data name two places for keys: give one")
        if not journal.startswith(("postgres://", "postgresql://")):
            raise click.UsageError("--journal must be postgres://USER@HOST:PORT/DATABASE")
    opened, where = _of_database(journal) if journal is not None else _of_config(data, file, make=make)
    with closing(opened) as store:
        yield store
    if make:
        say(f"kept in {where} takes it within a second")


def _of_database(address: str) -> tuple[KeyStore, str]:
    from reach.store.postgres_keys import PostgresKeyStore

    return PostgresKeyStore(address), "the database; each server with --auth keys and this database"


def _of_config(data: str | None, file: str | None, *, make: bool) -> tuple[KeyStore, str]:
    from reach.config import ConfigError, load
    from reach.errors import InvalidRequest
    from reach.store.keys import FILE_NAME, SqliteKeyStore

    # Whether keys are asked for at all does not matter here; a memory server keeps them in the folder too.
    kind = "sqlite" if data is not None else None
    try:
        config = load(file, os.environ, {"storage.path": data, "storage.type": kind})
        if config.storage.type == "postgres":
            from reach.stores import database_of

            return _of_database(database_of(config))
        config = load(file, os.environ, {"storage.path": data, "storage.type": "sqlite"})
    except ConfigError as error:
        raise click.ClickException(error.message) from error
    folder = Path(config.storage.path)
    if not make and not (folder / FILE_NAME).exists():
        raise InvalidRequest(f"there are no keys in {folder}: --data names the folder of the server")
    return SqliteKeyStore(folder), f"{folder / FILE_NAME}; a server with --auth keys and this data folder"


def _show_secret(context: click.Context, key: ApiKey, token: str) -> int:
    if settings_of(context).json:
        write_json({**_fields(key), "secret": token})
        return Exit.OK
    scopes = ", ".join(sorted(key.scopes))
    ends = "for ever" if key.expires_ms is None else f"until {moment(key.expires_ms / 1000)}"
    say(f"key {key.key_id}: tenant {key.tenant}, app {key.app_id}, {scopes}, {ends}")
    say("This is the only time that it is shown:")
    write(f"{token}\n")
    return Exit.OK


def _public_part(text: str) -> str:
    return text.split("_")[1] if text.startswith("ar_") and text.count("_") == 2 else text


def _state(key: ApiKey) -> str:
    import time

    now_ms = time.time_ns() // 1_000_000
    if key.valid_at(now_ms):
        return "valid"
    return "revoked" if key.revoked_ms is not None and key.revoked_ms <= now_ms else "expired"


def _ends(key: ApiKey) -> str:
    ends = [at for at in (key.expires_ms, key.revoked_ms) if at is not None]
    return moment(min(ends) / 1000) if ends else "never"


def _row(key: ApiKey) -> tuple[str, ...]:
    scopes = ", ".join(sorted(key.scopes))
    return key.key_id, key.tenant, key.app_id, scopes, moment(key.created_ms / 1000), _ends(key), _state(key)


def _fields(key: ApiKey) -> dict[str, Any]:
    from datetime import UTC, datetime

    made: dict[str, Any] = {
        "key_id": key.key_id,
        "tenant": key.tenant,
        "app_id": key.app_id,
        "scopes": sorted(key.scopes),
        "state": _state(key),
    }
    for name, at in (("created_at", key.created_ms), ("expires_at", key.expires_ms), ("revoked_at", key.revoked_ms)):
        if at is not None:
            made[name] = (
                datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            )
    return made
