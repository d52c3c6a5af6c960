/** Handlers: the functions of an agent, and how each kind is run. */

import { Answer, Delta, Progress } from "./payloads.js";
import type { Task } from "./task.js";

export const DEFAULT_METHOD = "default";

/** What a generator may yield: pieces of text or bytes, `Delta`, `Progress`, and `Answer` as the last one. */
export type Piece = string | Uint8Array | Delta | Progress | Answer;

/** A handler: returns the answer, or a promise of it, or is a generator whose pieces are streamed. */
export type HandlerFunction = (task: Task) => unknown;

/** What a handler declares. */
export interface RouteOptions {
  /** Usual latency. */
  expectedLatencyMs?: number;
  /** How many at once. */
  concurrency?: number;
}

/** One handler and its figures. */
export class Handler {
  inflight = 0;
  /** Lately. */
  latencyMs = 0;

  constructor(
    readonly name: string,
    readonly run: HandlerFunction,
    readonly options: RouteOptions = {},
  ) {}
}

/** The answer is what the deltas made. */
export const FOLDED = Symbol("folded");

/** What is done with the pieces of a generator. */
export interface Listener {
  readonly signal: AbortSignal;
  progress(progress: Progress): void;
  delta(delta: Delta): Promise<void>;
}

/** Runs a handler to its end and returns its answer, or `FOLDED` if the pieces are the answer. */
export async function answerOf(made: unknown, listener: Listener): Promise<unknown> {
  if (!isGenerator(made)) return made;
  for await (const piece of made) {
    if (listener.signal.aborted) break;
    if (piece instanceof Answer) return piece;
    if (piece instanceof Progress) listener.progress(piece);
    else await listener.delta(deltaOf(piece));
  }
  return FOLDED;
}

function isGenerator(made: unknown): made is AsyncGenerator<unknown> | Generator<unknown> {
  return (
    typeof made === "object" &&
    made !== null &&
    "next" in made &&
    (Symbol.asyncIterator in made || Symbol.iterator in made)
  );
}

function deltaOf(piece: unknown): Delta {
  if (piece instanceof Delta) return piece;
  if (typeof piece === "string" || piece instanceof Uint8Array) return new Delta(piece);
  throw new TypeError(`a handler may yield text, bytes, Delta, Progress and a last Answer, not ${typeof piece}`);
}
