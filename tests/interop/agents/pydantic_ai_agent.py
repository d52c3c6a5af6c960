"""Pydantic AI, served by fasta2a: an agent whose model is a function. Knows nothing of Agent-Reach."""

import argparse
import asyncio

import uvicorn
from fasta2a.pydantic_ai import agent_to_a2a
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

options = argparse.ArgumentParser()
options.add_argument("--port", type=int, required=True)
options.add_argument("--go", action="store_true")
given = options.parse_args()


def heard(messages):
    """All that the user said, oldest first."""
    said = []
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                said += [part.content] if isinstance(part.content, str) else [str(one) for one in part.content]
    return said


async def answer(messages, info):
    said = heard(messages)
    if said[-1] == "hold" and not given.go:
        await asyncio.sleep(3_600)
    return ModelResponse(parts=[TextPart("heard " + " | ".join(said))])


async def stream(messages, info):
    said = heard(messages)
    yield "heard "
    if said[-1] == "hold" and not given.go:
        await asyncio.sleep(3_600)
    yield " | ".join(said)


agent = Agent(FunctionModel(answer, stream_function=stream), name="pydantic")
app = agent_to_a2a(agent, name="Pydantic", url=f"http://127.0.0.1:{given.port}")
uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="error")
