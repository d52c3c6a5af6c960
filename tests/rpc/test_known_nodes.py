"""Who is attached to a node hears where the others are (CLU-3)."""

from __future__ import annotations

from pathlib import Path

from agentreach.v1 import dispatch_pb2
from reach.rpc.known_nodes import MOST, KnownNodes
from tests.rpc.nodes import cluster, until
from tests.rpc.peers import AgentByHand, CallerByHand, unique


async def test_CLU_3_streams_are_told_of_the_other_nodes_and_of_those_that_come(tmp_path: Path):
    async with cluster(tmp_path, "one", "two") as nodes:
        agent, caller = AgentByHand(nodes.stubs("one")), CallerByHand(nodes.stubs("one"))
        other = nodes.addresses["two"].address
        await until(lambda: bool(nodes["one"].peers._tunnels))
        await agent.join(unique("agent"), agent_type=unique("type"))
        await caller.open()
        assert [list(frame.nodes.addresses) for frame in agent.frames if frame.HasField("nodes")] == [[other]]
        assert [list(frame.nodes.addresses) for frame in caller.frames if frame.HasField("nodes")] == [[other]]
        late = nodes.addresses.pop("two")._replace(node_id="three", address="127.0.0.1:1")
        nodes.addresses["three"] = late
        for stream in (agent, caller):
            await stream.until(
                lambda stream=stream: any("127.0.0.1:1" in frame.nodes.addresses for frame in stream.frames)
            )
        del nodes.addresses["three"]
        await agent.close()
        await caller.close()
        await until(lambda: not nodes["one"]._grpc._services.nodes._says)


def test_CLU_3_what_is_as_it_was_is_not_told_again_and_no_more_than_fit():
    nodes, told = KnownNodes(), []

    def say(nodes: dispatch_pb2.KnownNodes) -> None:
        told.append(list(nodes.addresses))

    nodes.follow(say)
    assert told == []
    nodes.hear(["b:1", "a:1"])
    nodes.hear(["a:1", "b:1"])
    assert told == [["a:1", "b:1"]]
    nodes.hear(f"h:{number}" for number in range(2 * MOST))
    assert len(told[-1]) == MOST
    nodes.leave(say)
    nodes.hear([])
    assert len(told) == 2


def test_CLU_3_a_stream_that_ends_as_it_is_told_keeps_no_other_from_being_told():
    nodes, told = KnownNodes(), []

    def ends(**_: dispatch_pb2.KnownNodes) -> None:
        nodes.leave(ends)

    nodes.follow(ends)
    nodes.follow(lambda nodes: told.append(list(nodes.addresses)))
    nodes.hear(["a:1"])
    assert told == [["a:1"]]
