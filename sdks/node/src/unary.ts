/**
 * Calls that are not made often enough for a stream: each is safe to retry, and is tried again while nobody can be
 * reached.
 */

import { create, fromBinary, type MessageInitShape, type DescMethodUnary, toBinary } from "@bufbuild/protobuf";
import type { Client } from "@grpc/grpc-js";
import { errorFromStatus, ReachError, Unavailable } from "./errors.js";
import { Rotation, type Target } from "./target.js";

/** How long one server may take where there are others. */
const TRY_MS = 3_000;
/** Between tries while nobody can be reached. */
const LONGEST_WAIT_MS = 500;

/** Single calls to one server, or several that work as one. */
export class UnaryCalls {
  readonly #target: Target;
  readonly #rotation: Rotation;

  constructor(target: Target) {
    this.#target = target;
    this.#rotation = new Rotation(target);
  }

  /** The answer of a method. Throws its error, or Unavailable when the time is over. */
  async call<M extends DescMethodUnary>(
    method: M,
    request: MessageInitShape<M["input"]>,
    timeoutMs: number,
  ): Promise<import("@bufbuild/protobuf").MessageShape<M["output"]>> {
    const end = performance.now() + timeoutMs;
    const data = Buffer.from(toBinary(method.input, create(method.input, request)));
    const path = `/${method.parent.typeName}/${method.name}`;
    for (;;) {
      const left = end - performance.now();
      const limit = this.#rotation.isAlone ? left : Math.min(left, TRY_MS);
      try {
        const answer = await once(this.#target.connect(this.#rotation.current), path, data, this.#target, limit);
        this.#rotation.worked();
        return fromBinary(method.output, answer) as import("@bufbuild/protobuf").MessageShape<M["output"]>;
      } catch (error) {
        const isLate = error instanceof ReachError && error.reason === "WAIT_EXPIRED" && limit < left;
        if (!(error instanceof Unavailable) && !isLate) throw error;
        const wait = this.#rotation.failed() ? 0 : 50 + Math.random() * LONGEST_WAIT_MS;
        if (end - performance.now() <= wait) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }
}

async function once(client: Client, path: string, data: Buffer, target: Target, limitMs: number): Promise<Buffer> {
  try {
    return await new Promise<Buffer>((resolve, reject) => {
      const deadline = Date.now() + Math.max(limitMs, 1);
      const same = (bytes: Buffer): Buffer => bytes;
      client.makeUnaryRequest(path, same, same, data, target.metadata(), { deadline }, (failure, answer) => {
        if (failure !== null) reject(errorFromStatus(failure));
        else resolve(answer ?? Buffer.alloc(0));
      });
    });
  } finally {
    client.close();
  }
}
