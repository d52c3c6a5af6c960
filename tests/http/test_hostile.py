"""Hostile bodies for every path that takes one: whatever comes, it is the caller's mistake or it is done, and never a
fault of the server (GOV-5, G1, G2). REACH_HOSTILE says how many; a few hundred where nothing is said.
`python -m tests.fuzz http --count 50000` sends many more to a server of its own."""

import os

import pytest

from tests.http.bodies import PATHS, RAW, bodies_for

COUNT = int(os.environ.get("REACH_HOSTILE", "250"))

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("no_tracebacks"),
    pytest.mark.timeout(60 + COUNT // 20),
]


async def test_GOV_5_hostile_bodies_are_no_fault_of_the_server(http):
    seen: dict[int, int] = {}
    for seed, (path, rpc) in enumerate(PATHS):
        for body in bodies_for(rpc, COUNT // len(PATHS) + 1, seed):
            answer = await http.post(path, content=body)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code != 500, (path, body, answer.text)
            answer.json()
    assert sum(seen.values()) >= COUNT
    assert seen.keys() >= {200, 400}, seen


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/agents", "/task/dispatch"])
async def test_G1_G2_GOV_5_bodies_that_are_no_json_or_too_much_of_it(http, path):
    for body in RAW:
        answer = await http.post(path, content=body)
        assert answer.status_code in (200, 400, 404, 409), (body[:100], answer.text)
        assert answer.status_code == 200 or answer.json()["reason"], body[:100]
