"""What browsers may do: pages of other sites cannot act, unless they are named; no site passes itself off as ours."""

import pytest
import pytest_asyncio
from starlette.datastructures import Headers

from reach.errors import InvalidRequest, Reason
from reach.http.guard import Guard
from tests.http.conftest import client_of
from tests.http.test_api import is_problem
from tests.rpc.peers import running

HERE = "https://reach.example:8800"
FRIEND = "https://console.example"


def allows(guard, verb, **headers):
    try:
        guard.check(verb, Headers({"host": "reach.example:8800", **headers}))
    except InvalidRequest as error:
        return error.reason is not Reason.PERMISSION_DENIED
    return True


@pytest.mark.parametrize("verb", ["POST", "DELETE", "PUT"])
def test_only_pages_of_this_server_and_of_friends_can_act(verb):
    strict, open_to_one, open_to_all = Guard(), Guard(frozenset({FRIEND})), Guard(frozenset({"*"}))
    for guard in (strict, open_to_one, open_to_all):
        assert allows(guard, verb)  # no browser
        assert allows(guard, verb, origin=HERE)
    for origin in ("https://evil.example", "null", f"{FRIEND}.evil.example", "https://console.example:1", ""):
        assert not allows(strict, verb, origin=origin), origin
        assert not allows(open_to_one, verb, origin=origin), origin
        assert allows(open_to_all, verb, origin=origin)
    assert allows(open_to_one, verb, origin=FRIEND)
    assert not allows(strict, verb, origin=FRIEND)
    assert allows(strict, "GET", origin="https://evil.example")  # it cannot read the answer


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("localhost", True),
        ("LOCALHOST:8800", True),
        ("127.0.0.1:8800", True),
        ("[::1]:8800", True),
        ("evil.example", False),
        ("evil.example:8800", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:8800", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_a_local_server_without_keys_has_no_other_name(host, good):
    assert allows(Guard(local=True), "GET", host=host) is good
    assert allows(Guard(), "GET", host=host)


@pytest_asyncio.fixture
async def http(tmp_path):
    async with running(tmp_path, http__cors_origins=[FRIEND]) as node, client_of(node.admin_port) as made:
        yield made


async def test_CORS_is_told_to_pages_that_may_call(http):
    asked = {
        "origin": FRIEND,
        "access-control-request-method": "POST",
        "access-control-request-headers": "idempotency-key",
    }
    told = await http.options("/v1/tasks", headers=asked)
    assert (told.status_code, told.headers["access-control-allow-origin"]) == (200, FRIEND)
    assert "idempotency-key" in told.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in told.headers
    evil = await http.options("/v1/tasks", headers={**asked, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in evil.headers
    answer = await http.post(
        "/v1/routes/preview", json={"task": {"selector": {"agent_id": "x"}}}, headers={"origin": FRIEND}
    )
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, FRIEND)
    assert "x-trace-id" in answer.headers["access-control-expose-headers"]
    is_problem(
        await http.post("/task/dispatch", json={}, headers={"origin": "https://evil.example"}), 403, "PERMISSION_DENIED"
    )
    is_problem(await http.get("/v1/server", headers={"host": "evil.example"}), 403, "PERMISSION_DENIED")
    is_problem(await http.get("/api/v1/agents", headers={"host": "evil.example"}), 403, "PERMISSION_DENIED")
    assert (await http.get("/healthz", headers={"host": "evil.example"})).status_code == 200
