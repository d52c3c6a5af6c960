/** The agent's side of Attach: one instance on one stream. */

import { create, fromBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import {
  type AttachResponse,
  AttachResponseSchema,
  type LinkRefusal,
  type LinkWelcome,
} from "./gen/agentreach/v1/attach_pb.js";
import type { Registration, RegistrationSchema } from "./gen/agentreach/v1/agent_pb.js";
import { TaskInputSchema } from "./gen/agentreach/v1/task_pb.js";
import { LINK, up } from "./attempt.js";
import { Attempts } from "./attempts.js";
import { Broken, Connection, type Peer } from "./connection.js";
import { errorFromMessage, type ReachError, type Reason } from "./errors.js";
import type { Figures, Status } from "./figures.js";
import { inMs } from "./figures.js";
import { DEFAULT_METHOD, type Handler } from "./handlers.js";
import { Outcomes } from "./outcomes.js";
import { Input } from "./questions.js";
import { PROTOCOL_VERSION, type Target } from "./target.js";
import { Watchdog } from "./watchdog.js";

const LATE_EVERY_MS = 1_000;
/** The server has given the attempt up: stop working on it. */
const LOST: ReadonlySet<Reason> = new Set(["STALE_ATTEMPT", "UNKNOWN_ATTEMPT", "STALE_GENERATION"]);

/** Numbers those of this process. */
let hellos = 0n;

/** What an instance says of itself when it joins. */
export type Registered = Exclude<MessageInitShape<typeof RegistrationSchema>, Registration> & {
  instanceId: string;
  bootId: string;
};

/** Speaks for one instance. */
export class Link implements Peer {
  readonly connection: Connection;
  readonly outcomes: Outcomes;
  readonly attempts: Attempts;
  /** The number that the server gave this process; 0 before it has taken us in. */
  generation = 0n;
  /** Resolves when the server has taken us in. */
  readonly welcomed: Promise<void>;
  #resolveWelcomed!: () => void;
  #intervalMs: number;
  #sequence = 0n;
  #lastFrame = 0n;
  #newStream = false;
  #beating: NodeJS.Timeout | undefined;
  readonly #watchdog: Watchdog;

  constructor(
    readonly target: Target,
    readonly registration: Registered,
    readonly handlers: ReadonlyMap<string, Handler>,
    readonly figures: Figures,
    intervalMs: number,
    readonly statusHook: () => Status,
  ) {
    this.connection = new Connection(target, "/agentreach.v1.AgentService/Attach", this);
    this.outcomes = new Outcomes(this.connection, () => this.beat());
    this.attempts = new Attempts(this.connection, handlers, figures, this.outcomes);
    this.welcomed = new Promise((resolve) => (this.#resolveWelcomed = resolve));
    this.#intervalMs = intervalMs;
    this.#watchdog = new Watchdog(target, registration.instanceId, registration.bootId, intervalMs, () => this.beat());
  }

  /** Runs until stopped. Throws the ReachError of a refusal that trying again does not change. */
  async run(): Promise<void> {
    const late = setInterval(() => this.outcomes.sendLate(), LATE_EVERY_MS);
    try {
      await this.connection.run();
    } finally {
      clearInterval(late);
      clearTimeout(this.#beating);
      this.#watchdog.stop();
    }
  }

  /** Beats now. */
  beat(): void {
    if (this.connection.up)
      this.connection.put(up({ beats: [{ link: LINK, status: this.#status(), lastFrame: this.#lastFrame }] }));
  }

  /** The link ends in peace; what still runs is given back. */
  sayGoodbye(): void {
    if (this.connection.up) this.connection.put(up({ goodbyes: [{ link: LINK, release: true }] }));
  }

  /** Who speaks, what we are, and all that we run. */
  opening(): Uint8Array[] {
    this.#sequence = this.#lastFrame = 0n;
    this.#newStream = true;
    return [
      Buffer.concat([this.prefix(), up({ opening: { protocolVersion: PROTOCOL_VERSION }, hellos: [this.#hello()] })]),
    ];
  }

  gather(): void {
    this.attempts.gather();
  }

  /** The number of the frame. */
  prefix(): Uint8Array {
    this.#sequence += 1n;
    return up({ sequence: this.#sequence });
  }

  received(bytes: Buffer): void {
    const frame = fromBinary(AttachResponseSchema, bytes);
    this.#lastFrame = frame.sequence;
    if (frame.welcome?.payloadLimit) this.attempts.payloadLimit = Number(frame.welcome.payloadLimit);
    if (frame.nodes !== undefined) this.target.hear(frame.nodes.addresses);
    for (const welcome of frame.links) this.#welcome(welcome);
    for (const refusal of frame.refusals) this.#refused(refusal);
    for (const offer of frame.offers) this.attempts.offered(offer);
    for (const key of frame.acknowledgements) this.outcomes.acknowledged(key);
    this.#receivedRest(frame);
  }

  /** The stream broke. What runs goes on; what it says is kept. */
  lost(): void {}

  #receivedRest(frame: AttachResponse): void {
    const { attempts, connection } = this;
    for (const { key } of frame.cancels) if (key !== undefined) attempts.cancel(key, false);
    for (const { key, bytes } of frame.credits) if (key !== undefined) attempts.find(key)?.flow.grant(Number(bytes));
    for (const grant of frame.grants) attempts.granted(grant);
    for (const { key, inputId, question, payload } of frame.inputs) {
      const attempt = key && attempts.find(key);
      const given = create(TaskInputSchema, { inputId, question, ...(payload && { payload }) });
      if (attempt !== undefined) attempts.questions.given(attempt, new Input(given));
    }
    for (const { link, nonce } of frame.pings) connection.put(up({ pongs: [{ link, nonce }] }));
    for (const { session, tenant } of frame.handoffs) {
      // We keep nothing of sessions.
      connection.put(up({ handoffs: [{ link: LINK, tenant, ...(session && { session }) }] }));
    }
    if (frame.resync) {
      connection.put(up({ hellos: [this.#hello()] }));
      connection.welcomed = false;
    }
    if (frame.reopen) connection.reopen();
  }

  #welcome(welcome: LinkWelcome): void {
    const newStream = this.#newStream;
    this.#newStream = false;
    this.generation = welcome.generation;
    for (const warning of welcome.warnings)
      process.emitWarning(`Agent-Reach says of ${this.registration.instanceId}: ${warning}`);
    if (welcome.heartbeatInterval !== undefined)
      this.#intervalMs = Math.max(100, durationMs(welcome.heartbeatInterval));
    this.#watchdog.setInterval(this.#intervalMs);
    this.connection.established();
    this.#watchdog.show(this.target.key());
    for (const key of welcome.unknown) this.attempts.cancel(key, true);
    this.attempts.restore(welcome.replay, newStream);
    this.outcomes.sendAll(newStream);
    if (newStream) this.#beatOn();
    this.#resolveWelcomed();
  }

  #refused(refusal: LinkRefusal): void {
    if (refusal.error === undefined) return;
    const error = errorFromMessage(refusal.error);
    if (refusal.key?.taskId) {
      const running = this.attempts.find(refusal.key);
      if (running === undefined) this.outcomes.refused(refusal.key, error);
      else if (LOST.has(error.reason)) this.attempts.stop(running, true);
      else if (error.retryable || !this.attempts.questions.refuse(running, error)) this.#warn(error);
    } else if (!refusal.closed && this.connection.up) {
      this.#warn(error);
    } else if (!error.retryable && ["INVALID_REQUEST", "INTERNAL"].includes(error.errorClass)) {
      throw error;
    } else {
      throw new Broken(error);
    }
  }

  #warn(error: ReachError): void {
    process.emitWarning(`Agent-Reach refused what ${this.registration.instanceId} sent: ${error.message}`);
  }

  #beatOn(): void {
    clearTimeout(this.#beating);
    this.beat();
    this.#beating = setTimeout(() => this.#beatOn(), this.#intervalMs);
  }

  #hello(): MessageInitShape<typeof import("./gen/agentreach/v1/attach_pb.js").HelloSchema> {
    // None: it takes any.
    const methods = this.handlers.has(DEFAULT_METHOD) ? [] : [...this.handlers.values()].map(methodOf);
    const registration = { ...this.registration, methods };
    hellos += 1n;
    return { link: LINK, number: hellos, registration, running: this.attempts.named(), status: this.#status() };
  }

  #status(): Status {
    const own = this.figures.status(this.handlers);
    try {
      return { ...own, ...this.statusHook() };
    } catch (error) {
      process.emitWarning(`heartbeatStatus failed: ${String(error)}`); // their code must not end the beats
      return own;
    }
  }
}

function methodOf({ name, options }: Handler): {
  name: string;
  expectedLatency?: ReturnType<typeof inMs>;
  concurrency?: number;
} {
  return {
    name,
    ...(options.expectedLatencyMs !== undefined && { expectedLatency: inMs(options.expectedLatencyMs) }),
    ...(options.concurrency !== undefined && { concurrency: options.concurrency }),
  };
}
