"""Strands Agents as a caller: its A2AAgent, by the card. Knows nothing of Agent-Reach."""

import json
import sys

from strands.agent.a2a_agent import A2AAgent

agent = A2AAgent(sys.argv[1])
answers = []
for text in sys.argv[2:]:
    result = agent(text)
    answers.append("".join(part.get("text", "") for part in result.message["content"]))
sys.stdout.write(json.dumps({"card": agent.name, "answers": answers}) + "\n")
