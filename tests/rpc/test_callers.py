"""The server's end of a caller's stream, on its own."""

from unittest.mock import Mock

import pytest

from agentreach.v1 import dispatch_pb2
from reach.core.model import Fault
from reach.core.stream import Reader
from reach.errors import ErrorClass, Reason
from reach.rpc.callers import CallerStream
from reach.rpc.principal import Principal

pytestmark = pytest.mark.asyncio
STOPPING = Fault(ErrorClass.UNAVAILABLE, Reason.SHUTTING_DOWN, "later")


class Refusing:
    """A node that has readers wait, and refuses each when its caller leaves: then it waits no longer for its meaning,
    comes in, and finds a server that is about to stop."""

    def __init__(self) -> None:
        self.let_go: list[str] = []

    def subscribe(self, tenant: str, task_id: str, reader: Reader) -> None:
        pass  # as if nobody answered

    def unsubscribe(self, reader: Reader, tenant: str, task_id: str) -> None:
        self.let_go.append(task_id)
        reader.sink.refused(reader, STOPPING)


async def test_DLV_3_who_is_refused_while_its_caller_leaves_keeps_nobody_from_being_let_go():
    """Found by seed 6 of the simulation: the first one ended the loop over all, and the others were read for ever."""
    reach = Refusing()
    services, hop = Mock(reach=reach), Mock()  # of a stream that came in at another node nothing more is needed
    stream = CallerStream(services, Principal("acme", "", frozenset({"caller"})), "", hop)
    subscribes = [dispatch_pb2.Subscribe(task_id=name) for name in ("a", "b", "c")]
    stream.handle(dispatch_pb2.DispatchStreamRequest(subscribes=subscribes))
    stream.close()
    assert reach.let_go == ["a", "b", "c"]
