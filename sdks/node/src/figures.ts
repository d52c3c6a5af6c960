/** What an agent reports of itself with beats and results. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type AgentStatus, type AgentStatusSchema, Availability } from "./gen/agentreach/v1/agent_pb.js";
import type { Handler } from "./handlers.js";

/**
 * Failures in a row count no longer than this: after three an agent gets no tasks, so it could never show that it works
 * again.
 */
const FAILURE_MEMORY_MS = 30_000;
/** Handlers with figures of their own: a status has at most 2 KiB. */
const MOST_METHODS = 16;

/** Fields of a status. */
export type Status = Exclude<MessageInitShape<typeof AgentStatusSchema>, AgentStatus>;

/** Counts of one agent. */
export class Figures {
  inflight = 0;
  ready = true;
  draining = false;
  longestTaskMs: number | undefined;
  busy = false;
  #failures = 0;
  #failedAt = 0;
  #completedAt: number | undefined;
  #lastMs = 0;

  constructor(readonly maxConcurrency: number) {}

  /** An attempt begins. */
  begun(handler: Handler | undefined): void {
    this.inflight += 1;
    if (handler !== undefined) handler.inflight += 1;
  }

  /** An attempt waits for input and takes no slot; when it goes on, it has `begun` again. */
  paused(handler: Handler | undefined): void {
    this.inflight -= 1;
    if (handler !== undefined) handler.inflight -= 1;
  }

  /** An attempt ended. `failed`: by a fault of ours; undefined: it says nothing about us. */
  ended(handler: Handler | undefined, tookMs: number, failed: boolean | undefined): void {
    this.inflight -= 1;
    this.#completedAt = performance.now();
    this.#lastMs = tookMs;
    if (handler !== undefined) {
      handler.inflight -= 1;
      handler.latencyMs += handler.latencyMs > 0 ? 0.2 * (tookMs - handler.latencyMs) : tookMs;
    }
    if (failed === true) {
      this.#failures += 1;
      this.#failedAt = this.#completedAt;
    } else if (failed === false) {
      this.#failures = 0;
    }
  }

  /** How it is. */
  status(handlers: ReadonlyMap<string, Handler>): Status {
    const now = performance.now();
    if (now - this.#failedAt > FAILURE_MEMORY_MS) this.#failures = 0;
    const availability = this.draining ? Availability.DRAINING : this.busy ? Availability.BUSY : Availability.READY;
    const methods = [...handlers.values()].map(({ name, inflight, latencyMs }) => ({
      name,
      inflight,
      latency: inMs(latencyMs),
    }));
    return {
      inflight: this.inflight,
      queueLength: 0,
      maxConcurrency: this.maxConcurrency,
      freeSlots: Math.max(0, this.maxConcurrency - this.inflight),
      consecutiveFailureCount: this.#failures,
      ready: this.ready,
      availability,
      ...(this.#completedAt !== undefined && {
        lastTaskDuration: inMs(this.#lastMs),
        lastCompletionAge: inMs(now - this.#completedAt),
      }),
      ...(this.longestTaskMs !== undefined && { longestTask: inMs(this.longestTaskMs) }),
      ...(methods.length > 1 && methods.length <= MOST_METHODS && { methods }),
    };
  }
}

/** Milliseconds as a duration. */
export function inMs(ms: number): ReturnType<typeof durationFromMs> {
  return durationFromMs(Math.max(0, Math.round(ms)));
}
