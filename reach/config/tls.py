"""The server's certificate, for both doors: read from its files, and again when they change, without a restart.

What is wrong is told of in the log, and what was there before goes on: a renewal that is half done locks nobody out.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from reach.errors import InvalidRequest
from reach.telemetry.logs import RepeatedLogger

LOOK_SECONDS: Final = 1.0
"""How often handshakes look whether a file has changed."""

_log: Final = logging.getLogger(__name__)
_failures: Final = RepeatedLogger(_log)


class Files(NamedTuple):
    """Where it is, as PEM."""

    certificate: str
    """The chain, the server's own first."""
    key: str
    client_ca: str
    """Authorities that sign client certificates; empty: clients are not asked for any."""


class Content(NamedTuple):
    """What is in the files."""

    certificate: bytes
    key: bytes
    client_ca: bytes


class ServerTls:
    """See the module. Asked from the loop (HTTP) and from threads of gRPC.

    Args:
        files: Where it is.
        now_s: Monotonic, in seconds.

    Raises:
        InvalidRequest: a file cannot be read, or the certificate and its key are none, or not of each other.
    """

    def __init__(self, files: Files, now_s: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._now_s = now_s
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._look_at = now_s() + LOOK_SECONDS
        self.content = self._told = _read(files)
        self._current = _context(files)
        self.context = _context(files)
        """For a listener: whoever shakes hands gets what is current."""
        self.context.sni_callback = self._chosen

    def _chosen(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        self.look()
        connection.context = self._current

    def look(self) -> bool:
        """Reads the files again if they changed. Whether there is something new."""
        with self._lock:
            if self._now_s() < self._look_at:
                return False
            self._look_at = self._now_s() + LOOK_SECONDS
            stamps = self._stamps()
            if stamps == self._seen:
                return False
            try:
                content, context = _read(self._files), _context(self._files)
            except InvalidRequest as error:
                _failures.warning("tls", "a new certificate of the server cannot be used", error=error.message)
                return False
            self._seen, self.content, self._current = stamps, content, context
        _log.info("the server's certificate was read again")
        return True

    def renewed(self) -> Content | None:
        """What a handshake over gRPC is to use from now on; None: what it used before."""
        self.look()
        if self.content is self._told:
            return None
        self._told = self.content
        return self._told

    def _stamps(self) -> tuple[object, ...]:
        """What changes with the files; what is not there now may be in a moment."""
        found: list[object] = []
        for path in filter(None, self._files):
            try:
                stat = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)


def _read(files: Files) -> Content:
    try:
        return Content(*(Path(path).read_bytes() if path else b"" for path in files))
    except OSError as error:
        raise InvalidRequest(f"cannot read {error.filename}: {error.strerror}") from error


def _context(files: Files) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key, client_ca = files
    try:
        made.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        why = "the key is not the one of the certificate" if error.reason == "KEY_VALUES_MISMATCH" else str(error)
        raise InvalidRequest(f"server.tls_cert {certificate} and server.tls_key {key} cannot be used: {why}") from error
    except OSError as error:
        raise InvalidRequest(f"cannot read {certificate} or {key}: {error.strerror}") from error
    if client_ca:
        try:
            made.load_verify_locations(client_ca)
        except (ssl.SSLError, OSError) as error:
            raise InvalidRequest(f"server.tls_client_ca {client_ca} cannot be used: {error}") from error
        made.verify_mode = ssl.CERT_OPTIONAL  # over HTTP: see http/certificates.py
    return made
