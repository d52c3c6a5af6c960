"""The SDK's clients of version 1.0, taking what real agents say: times that are none by the letter of protobuf's JSON.

An agent that gives the time of a status without a zone (fasta2a 2.1 does) would fail every task. We have no use for
these times, so they are left out before the answer is read.
"""

from __future__ import annotations

import json as json_text
from collections.abc import AsyncGenerator
from typing import Any

from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.client.transports.http_helpers import get_http_args, send_http_stream_request
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.client.transports.rest import RestTransport
from a2a.types.a2a_pb2 import StreamResponse
from a2a.utils.proto_utils import parse_lenient

_HOLDERS = ("task", "statusUpdate", "result")


def without_times(said: Any) -> Any:
    """An answer without the times of its statuses. Changes it in place."""
    if isinstance(said, dict):
        status = said.get("status")
        if isinstance(status, dict):
            status.pop("timestamp", None)
        for name in _HOLDERS:
            without_times(said.get(name))
    return said


class LenientJsonRpc(JsonRpcTransport):
    """JSON-RPC."""

    def _check_jsonrpc_response(self, response_data: Any) -> dict[str, Any]:
        return super()._check_jsonrpc_response(without_times(response_data))


class LenientRest(RestTransport):
    """HTTP+JSON."""

    async def _send_stream_request(
        self,
        method: str,
        target: str,
        tenant: str,
        context: ClientCallContext | None = None,
        *,
        json: dict[str, Any] | None = None,
    ) -> AsyncGenerator[StreamResponse]:
        events = send_http_stream_request(
            self.httpx_client,
            method,
            f"{self.url}{self._get_path(target, tenant)}",
            self._handle_http_error,
            self._handle_sse_error,
            json=json,
            **get_http_args(context),
        )
        async for said in events:
            try:
                event = without_times(json_text.loads(said))
            except ValueError as error:
                raise A2AClientError(f"an event is no JSON: {error}") from error
            if not isinstance(event, dict):
                raise A2AClientError("an event is no object")
            yield parse_lenient(event, StreamResponse())

    async def _execute_request(self, *given: Any, **named: Any) -> dict[str, Any]:
        answer = without_times(await super()._execute_request(*given, **named))
        if not isinstance(answer, dict):
            raise A2AClientError("the answer is no object")
        return answer
