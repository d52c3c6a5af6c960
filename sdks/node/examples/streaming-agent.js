// Streams its answer, says how far it is, goes on where a lost attempt was, and stops when nobody wants it any more.

import { setTimeout as sleep } from "node:timers/promises";
import { Agent, AgentError, Progress } from "agentreach";

const agent = new Agent({ agentId: "counter-node", maxConcurrency: 4 });
agent.route("words.count", async function* (task) {
  const lines = task.text.split("\n").filter(Boolean);
  if (lines.length === 0) throw new AgentError("there is nothing to count");
  for (const [number, line] of lines.entries()) {
    await sleep(50, undefined, { signal: task.signal }); // the work
    yield `line ${number + 1}: ${line.split(/\s+/).length} words\n`;
    yield new Progress((number + 1) / lines.length);
  }
});
await agent.run();
