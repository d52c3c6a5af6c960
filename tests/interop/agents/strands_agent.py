"""Strands Agents, served by its A2AServer: an agent whose model is a function. Knows nothing of Agent-Reach."""

import argparse
import asyncio

import uvicorn
from strands import Agent
from strands.models import Model
from strands.multiagent.a2a import A2AServer

options = argparse.ArgumentParser()
options.add_argument("--port", type=int, required=True)
options.add_argument("--go", action="store_true")
given = options.parse_args()


class Echo(Model):
    """Says what it heard in its conversation."""

    def update_config(self, **model_config):
        """See the base."""

    def get_config(self):
        """See the base."""
        return {}

    async def structured_output(self, output_model, prompt, system_prompt=None, **kwargs):
        """See the base."""
        raise NotImplementedError
        yield

    async def stream(self, messages, tool_specs=None, system_prompt=None, **kwargs):
        """See the base."""
        said = [part["text"] for one in messages if one["role"] == "user" for part in one["content"] if "text" in part]
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "heard "}}}
        if said[-1] == "hold" and not given.go:
            await asyncio.sleep(3_600)
        yield {"contentBlockDelta": {"delta": {"text": " | ".join(said)}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def agent_of(context_id):
    """One agent for each context."""
    return Agent(model=Echo(), name="Strands echo", description="Says what it heard", callback_handler=None)


server = A2AServer(agent_factory=agent_of, host="127.0.0.1", port=given.port, enable_a2a_compliant_streaming=True)
uvicorn.run(server.to_starlette_app(), host="127.0.0.1", port=given.port, log_level="error")
