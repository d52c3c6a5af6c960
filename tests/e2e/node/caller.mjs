// A caller of the fault tests: gives COUNT tasks, FLIGHT at a time, every tenth as a stream, and prints one JSON line for each
// that ended. Arguments: agent_id, prefix of task ids, COUNT, FLIGHT.

import { Client } from "../../../sdks/node/dist/index.js";

const [agentId, prefix, count, flight] = process.argv.slice(2);
const client = new Client({ reconnectTimeoutMs: Infinity });
let next = 0;

async function one(number) {
  const options = { agentId, taskId: `${prefix}-${number}` };
  const asked = `content ${number} in so many words that it takes a while`;
  if (number % 10 !== 0) {
    const result = await client.send("echo", asked, options);
    return { state: result.state, attempts: result.attempts, right: result.text === asked };
  }
  let [text, last, whole, doubled, result] = ["", 0, true, false, undefined];
  for await (const event of client.stream("stream", asked, options)) {
    doubled ||= event.sequence <= last;
    last = event.sequence;
    if (event.kind === "delta") text = event.mode === "replace" ? event.text : text + event.text;
    if (event.kind === "attemptReset") [text, whole] = ["", true];
    if (event.kind === "gap") [text, whole] = [event.snapshot.get("") ?? "", event.snapshot.has("")];
    result = event.result;
  }
  if (!whole || text === "") text = result.text; // what a gap left out, the final event puts right
  return { state: result.state, attempts: result.attempts, right: result.text === asked && text === asked && !doubled };
}

await Promise.all(
  Array.from({ length: Number(flight) }, async () => {
    while (next < Number(count)) {
      const number = next++;
      console.log(JSON.stringify({ task: `${prefix}-${number}`, ...(await one(number)) }));
    }
  }),
);
client.close();
