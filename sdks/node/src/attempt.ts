/**
 * One attempt that runs in an agent, and its deltas: their numbers, the credit they need, what is kept, and what they
 * come to.
 */

import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { AttachRequestSchema } from "./gen/agentreach/v1/attach_pb.js";
import { DeltaMode } from "./gen/agentreach/v1/event_pb.js";
import { type Payload, PayloadSchema } from "./gen/agentreach/v1/payload_pb.js";
import { ResourceExhausted } from "./errors.js";
import type { Handler } from "./handlers.js";
import { Content, Delta, sizeOf, toPayload } from "./payloads.js";

/** Number of our link: one instance per stream. */
export const LINK = 1;
/** Bytes an attempt can send before the server gives it room. */
const CREDIT = 256 << 10;
/** Bytes of deltas that are held for a replay. */
const KEEP = 1 << 20;

/** Names an attempt. */
export interface Key {
  taskId: string;
  attempt: number;
  /** The tenant of the task, as the offer said. */
  tenant: string;
}

/** One name for all attempts of a task. */
export function nameOf(key: { tenant: string; taskId: string }): string {
  return `${key.tenant}\0${key.taskId}`;
}

/** Items for the agent's stream, as bytes. */
export function up(items: MessageInitShape<typeof AttachRequestSchema>): Uint8Array {
  return toBinary(AttachRequestSchema, create(AttachRequestSchema, items));
}

/** A request for an effect that waits for its answer. */
export interface Waiting {
  answer: Promise<void>;
  resolve(): void;
  reject(error: unknown): void;
}

/** One attempt that runs here. */
export class Attempt {
  begun = performance.now();
  readonly controller = new AbortController();
  readonly effects = new Map<string, Waiting>();
  /** Nobody wants to hear how it ended. */
  silent = false;
  ended = false;
  #flow: Flow | undefined;

  constructor(
    readonly key: Key,
    readonly handler: Handler | undefined,
  ) {}

  get name(): string {
    return nameOf(this.key);
  }

  get cancelled(): boolean {
    return this.controller.signal.aborted;
  }

  /** Its deltas; undefined if it has none. */
  get deltas(): Flow | undefined {
    return this.#flow;
  }

  /** Its deltas, from now on. */
  get flow(): Flow {
    return (this.#flow ??= new Flow());
  }
}

/** The deltas of one attempt. */
export class Flow {
  /** Number of the last delta. */
  last = 0n;
  /** The outcome must carry the whole output: the server may lack some deltas. */
  whole = false;
  /** The server lacks deltas that we no longer hold: only the outcome is of use to it. */
  mute = false;
  /** Number of the last delta that the last hello named: the server has all up to it, unless it asks for them. */
  named = 0n;
  #granted = CREDIT;
  #spent = 0;
  #items: Uint8Array[] | undefined = [];
  #kept = 0;
  #wake: (() => void) | undefined;
  readonly #channels = new Map<string, { mediaType: string; pieces: Payload[]; size: number }>();
  #size = 0;

  /**
   * Numbers and keeps a piece; the item to send, or nothing for an empty one. Throws ResourceExhausted if the answer
   * grows too large.
   */
  add(key: Key, piece: Delta, limit: number): Uint8Array | undefined {
    const { channel = "", mode = "append", mediaType = "" } = piece.options;
    const payload = toPayload(piece.data, mediaType);
    const size = sizeOf(payload);
    if (size === 0) return undefined;
    const replaces = mode === "replace";
    const before = this.#channels.get(channel);
    const total = this.#size + size - (replaces ? (before?.size ?? 0) : 0);
    if (total > limit) {
      const text = `the answer is larger than the ${limit} bytes that this server takes`;
      throw new ResourceExhausted(text, { reason: "RESULT_TOO_LARGE" });
    }
    this.#size = total;
    if (before === undefined || replaces)
      this.#channels.set(channel, { mediaType: payload.mediaType, pieces: [payload], size });
    else {
      before.pieces.push(payload);
      before.size += size;
    }
    this.last += 1n;
    this.#spent += size;
    const delta = { channel, mode: replaces ? DeltaMode.REPLACE : DeltaMode.APPEND, payload };
    const item = up({ deltas: [{ link: LINK, key, attemptSequence: this.last, delta }] });
    this.#keep(item);
    return item;
  }

  #keep(item: Uint8Array): void {
    if (this.#items === undefined) return;
    this.#items.push(item);
    this.#kept += item.length;
    if (this.#kept > KEEP) this.#items = undefined;
  }

  /** All deltas after a number, or undefined if some are no longer held. */
  replay(after: bigint): Uint8Array[] | undefined {
    if (this.#items === undefined) return after === this.last ? [] : undefined;
    return this.#items.slice(Number(after));
  }

  /** What the main channel came to. */
  output(): Payload {
    const { mediaType, pieces } = this.#channels.get("") ?? { mediaType: "", pieces: [] as Payload[] };
    const contents = pieces.map((piece) => new Content(piece));
    const isText = pieces.every((piece) => piece.content.case === "text");
    return create(PayloadSchema, {
      mediaType,
      content: isText
        ? { case: "text", value: contents.map((piece) => piece.text).join("") }
        : { case: "data", value: Buffer.concat(contents.map((piece) => piece.bytes)) },
    });
  }

  /** More room. */
  grant(size: number): void {
    this.#granted += size;
    this.wake();
  }

  /** A new stream: the credit of the old one is void. */
  beginAgain(): void {
    this.#granted = this.#spent + CREDIT;
    this.wake();
  }

  /** Lets whoever waits for room look again. */
  wake(): void {
    this.#wake?.();
  }

  /** Returns when there is room for a delta, or the attempt is cancelled. A single delta may go over what is left. */
  async room(signal: AbortSignal): Promise<void> {
    while (this.#spent >= this.#granted && !signal.aborted)
      await new Promise<void>((resolve) => (this.#wake = resolve));
  }
}
