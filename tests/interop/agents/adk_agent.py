"""Google's Agent Development Kit, served by its `to_a2a`: an agent without a model. Knows nothing of Agent-Reach."""

import argparse
import asyncio

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.events import Event
from google.genai import types

options = argparse.ArgumentParser()
options.add_argument("--port", type=int, required=True)
options.add_argument("--go", action="store_true")
given = options.parse_args()


class Echo(BaseAgent):
    """Says what it heard in its session."""

    async def _run_async_impl(self, ctx):
        said = [
            part.text
            for event in ctx.session.events
            if event.author == "user" and event.content
            for part in event.content.parts
            if part.text
        ]
        yield self.event(ctx, "heard ", partial=True)
        if said[-1] == "hold" and not given.go:
            await asyncio.sleep(3_600)
        yield self.event(ctx, "heard " + " | ".join(said), partial=False)

    def event(self, ctx, text, *, partial):
        content = types.Content(role="model", parts=[types.Part(text=text)])
        return Event(author=self.name, invocation_id=ctx.invocation_id, content=content, partial=partial)


agent = Echo(name="adk_echo", description="Says what it heard")
app = to_a2a(agent, host="127.0.0.1", port=given.port)
uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="error")
