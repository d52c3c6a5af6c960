"""Fixtures of the tests of A2A: one node in this process for each module, and the SDK's own clients of it."""

import httpx
import pytest
import pytest_asyncio
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import a2a_pb2
from grpc import aio

from tests.http.conftest import http, node, stubs  # noqa: F401 - fixtures here too
from tests.rpc.conftest import no_tracebacks  # noqa: F401 - a fixture here too
from tests.rpc.peers import TIMEOUT, AgentByHand, unique
from tests.rpc.tenancy import folder, keys  # noqa: F401 - fixtures

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")


def message(text="", **fields):
    """A request with one message."""
    parts = fields.pop("parts", None) or [a2a_pb2.Part(text=text)]
    configuration = fields.pop("configuration", {})
    made = {"message_id": unique("message"), "role": a2a_pb2.ROLE_USER, "parts": parts, **fields}
    return a2a_pb2.SendMessageRequest(message=a2a_pb2.Message(**made), configuration=configuration)


class Calling:
    """Clients of one node as a2a-sdk makes them, from the card of a type of agents."""

    def __init__(self, port, headers=None):
        self._http = httpx.AsyncClient(timeout=TIMEOUT, headers=headers)
        self._port = port
        self._opened = []

    async def card(self, agent_type=""):
        """The card, found as the SDK finds it."""
        base = f"http://127.0.0.1:{self._port}" + (f"/a2a/t.{agent_type}" if agent_type else "")
        return await A2ACardResolver(self._http, base).get_agent_card()

    async def client(self, agent_type, binding="JSONRPC", **config):
        """A client by one binding. Of gRPC only the extended card knows, where nothing is configured."""
        card = await self.card(agent_type)
        if binding == "GRPC":
            asking = ClientFactory(ClientConfig(httpx_client=self._http)).create(card)
            card = await asking.get_extended_agent_card(a2a_pb2.GetExtendedAgentCardRequest())
        made = ClientFactory(
            ClientConfig(
                httpx_client=self._http,
                supported_protocol_bindings=[binding],
                grpc_channel_factory=aio.insecure_channel,
                **config,
            )
        ).create(card)
        self._opened.append(made)
        return made

    async def close(self):
        await self._http.aclose()
        for one in self._opened:
            await one.close()


class Asking(AgentByHand):
    """An agent that hears answers to its questions."""

    kinds = (*AgentByHand.kinds, "inputs")  # type: ignore[assignment]


@pytest_asyncio.fixture(loop_scope="module")
async def agent(stubs):  # noqa: F811
    made = Asking(stubs)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def calling(node):  # noqa: F811
    made = Calling(node.admin_port)
    yield made
    await made.close()


@pytest.fixture(params=BINDINGS)
def binding(request):
    return request.param
