"""Links of one Attach stream whose pools other nodes own: what their agents say is brought to the owner of each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import attach_pb2
from reach.core.spread import Placing
from reach.rpc.branches import Branches
from reach.rpc.peer_messages import unavailable
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.faults import fault_of
from reach.runtime.ownership import Peer

if TYPE_CHECKING:
    from reach.rpc.agent import AttachStream
    from reach.rpc.peers import Peers
    from reach.rpc.principal import Principal

AGENT: Final = int(peer_pb2.CHANNEL_KIND_AGENT)
REOPEN_SECONDS: Final = 5.0
"""How long an agent that is asked to open its stream anew may take, before we end it."""
KINDS: Final = ("beats", "accepts", "deltas", "progress", "results", "effects", "pongs", "handoffs", "goodbyes")
"""What agents say of links that are open, in the order in which it is handled."""


class RemoteLinks:
    """See the module. A stream has none before the first hello that is another node's."""

    def __init__(self, stream: AttachStream, peers: Peers, principal: Principal) -> None:
        self._stream = stream
        self._branches = Branches(peers, AGENT, principal, "", stream.out, self._again, self._anew, _links_of)
        self._links: dict[int, Peer] = {}
        self._instances: dict[int, str] = {}
        self._returned: set[int] = set()
        """Links whose hello came back: for those it is asked for anew. What it says of running work gets old, and there
        may be another stream by now, on which that has changed."""
        self._ending: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, number: int) -> bool:
        return number in self._links

    def hello(self, hello: attach_pb2.Hello, where: Elsewhere) -> None:
        """Brings a hello to the owner of its pool; all else that is said of the link follows it."""
        self._links[hello.link] = where.peer
        self._instances[hello.link] = hello.registration.instance_id
        frame = attach_pb2.AttachRequest(hellos=[hello])
        self._branches.send(where, frame.SerializeToString(), self._stream.down)

    def instance_of(self, number: int) -> str:
        """The instance of a link; empty if it is not one of these."""
        return self._instances.get(number, "")

    def leaves(self, number: int) -> None:
        """A link is here now, or has ended."""
        self._links.pop(number, None)
        self._instances.pop(number, None)
        self._returned.discard(number)

    def take(self, frame: attach_pb2.AttachRequest) -> attach_pb2.AttachRequest:
        """Brings what is said of these links to their owners; what is left is to be handled here."""
        here_too = self._stream.links or self._stream.parted
        if not here_too and len(peers := set(self._links.values())) == 1:
            for kind in ("opening", "hellos", "sequence"):
                frame.ClearField(kind)
            if said := frame.SerializeToString():
                self._branches.to(peers.pop(), said, self._stream.down)
            self._part(frame)
            return attach_pb2.AttachRequest()
        here = attach_pb2.AttachRequest()
        there: dict[Peer, attach_pb2.AttachRequest] = {}
        for kind in KINDS:
            for item in getattr(frame, kind):
                peer = self._links.get(item.link)
                target = here if peer is None else there.setdefault(peer, attach_pb2.AttachRequest())
                getattr(target, kind).append(item)
        for peer, items in there.items():
            self._branches.to(peer, items.SerializeToString(), self._stream.down)
        self._part(frame)
        return here

    def _part(self, frame: attach_pb2.AttachRequest) -> None:
        """Links that end in peace are no more: their numbers may be another instance's, and they count no longer."""
        for goodbye in frame.goodbyes:
            self.leaves(goodbye.link)
            self._stream.left(goodbye.link)

    def close(self, *, ours: bool) -> None:
        """The stream is over."""
        if self._ending is not None:
            self._ending.cancel()
        self._branches.close(ours=ours)

    def _again(self, frame: bytes, placing: Placing | None, refuse: bool) -> None:
        for hello in attach_pb2.AttachRequest.FromString(frame).hellos:
            if refuse:
                fault = fault_of(unavailable("it is changing hands"))
                self.leaves(hello.link)
                self._stream.refuse(hello.link, None, fault, closed=True)
                continue
            is_first = hello.link not in self._returned
            self._returned.add(hello.link)
            if placing is not None and is_first:
                self._stream.hello(hello)  # at once, for somebody knows where it belongs
            else:
                self._stream.say(resync=True)

    def _anew(self) -> None:
        """What other nodes did for this stream is lost: the agent is to open another, and say all that it runs."""
        stream = self._stream
        stream.closing(stream.out)
        self._ending = asyncio.get_running_loop().call_later(REOPEN_SECONDS, stream.out.close)


def _links_of(frame: bytes) -> tuple[int, ...]:
    """What hellos are known by: each says anew what runs, and counts on."""
    return tuple(hello.link for hello in attach_pb2.AttachRequest.FromString(frame).hellos)
