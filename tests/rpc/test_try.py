import pytest
from tests.rpc.peers import golden, AgentByHand, CallerByHand
pytestmark = pytest.mark.asyncio(loop_scope="module")

async def test_golden(stubs):
    await golden(stubs)
async def test_golden2(stubs):
    await golden(stubs)
