"""Two versions of nodes side by side (CLU-6): what one says more is passed over, another protocol is refused."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.unknown_fields import UnknownFieldSet

from agentreach.internal.v1 import peer_pb2, peer_pb2_grpc
from reach.rpc import peer_version
from reach.rpc.peer_secret import KEY
from tests.rpc.nodes import Cluster, agent_of, cluster, owned, serve, spec
from tests.rpc.peers import TIMEOUT, pb, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKNOWN = b"\xfa\x3e\x05later" + b"\xf0\x3e\x07"
"""Fields 1007 (bytes) and 1006 (number), which no message has."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path_factory.mktemp("versions"), "old", "new") as made:
        yield made


def newer(nodes: Cluster, version: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a node of another version; None: of one before there were any."""
    proof = (KEY, nodes["new"].peers.secret.proof("old"))
    return (proof,) if version is None else (proof, (peer_version.KEY, version))


def channel_to(nodes: Cluster, name: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(nodes.addresses[name].address)


async def test_the_fields_of_these_tests_are_unknown():
    message = peer_pb2.LocateRequest.FromString(UNKNOWN)
    assert len(UnknownFieldSet(message)) == 2


@pytest.mark.parametrize("version", [None, "1.0", "1.7"])
async def test_CLU_6_a_newer_minor_version_and_unknown_fields_are_understood(nodes, version):
    agent_type = owned(nodes, "old")
    task = spec(agent_type)
    request = peer_pb2.CallRequest(
        method="/agentreach.v1.DispatchService/Dispatch",
        identity=peer_pb2.Identity(tenant="default", app_id="local", scopes=["caller"]),
        request=pb.DispatchRequest(task=task).SerializeToString() + UNKNOWN,
    )
    async with channel_to(nodes, "old") as channel:
        call: Any = channel.unary_stream(
            "/agentreach.internal.v1.PeerService/Call", None, peer_pb2.CallResponse.FromString
        )
        sent = request.SerializeToString() + UNKNOWN
        answers = [one async for one in call(sent, metadata=newer(nodes, version), timeout=TIMEOUT)]
    assert len(answers) == 1
    assert pb.DispatchResponse.FromString(answers[0].message).task_id == task["task_id"]
    assert task["task_id"] in nodes["old"].tasks()


async def test_CLU_6_a_link_of_a_newer_node_says_more_and_is_served(nodes):
    async with channel_to(nodes, "old") as channel:
        link: Any = channel.stream_stream(
            "/agentreach.internal.v1.PeerService/Link", None, peer_pb2.LinkResponse.FromString
        )
        call = link(metadata=newer(nodes, "1.9"), timeout=TIMEOUT)
        await call.write(UNKNOWN)
        first = await call.read()
        assert first.node_id == "old"
        call.cancel()


@pytest.mark.parametrize("version", ["2.0", "0.3", "new", "1", "1.0.1", "1.0" + "0" * 30])
async def test_CLU_6_another_protocol_is_refused_in_words(nodes, version):
    async with channel_to(nodes, "old") as channel:
        stub = peer_pb2_grpc.PeerServiceStub(channel)
        call = stub.Locate(peer_pb2.LocateRequest(), metadata=newer(nodes, version), timeout=TIMEOUT)
        code, reason, text = (await refusal(call))[:3]
    assert (code, reason) == ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")
    assert "upgrade through a version that speaks both" in text
    assert repr(version[:20]) in text
    assert version[:21] not in text or len(version) <= 20, "what another one says is cut"


METHODS = [method.name for method in peer_pb2.DESCRIPTOR.services_by_name["PeerService"].methods]


@pytest.mark.parametrize("method", METHODS)
async def test_CLU_6_another_protocol_is_refused_by_each_method_and_so_is_who_proves_nothing(nodes, method):
    described = peer_pb2.DESCRIPTOR.services_by_name["PeerService"].methods_by_name[method]
    kind = (
        f"{'stream' if described.client_streaming else 'unary'}_{'stream' if described.server_streaming else 'unary'}"
    )
    async with channel_to(nodes, "old") as channel:
        make: Any = getattr(channel, kind)(f"/{described.containing_service.full_name}/{method}", None, None)
        given = () if described.client_streaming else (b"",)
        stranger = ((KEY, "1:1:guessed:new"), (peer_version.KEY, "2.0"))  # is told nothing of versions either
        for metadata, expected in (
            (newer(nodes, "2.0"), "VERSION_NOT_SUPPORTED"),
            ((), "UNAUTHENTICATED"),
            (stranger, "UNAUTHENTICATED"),
        ):
            call = make(*given, metadata=metadata, timeout=TIMEOUT)
            assert (await refusal(call))[1] == expected


async def test_CLU_6_callers_of_a_node_that_is_not_understood_are_told(nodes, monkeypatch, caplog):
    """The node that is too new says why in its log, once; what it cannot bring anywhere is UNAVAILABLE."""
    monkeypatch.setattr(peer_version, "VERSION", "2.0")
    agent_type = owned(nodes, "old")
    call = nodes.stubs("new").dispatch.Dispatch(pb.DispatchRequest(task=spec(agent_type)), timeout=3)
    code, reason, text = (await refusal(call))[:3]
    assert (code, reason) == ("UNAVAILABLE", "OWNER_UNAVAILABLE")
    assert "of the protocol between nodes, not '2.0'" in text
    told = [record.node for record in caplog.records if "does not understand this one" in record.message]
    assert told.count("old") == 1
    monkeypatch.undo()
    agent = await agent_of(nodes, agent_type, "old")
    asked = nodes.stubs("new").dispatch.Dispatch(
        pb.DispatchRequest(task=spec(agent_type), wait={"seconds": 5}), timeout=9
    )
    await serve(agent)
    assert (await asked).result.output.text == "pong"
    await agent.close()
