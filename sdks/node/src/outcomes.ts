/** Outcomes of attempts: sent, kept until the server has them for certain, and then held for repeated offers. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type AttemptResult, AttemptResultSchema } from "./gen/agentreach/v1/attempt_pb.js";
import type { Payload } from "./gen/agentreach/v1/payload_pb.js";
import { type Key, LINK, nameOf, up } from "./attempt.js";
import type { Connection } from "./connection.js";
import { errorToMessage, Internal, type ReachError, type Reason } from "./errors.js";

/** Outcomes without acknowledgement are sent again after this long. */
const RESEND_MS = 5_000;
/** Acknowledged outcomes that are held to answer repeated offers from memory. */
const HELD = 1_000;
const HELD_BYTES = 16 << 20;
/** How long they answer: the server gives the id of a task to a new one only later. */
const HELD_MS = 120_000;
/** Outcomes bring a beat along at most this often, so that the server knows how many slots are free. */
const WARM_MS = 1_000;
const GONE: ReadonlySet<Reason> = new Set(["STALE_ATTEMPT", "UNKNOWN_ATTEMPT", "STALE_GENERATION", "TASK_NOT_FOUND"]);

/** What is said of an attempt that ended. */
export type Said = Exclude<MessageInitShape<typeof AttemptResultSchema>, AttemptResult>;

/** What became of an attempt. */
class Outcome {
  sentAt = 0;

  constructor(
    readonly key: Key,
    public message: AttemptResult,
    /** The whole output, if `message` leaves that to the deltas. */
    public whole: Payload | undefined,
  ) {}

  get isError(): boolean {
    return this.message.outcome.case === "error";
  }

  item(): Uint8Array {
    return up({ results: [this.message] });
  }

  /** The server may lack the deltas that it stands on: it carries the output itself from now on. */
  makeWhole(): void {
    if (this.whole === undefined) return;
    this.message.outcome = { case: "output", value: this.whole };
    this.whole = undefined;
  }
}

/** All outcomes of one agent. */
export class Outcomes {
  /** The outcome of a task's latest attempt here. */
  readonly #byName = new Map<string, Outcome>();
  readonly #unacknowledged = new Map<string, Outcome>();
  readonly #held: { outcome: Outcome; size: number }[] = [];
  #heldBytes = 0;
  #warmAt = 0;
  #settled: (() => void)[] = [];

  constructor(
    readonly connection: Connection,
    readonly beat: () => void,
  ) {}

  /** Keys of all outcomes that wait for an acknowledgement. */
  get unacknowledged(): Key[] {
    return [...this.#unacknowledged.values()].map((outcome) => outcome.key);
  }

  /** Returns when nothing waits for an acknowledgement. */
  async settled(): Promise<void> {
    if (this.#unacknowledged.size > 0) await new Promise<void>((resolve) => this.#settled.push(resolve));
  }

  /** A newer attempt of the task begins: its former outcome is of no use to anybody. */
  forget(name: string): void {
    this.#byName.delete(name);
    this.#unacknowledged.delete(name);
    this.#letGo();
  }

  /**
   * The attempt of the outcome that an offer of the same task finds. What the server has for certain and was a failure,
   * or was long ago, is not asked for again: its id was given anew.
   */
  latest(name: string): number | undefined {
    const outcome = this.#byName.get(name);
    if (outcome === undefined) return undefined;
    if (!this.#unacknowledged.has(name) && (outcome.isError || performance.now() - outcome.sentAt > HELD_MS)) {
      this.#byName.delete(name);
      return undefined;
    }
    return outcome.key.attempt;
  }

  /** Sends an outcome and keeps it. */
  add(key: Key, said: Said, whole?: Payload): void {
    const name = nameOf(key);
    const outcome = new Outcome(key, create(AttemptResultSchema, { ...said, link: LINK, key }), whole);
    this.#byName.set(name, outcome);
    this.#unacknowledged.set(name, outcome);
    if (!this.connection.welcomed) return;
    const now = performance.now();
    outcome.sentAt = now;
    this.connection.put(outcome.item());
    if (now < this.#warmAt) return;
    this.#warmAt = now + WARM_MS;
    this.beat();
  }

  /** Sends a kept outcome, because the attempt was offered again. */
  answerAgain(name: string): void {
    const outcome = this.#byName.get(name);
    if (outcome === undefined || !this.connection.welcomed) return;
    outcome.sentAt = performance.now();
    this.connection.put(outcome.item());
  }

  /** The server has committed it, or wants nothing of it any more. It is held a while for repeated offers. */
  acknowledged(key: Key): void {
    const name = nameOf(key);
    const outcome = this.#unacknowledged.get(name);
    if (outcome === undefined || outcome.key.attempt !== key.attempt) return;
    this.#unacknowledged.delete(name);
    outcome.whole = undefined;
    const size = outcome.item().length;
    this.#held.push({ outcome, size });
    this.#heldBytes += size;
    this.#letGo();
  }

  /** Sends all that wait for an acknowledgement, because of a new stream or because the server asks. */
  sendAll(newStream: boolean): void {
    for (const outcome of this.#unacknowledged.values()) {
      if (newStream) outcome.makeWhole();
      outcome.sentAt = performance.now();
      this.connection.put(outcome.item());
    }
  }

  /** Sends those again that have waited too long, unless the last ones have not even left yet. */
  sendLate(): void {
    if (!this.connection.welcomed || this.connection.waiting > 0) return;
    const now = performance.now();
    for (const outcome of this.#unacknowledged.values()) {
      if (outcome.sentAt > now - RESEND_MS) continue;
      outcome.sentAt = now;
      this.connection.put(outcome.item());
    }
  }

  /** The server does not take an outcome. */
  refused(key: Key, error: ReachError): void {
    const name = nameOf(key);
    const outcome = this.#unacknowledged.get(name);
    if (outcome === undefined || outcome.key.attempt !== key.attempt || error.retryable) return;
    if (error.reason === "UNEXPECTED_FRAME") {
      // The link was not open there (yet): the next hello names it, and its welcome has it said again. Or the deltas
      // that it stands on are not there.
      if (outcome.whole === undefined) return;
      outcome.makeWhole();
    } else if (GONE.has(error.reason) || outcome.isError) {
      return this.acknowledged(key);
    } else {
      // What cannot be delivered becomes a failure, so that nobody waits for ever.
      const tooLarge = error.reason === "RESULT_TOO_LARGE" || error.reason === "PAYLOAD_TOO_LARGE";
      const reason = tooLarge ? error.reason : "AGENT_CRASHED";
      const failure = new Internal(`the outcome was refused: ${error.message}`, { reason });
      outcome.message = create(AttemptResultSchema, {
        link: LINK,
        key,
        outcome: { case: "error", value: errorToMessage(failure) },
      });
    }
    this.answerAgain(name);
  }

  /** Tells those who wait that all is settled, and forgets the oldest of what is held. */
  #letGo(): void {
    if (this.#unacknowledged.size === 0) for (const resolve of this.#settled.splice(0)) resolve();
    while (this.#held.length > HELD || this.#heldBytes > HELD_BYTES) {
      const old = this.#held.shift();
      if (old === undefined) return;
      this.#heldBytes -= old.size;
      const name = nameOf(old.outcome.key);
      if (this.#byName.get(name) === old.outcome) this.#byName.delete(name);
    }
  }
}
