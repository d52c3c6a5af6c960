/** Agents against a server that does what it wants. Names carry the ids of requirements, cases and hazards. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Agent, AgentError, Delta } from "../dist/index.js";
import { Availability } from "../dist/gen/agentreach/v1/agent_pb.js";
import { ErrorClass, ErrorReason } from "../dist/gen/agentreach/v1/error_pb.js";
import { eventually, FakeServer, key, offer } from "./fake.js";

let server;
let agents;

beforeEach(async () => {
  server = await new FakeServer().start();
  agents = [];
});

afterEach(async () => {
  server.acknowledge();
  for (const agent of agents) await agent.stop(0);
  server.stop();
});

/** An agent with these handlers that was taken in. */
async function joined(handlers, options = {}) {
  const agent = new Agent({ agentId: "worker", addr: server.address, ...options });
  for (const [method, run] of Object.entries(handlers)) agent.route(method, run);
  agents.push(agent);
  await agent.start(5_000);
  return agent;
}

/** The next stream, after the current one was cut. */
async function reconnected(stream) {
  const count = server.streams.length;
  stream.cut();
  const next = await server.stream(count);
  await next.wait("hellos");
  return next;
}

test("API-5 an answer, text and JSON, and its acknowledgement", async () => {
  await joined({ default: async (task) => (task.text === "json" ? { deep: [1, null] } : task.text.toUpperCase()) });
  const stream = await server.stream();
  assert.equal(stream.items("hellos")[0].registration.agentId, "worker");
  stream.send({ offers: [offer("a", { text: "hé" }), offer("b", { text: "json" })] });
  const [a, b] = await stream.wait("results", 2);
  assert.deepEqual([a.outcome.value.content.value, a.key.taskId], ["HÉ", "a"]);
  assert.deepEqual(
    [b.outcome.value.content.value, b.outcome.value.mediaType],
    ['{"deep":[1,null]}', "application/json"],
  );
});

test("HAZ-4 outcomes are kept until acknowledged, and told again on a new stream, which names them", async () => {
  await joined({ default: (task) => task.taskId });
  const stream = await server.stream();
  stream.send({ offers: [offer("kept"), offer("had")] });
  await stream.wait("results", 2);
  stream.send({ acknowledgements: [key("had")] });
  await sleep(20);
  const next = await reconnected(stream);
  assert.deepEqual(
    next.items("hellos")[0].running.map((one) => one.key.taskId),
    ["kept"],
  );
  const results = await next.wait("results");
  assert.deepEqual(
    results.map((one) => one.key.taskId),
    ["kept"],
  );
});

test("HAZ-4 the hello is complete: it names what runs and its deltas, which come again if asked for", async () => {
  let goOn;
  const waits = new Promise((resolve) => (goOn = resolve));
  await joined({
    async *default() {
      yield "one ";
      yield "two ";
      await waits;
      yield "three";
    },
  });
  const stream = await server.stream();
  stream.send({ offers: [offer("t")] });
  await stream.wait("deltas", 2);
  server.link = { replay: [key("t")] };
  const next = await reconnected(stream);
  const [running] = next.items("hellos")[0].running;
  assert.deepEqual([running.key.taskId, running.lastAttemptSequence], ["t", 2n]);
  const again = await next.wait("deltas", 2);
  assert.deepEqual(
    again.map((one) => Number(one.attemptSequence)),
    [1, 2],
  );
  goOn();
  const [result] = await next.wait("results");
  assert.deepEqual([result.outcome.case, result.outcome.value.lastAttemptSequence], ["folded", 3n]);
});

test("HAZ-4 without a replay asked for, the outcome carries the whole output after a new stream", async () => {
  let goOn;
  const waits = new Promise((resolve) => (goOn = resolve));
  await joined({
    async *default() {
      yield "one ";
      await waits;
      yield "two";
    },
  });
  const stream = await server.stream();
  stream.send({ offers: [offer("t")] });
  await stream.wait("deltas");
  const next = await reconnected(stream);
  goOn();
  const [result] = await next.wait("results");
  assert.deepEqual([result.outcome.case, result.outcome.value.content?.value], ["output", "one two"]);
});

test("HAZ-4 resync is answered by a hello and all results without acknowledgement, on the same stream", async () => {
  await joined({ default: (task) => (task.text === "runs" ? new Promise(() => {}) : "done") });
  const stream = await server.stream();
  stream.send({ offers: [offer("a"), offer("b", { text: "runs" })] });
  await stream.wait("results");
  stream.send({ resync: true });
  const hellos = await stream.wait("hellos", 2);
  assert.deepEqual(hellos[1].running.map((one) => one.key.taskId).sort(), ["a", "b"]);
  await stream.wait("results", 2);
  assert.equal(server.streams.length, 1);
});

test("HAZ-4 hellos are counted over all streams", async () => {
  await joined({ default: (task) => task.taskId });
  const stream = await server.stream();
  stream.send({ resync: true });
  const [first, again] = await stream.wait("hellos", 2);
  const [anew] = (await reconnected(stream)).items("hellos");
  assert.ok(0n < first.number && first.number < again.number && again.number < anew.number);
});

test("F4 what is said while the link changes hands waits for the welcome", async () => {
  let goOn;
  const waits = new Promise((resolve) => (goOn = resolve));
  await joined({
    async *default(task) {
      yield "one ";
      await waits;
      task.progress(0.5);
      yield "two";
      await task.beginEffect("charge");
    },
    short: () => "done",
  });
  const stream = await server.stream();
  stream.send({ offers: [offer("t")] });
  await stream.wait("deltas");
  server.welcomes = false;
  stream.send({ resync: true });
  await stream.wait("hellos", 2);
  goOn();
  stream.send({ offers: [offer("s", { method: "short" })] });
  await sleep(50);
  assert.deepEqual([stream.items("deltas").length, stream.items("results").length, stream.items("progress").length], [1, 0, 0]);
  stream.send({ links: [{ link: 1, generation: 1n }] });
  await stream.wait("deltas", 2);
  await stream.wait("progress");
  await stream.wait("effects");
  const [result] = await stream.wait("results");
  assert.equal(result.key.taskId, "s");
  const error = { errorClass: ErrorClass.INVALID_REQUEST, reason: ErrorReason.UNEXPECTED_FRAME };
  stream.send({ refusals: [{ link: 1, key: key("s"), error }], resync: true });
  await stream.wait("hellos", 3);
  stream.send({ links: [{ link: 1, generation: 1n }] });
  assert.equal((await stream.wait("results", 2))[1].outcome.case, "output");
});

test("HAZ-10 an attempt that is offered again is answered from memory, a newer one is run", async () => {
  const runs = [];
  await joined({ default: (task) => runs.push(task.attempt) && "done" });
  const stream = await server.stream();
  stream.send({ offers: [offer("t")] });
  await stream.wait("results");
  stream.send({ acknowledgements: [key("t")], offers: [] });
  stream.send({ offers: [offer("t")] });
  await stream.wait("results", 2);
  assert.deepEqual(runs, [1]);
  stream.send({ offers: [offer("t", { attempt: 2 })] });
  await stream.wait("results", 3);
  assert.deepEqual(runs, [1, 2]);
});

test("DLV-11 a cancelled attempt is aborted and says so; one that nobody knows, in silence", async () => {
  const aborted = [];
  await joined({
    default: (task) =>
      new Promise((_, reject) =>
        task.signal.addEventListener("abort", () => aborted.push(task.taskId) && reject(task.signal.reason)),
      ),
  });
  const stream = await server.stream();
  stream.send({ offers: [offer("a"), offer("b")] });
  await stream.wait("accepts", 2);
  stream.send({ cancels: [{ link: 1, key: key("a") }] });
  const [result] = await stream.wait("results");
  assert.equal(result.outcome.value.reason, ErrorReason.CANCELLED);
  server.link = { unknown: [key("b")] };
  const next = await reconnected(stream);
  await eventually(() => aborted.length === 2);
  await sleep(50);
  assert.deepEqual(next.items("results"), []);
});

test("DLV-3 an effect waits for its grant, and is asked for again on a new stream", async () => {
  await joined({
    default: async (task) => {
      await task.beginEffect("charge");
      return "charged";
    },
  });
  const stream = await server.stream();
  stream.send({ offers: [offer("t")] });
  await stream.wait("effects");
  const next = await reconnected(stream);
  await next.wait("effects");
  assert.deepEqual(next.items("results"), []);
  next.send({ grants: [{ link: 1, key: key("t"), effect: "charge" }] });
  const [result] = await next.wait("results");
  assert.equal(result.outcome.value.content.value, "charged");
  next.send({ offers: [offer("u")] });
  await next.wait("effects", 2);
  next.send({
    grants: [
      { link: 1, key: key("u"), effect: "charge", refusal: { errorClass: 1, reason: ErrorReason.STALE_ATTEMPT } },
    ],
  });
  assert.equal((await next.wait("results", 2))[1].outcome.value.reason, ErrorReason.STALE_ATTEMPT);
});

test("DLV-1 a question takes no slot, is said again on a new stream, and its answer goes on; one known before is there", async () => {
  await joined({
    async default(task) {
      const day = await task.ask("Which day?", { name: "day" });
      return `${day.text}, ${(await task.ask("Sure?")).text}`;
    },
  });
  const stream = await server.stream();
  const inputs = [{ inputId: "i", question: "day", payload: { content: { case: "text", value: "Friday" } } }];
  stream.send({ offers: [{ ...offer("t"), inputs }] });
  const [asked] = await stream.wait("results");
  assert.deepEqual([asked.outcome.case, asked.outcome.value.prompt.content.value], ["waiting", "Sure?"]);
  const next = await reconnected(stream);
  assert.equal(next.items("hellos")[0].running[0].key.taskId, "t");
  assert.equal(next.items("hellos")[0].status.inflight, 0);
  const [again] = await next.wait("results");
  const { question } = again.outcome.value;
  assert.equal(question, asked.outcome.value.question);
  const payload = { content: { case: "text", value: "yes" } };
  next.send({ inputs: [{ link: 1, key: key("t"), inputId: "x", question: "other", payload: {} }] });
  next.send({ inputs: [{ link: 1, key: key("t"), inputId: "j", question, payload }] });
  assert.equal((await next.wait("results", 2))[1].outcome.value.content.value, "Friday, yes");
});

test("STR-4 deltas stay within their credit", async () => {
  await joined({
    async *default() {
      for (let piece = 0; piece < 10; piece += 1) yield "x".repeat(64 << 10);
    },
  });
  const stream = await server.stream();
  stream.send({ offers: [offer("t")] });
  await stream.wait("deltas", 4);
  await sleep(50);
  assert.equal(stream.items("deltas").length, 4);
  stream.send({ credits: [{ link: 1, key: key("t"), bytes: BigInt(2 << 20) }] });
  await stream.wait("results");
  assert.equal(stream.items("deltas").length, 10);
});

test("DLV-4 errors keep their class; a bug is INTERNAL; no handler is INVALID_REQUEST", async (context) => {
  context.mock.method(console, "error", () => {});
  await joined({
    refuses: () => {
      throw new AgentError("cannot");
    },
    breaks: () => undefined.nothing,
  });
  const stream = await server.stream();
  stream.send({ offers: ["refuses", "breaks", "absent"].map((method) => offer(method, { method })) });
  const results = await stream.wait("results", 3);
  const said = Object.fromEntries(results.map((one) => [one.key.taskId, one.outcome.value.errorClass]));
  assert.deepEqual(said, {
    refuses: ErrorClass.AGENT_ERROR,
    breaks: ErrorClass.INTERNAL,
    absent: ErrorClass.INVALID_REQUEST,
  });
});

test("HLT-2 pings are answered from the loop; readiness and checkpoints are told", async () => {
  const agent = await joined(
    {
      async default(task) {
        task.saveCheckpoint("half");
        task.progress(2, "note");
        await sleep(30);
      },
      async *pieces() {
        yield new Delta("thought", { channel: "thoughts" });
        yield "said";
      },
    },
    { ready: false },
  );
  const stream = await server.stream();
  assert.equal(stream.items("hellos")[0].registration.ready, false);
  stream.send({ pings: [{ link: 1, nonce: 7n }], offers: [offer("t"), offer("p", { method: "pieces" })] });
  assert.equal((await stream.wait("pongs"))[0].nonce, 7n);
  const [progress] = await stream.wait("progress");
  assert.deepEqual([Buffer.from(progress.checkpoint).toString(), progress.progress.fraction], ["half", 1]);
  const deltas = await stream.wait("deltas", 2);
  assert.deepEqual(
    deltas.map((one) => one.delta.channel),
    ["thoughts", ""],
  );
  agent.ready = true;
  await eventually(() => stream.items("beats").at(-1)?.status.ready === true);
});

test("REG-7 drain: nothing new, what runs finishes, the rest is given back, goodbye", async () => {
  const agent = await joined({ default: (task) => sleep(Number(task.text), "done", { signal: task.signal }) });
  const stream = await server.stream();
  stream.send({ offers: [offer("short", { text: "50" }), offer("long", { text: "60000" })] });
  await stream.wait("accepts", 2);
  const stopped = agent.stop(200);
  await eventually(() => stream.items("beats").at(-1)?.status.availability === Availability.DRAINING);
  stream.send({ offers: [offer("new")] });
  const results = await stream.wait("results", 3);
  assert.deepEqual(Object.fromEntries(results.map((one) => [one.key.taskId, one.outcome.case])), {
    new: "released",
    short: "output",
    long: "released",
  });
  stream.send({ acknowledgements: results.map((one) => key(one.key.taskId)) });
  await stopped;
  assert.equal(stream.items("goodbyes").length, 1);
  assert.ok(stream.ended);
  agents.length = 0;
});

test("HLT-9 reopen: another stream is opened before the old one goes", async () => {
  await joined({ default: () => "done" });
  const stream = await server.stream();
  server.welcomes = false;
  stream.send({ reopen: true });
  const next = await server.stream(1);
  await next.wait("hellos");
  assert.equal(stream.ended, false);
  next.send({ welcome: {}, links: [{ link: 1, generation: 1n }] });
  await eventually(() => stream.ended);
});

test("API-5 a refusal that nothing can change ends run with its error", async () => {
  server.welcomes = false;
  const agent = new Agent({ agentId: "worker", addr: server.address }).handle(() => "x");
  const running = agent.run();
  const stream = await server.stream();
  await stream.wait("hellos");
  const error = {
    errorClass: ErrorClass.INVALID_REQUEST,
    reason: ErrorReason.STALE_GENERATION,
    message: "a newer process",
  };
  stream.send({ welcome: {}, refusals: [{ link: 1, closed: true, error }] });
  await assert.rejects(running, { name: "InvalidRequest", reason: "STALE_GENERATION" });
});

test("CLU-3 an agent goes on at another node when its own is gone", async () => {
  const other = await new FakeServer().start();
  try {
    const dead = new FakeServer();
    await dead.start();
    dead.stop();
    const agent = new Agent({ agentId: "worker", addr: [dead.address, other.address] }).handle(() => "done");
    agents.push(agent);
    await agent.start(5_000);
    assert.equal(other.streams.length, 1);
    (await other.stream()).send({ nodes: { addresses: [server.address] } });
    await sleep(20);
    other.stop();
    await (await server.stream()).wait("hellos");
  } finally {
    other.stop();
  }
});
