"""This machine, as a server with this configuration needs it: ports, folder, files, limits, secrets."""

from __future__ import annotations

import resource
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from reach.config import Config, ConfigError
from reach.config.rules import load_routes, load_vocabulary
from reach.config.watching import policies_of
from reach.doctor.findings import Finding, error, ok, warning
from reach.errors import ReachError
from reach.store.base import ApiKey, StoreError
from reach.store.keys import FILE_NAME as KEYS
from reach.store.migrations import NEWEST
from reach.store.sqlite import FILE_NAME
from reach.stores import open_keys

FILES: Final = 4_096
"""Open files that a server should be allowed: one per connection, and some."""
FREE_BYTES: Final = 1 << 30
SECRET_BYTES: Final = 16


def machine(config: Config) -> Iterator[Finding]:
    """All of it, for a server that runs or is to run here."""
    yield from ports(config)
    if config.storage.type == "sqlite":
        yield from folder(Path(config.storage.path))
    yield from secrets(config)
    yield from rules(config)
    yield from keys(config)
    yield files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], "this shell")


def ports(config: Config) -> Iterator[Finding]:
    """Whether the ports are free, or a server has them already."""
    server = config.server
    for name, port in (("port", server.port), ("admin_port", server.admin_port)):
        if not port:
            continue
        where = f"{server.host}:{port}"
        try:
            socket.create_server((server.host, port), family=_family(server.host)).close()
        except OSError as failure:
            if _answers(server.host, port):
                yield ok("ports", f"server.{name} {where} is in use: by the server, if one runs here")
            else:
                yield error(
                    "ports", f"server.{name} {where} cannot be listened on: {failure.strerror or failure}",
                    "the server would not start", f"free the address, or set server.{name} or server.host",
                )  # fmt: skip
        else:
            yield ok("ports", f"server.{name} {where} is free")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _answers(host: str, port: int) -> bool:
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    try:
        socket.create_connection((anywhere.get(host, host), port), timeout=1).close()
    except OSError:
        return False
    return True


def folder(path: Path) -> Iterator[Finding]:
    """The data folder of SQLite: whether it is private, has room, and its schema is one that this program knows."""
    if not path.exists():
        yield ok("storage", f"{path} is not there yet: the server makes it")
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        yield warning(
            "storage", f"{path} is open to others (mode {mode:o})",
            "it holds payloads and the hashes of keys", f"chmod 700 {path}",
        )  # fmt: skip
    free = shutil.disk_usage(path).free
    if free < FREE_BYTES:
        yield warning(
            "storage", f"{free >> 20} MiB are free in {path}",
            "a full disk refuses new work (STORE_FULL)", "free space, or lower results.keep_bytes",
        )  # fmt: skip
    yield schema(path / FILE_NAME)


def schema(file: Path) -> Finding:
    """Whether a journal can be read, and by whom. The server that has it is not disturbed."""
    if not file.exists():
        return ok("storage", f"{file} is not there yet: the server makes it")
    try:
        db = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=1)
        try:
            (version,) = db.execute("select max(version) from migration").fetchone()
        finally:
            db.close()
    except sqlite3.Error as failure:
        return error(
            "storage", f"{file} cannot be read: {failure}", "the server would not start",
            "name another folder, or restore a backup (reach restore)",
        )  # fmt: skip
    return schema_finding("storage", str(file), version, NEWEST, NEWEST)


def schema_finding(check: str, where: str, version: int, newest: int, readable: int) -> Finding:
    """What a schema version means to this program, which writes `newest` and can work on `readable`."""
    if version > readable:
        return error(
            check, f"{where} has schema version {version}, this program knows up to {newest}",
            "this program does not start on it", "start the version that wrote it, or a later one",
        )  # fmt: skip
    if version < newest:
        return ok(check, f"{where} has schema version {version}: the server brings it to {newest} when it starts")
    return ok(check, f"{where} has schema version {version}")


def secrets(config: Config) -> Iterator[Finding]:
    """Files that only the server should read."""
    server, cluster = config.server, config.cluster
    named = {
        "server.tls_key": server.tls_key,
        "storage.password_file": config.storage.password_file,
        "cluster.secret_file": cluster.secret_file,
        "cluster.password_file": cluster.password_file,
        "cluster.key": cluster.key,
    }
    for name, text in named.items():
        if text and Path(text).stat().st_mode & 0o077:
            yield warning(
                "secrets", f"{name} {text} can be read by others", "whoever reads it can pass for the server or a node",
                f"chmod 600 {text}",
            )  # fmt: skip
    if cluster.endpoints:
        size = len(Path(cluster.secret_file).read_bytes().strip())
        if size < SECRET_BYTES:
            yield error(
                "secrets", f"cluster.secret_file has {size} bytes, at least {SECRET_BYTES} are needed",
                "the server would not start", f"openssl rand -hex 32 > {cluster.secret_file}, on all nodes the same",
            )  # fmt: skip


def keys(config: Config) -> Iterator[Finding]:
    """Whether anybody is let in, and anybody may operate, where keys are asked for. Blocks."""
    if config.server.auth != "keys":
        return
    if config.storage.type != "postgres" and not (Path(config.storage.path) / KEYS).exists():
        yield _no_keys("there are no API keys", "nobody can call")
        return
    found: list[ApiKey] = []
    try:
        store = open_keys(config)
        assert store is not None
        with closing(store):
            while page := store.list_keys(after=found[-1].key_id if found else ""):
                found += page
    except (ReachError, StoreError) as failure:
        yield error("keys", f"cannot be read: {failure}", "nobody can call", "see what else is wrong")
        return
    now_ms = time.time_ns() // 1_000_000
    valid = [key for key in found if key.valid_at(now_ms)]
    if not valid:
        yield _no_keys("no API key is valid", "nobody can call")
    elif not any("operator" in key.scopes for key in valid):
        yield _no_keys("no API key has the scope operator", "nobody can drain, cancel, or look at dead letters")
    else:
        yield ok("keys", f"{len(valid)} of {len(found)} API keys are valid")


def _no_keys(what: str, why: str) -> Finding:
    return warning("keys", what, why, "reach keys create --app NAME --scope operator --scope reader")


def rules(config: Config) -> Iterator[Finding]:
    """Vocabulary and routes."""
    router = config.router
    try:
        if router.vocabulary_file:
            load_vocabulary(Path(router.vocabulary_file))
            yield ok("rules", f"{router.vocabulary_file} can be used")
        if router.routes_file:
            load_routes(Path(router.routes_file), policies_of(router, config.matcher).known)
            yield ok("rules", f"{router.routes_file} can be used")
    except ConfigError as problem:
        for text in problem.problems:
            yield error("rules", text, "the server would not start, or keep its old rules", "see routing.md")


def files(limit: int, where: str) -> Finding:
    """Open files and connections that a process may have."""
    if 0 <= limit < FILES:
        return warning(
            "limits", f"{where} may have {limit} files open", "each connection of an agent or caller is one",
            f"raise it to {FILES} or more (ulimit -n, LimitNOFILE=)",
        )  # fmt: skip
    return ok("limits", f"{where} may have {limit if limit >= 0 else 'any number of'} files open")
