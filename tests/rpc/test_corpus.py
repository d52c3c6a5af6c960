"""The corpus of inputs that once went wrong, each again; and what is left of an agent's frames about its own work."""

import asyncio
import logging

import pytest

from reach.telemetry.logs import tells_of_a_client_that_left
from tests.fuzz import corpus
from tests.fuzz.hail import Hail
from tests.fuzz.live import LETTERS, Live
from tests.fuzz.worker import FuzzWorker
from tests.rpc.hostile import METHODS
from tests.rpc.peers import golden

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def no_faults(caplog):
    yield
    bad = [record for record in caplog.records if record.levelno >= logging.ERROR and record.name != "reach.telemetry"]
    bad = [record for record in bad if record.getMessage() != "a task was given up"]
    bad = [record for record in bad if not tells_of_a_client_that_left(record)]
    assert not bad, [(record.getMessage(), record.exc_info) for record in bad[:5]]


async def test_inputs_that_once_went_wrong_are_answered_as_the_contract_says(stubs):
    given = corpus.load()
    assert given, "the corpus is there"
    assert {one.path for one in given.values()} <= METHODS.keys(), "a method is gone: so may its inputs be"
    hail = Hail(stubs)
    async with FuzzWorker(stubs):
        for _ in range(3):  # several at once, and after one another
            await hail.all(list(given.values()))
            await golden(stubs)
    assert not hail.wrong, "\n".join(map(str, hail.wrong))
    assert hail.sent == 3 * len(given)


async def test_every_order_of_two_frames_about_work_that_an_agent_really_has(stubs):
    async with asyncio.timeout(50):
        came = await Live(stubs).run(2)
    assert came["sent"] == 1 + len(LETTERS) + len(LETTERS) ** 2
    assert came["found"] == 0
