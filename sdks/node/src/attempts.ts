/**
 * The attempts that run in one agent. One attempt per task; a newer one ends the older. Nothing is sent for an attempt
 * that was cancelled, but that it is.
 */

import type { EffectGrant } from "./gen/agentreach/v1/attach_pb.js";
import type { Offer } from "./gen/agentreach/v1/attempt_pb.js";
import type { Payload } from "./gen/agentreach/v1/payload_pb.js";
import type { TaskInput } from "./gen/agentreach/v1/task_pb.js";
import { Attempt, type Key, LINK, nameOf, up, type Waiting } from "./attempt.js";
import type { Connection } from "./connection.js";
import {
  bounded,
  errorFromMessage,
  errorToMessage,
  Internal,
  InvalidRequest,
  ReachError,
  ResourceExhausted,
} from "./errors.js";
import type { Figures } from "./figures.js";
import { answerOf, DEFAULT_METHOD, FOLDED, type Handler } from "./handlers.js";
import type { Outcomes, Said } from "./outcomes.js";
import { Answer, type Delta, PAYLOAD_LIMIT, type Progress, sizeOf, toPayload } from "./payloads.js";
import { type AskOptions, type Input, Questions } from "./questions.js";
import { Task, type Voice, within } from "./task.js";

const NOTE_LIMIT = 1_024;
/** Whether an error says that we are broken (true), that we work (false), or neither. */
const FAILED: Record<string, boolean> = { INTERNAL: true, AGENT_ERROR: false, INVALID_REQUEST: false };

/** The named owner of all handlers that run. */
export class Attempts implements Voice {
  payloadLimit = PAYLOAD_LIMIT;
  readonly running = new Map<string, Attempt>();
  readonly #stopping = new Set<Attempt>();
  #fresh: Attempt[] = [];
  readonly #notes = new Map<Attempt, { progress?: Progress; checkpoint?: Uint8Array }>();
  #idle: (() => void)[] = [];
  readonly questions: Questions;

  constructor(
    readonly connection: Connection,
    readonly handlers: ReadonlyMap<string, Handler>,
    readonly figures: Figures,
    readonly outcomes: Outcomes,
  ) {
    this.questions = new Questions(connection, figures);
  }

  /** Returns when nothing runs. */
  async idle(): Promise<void> {
    if (this.running.size + this.#stopping.size > 0) await new Promise<void>((resolve) => this.#idle.push(resolve));
  }

  /** Takes up an attempt, but one that runs or is answered already. */
  offered(offer: Offer): void {
    const spec = offer.task;
    if (spec === undefined) return;
    const key = { taskId: spec.taskId, attempt: offer.attempt, tenant: offer.tenant };
    if (!this.#isNew(key)) return;
    const handler = this.handlers.get(spec.method || DEFAULT_METHOD) ?? this.#standIn(spec.method);
    const attempt = new Attempt(key, handler);
    this.running.set(attempt.name, attempt);
    this.figures.begun(handler);
    if (this.figures.draining) {
      this.#conclude(attempt, { outcome: { case: "released", value: { reason: "the agent drains" } } }, undefined);
    } else if (handler === undefined) {
      const names = [...this.handlers.keys()].join(", ");
      this.#fail(
        attempt,
        new InvalidRequest(`this agent has no handler for method ${spec.method || DEFAULT_METHOD}; it has: ${names}`),
      );
    } else {
      this.#fresh.push(attempt);
      this.connection.wake();
      void this.#run(attempt, handler, new Task(offer, attempt, this));
    }
  }

  /** The server wants an attempt stopped. `silent`: and does not want to hear that it is. */
  cancel(key: Key, silent: boolean): void {
    const attempt = this.find(key);
    if (attempt !== undefined) this.stop(attempt, silent);
    else if (silent) this.outcomes.acknowledged(key);
  }

  /** The attempt, if it runs. */
  find(key: Key): Attempt | undefined {
    const attempt = this.running.get(nameOf(key));
    return attempt?.key.attempt === key.attempt ? attempt : undefined;
  }

  /** The answer to a request for an effect. */
  granted(grant: EffectGrant): void {
    if (grant.key === undefined) return;
    const attempt = this.find(grant.key);
    const waiting = attempt?.effects.get(grant.effect);
    if (attempt === undefined || waiting === undefined) return;
    attempt.effects.delete(grant.effect);
    if (grant.refusal !== undefined) waiting.reject(errorFromMessage(grant.refusal));
    else waiting.resolve();
  }

  /** All that a hello must name: what runs, and what has ended with an outcome that follows. */
  named(): { key: Key; lastAttemptSequence: bigint }[] {
    const runs = [...this.running.values()].map(({ key, deltas }) => {
      if (deltas !== undefined) deltas.named = deltas.last;
      return { key, lastAttemptSequence: deltas?.last ?? 0n };
    });
    return [...runs, ...this.outcomes.unacknowledged.map((key) => ({ key, lastAttemptSequence: 0n }))];
  }

  /** A hello was answered: says again what the server lacks. */
  restore(replay: readonly Key[], newStream: boolean): void {
    const asked = new Set(replay.map((key) => `${nameOf(key)}\0${key.attempt}`));
    for (const attempt of this.running.values()) {
      const flow = attempt.deltas;
      if (flow !== undefined) {
        const again = asked.has(`${attempt.name}\0${attempt.key.attempt}`);
        const items = flow.replay(again ? 0n : flow.named);
        for (const item of items ?? []) this.connection.put(item);
        flow.mute ||= items === undefined;
        flow.whole = items === undefined || (!again && (flow.whole || newStream));
        if (newStream) flow.beginAgain();
      }
      for (const effect of attempt.effects.keys()) this.#ask(attempt, effect);
      this.questions.sayAgain(attempt);
    }
    this.connection.wake(); // for what has waited
  }

  /** A frame is about to be made. Attempts that are over by now need not be accepted: their outcome says it all. */
  gather(): void {
    if (!this.connection.welcomed) return;
    const fresh = this.#fresh.splice(0).filter((attempt) => !attempt.ended && !attempt.cancelled);
    if (fresh.length > 0) this.connection.put(up({ accepts: fresh.map(({ key }) => ({ link: LINK, key })) }));
    for (const [{ key }, { progress, checkpoint }] of this.#notes) {
      const said = progress && { note: bounded(progress.note, NOTE_LIMIT), ...fractionOf(progress) };
      const item = { link: LINK, key, ...(said && { progress: said }), ...(checkpoint && { checkpoint }) };
      this.connection.put(up({ progress: [item] }));
    }
    this.#notes.clear();
  }

  progress(attempt: Attempt, progress: Progress): void {
    this.#note(attempt, { progress });
  }

  checkpoint(attempt: Attempt, checkpoint: Uint8Array): void {
    this.#note(attempt, { checkpoint });
  }

  async beginEffect(attempt: Attempt, name: string): Promise<void> {
    if (attempt.cancelled || attempt.ended) throw cancelled();
    let waiting = attempt.effects.get(name);
    if (waiting === undefined) {
      waiting = newWaiting();
      attempt.effects.set(name, waiting);
      this.#ask(attempt, name);
    }
    await waiting.answer;
  }

  ask(attempt: Attempt, inputs: readonly TaskInput[], prompt: unknown, options: AskOptions): Promise<Input> {
    return this.questions.ask(attempt, inputs, prompt, options);
  }

  /** Cancels a handler. It counts until it has really ended. */
  stop(attempt: Attempt, silent: boolean): void {
    if (this.running.get(attempt.name) === attempt) {
      this.running.delete(attempt.name);
      this.#stopping.add(attempt);
    }
    attempt.silent = silent;
    this.#halt(attempt);
  }

  /** Gives back what waits for input: nobody knows how long. */
  releaseWaiting(): void {
    const waiting = [...this.running.values()].filter((attempt) => this.questions.waits(attempt));
    this.release("the agent drains while it waits for input", waiting);
  }

  /** Gives back all that runs. */
  release(reason: string, all: Iterable<Attempt> = [...this.running.values()]): void {
    for (const attempt of all) {
      this.#conclude(attempt, { outcome: { case: "released", value: { reason } } }, undefined);
      this.#halt(attempt);
    }
  }

  /** Whether an attempt is to begin. If its task was here before, ends what was, or tells its outcome again. */
  #isNew(key: Key): boolean {
    const name = nameOf(key);
    const known = this.outcomes.latest(name);
    if (known !== undefined) {
      if (known === key.attempt) this.outcomes.answerAgain(name);
      if (known >= key.attempt) return false;
      this.outcomes.forget(name);
    }
    const older = this.running.get(name);
    if (older === undefined) return true;
    if (older.key.attempt >= key.attempt) return false;
    this.stop(older, true);
    return true;
  }

  /** The handler for a method that has none of its own. */
  #standIn(method: string): Handler | undefined {
    if (method === "" && this.handlers.size === 1) return [...this.handlers.values()][0];
    return this.handlers.get(DEFAULT_METHOD);
  }

  async #run(attempt: Attempt, handler: Handler, task: Task): Promise<void> {
    const listener = {
      signal: attempt.controller.signal,
      progress: (progress: Progress) => this.progress(attempt, progress),
      delta: (delta: Delta) => this.#delta(attempt, delta),
    };
    try {
      const value = await within(task, async () => answerOf(await handler.run(task), listener));
      this.#finish(attempt, value);
    } catch (error) {
      this.#fail(attempt, error);
    }
  }

  async #delta(attempt: Attempt, delta: Delta): Promise<void> {
    const { flow } = attempt;
    await flow.room(attempt.controller.signal);
    if (attempt.cancelled || attempt.ended) return;
    const item = flow.add(attempt.key, delta, this.payloadLimit);
    if (item !== undefined && this.connection.welcomed && !flow.mute) this.connection.put(item);
  }

  #finish(attempt: Attempt, value: unknown): void {
    if (attempt.cancelled || attempt.ended) return this.#cancelled(attempt);
    if (value === FOLDED) return this.#finishFolded(attempt);
    const output = toPayload(value); // throws what `#run` reports
    const size = sizeOf(output);
    if (size > this.payloadLimit) {
      const text = `the answer has ${size} bytes; this server takes at most ${this.payloadLimit}`;
      return this.#fail(attempt, new ResourceExhausted(text, { reason: "RESULT_TOO_LARGE" }));
    }
    const extras = value instanceof Answer ? extrasOf(value) : {};
    this.#conclude(attempt, { ...extras, outcome: { case: "output", value: output } }, false);
  }

  #finishFolded(attempt: Attempt): void {
    const { flow } = attempt;
    const output = flow.output();
    if (flow.last === 0n || flow.whole || flow.mute)
      this.#conclude(attempt, { outcome: { case: "output", value: output } }, false);
    else
      this.#conclude(
        attempt,
        { outcome: { case: "folded", value: { lastAttemptSequence: flow.last } } },
        false,
        output,
      );
  }

  #fail(attempt: Attempt, error: unknown): void {
    if (attempt.cancelled || attempt.ended) return this.#cancelled(attempt);
    let told: ReachError;
    if (error instanceof ReachError) {
      told = error;
    } else {
      const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
      told = new Internal(text, { reason: "AGENT_CRASHED" });
      console.error(`the handler of task ${attempt.key.taskId} broke:`, error);
    }
    this.#conclude(attempt, { outcome: { case: "error", value: errorToMessage(told) } }, FAILED[told.errorClass]);
  }

  /** The handler ended after it was cancelled. */
  #cancelled(attempt: Attempt): void {
    if (attempt.ended) return;
    this.#leave(attempt, undefined);
    if (attempt.silent || !this.connection.up) return;
    const outcome = { case: "error" as const, value: errorToMessage(cancelled()) };
    this.connection.put(up({ results: [{ link: LINK, key: attempt.key, outcome }] }));
  }

  #conclude(attempt: Attempt, said: Said, failed: boolean | undefined, whole?: Payload): void {
    this.#leave(attempt, failed);
    this.outcomes.add(attempt.key, said, whole);
  }

  /** The attempt is over: it counts no longer. */
  #leave(attempt: Attempt, failed: boolean | undefined): void {
    attempt.ended = true;
    if (this.running.get(attempt.name) === attempt) this.running.delete(attempt.name);
    this.#stopping.delete(attempt);
    this.#notes.delete(attempt);
    this.questions.forget(attempt);
    this.figures.ended(attempt.handler, performance.now() - attempt.begun, failed);
    if (this.running.size + this.#stopping.size === 0) for (const resolve of this.#idle.splice(0)) resolve();
  }

  #halt(attempt: Attempt): void {
    attempt.controller.abort(cancelled());
    this.questions.refuse(attempt);
    for (const waiting of attempt.effects.values()) waiting.reject(cancelled());
    attempt.deltas?.wake();
  }

  #note(attempt: Attempt, note: { progress?: Progress; checkpoint?: Uint8Array }): void {
    if (attempt.ended || attempt.cancelled) return;
    this.#notes.set(attempt, { ...this.#notes.get(attempt), ...note });
    this.connection.wake();
  }

  #ask({ key }: Attempt, effect: string): void {
    if (this.connection.welcomed) this.connection.put(up({ effects: [{ link: LINK, key, effect }] }));
  }
}

function cancelled(): ReachError {
  return new InvalidRequest("the attempt was cancelled", { reason: "CANCELLED" });
}

function newWaiting(): Waiting {
  let resolve!: () => void;
  let reject!: (error: unknown) => void;
  const answer = new Promise<void>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  answer.catch(() => {}); // who waits hears of it; the handler may have gone
  return { answer, resolve, reject };
}

function fractionOf({ fraction }: Progress): { fraction?: number } {
  return fraction === undefined || Number.isNaN(fraction) ? {} : { fraction: Math.min(1, Math.max(0, fraction)) };
}

function extrasOf({ options }: Answer): Omit<Said, "outcome"> {
  return {
    ...(options.confidence !== undefined && { confidence: options.confidence }),
    conflictHint: bounded(options.conflictHint ?? "", 4_096),
    usage: options.usage ?? {},
    executedIntent: options.executedIntent ?? "",
    entities: options.entities ?? {},
    inferred: options.inferred ?? {},
  };
}
