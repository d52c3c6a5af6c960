// A caller of the two agents beside it: one answer, a stream, and an error.

import { AgentError, Client } from "agentreach";

const client = new Client();
console.log(await client.call("", "Ada", { agentId: "hello-node", timeoutMs: 10_000 }));
for await (const event of client.stream("words.count", "one two\nthree", {
  agentId: "counter-node",
  timeoutMs: 10_000,
})) {
  if (event.kind === "delta") process.stdout.write(event.text);
  if (event.result) console.log(event.result.state);
}
try {
  await client.call("words.count", "", { agentId: "counter-node", timeoutMs: 10_000 });
} catch (error) {
  if (error instanceof AgentError) console.log(`${error.reason}: ${error.message}`);
}
client.close();
