"""The data folder of one process: made private, and locked for as long as it is in use."""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from reach.store.base import StoreLocked, StoreUnavailable

LOCK_NAME = "lock"


class DataFolder:
    """Holds the lock of a folder.

    The lock is an flock, so it ends with the process, however that ends; what the file says (process id and since
    when) is only for the message of the next one. The file is never removed: two processes could otherwise each hold
    the lock of "the" file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self) -> None:
        """Makes the folder (mode 0700) where it is missing, and takes its lock.

        Raises:
            StoreLocked: another process, or another journal of this one, has it.
            StoreUnavailable: the folder cannot be made or written.
        """
        try:
            self._make()
            lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"the data folder {self.path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 200).decode(errors="replace").strip() or "a process that is just starting"
            os.close(lock)
            raise StoreLocked(
                f"the data folder {self.path} is in use by {holder}; end that process or name another folder"
            ) from error
        self._lock = lock
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode(), 0)
        except OSError:
            pass  # A full disk must not keep us from opening; the lock itself is held.

    def give_back(self) -> None:
        """Gives the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def make_file(self, name: str) -> Path:
        """Makes an empty private file (mode 0600) where it is missing, so that it outlives a power cut."""
        path = self.path / name
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return path
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be made: {error.strerror}") from error
        _sync(self.path)
        return path

    def _make(self) -> None:
        missing = []
        path = self.path
        while not path.exists():
            missing.append(path)
            path = path.parent
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            _sync(path.parent)


def _sync(folder: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
