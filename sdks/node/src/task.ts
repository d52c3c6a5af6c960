/** What a handler sees of a task. */

import { AsyncLocalStorage } from "node:async_hooks";
import { durationMs } from "@bufbuild/protobuf/wkt";
import type { Offer, SessionContext } from "./gen/agentreach/v1/attempt_pb.js";
import type { TaskInput } from "./gen/agentreach/v1/task_pb.js";
import type { Attempt } from "./attempt.js";
import { InvalidRequest, Timeout } from "./errors.js";
import { checkSize, Content, Progress } from "./payloads.js";
import type { AskOptions, Input } from "./questions.js";
import type { Session } from "./specs.js";

const CHECKPOINT_LIMIT = 256 << 10;
/** What of the time that is left a task keeps for itself when it asks another agent. */
const RESERVE = { share: 0.05, leastMs: 50, mostMs: 1_000 };

const current = new AsyncLocalStorage<Task>();

/** The task that the code which runs works on. */
export function currentTask(): Task | undefined {
  return current.getStore();
}

/** Runs a handler so that `currentTask` finds its task. */
export function within<T>(task: Task, run: () => T): T {
  return current.run(task, run);
}

/** What the attempts of an agent do for a handler. */
export interface Voice {
  progress(attempt: Attempt, progress: Progress): void;
  checkpoint(attempt: Attempt, data: Uint8Array): void;
  beginEffect(attempt: Attempt, name: string): Promise<void>;
  ask(attempt: Attempt, inputs: readonly TaskInput[], prompt: unknown, options: AskOptions): Promise<Input>;
}

/** What a task that a handler gives inherits. */
export interface Inherited {
  parentTaskId: string;
  rootTaskId: string;
  scheduleToCloseMs: number | undefined;
  budget: { tokens?: bigint; moneyMicros?: bigint; maxHops?: number } | undefined;
}

/**
 * One attempt of one task, as its handler sees it. `taskId` is the same for every attempt: give it to what you call as
 * its idempotency key. `fencingToken` grows with each attempt: give it to stores that compare. `offer` is the message
 * of the contract.
 */
export class Task extends Content {
  readonly #attempt: Attempt;
  readonly #voice: Voice;

  constructor(
    readonly offer: Offer,
    attempt: Attempt,
    voice: Voice,
  ) {
    super(offer.task?.payload);
    this.#attempt = attempt;
    this.#voice = voice;
  }

  get taskId(): string {
    return this.offer.task?.taskId ?? "";
  }

  /** The handler that was asked for; empty: `default`. */
  get method(): string {
    return this.offer.task?.method ?? "";
  }

  /** What came beside the payload, by name. */
  get attachments(): ReadonlyMap<string, Content> {
    return new Map((this.offer.task?.attachments ?? []).map((one) => [one.name, new Content(one.payload)]));
  }

  /** 1, 2, 3 … */
  get attempt(): number {
    return this.offer.attempt;
  }

  /** Grows with each attempt of the task. */
  get fencingToken(): bigint {
    return this.offer.fencingToken;
  }

  /** The conversation it belongs to. */
  get session(): Session | undefined {
    return this.offer.task?.session;
  }

  /** What the conversation said so far; undefined for a task without a session. */
  get context(): SessionContext | undefined {
    return this.offer.sessionContext;
  }

  get labels(): Readonly<Record<string, string>> {
    return this.offer.task?.labels ?? {};
  }

  /** The agent or part of an application that asks. */
  get source(): string {
    return this.offer.task?.source ?? "";
  }

  /** The `traceparent` of the caller; empty if there is none. */
  get trace(): string {
    return this.offer.task?.trace?.traceparent ?? "";
  }

  /** Milliseconds left for this attempt and for the task; undefined if it has no limit. Negative when they are over. */
  get deadlineMs(): number | undefined {
    const limits = [this.offer.startToClose, this.offer.scheduleToClose].flatMap((limit) =>
      limit ? [durationMs(limit)] : [],
    );
    return limits.length > 0 ? this.#attempt.begun + Math.min(...limits) - performance.now() : undefined;
  }

  /** Aborted when nobody wants the answer any more. Give it to what takes one, such as `fetch`. */
  get signal(): AbortSignal {
    return this.#attempt.controller.signal;
  }

  /** What the attempt before left behind; empty if nothing. */
  get checkpoint(): Uint8Array {
    return this.offer.checkpoint;
  }

  /** An earlier attempt was allowed to begin its effect: do not do it again. */
  get effectGranted(): boolean {
    return this.offer.effectGranted;
  }

  /** Says how far the work is (0 to 1) and what it does. Does not wait; only the latest is sent. */
  progress(fraction?: number, note = ""): void {
    this.#voice.progress(this.#attempt, new Progress(fraction, note));
  }

  /** What the next attempt should get as `checkpoint`, if this one fails: at most 256 KiB. Does not wait. */
  saveCheckpoint(data: Uint8Array | string): void {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    checkSize(bytes.length, CHECKPOINT_LIMIT, "the checkpoint");
    this.#voice.checkpoint(this.#attempt, bytes);
  }

  /**
   * Asks for permission to do what must not happen twice, such as charging a card; act only after it. Throws the
   * refusal.
   */
  beginEffect(name: string): Promise<void> {
    return this.#voice.beginEffect(this.#attempt, name);
  }

  /**
   * Asks the caller and waits for the answer; meanwhile the task takes no slot and its time stands still. An answer
   * that an earlier attempt got comes at once. Throws InvalidRequest (CANCELLED) if the attempt is over.
   */
  ask(prompt: unknown, options: AskOptions = {}): Promise<Input> {
    return this.#voice.ask(this.#attempt, this.offer.inputs, prompt, options);
  }

  /**
   * What a task that is asked for from here inherits: its place in the tree, the time that is left, and the budget,
   * with one hop less. Throws Timeout (SCHEDULE_TO_CLOSE) or InvalidRequest (BUDGET_SPENT) if nothing is left.
   * @internal
   */
  passesOn(askedMs: number | undefined): Inherited {
    const spec = this.offer.task;
    let left = this.deadlineMs;
    if (left !== undefined) {
      left -= Math.min(RESERVE.mostMs, Math.max(RESERVE.leastMs, left * RESERVE.share));
      if (left <= 0)
        throw new Timeout(`task ${this.taskId} has no time left to ask another agent`, { reason: "SCHEDULE_TO_CLOSE" });
      if (askedMs !== undefined) left = Math.min(left, askedMs);
    }
    const { tokens, moneyMicros, maxHops } = spec?.budget ?? {};
    if (tokens === 0n || moneyMicros === 0n || maxHops === 0) {
      throw new InvalidRequest(`the budget of task ${this.taskId} allows no further agent`, { reason: "BUDGET_SPENT" });
    }
    const budget = {
      ...(tokens !== undefined && { tokens }),
      ...(moneyMicros !== undefined && { moneyMicros }),
      ...(maxHops !== undefined && { maxHops: maxHops - 1 }),
    };
    return {
      parentTaskId: this.taskId,
      rootTaskId: spec?.rootTaskId || spec?.parentTaskId || this.taskId,
      scheduleToCloseMs: left,
      budget: spec?.budget === undefined ? undefined : budget,
    };
  }
}
