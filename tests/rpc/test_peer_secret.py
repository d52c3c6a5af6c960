"""How nodes prove themselves to each other: what holds, for whom, and how long."""

import pytest

from reach.errors import InvalidRequest, Reason
from reach.rpc.peer_secret import RENEW_SECONDS, SECONDS, PeerSecret

SECRET = b"a secret of at least sixteen bytes"
NOW = 1_700_000_000


class Wall:
    def __init__(self) -> None:
        self.seconds = NOW

    def ms(self) -> int:
        return self.seconds * 1_000


def refused(secret: PeerSecret, proof: str) -> bool:
    with pytest.raises(InvalidRequest) as error:
        secret.check(proof)
    assert error.value.reason is Reason.UNAUTHENTICATED
    return True


def test_CLU_1_a_proof_holds_at_one_node_for_five_minutes_whichever_clock_is_ahead():
    mine, theirs = Wall(), Wall()
    one, two = PeerSecret(SECRET, "one:8900", mine.ms), PeerSecret(SECRET, "two", theirs.ms)
    proof = one.proof("two")
    assert two.check(proof) == "one:8900"
    for seconds in (SECONDS, -SECONDS):
        theirs.seconds = NOW + seconds
        assert two.check(proof) == "one:8900"
        theirs.seconds += 1 if seconds > 0 else -1
        assert refused(two, proof)
    theirs.seconds = NOW
    assert refused(PeerSecret(SECRET, "three", theirs.ms), proof)
    assert refused(PeerSecret(SECRET[::-1], "two", theirs.ms), proof)


@pytest.mark.parametrize(
    "proof", ["", "1", "1:::", "1:x:y:one", f"1:{NOW}:{'0' * 64}:one", "1:" + "9" * 400, "2:1:x:one"]
)
def test_CLU_1_what_is_no_proof_is_refused(proof):
    assert refused(PeerSecret(SECRET, "two", Wall().ms), proof)


def test_CLU_1_every_part_of_a_proof_counts():
    wall = Wall()
    two = PeerSecret(SECRET, "two", wall.ms)
    version, at, mac, name = PeerSecret(SECRET, "one", wall.ms).proof("two").split(":")
    assert two.check(f"{version}:{at}:{mac}:{name}") == "one"
    for wrong in (f"2:{at}:{mac}:{name}", f"{version}:{NOW + 1}:{mac}:{name}", f"{version}:{at}:{mac}:three",
                  f"{version}:{at}:{mac[::-1]}:{name}", f"{version}:0{at}:{mac}x:{name}"):  # fmt: skip
        assert refused(two, wrong)


def test_CLU_1_a_proof_is_made_anew_before_it_is_old():
    wall = Wall()
    one = PeerSecret(SECRET, "one", wall.ms)
    first = one.proof("two")
    wall.seconds += RENEW_SECONDS - 1
    assert one.proof("two") == first
    assert one.proof("three") != first
    wall.seconds += 1
    assert one.proof("two") != first


def test_CLU_1_a_secret_that_is_none_is_refused():
    with pytest.raises(InvalidRequest, match="16 bytes"):
        PeerSecret(b"short", "one", Wall().ms)
