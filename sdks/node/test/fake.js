/** A server that says what a test wants it to say. */

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Server, ServerCredentials } from "@grpc/grpc-js";
import { AttachRequestSchema, AttachResponseSchema } from "../dist/gen/agentreach/v1/attach_pb.js";
import { DispatchStreamRequestSchema, DispatchStreamResponseSchema } from "../dist/gen/agentreach/v1/dispatch_pb.js";

const PATIENCE_MS = 8_000;

/** Waits until the condition gives something true, and returns it. */
export async function eventually(condition, what = String(condition)) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const value = condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within ${PATIENCE_MS} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

/** One stream of an agent or of a caller. */
class Stream {
  frames = [];
  ended = false;

  constructor(call, up, down) {
    this.call = call;
    this.down = down;
    call.on("data", (bytes) => this.frames.push(fromBinary(up, bytes)));
    call.on("error", () => {});
    call.on("end", () => {
      this.ended = true;
      call.end();
    });
    call.on("cancelled", () => (this.ended = true));
  }

  /** All items of a kind that came, in order. */
  items(kind) {
    return this.frames.flatMap((frame) => frame[kind]);
  }

  /** The first `count` items of a kind, once they are there. */
  wait(kind, count = 1) {
    return eventually(() => this.items(kind).length >= count && this.items(kind), `${count} ${kind}`);
  }

  send(items) {
    this.call.write(Buffer.from(toBinary(this.down, create(this.down, items))));
  }

  /** Breaks it. */
  cut() {
    this.ended = true;
    this.call.emit("error", { code: 14, details: "cut" });
  }
}

/** The server. `welcomes`: agents are taken in, callers welcomed. `acknowledges`: outcomes are had at once. */
export class FakeServer {
  streams = [];
  welcomes = true;
  acknowledges = false;
  /** What an agent's welcome says besides. */
  link = {};
  port = 0;
  #server;

  async start() {
    const raw = {
      requestSerialize: same,
      requestDeserialize: same,
      responseSerialize: same,
      responseDeserialize: same,
    };
    const both = { requestStream: true, responseStream: true, ...raw };
    this.#server = new Server();
    this.#server.addService(
      {
        Attach: { path: "/agentreach.v1.AgentService/Attach", ...both },
        DispatchStream: { path: "/agentreach.v1.DispatchService/DispatchStream", ...both },
      },
      { Attach: (call) => this.#attach(call), DispatchStream: (call) => this.#dispatch(call) },
    );
    this.port = await new Promise((resolve, reject) => {
      const done = (error, port) => (error ? reject(error) : resolve(port));
      this.#server.bindAsync(`127.0.0.1:${this.port}`, ServerCredentials.createInsecure(), done);
    });
    return this;
  }

  get address() {
    return `127.0.0.1:${this.port}`;
  }

  /** The n-th stream that was opened, once it is, and for an agent said hello. */
  stream(number = 0) {
    return eventually(() => this.streams[number], `stream ${number}`);
  }

  /** Acknowledges all outcomes that came and that will come. */
  acknowledge() {
    this.acknowledges = true;
    for (const stream of this.streams)
      if (!stream.ended) stream.send({ acknowledgements: stream.items("results").map((one) => one.key) });
  }

  stop() {
    this.#server.forceShutdown();
  }

  #attach(call) {
    const stream = new Stream(call, AttachRequestSchema, AttachResponseSchema);
    this.streams.push(stream);
    call.on("data", (bytes) => {
      const { hellos, results } = fromBinary(AttachRequestSchema, bytes);
      if (this.acknowledges && results.length > 0) stream.send({ acknowledgements: results.map((one) => one.key) });
      if (this.welcomes && hellos.length > 0) {
        stream.send({
          sequence: 1n,
          welcome: { payloadLimit: 4_194_304n },
          links: [{ link: 1, generation: 1n, ...this.link }],
        });
      }
    });
  }

  #dispatch(call) {
    const stream = new Stream(call, DispatchStreamRequestSchema, DispatchStreamResponseSchema);
    this.streams.push(stream);
    if (this.welcomes) stream.send({ welcome: { protocolVersion: "1", payloadLimit: 4_194_304n } });
  }
}

function same(bytes) {
  return bytes;
}

/** An offer. */
export function offer(taskId, { attempt = 1, text = "", method = "" } = {}) {
  return {
    link: 1,
    attempt,
    fencingToken: BigInt(attempt),
    task: { taskId, method, payload: { content: { case: "text", value: text } } },
  };
}

/** Names an attempt. */
export function key(taskId, attempt = 1) {
  return { taskId, attempt };
}
