"""What nodes tell each other of their pools (CLU-5): digests, bit masks, and the room that comes of both."""

from reach.core.model import Instance, PoolKey, Profile
from reach.core.rooms import PROFILES, PoolRoom, ProfileRoom, digest_of, masks_of, room_for

KEY = PoolKey("acme", "worker")


def profile(**fields: object) -> Profile:
    empty = dict.fromkeys(Profile._fields, ())
    return Profile(**{**empty, "agent_id": "a", "version": "1", "region": "", **fields})  # type: ignore[arg-type]


def instance(name: str, bit: int, one: Profile) -> Instance:
    made = Instance(name, one, KEY)
    made.bit = bit
    return made


def test_CLU_5_equal_profiles_have_one_digest_on_all_nodes():
    assert digest_of(profile(tags=("gpu",))) == digest_of(profile(tags=("gpu",)))
    assert digest_of(profile(tags=("gpu",))) != digest_of(profile())
    assert digest_of(profile(agent_id="b")).hex() == "5fecc91eda1dd7f8"  # nodes of two versions must agree


def test_CLU_5_masks_are_those_of_the_obvious_way():
    profiles = [profile(tags=(str(number),)) for number in range(3)]
    instances = [instance(f"i{bit}", bit, profiles[bit % 3]) for bit in (0, 1, 2, 3, 7, 8, 64, 1_000)]
    obvious: dict[bytes, int] = {}
    for one in instances:
        obvious[digest_of(one.profile)] = obvious.get(digest_of(one.profile), 0) | 1 << one.bit
    assert masks_of([*instances, instance("left", -1, profile(tags=("x",)))]) == obvious


def test_CLU_5_a_pool_of_many_profiles_tells_of_some():
    many = [instance(f"i{bit}", bit, profile(tags=(str(bit),))) for bit in range(PROFILES + 10)]
    assert len(masks_of(many)) == PROFILES


def test_CLU_5_the_room_is_that_of_the_profiles_that_could_take_it():
    a, b, c = b"a", b"b", b"c"
    of_c = ProfileRoom(0, 9, 0.9, 1)
    pool = PoolRoom(7, False, {a: ProfileRoom(3, 2, 0.5, 4), b: ProfileRoom(2, 3, 0.4, 1), c: of_c})
    assert room_for(pool, [a, b, c], near=True) == (5, 3, 0.4, 7, 6, True)
    assert room_for(pool, [a], near=False) == (3, 2, 0.5, 7, 4, False)
    assert room_for(pool, [c, b"unknown"], near=True) == (0, 0, 0.0, 7, 2, True)
