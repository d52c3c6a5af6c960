"""Logs: one JSON object a line, with the trace, without secrets and without payloads.

Three rules hold for every record, whoever wrote it, at every level:

- what looks like a credential is replaced (`redact`): bearer tokens, our keys, user info and queries of URLs, …;
- content is never shown: bytes, messages of the contract and unknown objects appear as their type;
- every text is bounded, and what libraries repeat (an exporter whose collector is down) is told once in 10 s.

Nothing here is for the hot path: a line costs about 30 µs, so there is none per task.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from pathlib import PurePath
from typing import Final, Literal, TextIO

import msgspec

from reach.telemetry.tracing import current_trace_id

MESSAGE_LIMIT: Final = 4096
FIELD_LIMIT: Final = 2048
"""Characters. The patterns of `redact` are quadratic at worst, so what they see must be short."""

_ITEMS: Final = 50
_DEPTH: Final = 4
_FRAMES: Final = 20
_HIDDEN: Final = "***"
_THIRD_PARTIES: Final = ("opentelemetry", "grpc", "uvicorn", "asyncio", "concurrent")
_RESERVED: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "trace_id"}
_SECRET_NAMES: Final = re.compile(
    r"(?:^|[_\-.])(?:authorization|cookie|password|passwd|secret|token|credentials?|private_?key|api_?key)$",
    re.IGNORECASE,
)
_PATTERNS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[A-Z ]*-----|\Z)", re.DOTALL), _HIDDEN),
    (re.compile(r"\bar_([a-z0-9]{1,32})_[\w\-]+", re.IGNORECASE), rf"ar_\1_{_HIDDEN}"),
    (re.compile(r"\b(bearer|basic)(\s+|%20|\+)[\w\-.~+/%]{3,}=*", re.IGNORECASE), rf"\1 {_HIDDEN}"),
    (re.compile(r"\beyJ[\w\-]+\.[\w\-]+(?:\.[\w\-]*)?"), _HIDDEN),
    (re.compile(r"\bsk-[\w\-]{8,}"), f"sk-{_HIDDEN}"),
    (re.compile(r"://[^/?#\s\"'<>]+@"), f"://{_HIDDEN}@"),
    (re.compile(r"(://[^\s?#\"'<>]*)\?[^\s#\"'<>]*"), rf"\1?{_HIDDEN}"),
    (
        re.compile(
            r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key|password|passwd|(?:client|webhook)[_-]?secret|secret"
            r"|api[_-]?key|(?:access|refresh|auth|id)?[_-]?token|private[_-]?key|signature)"
            r"([\"']?\s*[:=,]\s*[\"']?)(?!\*\*\*)[^\s\"',;&)}\]]+",
            re.IGNORECASE,
        ),
        rf"\1\2{_HIDDEN}",
    ),
)
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_LEVELS: Final[dict[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def redact(text: str, limit: int = FIELD_LIMIT) -> str:
    """The text without anything that looks like a credential, printable, and not longer than `limit` characters."""
    cut = len(text) > limit
    text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text[:limit])
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text + "… [cut]" if cut else text


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, trace_id, fields, error; absent parts are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class. Never raises for what is in the record."""
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message_of(record),
        }
        trace_id = getattr(record, "trace_id", None) or current_trace_id()
        if trace_id:
            line["trace_id"] = redact(str(trace_id), 64)
        fields = _fields_of(record)
        if fields:
            line["fields"] = fields
        failure = record.exc_info[1] if record.exc_info else None
        if failure is not None:
            name = type(failure).__name__
            line["error"] = {"type": name, "message": redact(str(failure)), "frames": frames_of(failure)}
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """The same for people: `12:30:01.123 INFO reach.node: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        # One record is one line: a text from outside cannot forge another.
        message = _message_of(record).replace("\n", "\\n")
        parts = [f"{_time_of(record)[11:23]} {record.levelname} {record.name}: {message}"]
        parts += [f"{key}={value}".replace("\n", "\\n") for key, value in _fields_of(record).items()]
        trace_id = getattr(record, "trace_id", None) or current_trace_id()
        if trace_id:
            parts.append(f"trace_id={redact(str(trace_id), 64)}")
        failure = record.exc_info[1] if record.exc_info else None
        if failure is None:
            return " ".join(parts)
        parts.append(f"{type(failure).__name__}: {redact(str(failure))}".replace("\n", "\\n"))
        return "\n    ".join((" ".join(parts), *frames_of(failure)))


class RateLimit:
    """Lets one record through per key and interval, and counts the others.

    Bound: 1,000 keys; the one that was used first makes room.
    """

    def __init__(self, every_s: float = 10.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._monotonic = monotonic
        self._seen: dict[object, list[float]] = {}

    def admit(self, key: object) -> int | None:
        """None: be silent. Else how many were held back since the last one."""
        now = self._monotonic()
        entry = self._seen.get(key)
        if entry is None:
            if len(self._seen) >= 1000:
                self._seen.pop(next(iter(self._seen)), None)
            self._seen[key] = [now, 0]
            return 0
        if now - entry[0] < self._every_s:
            entry[1] += 1
            return None
        suppressed = int(entry[1])
        entry[:] = [now, 0]
        return suppressed


class RepeatedLogger:
    """For failures that come again and again: at most one line in 10 s per key, which says how many were left out."""

    def __init__(self, logger: logging.Logger, limit: RateLimit | None = None) -> None:
        self._logger = logger
        self._limit = limit if limit is not None else RateLimit()

    def warning(self, key: str, message: str, **fields: object) -> bool:
        """Whether a line was written."""
        return self._log(logging.WARNING, key, message, fields)

    def error(self, key: str, message: str, **fields: object) -> bool:
        """Whether a line was written."""
        return self._log(logging.ERROR, key, message, fields)

    def _log(self, level: int, key: str, message: str, fields: dict[str, object]) -> bool:
        suppressed = self._limit.admit(key)
        if suppressed is None:
            return False
        if suppressed:
            fields["suppressed"] = suppressed
        self._logger.log(level, message, extra=fields)
        return True


class _RepeatsOfLibraries(logging.Filter):
    """Libraries log each failed try; `asyncio` and `grpc` may do so in a loop. Ours use RepeatedLogger."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = RateLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if record.name.partition(".")[0] not in _THIRD_PARTIES:
            return True
        if tells_of_a_client_that_left(record):
            return False
        return self._limit.admit((record.name, record.levelno, str(record.msg)[:100])) is not None


def tells_of_a_client_that_left(record: logging.LogRecord) -> bool:
    """Whether gRPC tells, as an error with a traceback, that a client was gone before its headers or its status could
    be written. Any client may leave at any moment: that is no error of the server, and there is nobody to tell."""
    failure = record.exc_info[0] if record.exc_info else None
    return record.name.startswith("grpc.") and failure is not None and failure.__name__ == "ExecuteBatchError"


class _OurHandler(logging.StreamHandler[TextIO]):
    """Marks the handler that `setup_logging` made, so that calling it again replaces only that one."""


def setup_logging(
    level: Literal["debug", "info", "warning", "error"] = "info",
    log_format: Literal["json", "text"] = "json",
    stream: TextIO | None = None,
) -> logging.Handler:
    """Sends all logs of the process to `stream` (standard error) in our form. May be called again."""
    handler = _OurHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_RepeatsOfLibraries())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LEVELS[level])
    for name in _THIRD_PARTIES:
        # Their debug lines show headers and bodies of calls.
        logging.getLogger(name).setLevel(max(_LEVELS[level], logging.WARNING))
    logging.captureWarnings(capture=True)
    return handler


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message_of(record: logging.LogRecord) -> str:
    try:
        message = record.getMessage()
    except (TypeError, ValueError, KeyError):
        message = f"{record.msg} [its arguments do not fit]"
    return redact(message, MESSAGE_LIMIT)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    extra = ((key, value) for key, value in vars(record).items() if key not in _RESERVED)
    return {redact(key, 64): _shown(key, value, _DEPTH) for key, value in islice(extra, _ITEMS)}


def _shown(key: str, value: object, depth: int) -> object:
    """What may be seen of a value: secrets, content and depth are left out."""
    if _SECRET_NAMES.search(key):
        return _HIDDEN
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath):
        return redact(str(value))
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {redact(str(value))}"
    if depth and isinstance(value, Mapping):
        return {
            redact(str(name), 64): _shown(str(name), item, depth - 1) for name, item in islice(value.items(), _ITEMS)
        }
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_shown("", item, depth - 1) for item in islice(value, _ITEMS)]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return f"<{type(value).__name__}>"


def frames_of(failure: BaseException) -> list[str]:
    """Where it was raised, innermost last: file, line and function of at most 20 frames; no source and no values."""
    frames = traceback.extract_tb(failure.__traceback__)[-_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
