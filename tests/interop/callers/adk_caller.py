"""Google ADK as a caller: its RemoteA2aAgent, by the card, in a conversation. Knows nothing of Agent-Reach."""

import asyncio
import json
import sys

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.runners import InMemoryRunner


async def main() -> None:
    """Says each text, and tells what came back."""
    agent = RemoteA2aAgent(name="remote", agent_card=f"{sys.argv[1]}/.well-known/agent-card.json")
    runner = InMemoryRunner(agent=agent, app_name="caller")
    answers = []
    for text in sys.argv[2:]:
        events = await runner.run_debug(text, quiet=True)
        parts = [part for one in events if one.content for part in one.content.parts or ()]
        answers.append("".join(part.text for part in parts if part.text and not part.thought))
    await runner.close()
    sys.stdout.write(json.dumps({"card": agent.description, "answers": answers}) + "\n")


asyncio.run(main())
