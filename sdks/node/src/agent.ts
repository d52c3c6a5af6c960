/** Agents: functions that take tasks. */

import { randomBytes } from "node:crypto";
import { availableParallelism, hostname } from "node:os";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { CapabilitySchema } from "./gen/agentreach/v1/agent_pb.js";
import { InvalidRequest, Unavailable } from "./errors.js";
import { Figures, inMs, type Status } from "./figures.js";
import { DEFAULT_METHOD, Handler, type HandlerFunction, type RouteOptions } from "./handlers.js";
import { Link, type Registered } from "./link.js";
import { Target, type TargetOptions } from "./target.js";
import { VERSION } from "./version.js";

/** How long handlers that run may take after the agent was told to stop. */
const GRACE_MS = 30_000;
/** How long the last words may take after the grace. */
const GOODBYE_MS = 2_000;

/** What an agent is. */
export interface AgentOptions extends TargetOptions {
  /** The logical agent; several instances may share it. */
  agentId: string;
  /** The pool it belongs to; left out: the agentId. */
  agentType?: string;
  /** What it can do: names, or capabilities of the contract. */
  capabilities?: readonly (string | MessageInitShape<typeof CapabilitySchema>)[];
  /** Tags for selectors. */
  tags?: readonly string[];
  /** Left out: `{agentId}@{host}#{6 random}`, so that copies on one host are told apart. */
  instanceId?: string;
  /** Its version; a grown one is a canary. */
  version?: string;
  /** Between beats, 1,000 to 60,000; the server may ask for another. Default 5,000. */
  heartbeatIntervalMs?: number;
  /** Called before each beat, must not block: fields to add, such as `{ memoryWatermark: 0.7 }`. */
  heartbeatStatus?: () => Status;
  /** Tasks at once; left out: twice the number of cores. */
  maxConcurrency?: number;
  maxSessions?: number;
  weight?: number;
  priority?: number;
  labels?: Record<string, string>;
  languages?: readonly string[];
  inputMediaTypes?: readonly string[];
  outputMediaTypes?: readonly string[];
  region?: string;
  /** False: it joins, and gets no work before `ready` is set. */
  ready?: boolean;
}

/**
 * An agent: a name, what it can do, and handlers.
 *
 *     const agent = new Agent({ agentId: "greeter" });
 *     agent.route("task.process", async (task) => `Hello, ${task.text}!`);
 *     await agent.run();
 */
export class Agent {
  readonly agentId: string;
  readonly instanceId: string;
  readonly #registration: Registered;
  readonly #target: Target;
  readonly #handlers = new Map<string, Handler>();
  readonly #figures: Figures;
  readonly #options: AgentOptions;
  #running: { link: Link; done: Promise<void>; ended: boolean } | undefined;
  #stop: (() => void) | undefined;
  #graceMs = GRACE_MS;
  #hurry: (() => void) | undefined;

  constructor(options: AgentOptions) {
    const { agentId, maxConcurrency = 2 * availableParallelism() } = options;
    if (maxConcurrency < 1) throw new InvalidRequest(`maxConcurrency must be 1 or more, not ${maxConcurrency}`);
    this.#options = options;
    this.agentId = agentId;
    this.instanceId = options.instanceId ?? `${agentId}@${hostname()}#${randomBytes(3).toString("hex")}`;
    this.#target = new Target(options);
    this.#figures = new Figures(maxConcurrency);
    this.#figures.ready = options.ready ?? true;
    this.#registration = {
      agentId,
      agentType: options.agentType ?? "",
      instanceId: this.instanceId,
      bootId: randomBytes(16).toString("hex"),
      capabilities: (options.capabilities ?? []).map((one) => (typeof one === "string" ? { name: one } : one)),
      tags: [...(options.tags ?? [])],
      labels: options.labels ?? {},
      ...(options.weight !== undefined && { weight: options.weight }),
      ...(options.priority !== undefined && { priority: options.priority }),
      ...(options.maxSessions !== undefined && { maxSessions: options.maxSessions }),
      maxConcurrency,
      version: options.version ?? "",
      languages: [...(options.languages ?? [])],
      inputMediaTypes: [...(options.inputMediaTypes ?? [])],
      outputMediaTypes: [...(options.outputMediaTypes ?? [])],
      region: options.region ?? "",
      heartbeatInterval: inMs(options.heartbeatIntervalMs ?? 5_000),
      ready: this.#figures.ready,
      host: hostname(),
      features: ["ping"],
      sdk: `node ${VERSION}`,
    };
  }

  /**
   * The function handles tasks of this method; the handler `default` takes all that no other takes. It gets a `Task`
   * and returns, or promises, text, bytes, what JSON can say, `Answer` or nothing; or it is a generator, and each piece
   * that it yields is streamed. It throws an error of this package, above all `AgentError` for "cannot be done".
   */
  route(method: string, run: HandlerFunction, options: RouteOptions = {}): this {
    this.#handlers.set(method, new Handler(method, run, options));
    return this;
  }

  /** `route` for all methods that have no handler of their own. */
  handle(run: HandlerFunction): this {
    return this.route(DEFAULT_METHOD, run);
  }

  /** Whether it can take work. Set it to false while it cannot: it gets no tasks, but stays. */
  get ready(): boolean {
    return this.#figures.ready;
  }

  set ready(value: boolean) {
    this.#figures.ready = value;
    this.#running?.link.beat();
  }

  /** Says that long work is at hand, and how long its longest task may take: silence is borne longer. */
  busy(longestTaskMs?: number): void {
    this.#figures.busy = true;
    this.#figures.longestTaskMs = longestTaskMs;
    this.#running?.link.beat();
  }

  /** Takes `busy` back. */
  available(): void {
    this.#figures.busy = false;
    this.#figures.longestTaskMs = undefined;
    this.#running?.link.beat();
  }

  /** The number that the server gave this process; 0 before it has taken us in. */
  get generation(): number {
    return Number(this.#running?.link.generation ?? 0n);
  }

  /**
   * Joins and beats, and returns when the server has taken us in. Throws the refusal, or Unavailable after `timeoutMs`.
   */
  async start(timeoutMs?: number): Promise<void> {
    const { link, done } = this.#begin();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      const text = `Agent-Reach at ${this.#target.address} did not answer`;
      if (timeoutMs !== undefined)
        timer = setTimeout(() => reject(new Unavailable(text, { reason: "OWNER_UNAVAILABLE" })), timeoutMs);
    });
    try {
      await Promise.race([link.welcomed, done, late]);
    } catch (error) {
      link.connection.stop();
      this.#running = undefined;
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Works until SIGTERM or SIGINT, or `stop`, then drains: takes nothing new, finishes what runs (30 s), gives back the
   * rest, says goodbye. A second signal ends that at once. Throws the error of a server that does not take us in.
   */
  async run(): Promise<void> {
    let asked = 0;
    const onSignal = (): void => {
      asked += 1;
      void this.stop(asked > 1 ? 0 : undefined);
    };
    process.on("SIGTERM", onSignal).on("SIGINT", onSignal);
    try {
      const { done } = this.#begin();
      await Promise.race([done, new Promise<void>((resolve) => (this.#stop = resolve))]);
      await this.#drain();
    } finally {
      process.off("SIGTERM", onSignal).off("SIGINT", onSignal);
    }
  }

  /**
   * Drains, and returns when that is done. Handlers that take longer than `graceMs` (30,000) are aborted and their
   * tasks given back.
   */
  async stop(graceMs?: number): Promise<void> {
    if (graceMs !== undefined) this.#graceMs = graceMs;
    if (graceMs === 0) this.#hurry?.();
    if (this.#stop !== undefined) this.#stop();
    else await this.#drain();
  }

  #begin(): { link: Link; done: Promise<void>; ended: boolean } {
    if (this.#running !== undefined) return this.#running;
    if (this.#handlers.size === 0)
      throw new InvalidRequest(`agent ${this.agentId} has no handler: give it one with route()`);
    const hook = this.#options.heartbeatStatus ?? (() => ({}));
    const interval = this.#options.heartbeatIntervalMs ?? 5_000;
    const link = new Link(this.#target, this.#registration, this.#handlers, this.#figures, interval, hook);
    const running = { link, done: link.run(), ended: false };
    const ended = (): void => {
      running.ended = true;
      this.#hurry?.();
    };
    running.done.then(ended, ended);
    this.#running = running;
    return running;
  }

  /** The end, in order and within bounds. Throws what ended the link, if it ended by itself. */
  async #drain(): Promise<void> {
    const running = this.#running;
    if (running === undefined) return;
    const { link, done } = running;
    const within = (promise: Promise<void>, ms: number): Promise<void> => this.#within(promise, ms, running);
    const end = performance.now() + this.#graceMs;
    this.#figures.draining = true;
    link.attempts.releaseWaiting();
    link.beat();
    await within(link.attempts.idle(), this.#graceMs);
    link.attempts.release("the agent drains and its grace is over");
    const left = link.connection.up ? GOODBYE_MS : Math.max(GOODBYE_MS, end - performance.now());
    await within(link.outcomes.settled(), this.#graceMs === 0 ? GOODBYE_MS : left);
    if (link.connection.up) {
      link.sayGoodbye();
      await link.connection.end(GOODBYE_MS);
    }
    link.connection.stop();
    this.#running = this.#stop = undefined;
    this.#figures.draining = false;
    this.#graceMs = GRACE_MS;
    await done;
  }

  /** Waits for a promise, but not longer than so long, nor than the link lives, nor after a second signal. */
  async #within(promise: Promise<void>, ms: number, running: { ended: boolean }): Promise<void> {
    if (running.ended) return;
    let timer: NodeJS.Timeout | undefined;
    const over = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, ms);
      this.#hurry = resolve;
    });
    await Promise.race([promise, over]);
    clearTimeout(timer);
    this.#hurry = undefined;
  }
}
