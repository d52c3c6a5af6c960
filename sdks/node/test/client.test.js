/** Callers against a server that does what it wants. */

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, InvalidRequest, Timeout, Unavailable } from "../dist/index.js";
import { ErrorClass, ErrorReason } from "../dist/gen/agentreach/v1/error_pb.js";
import { TaskState } from "../dist/gen/agentreach/v1/task_pb.js";
import { Target } from "../dist/target.js";
import { FakeServer } from "./fake.js";

const text = (value) => ({ content: { case: "text", value } });
let server;
let client;

beforeEach(async () => {
  server = await new FakeServer().start();
  client = new Client({ addr: server.address });
});

afterEach(() => {
  client.close();
  server.stop();
});

/** The end of a task. */
function complete(taskId, sequence, output) {
  const value = { taskId, state: TaskState.SUCCEEDED, output: text(output), attempts: 1 };
  return { taskId, sequence: BigInt(sequence), kind: { case: "complete", value } };
}

/** A piece of an answer. */
function delta(taskId, sequence, value) {
  return { taskId, sequence: BigInt(sequence), attempt: 1, kind: { case: "delta", value: { payload: text(value) } } };
}

test("DLV-3 a submit whose answer is lost is sent again with the same task id", async () => {
  const waits = client.call("greet", "Ada", { agentId: "x", tags: ["gpu"], priority: 7 });
  const stream = await server.stream();
  const [first] = await stream.wait("submits");
  assert.deepEqual([first.task.selector.requiredTags, first.task.priority], [["gpu"], 7]);
  stream.cut();
  const next = await server.stream(1);
  const [again] = await next.wait("submits");
  assert.equal(again.task.taskId, first.task.taskId);
  next.send({ events: [complete(again.task.taskId, 3, "Hello")] });
  assert.equal(await waits, "Hello");
});

test("CLU-3 who waits beside one that gave up is told though the task moves", async () => {
  const first = client.send("greet", "Ada", { taskId: "t", agentId: "x", timeoutMs: 200 });
  const stream = await server.stream();
  const [submit] = await stream.wait("submits");
  const second = client.waitForResult("t");
  await assert.rejects(first, Timeout);
  const error = { class: ErrorClass.UNAVAILABLE, reason: ErrorReason.OWNER_UNAVAILABLE, message: "it has moved" };
  stream.send({ refusals: [{ reference: submit.reference, taskId: "t", error }] });
  const [again] = await stream.wait("subscribes");
  assert.equal(again.taskId, "t");
  stream.send({ events: [complete("t", 3, "Hello")] });
  assert.equal((await second).text, "Hello");
});

test("STR-2 a stream goes on behind the last event: none is missing, none comes twice", async () => {
  const seen = [];
  const reading = (async () => {
    for await (const event of client.stream("greet", "Ada", { taskId: "t", agentId: "x" }))
      seen.push([event.sequence, event.text]);
  })();
  const stream = await server.stream();
  await stream.wait("submits");
  stream.send({ events: [delta("t", 1, "a"), delta("t", 2, "b")] });
  while (seen.length < 2) await sleep(1);
  stream.cut();
  const next = await server.stream(1);
  const [subscribed] = await next.wait("subscribes");
  assert.deepEqual([subscribed.taskId, subscribed.afterSequence, next.items("submits").length], ["t", 2n, 0]);
  next.send({ events: [delta("t", 2, "b"), delta("t", 3, "c"), complete("t", 4, "abc")] });
  await reading;
  assert.deepEqual(seen, [
    [1, "a"],
    [2, "b"],
    [3, "c"],
    [4, "abc"],
  ]);
});

test("STR-2 follow goes on behind a cursor; leaving lets the reader go", async () => {
  const reading = (async () => {
    for await (const event of client.follow("t", { afterSequence: 5 })) return event.sequence;
  })();
  const stream = await server.stream();
  assert.equal((await stream.wait("subscribes"))[0].afterSequence, 5n);
  stream.send({ events: [delta("t", 5, "no"), delta("t", 6, "yes")] });
  assert.equal(await reading, 6);
  assert.equal((await stream.wait("unsubscribes"))[0].taskId, "t");
});

test("STR-4 room is told as it is made", async () => {
  const reading = (async () => {
    for await (const event of client.stream("greet", "", { taskId: "t" })) if (event.result) return event.result.text;
  })();
  const stream = await server.stream();
  await stream.wait("submits");
  stream.send({ events: [delta("t", 1, "x".repeat(100_000))] });
  const [credit] = await stream.wait("credits");
  assert.equal(credit.bytes, 100_064n);
  stream.send({ events: [complete("t", 2, "all")] });
  assert.equal(await reading, "all");
});

test("STR-2 readers of one task share what the server tells, and each hears all", async () => {
  const seen = [];
  const reading = (async () => {
    for await (const event of client.stream("greet", "", { taskId: "t" })) seen.push(event.sequence);
  })();
  const stream = await server.stream();
  await stream.wait("submits");
  stream.send({ events: [delta("t", 1, "a")] });
  while (seen.length < 1) await sleep(1);
  const waits = client.waitForResult("t");
  await sleep(10);
  assert.deepEqual(stream.items("subscribes"), [], "it would take the reader's place");
  stream.send({ events: [delta("t", 2, "b"), complete("t", 3, "ab")] });
  assert.equal((await waits).text, "ab");
  await reading;
  assert.deepEqual(seen, [1, 2, 3]);
});

test("DLV-4 a refusal is its error; one that passes is asked again", async () => {
  const refused = client.submit("greet", "", { taskId: "t" });
  const stream = await server.stream();
  const [{ reference }] = await stream.wait("submits");
  const error = {
    errorClass: ErrorClass.INVALID_REQUEST,
    reason: ErrorReason.TASK_ID_REUSED,
    message: "other content",
    metadata: { a: "b" },
  };
  stream.send({ refusals: [{ reference, error }] });
  await assert.rejects(
    refused,
    (thrown) => thrown instanceof InvalidRequest && thrown.reason === "TASK_ID_REUSED" && thrown.metadata.a === "b",
  );
  const accepted = client.submit("greet", "", { taskId: "u" });
  const [, second] = await stream.wait("submits", 2);
  const later = {
    errorClass: ErrorClass.UNAVAILABLE,
    reason: ErrorReason.STORE_UNAVAILABLE,
    retryAfter: { nanos: 20_000_000 },
  };
  stream.send({ refusals: [{ reference: second.reference, error: later }] });
  const [, , third] = await stream.wait("submits", 3);
  stream.send({ acknowledgements: [{ reference: third.reference, taskId: "u", deduplicated: true }] });
  assert.equal((await accepted).deduplicated, true);
});

test("DLV-6 a time limit ends the wait, and the task only if that is wanted", async () => {
  const late = client.send("greet", "", { taskId: "t", timeoutMs: 50 });
  const stream = await server.stream();
  await assert.rejects(late, (error) => error instanceof Timeout && error.reason === "WAIT_EXPIRED");
  assert.deepEqual(stream.items("cancels"), []);
  await assert.rejects(client.send("greet", "", { taskId: "u", timeoutMs: 50, cancelOnTimeout: true }), Timeout);
  assert.equal((await stream.wait("cancels"))[0].taskId, "u");
});

test("DLV-11 cancel tells the state that the task ended in", async () => {
  const cancelled = client.cancel("t", { reason: "enough" });
  const stream = await server.stream();
  const [{ reference, reason }] = await stream.wait("cancels");
  assert.equal(reason, "enough");
  stream.send({ cancelled: [{ reference, taskId: "t", state: TaskState.CANCELLED }] });
  assert.equal(await cancelled, "CANCELLED");
});

test("A4 a server that is not there is Unavailable after a while; close ends what waits", async () => {
  server.stop();
  const lonely = new Client({ addr: server.address, connectTimeoutMs: 300 });
  await assert.rejects(
    lonely.send("greet"),
    (error) => error instanceof Unavailable && /reach serve/.test(error.message),
  );
  const waits = lonely.send("greet", "", { timeoutMs: 60_000 });
  lonely.close();
  await assert.rejects(waits, Unavailable);
});

test("API-5 a payload that is too large, or nothing that JSON can say, is refused here", async () => {
  await assert.rejects(client.send("greet", "x".repeat((4 << 20) + 1)), { reason: "PAYLOAD_TOO_LARGE" });
  for (const value of [NaN, 1n, () => {}]) await assert.rejects(client.send("greet", value), InvalidRequest);
  await assert.rejects(
    client.send("greet", "", { session: { appId: "a", userId: "", sessionId: "c" } }),
    InvalidRequest,
  );
});

test("CLU-3 closing: what waits is asked again on the next stream", async () => {
  const waits = client.call("greet", "", { taskId: "t" });
  const stream = await server.stream();
  await stream.wait("submits");
  stream.send({ closing: true });
  const next = await server.stream(1);
  await next.wait("submits");
  next.send({ events: [complete("t", 2, "done")] });
  assert.equal(await waits, "done");
});

test("API-5 an address that is a URL is refused at once, not tried for ever", () => {
  assert.throws(() => new Client({ addr: ["a:1", "http://127.0.0.1:8900"] }), /host:port, without http/);
});

test("GOV-2 a key, a function that gives the one of now, a file that is read anew", async () => {
  const shown = (target) => target.metadata().get("authorization");
  assert.deepEqual(shown(new Target({})), []);
  assert.deepEqual(shown(new Target({ apiKey: "one" })), ["Bearer one"]);
  let now = "a";
  const renewed = new Target({ apiKey: () => now });
  assert.deepEqual([shown(renewed), renewed.renews], [["Bearer a"], true]);
  now = "b";
  assert.deepEqual(shown(renewed), ["Bearer b"]);
  const folder = mkdtempSync(join(tmpdir(), "reach-"));
  try {
    process.env["AGENT_REACH_API_KEY_FILE"] = join(folder, "key");
    assert.throws(() => new Target({}));
    writeFileSync(join(folder, "key"), "first\n");
    const read = new Target({});
    writeFileSync(join(folder, "key"), "second\n");
    assert.deepEqual(shown(read), ["Bearer second"]);
    rmSync(join(folder, "key"));
    assert.deepEqual(shown(read), ["Bearer second"], "it is being replaced");
  } finally {
    delete process.env["AGENT_REACH_API_KEY_FILE"];
    rmSync(folder, { recursive: true });
  }
});
