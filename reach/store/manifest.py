"""What a backup is: a folder of files, and `backup.json`, which is written last and says what they must be."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from reach.store.base import StoreBroken, StoreUnavailable
from reach.version import VERSION

MANIFEST: Final = "backup.json"
FORMAT: Final = 1
_PIECE: Final = 1 << 20


class Counts(NamedTuple):
    """What a journal holds, as those want to know who restore it."""

    tasks: int = 0
    waiting: int = 0
    """Open ones that no agent was given yet: they go on as if nothing had happened."""
    begun: int = 0
    """Open ones that an agent was given: they run again, unless it comes back within 30 s and names them."""
    granted: int = 0
    """Of these, those whose irreversible effect had begun: they become dead letters (OUTCOME_UNKNOWN)."""
    facts: int = 0
    """Ends that others had not been told yet: they are told again, under the same ids."""


def make_folder(path: Path) -> None:
    """An empty private folder for a backup.

    Raises:
        StoreUnavailable: It cannot be made, or there is something in it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise StoreUnavailable(f"{path} is not empty: name a new folder for each backup")
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be made: {error.strerror}") from error


def write_manifest(folder: Path, kind: str, schema: int, counts: Counts, details: Mapping[str, Any]) -> dict[str, Any]:
    """Seals a backup: from now on it is one. Returns what it says."""
    files = {}
    for path in sorted(folder.iterdir()):
        _sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    said = {
        "format": FORMAT,
        "kind": kind,
        "schema": schema,
        "program": VERSION,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "counts": counts._asdict(),
        "files": files,
        **details,
    }
    draft = folder / f"{MANIFEST}.part"
    draft.write_text(json.dumps(said, indent=2) + "\n")
    _sync(draft)
    draft.rename(folder / MANIFEST)
    _sync(folder)
    return said


def read_manifest(folder: Path, kind: str, newest: int) -> dict[str, Any]:
    """What a backup says of itself, once it can be restored: all its files are what they must be.

    Args:
        folder: Where it is.
        kind: Of the store that it is to be put into.
        newest: The latest schema version that the program knows of that kind.

    Raises:
        StoreUnavailable: There is no backup, or it is one of another kind of store.
        StoreBroken: It is damaged, or of a later program.
    """
    try:
        said: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"{folder} holds no complete backup ({MANIFEST}: {error})") from error
    if said.get("format") != FORMAT:
        raise StoreBroken(f"{folder} has format {said.get('format')}, this program knows {FORMAT}")
    for name, wanted in said["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != wanted["bytes"] or _digest(path) != wanted["sha256"]:
            raise StoreBroken(f"{path} is not what it was when the backup was made")
    if said["kind"] != kind:
        raise StoreUnavailable(f"{folder} is a backup of {said['kind']}, not of {kind}")
    if said["schema"] > newest:
        raise StoreBroken(f"{folder} has schema version {said['schema']}, this program knows up to {newest}")
    return said


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
