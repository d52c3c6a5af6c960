"""Passes prompts on to any OpenAI-compatible endpoint and streams the completion back.

    OPENAI_MODEL=llama3.2 OPENAI_BASE_URL=http://127.0.0.1:11434/v1 python -m reach.demo_agents.openai_adapter

Settings come from the environment: OPENAI_MODEL (needed), OPENAI_BASE_URL (default https://api.openai.com/v1) and
OPENAI_API_KEY (not needed by most local servers). The key is sent to that endpoint only; it is in no log and in no
error, and redirects are not followed.

Request: the prompt, or JSON {"prompt": "…", "system": "…", "temperature": 0.2, "max_tokens": 500}, or the messages
themselves: JSON {"messages": [{"role": "user", "content": "…"}], …}. Answer: the text, delta by delta.

What the endpoint answers becomes an error of Agent-Reach: 429 ResourceExhausted (with its Retry-After); 5xx, 408, no
connection, or a stream that breaks off Unavailable; other 4xx InvalidRequest. Only the standard library is used.
"""

from __future__ import annotations

import http.client
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reach.demo_agents.payload import DEFAULT_CONCURRENCY, BadRequestError, argument_parser, read_fields
from reach.demo_agents.sse import EventTooLargeError, SseParser

if TYPE_CHECKING:
    from reach import Agent, Task

AGENT_ID = "openai-adapter"
DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_TIMEOUT = 60.0  # seconds without a byte
READ_SIZE = 16_384
LONGEST_ERROR = 300  # characters of the endpoint's own words
LARGEST_BODY = 8 << 20  # bytes of an answer that does not stream
LARGEST_ERROR_BODY = 65_536
LONGEST_RETRY_AFTER = 86_400.0  # seconds
_UNAVAILABLE = (408, 425)  # besides 5xx


class SettingsError(ValueError):
    """The environment is incomplete or wrong."""


class EndpointError(Exception):
    """The endpoint did not do it. `kind`: "exhausted", "unavailable", "invalid" or "filtered"."""

    def __init__(self, kind: str, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_ms = retry_after_ms


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to send prompts. The key is not part of `repr`."""

    model: str
    host: str
    port: int | None
    path: str
    secure: bool
    api_key: str = field(default="", repr=False)
    timeout: float = DEFAULT_TIMEOUT

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], timeout: float = DEFAULT_TIMEOUT) -> Settings:
        """Read and check OPENAI_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY. Raises `SettingsError`."""
        model = environment.get("OPENAI_MODEL", "").strip()
        if not model:
            raise SettingsError("OPENAI_MODEL is not set: name a model of your endpoint")
        url = environment.get("OPENAI_BASE_URL", "").strip() or DEFAULT_BASE_URL
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise SettingsError(f"OPENAI_BASE_URL is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError("OPENAI_BASE_URL must begin with http:// or https:// and name a host")
        if parts.username is not None or parts.query or parts.fragment:
            raise SettingsError("OPENAI_BASE_URL must hold no user, query or fragment; the key is OPENAI_API_KEY")
        if not parts.path.isascii() or any(letter.isspace() for letter in parts.path):
            raise SettingsError("the path of OPENAI_BASE_URL must be plain ASCII without spaces")
        key = environment.get("OPENAI_API_KEY", "").strip()
        # http.client would show a bad header value in its error.
        if not key.isascii() or not key.isprintable():
            raise SettingsError("OPENAI_API_KEY holds characters that no key has")
        path = parts.path.rstrip("/") + "/chat/completions"
        return cls(model, parts.hostname, port, path, parts.scheme == "https", key, timeout)


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a completion, with the endpoint's reason: "stop", "length", …"""

    reason: str


def read_request(payload: bytes, media_type: str) -> dict[str, Any]:
    """The body for /chat/completions, without the model. Raises `BadRequestError`."""
    options = {"system": str, "temperature": float, "max_tokens": int, "messages": list}
    fields = read_fields(payload, media_type, "prompt", options, instead="messages")
    if not 0 <= fields.get("temperature", 0) <= 2:
        raise BadRequestError("'temperature' must be from 0 to 2")
    if fields.get("max_tokens", 1) < 1:
        raise BadRequestError("'max_tokens' must be at least 1")
    body: dict[str, Any] = {key: fields[key] for key in ("temperature", "max_tokens") if key in fields}
    system = [{"role": "system", "content": fields["system"]}] if fields.get("system") else []
    if "messages" in fields:
        messages = fields["messages"]
        if not messages or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
            raise BadRequestError("'messages' must be a list of objects with a 'role'")
    else:
        if not fields["prompt"].strip():
            raise BadRequestError("the prompt is empty")
        messages = [{"role": "user", "content": fields["prompt"]}]
    return {**body, "messages": [*system, *messages], "stream": True}


def complete(settings: Settings, body: Mapping[str, Any]) -> Iterator[str | Finish]:
    """Ask the endpoint, and give its text as it comes, then one `Finish`. Raises `EndpointError`."""
    kind = http.client.HTTPSConnection if settings.secure else http.client.HTTPConnection
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "agent-reach"}
    if settings.api_key:
        headers["Authorization"] = f"Bearer {settings.api_key}"
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(closing(kind(settings.host, settings.port, timeout=settings.timeout)))
            connection.request("POST", settings.path, json.dumps({"model": settings.model, **body}), headers)
            response = stack.enter_context(closing(connection.getresponse()))  # it may own the socket
            if response.status != http.client.OK:
                raise _refusal(response, settings)
            if response.headers.get_content_type() == "application/json":
                chunks = iter([_as_event(response.read(LARGEST_BODY))])  # it does not stream
            else:
                chunks = iter(lambda: response.read1(READ_SIZE), b"")
            yield from _whole_characters(read_stream(chunks, settings.api_key))
        except (OSError, http.client.HTTPException) as error:
            reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
            raise EndpointError("unavailable", f"no connection to {settings.host}, or it broke: {reason}") from error


def read_stream(chunks: Iterable[bytes], api_key: str = "") -> Iterator[str | Finish]:
    """The deltas of a completion from the bytes of its event stream, then one `Finish`. Raises `EndpointError`."""
    parser = SseParser()
    reason = ""
    for chunk in chunks:
        try:
            events = parser.feed(chunk)
        except EventTooLargeError as error:
            raise EndpointError("unavailable", str(error)) from error
        for event in events:
            if event.data.strip() == "[DONE]":
                yield Finish(reason or "stop")
                return
            text, ended = _read_event(event.data, api_key)
            if text:
                yield text
            reason = ended or reason
    if not reason:
        raise EndpointError("unavailable", "the stream of the endpoint broke off before its end")
    yield Finish(reason)  # some servers send no [DONE]


def _read_event(data: str, api_key: str) -> tuple[str, str]:
    """The text and the finish reason ("" if there is none yet) of one event."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise EndpointError("unavailable", "the endpoint sent an event that is not JSON") from None
    if not isinstance(fields, dict):
        raise EndpointError("unavailable", "the endpoint sent an event that is not an object")
    if fields.get("error"):
        error = fields["error"]
        codes = {str(error.get("code")), str(error.get("type"))} if isinstance(error, dict) else set()
        limited = codes & {"429", "rate_limit_exceeded", "insufficient_quota"}
        raise EndpointError("exhausted" if limited else "unavailable", _error_text(fields, api_key))
    choices = fields.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        return "", ""
    message = choice.get("delta") or choice.get("message") or {}
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else "", str(choice.get("finish_reason") or "")


def _whole_characters(deltas: Iterable[str | Finish]) -> Iterator[str | Finish]:
    """Join surrogate pairs that were cut between two deltas; JSON can carry halves, UTF-8 cannot."""
    held = ""
    for delta in deltas:
        if isinstance(delta, Finish):
            if held:
                yield "\ufffd"
            yield delta
            return
        text = held + delta
        held = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        text = text[: len(text) - len(held)]
        if text:
            yield text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _as_event(body: bytes) -> bytes:
    """A plain JSON answer as the one event of a stream."""
    return b"data: " + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"


def _refusal(response: http.client.HTTPResponse, settings: Settings) -> EndpointError:
    """The error for an HTTP status that is not 200."""
    status = response.status
    try:
        fields = json.loads(response.read(LARGEST_ERROR_BODY))
    except (ValueError, RecursionError):
        fields = None
    said = f"the endpoint answers {status}: {_error_text(fields, settings.api_key) or response.reason}"
    if status == http.client.TOO_MANY_REQUESTS:
        return EndpointError("exhausted", said, retry_after_ms(response.getheader("Retry-After")))
    if status >= 500 or status in _UNAVAILABLE:
        return EndpointError("unavailable", said, retry_after_ms(response.getheader("Retry-After")))
    if status in (401, 403):
        # Its words may quote the key.
        return EndpointError("invalid", f"the endpoint refuses the credentials of this agent ({status})")
    if 300 <= status < 400:
        return EndpointError("invalid", f"the endpoint redirects ({status}): OPENAI_BASE_URL of this agent is wrong")
    return EndpointError("invalid" if status >= 400 else "unavailable", said)


def _error_text(fields: object, api_key: str) -> str:
    """What the endpoint says in its usual error object, shortened, without the key."""
    error = fields.get("error") if isinstance(fields, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    text = message if isinstance(message, str) else ""
    text = text.replace(api_key, "***") if api_key else text
    return text.encode("utf-8", "replace").decode()[:LONGEST_ERROR]


def retry_after_ms(header: str | None) -> int | None:
    """A Retry-After in seconds as milliseconds; None if there is none, or it is a date."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return round(seconds * 1000) if math.isfinite(seconds) and 0 <= seconds <= LONGEST_RETRY_AFTER else None


def build_agent(
    addr: str | None = None,
    *,
    agent_id: str = AGENT_ID,
    instance_id: str | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
    settings: Settings | None = None,
) -> Agent:
    """The agent, not yet running. Without `settings` the environment is read; raises `SettingsError`."""
    from reach import Agent, AgentError, InvalidRequest, Progress
    from reach.errors import ResourceExhausted, Unavailable

    errors = {
        "exhausted": ResourceExhausted,
        "unavailable": Unavailable,
        "invalid": InvalidRequest,
        "filtered": AgentError,
    }
    endpoint = settings or Settings.from_environment(os.environ)
    agent = Agent(
        agent_id,
        agent_type="llm",
        capabilities=["text_generation"],
        tags=["openai"],
        addr=addr,
        instance_id=instance_id,
        max_concurrency=max_concurrency,
    )

    @agent.route()
    @agent.route("task.process")
    def chat(task: Task) -> Iterator[str | Progress]:
        try:
            body = read_request(task.payload, task.media_type)
            for piece in complete(endpoint, body):
                if task.cancelled:
                    return
                if isinstance(piece, str):
                    yield piece
                elif piece.reason == "length":
                    yield Progress(1.0, "the answer reached the limit of tokens and ends early")
                elif piece.reason == "content_filter":
                    raise EndpointError("filtered", "a filter of the endpoint stopped the answer")
        except BadRequestError as error:
            raise InvalidRequest(str(error)) from error
        except EndpointError as error:
            raise errors[error.kind](str(error), retry_after_ms=error.retry_after_ms) from error

    return agent


def main(argv: Sequence[str] | None = None) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    parser = argument_parser(__doc__, AGENT_ID)
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT, help="seconds without a byte (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    try:
        settings = Settings.from_environment(os.environ, options.timeout)
    except SettingsError as error:
        parser.error(str(error))
    build_agent(
        options.addr,
        agent_id=options.agent_id,
        instance_id=options.instance_id,
        max_concurrency=options.max_concurrency,
        settings=settings,
    ).run()


if __name__ == "__main__":
    main()
