// An agent of the fault tests: logs each time that it begins a task, one line each, and answers with what it was given.
// Arguments: agent_id, log file.

import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Agent } from "../../../sdks/node/dist/index.js";

const [agentId, log] = process.argv.slice(2);
const agent = new Agent({ agentId, maxConcurrency: 16, heartbeatIntervalMs: 1_000 });

agent.route("echo", async (task) => {
  appendFileSync(log, `${task.taskId} ${task.attempt}\n`);
  await sleep(5 + Math.random() * 40);
  return task.text;
});

agent.route("stream", async function* (task) {
  appendFileSync(log, `${task.taskId} ${task.attempt}\n`);
  for (const word of task.text.split(/(?<= )/)) {
    yield word;
    await sleep(15);
  }
});

agent.route("block", (task) => {
  const end = Date.now() + Number(task.text);
  while (Date.now() < end); // what nobody should do
  return "done";
});

agent.route(
  "until-aborted",
  (task) =>
    new Promise((_, reject) =>
      task.signal.addEventListener("abort", () => {
        appendFileSync(log, `${task.taskId} aborted\n`);
        reject(task.signal.reason);
      }),
    ),
);

agent.route("ask", async (task) => `booked for ${(await task.ask("Which day?")).text}`);

agent.route("effect", async (task) => {
  await task.beginEffect("charge");
  return `charged, token ${task.fencingToken}`;
});

agent.route("checkpointed", async (task) => {
  const done = Buffer.from(task.checkpoint).toString();
  if (done !== "") return `went on behind ${done}`;
  task.saveCheckpoint("half");
  task.progress(0.5, "half");
  await sleep(200);
  process.kill(process.pid, "SIGKILL");
});

await agent.run();
