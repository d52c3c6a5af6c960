// The smallest agent. It needs a server: `reach serve`. Call it with `reach dispatch --agent hello-node Ada`.

import { Agent } from "agentreach";

const agent = new Agent({ agentId: "hello-node", capabilities: ["greeting"] });
agent.route("default", async (task) => `Hello, ${task.text.trim() || "world"}!`);
await agent.run(); // until Ctrl-C or SIGTERM
