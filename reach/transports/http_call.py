"""One attempt at an agent over HTTP (`seam.Call`): the POST, its answer in whatever form, or 202 and what comes later.

It has a task of its own, so that the connection is read ahead by a few items only: what the core has not taken stays
with the agent.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from agentreach.v1 import attempt_pb2, endpoint_pb2, event_pb2, payload_pb2
from reach.core.model import Fault
from reach.errors import ErrorClass, ReachError, Reason
from reach.transports.http_bodies import BodyTooLarge, Events, Lines, beginning, whole
from reach.transports.seam import Failed
from reach.wire.agent_answers import (
    RAW_BYTES,
    Unreadable,
    goes_on,
    item_of,
    of_event,
    parse,
    raw_text,
    unreadable,
    whole_answer,
)
from reach.wire.agent_http import fault_of_status, handle_from, retry_after_s, said_in, warm_status
from reach.wire.agent_requests import is_json

if TYPE_CHECKING:
    from reach.transports.http_endpoint import HttpLine

log = logging.getLogger(__name__)

AHEAD: Final = 16
"""Items that are read before the core has taken the first."""
POLL_S: Final = (1.0, 15.0)
"""How long until an accepted attempt is asked about: first, and at most; in between half as long again each time."""
LONGEST_POLL_S: Final = 60.0
"""However long Retry-After says."""
SMALL_BYTES: Final = 64 << 10
"""What is read of a body that is no answer."""
SMALL_S: Final = 5.0
"""How long the body of a 202 may take, which says at most where the attempt can be asked about."""
_LINES: Final = frozenset(f"application/{one}" for one in ("x-ndjson", "ndjson", "jsonl", "x-jsonlines", "jsonlines"))


class HttpCall:
    """See the module. Made by `HttpLine`, which owns its task."""

    def __init__(self, line: HttpLine, timeout_s: float | None) -> None:
        self.line = line
        self.handle = ""
        """Where it can be asked about; empty: nowhere."""
        self.detached = False
        """It was accepted (202): there is no connection any more."""
        self._timeout_s = timeout_s
        self._items: asyncio.Queue[endpoint_pb2.ExecuteResponse | Exception | None] = asyncio.Queue(AHEAD)
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None
        self._deltas = 0

    def begin(self, work: Callable[[HttpCall], Awaitable[None]]) -> asyncio.Task[None]:
        """Begins it; the task, for its owner."""
        self._task = asyncio.get_running_loop().create_task(self._run(work), name="http-agent")
        return self._task

    # -- Call ---------------------------------------------------------------------------------------------------------

    async def read(self) -> endpoint_pb2.ExecuteResponse | None:
        """See Call."""
        if self._cancelled:
            return None
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        """See Call. The connection is closed, which is how an agent without any other word for it is told."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()
        if self._items.empty():
            self._items.put_nowait(None)  # somebody may wait

    # -- its task -----------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[HttpCall], Awaitable[None]]) -> None:
        end: Exception | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                await work(self)
        except TimeoutError:
            end = Failed(Fault(ErrorClass.TIMEOUT, Reason.START_TO_CLOSE, "the agent gave no answer in time"))
        except Unreadable as error:
            end = Failed(error.fault)
        except BodyTooLarge as error:
            raw = {"raw": raw_text(error.came)}
            end = Failed(Fault(ErrorClass.INVALID_REQUEST, Reason.RESULT_TOO_LARGE, f"the agent's answer {error}", raw))
        except (Failed, ReachError) as error:
            end = error
        except Exception:
            log.exception("the answer of an agent broke us; please report this")
            end = Failed(unreadable("cannot be taken", b""))
        await self._items.put(end)

    async def say(self, response: endpoint_pb2.ExecuteResponse) -> None:
        """Hands on what the agent said."""
        self._deltas += len(response.deltas)
        await self._items.put(response)

    async def answered(self, response: Any) -> None:
        """Takes the answer to the POST. Raises Failed, Unreadable, BodyTooLarge, and what the client raises."""
        headers = said_in(response.headers)
        if response.status == 202:
            await self._accepted(response, headers)
        elif response.status in (204, 205):
            await self._result(attempt_pb2.AttemptResult(output=payload_pb2.Payload(text="")), headers)
        elif 200 <= response.status < 300:
            await self._answer(response, headers)
        else:
            fault, unbegun = fault_of_status(response.status, headers, await whole(response, SMALL_BYTES, cut=True))
            raise Failed(fault, unbegun=unbegun)

    async def _accepted(self, response: Any, headers: dict[str, str]) -> None:
        """It goes on there, and the outcome comes later; whatever becomes of the rest of this answer."""
        handle = handle_from(self.line.url, headers, b"")
        if handle:
            await self._detach(handle, headers)
        body = await beginning(response, SMALL_BYTES, SMALL_S)
        if not handle:
            await self._detach(handle_from(self.line.url, headers, body), headers)

    async def _detach(self, handle: str, headers: dict[str, str]) -> None:
        self.detached, self.handle = True, handle
        response = endpoint_pb2.ExecuteResponse()
        response.accept.handle = handle
        await self.say(response)
        self.wait_s = _pause(headers, POLL_S[0])

    async def _result(self, result: attempt_pb2.AttemptResult, headers: dict[str, str]) -> None:
        warm = warm_status(headers)
        if warm is not None and not result.HasField("status"):
            result.status.CopyFrom(warm)
        await self.say(endpoint_pb2.ExecuteResponse(result=result))

    async def _answer(self, response: Any, headers: dict[str, str]) -> None:
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raw = await whole(response, RAW_BYTES, cut=True)
            raise Unreadable(f"is compressed ({headers['content-encoding'][:32]}), which was not asked for", raw)
        media_type = headers.get("content-type", "").strip()
        kind = media_type.partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            await self._events(response, headers)
        elif kind in _LINES:
            await self._lines(response, headers)
        elif kind.startswith("text/") and kind != "text/html" and _is_chunked(headers):
            await self._text(response, headers, media_type)
        else:
            body = await whole(response, self.line.answer_limit)
            await self._result(whole_answer(body, media_type, self.line.takes_html), headers)

    # -- streams ------------------------------------------------------------------------------------------------------

    async def _events(self, response: Any, headers: dict[str, str]) -> None:
        events = Events(self.line.answer_limit)
        async for piece in response.aiter_stream():
            for name, data in events.feed(piece):
                if data.strip() == "[DONE]" or (name in ("done", "end", "complete") and not data.strip()):
                    return await self._folded(headers)
                said = of_event(name, data)
                if said is not None and await self._item(said, headers):
                    return None
        return await self._ended(headers, events.rest)

    async def _lines(self, response: Any, headers: dict[str, str]) -> None:
        lines = Lines(self.line.answer_limit)
        async for piece in response.aiter_stream():
            for line in lines.feed(piece):
                if await self._line(line, headers):
                    return None
        if lines.rest.strip() and await self._line(lines.rest, headers):
            return None
        return await self._ended(headers, lines.rest)

    async def _line(self, line: bytes, headers: dict[str, str]) -> bool:
        if not line.strip():
            return False
        said = parse(line)
        if not isinstance(said, dict):
            raise Unreadable("has a line that is no JSON object", line)
        response = item_of(said, line)
        return response is not None and await self._item(response, headers)

    async def _item(self, said: endpoint_pb2.ExecuteResponse, headers: dict[str, str]) -> bool:
        """Hands on an item; whether it was the last."""
        if not said.HasField("result"):
            await self.say(said)
            return False
        if said.deltas or said.progress:
            before = endpoint_pb2.ExecuteResponse(deltas=said.deltas, progress=said.progress)
            await self.say(before)
        await self._result(said.result, headers)
        return True

    async def _text(self, response: Any, headers: dict[str, str], media_type: str) -> None:
        """A text that comes in pieces: each is a delta, and a whole end makes it the answer."""
        decoder, seen = codecs.getincrementaldecoder("utf-8")(), 0
        async for piece in response.aiter_stream():
            await self._text_piece(decoder, piece, media_type, seen, final=False)
            seen += len(piece)
        await self._text_piece(decoder, b"", media_type, seen, final=True)
        await self._ended(headers, b"")

    async def _text_piece(self, decoder: Any, piece: bytes, media_type: str, seen: int, *, final: bool) -> None:
        try:
            text = decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            raise Unreadable(f"is not UTF-8 at byte {seen + error.start}", piece) from None
        if text:
            kind = media_type.partition(";")[0].strip().lower()
            delta = event_pb2.Delta(
                payload=payload_pb2.Payload(text=text, media_type=kind), mode=event_pb2.DELTA_MODE_APPEND
            )
            await self.say(endpoint_pb2.ExecuteResponse(deltas=[attempt_pb2.AttemptDelta(delta=delta)]))

    async def _ended(self, headers: dict[str, str], rest: bytes) -> None:
        """The body is over, and no outcome was said: what came is the answer, if that was certainly all."""
        if not self._deltas:
            raise Unreadable("ended without a result", rest)
        if not _is_chunked(headers) and "content-length" not in headers:
            text = "ended without a result, and nothing says that it was whole: say `result`, or [DONE], or send chunks"
            raise Unreadable(text, rest)
        await self._folded(headers)

    async def _folded(self, headers: dict[str, str]) -> None:
        if not self._deltas:
            raise Unreadable("ended without a result", b"")
        result = attempt_pb2.AttemptResult()
        result.folded.SetInParent()  # of all deltas there were
        await self._result(result, headers)

    # -- 202 ----------------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Waits for what comes after 202: by asking where it said, and else by a report, which others hear. Raises as
        `answered`."""
        if not self.handle:
            await asyncio.get_running_loop().create_future()
        pause_s = POLL_S[0]
        while True:
            await asyncio.sleep(self.wait_s)
            pause_s = min(POLL_S[1], pause_s * 1.5)
            self.wait_s = pause_s
            if await self.line.poll(self):
                return

    wait_s: float = 0.0
    """Until the attempt is asked about."""

    async def polled(self, response: Any) -> bool:
        """Takes what was answered to the question how it is; whether that was its end. Raises as `answered`."""
        headers = said_in(response.headers)
        if response.status in (404, 410):
            text = f"the agent does not know the attempt any more (HTTP {response.status})"
            raise Failed(Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, text))
        if response.status != 200:
            await whole(response, SMALL_BYTES, cut=True)
            self.wait_s = _pause(headers, self.wait_s)
            return False
        body = await whole(response, self.line.answer_limit)
        media_type = headers.get("content-type", "")
        if is_json(media_type):
            said = parse(body)
            if goes_on(said):
                progress = item_of({name: said[name] for name in ("progress", "checkpoint") if name in said}, body)
                if progress is not None:
                    await self.say(progress)
                self.wait_s = _pause(headers, self.wait_s)
                return False
        await self._result(whole_answer(body, media_type, self.line.takes_html), headers)
        return True


def _is_chunked(headers: dict[str, str]) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()


def _pause(headers: dict[str, str], otherwise: float) -> float:
    said = retry_after_s(headers)
    return min(LONGEST_POLL_S, max(0.2, float(said))) if said is not None else otherwise
