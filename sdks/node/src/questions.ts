/**
 * What handlers ask of the caller while they work. While one waits for an answer its attempt takes no slot. A question
 * is known by its name, so it is said again after a broken connection, and an answer that an earlier attempt got is
 * there at once.
 */

import { createHash } from "node:crypto";
import { toBinary } from "@bufbuild/protobuf";
import { PayloadSchema } from "./gen/agentreach/v1/payload_pb.js";
import { type TaskInput, WaitingFor } from "./gen/agentreach/v1/task_pb.js";
import { type Attempt, LINK, up } from "./attempt.js";
import type { Connection } from "./connection.js";
import { InvalidRequest, type ReachError } from "./errors.js";
import { type Figures, inMs } from "./figures.js";
import { checkSize, Content, sizeOf, toPayload } from "./payloads.js";

/** Bytes of a question. */
const PROMPT_LIMIT = 64 << 10;

/** The answer to a question: read it as `text`, `data` (JSON), `value` or `bytes`. */
export class Input extends Content {
  constructor(readonly message: TaskInput) {
    super(message.payload);
  }

  /** As the caller named it. */
  get inputId(): string {
    return this.message.inputId;
  }

  /** Name of the question that it answers. */
  get question(): string {
    return this.message.question;
  }
}

/** What a question may say besides. */
export interface AskOptions {
  /** Credentials are asked for. */
  auth?: boolean;
  /** Names the question within the task. Left out: known by its text, and how often that was asked. */
  name?: string;
  /** Until the task fails for want of an answer; left out: as the server says (1 h). */
  timeoutMs?: number;
}

/** A question that waits for its answer. */
interface Open {
  readonly name: string;
  readonly item: Uint8Array;
  readonly askedAt: number;
  resolve(given: Input): void;
  reject(error: ReachError): void;
}

/** The questions of one attempt: one at a time is open, each name has one answer. */
class Asking {
  open: Open | undefined;
  /** The questions that were asked before. */
  before: Promise<unknown> = Promise.resolve();
  readonly counts = new Map<string, number>();
  readonly answers: Map<string, Input>;

  constructor(inputs: readonly TaskInput[]) {
    this.answers = new Map(inputs.map((given) => [given.question, new Input(given)]));
  }
}

/** The questions of all attempts of an agent. */
export class Questions {
  readonly #askings = new Map<Attempt, Asking>();

  constructor(
    readonly connection: Connection,
    readonly figures: Figures,
  ) {}

  /** Asks, once what was asked before is answered, and waits. `inputs`: what earlier attempts were told. */
  async ask(attempt: Attempt, inputs: readonly TaskInput[], prompt: unknown, options: AskOptions): Promise<Input> {
    const payload = toPayload(prompt);
    checkSize(sizeOf(payload), PROMPT_LIMIT, "the question");
    if (attempt.cancelled || attempt.ended) throw cancelled();
    const asking = this.#askings.get(attempt) ?? new Asking(inputs);
    this.#askings.set(attempt, asking);
    const waitingFor = options.auth ? WaitingFor.AUTH : WaitingFor.INPUT;
    const hash = createHash("sha256").update(toBinary(PayloadSchema, payload)).update(`${waitingFor}`);
    const digest = hash.digest("hex").slice(0, 16);
    const count = (asking.counts.get(digest) ?? 0) + (options.name ? 0 : 1);
    asking.counts.set(digest, count);
    const name = options.name || `${digest}-${count}`;
    const timeout = options.timeoutMs === undefined ? {} : { timeout: inMs(Math.max(1, options.timeoutMs)) };
    const value = { waitingFor, prompt: payload, question: name, ...timeout };
    const item = up({ results: [{ link: LINK, key: attempt.key, outcome: { case: "waiting", value } }] });
    const answer = asking.before.then(() => asking.answers.get(name) ?? this.#wait(attempt, asking, name, item));
    asking.before = answer.catch(() => {});
    return answer;
  }

  #wait(attempt: Attempt, asking: Asking, name: string, item: Uint8Array): Promise<Input> {
    if (attempt.cancelled || attempt.ended) return Promise.reject(cancelled());
    return new Promise((resolve, reject) => {
      asking.open = { name, item, askedAt: performance.now(), resolve, reject };
      this.figures.paused(attempt.handler);
      this.sayAgain(attempt);
    });
  }

  /** Whether it waits for an answer. */
  waits(attempt: Attempt): boolean {
    return this.#askings.get(attempt)?.open !== undefined;
  }

  /** Says its question, also once more: on a new stream. */
  sayAgain(attempt: Attempt): void {
    const open = this.#askings.get(attempt)?.open;
    if (open !== undefined && this.connection.welcomed) this.connection.put(open.item);
  }

  /** An answer came; one to what is not asked is dropped. */
  given(attempt: Attempt, input: Input): void {
    const asking = this.#askings.get(attempt);
    if (asking?.open === undefined || !["", asking.open.name].includes(input.question)) return;
    asking.answers.set(asking.open.name, input);
    this.#close(attempt, asking)?.resolve(input);
  }

  /** The server does not take a question, or the attempt is cancelled. False if none is open. */
  refuse(attempt: Attempt, error: ReachError = cancelled()): boolean {
    const asking = this.#askings.get(attempt);
    if (asking?.open === undefined) return false;
    this.#close(attempt, asking)?.reject(error);
    return true;
  }

  /** The attempt is over. */
  forget(attempt: Attempt): void {
    this.refuse(attempt);
    this.#askings.delete(attempt);
  }

  /** It asks nothing more, and takes a slot again. */
  #close(attempt: Attempt, asking: Asking): Open | undefined {
    const { open } = asking;
    if (open === undefined) return undefined;
    asking.open = undefined;
    attempt.begun += performance.now() - open.askedAt; // its time stood still
    this.figures.begun(attempt.handler);
    return open;
  }
}

function cancelled(): ReachError {
  return new InvalidRequest("the attempt was cancelled", { reason: "CANCELLED" });
}
