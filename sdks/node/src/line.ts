/**
 * The caller's stream: many tasks, their answers and their events on one DispatchStream.
 *
 * Each thing that waits for an answer is an entry and knows the item that asks for it. After a reconnect every entry
 * asks again, which is safe: the task id is made here, so that a task that was accepted is not accepted twice; and a
 * reader names the last sequence it has, so that nothing is missing and nothing comes twice.
 */

import { fromBinary, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type DispatchStreamRequestSchema,
  type DispatchStreamResponse,
  DispatchStreamResponseSchema,
  Interest,
} from "./gen/agentreach/v1/dispatch_pb.js";
import { stateName } from "./answers.js";
import { Connection, type Peer } from "./connection.js";
import { CancelEntry, type Entry, EventsEntry, subscribeItem, up } from "./entries.js";
import { errorFromMessage, type ReachError, type Reason, ResourceExhausted, Timeout, Unavailable } from "./errors.js";
import { PAYLOAD_LIMIT } from "./payloads.js";
import { PROTOCOL_VERSION, type Target } from "./target.js";

/** Things that may wait for an answer at once. */
const MOST_ENTRIES = 100_000;
/** Bytes that may wait for the stream before callers wait for it too. */
const MOST_UNSENT = 16 << 20;
/** Refusals that pass by themselves: asked again after a while. */
const AGAIN: ReadonlySet<Reason> = new Set(["SHUTTING_DOWN", "OWNER_UNAVAILABLE", "STORE_UNAVAILABLE"]);
const EXPIRE_EVERY_MS = 500;
const NOTHING = new Uint8Array();

type Any = Entry<unknown>;

/** The caller's end of the stream. */
export class Line implements Peer {
  readonly connection: Connection;
  payloadLimit = PAYLOAD_LIMIT;
  readonly #entries = new Map<bigint, Any>();
  readonly #readers = new Map<string, Any[]>();
  readonly #target: Target;
  readonly #connectTimeoutMs: number;
  readonly #reconnectTimeoutMs: number;
  #open = false;
  #wasUp = false;
  #worked = false;
  #downSince = performance.now();
  #lastError: ReachError | undefined;
  #impatience: NodeJS.Timeout | undefined;
  #reference = 0n;

  constructor(target: Target, connectTimeoutMs: number, reconnectTimeoutMs: number) {
    this.connection = new Connection(target, "/agentreach.v1.DispatchService/DispatchStream", this);
    this.#target = target;
    this.#connectTimeoutMs = connectTimeoutMs;
    this.#reconnectTimeoutMs = reconnectTimeoutMs;
  }

  /** A number that no entry has. Throws ResourceExhausted if too many wait already. */
  newReference(): bigint {
    if (this.#entries.size >= MOST_ENTRIES) {
      throw new ResourceExhausted(`${MOST_ENTRIES} tasks of this client wait for their answer`, {
        reason: "QUEUE_FULL",
      });
    }
    this.#reference += 1n;
    return this.#reference;
  }

  /** Asks, now or when there is a stream. */
  add(entry: Any): void {
    this.#entries.set(entry.reference, entry);
    let others: Any[] = [];
    if (entry.reads) {
      others = this.#readers.get(entry.taskId) ?? [];
      this.#readers.set(entry.taskId, [...others, entry]);
      if (others.length > 0) for (const one of [...others, entry]) one.shared = true;
    }
    if (this.#open) {
      if (others.length === 0) this.connection.put(entry.ask());
      else this.#join(entry);
    }
    if (!this.connection.up) {
      entry.since = performance.now();
      this.#impatience ??= setTimeout(() => this.#expire(), EXPIRE_EVERY_MS);
    }
  }

  /** It waits no longer. Whether it did. */
  remove(entry: Any): boolean {
    if (!this.#entries.delete(entry.reference)) return false;
    const left = (this.#readers.get(entry.taskId) ?? []).filter((one) => one !== entry);
    if (entry.reads && left.length > 0) this.#readers.set(entry.taskId, left);
    else if (entry.reads) this.#readers.delete(entry.taskId);
    return true;
  }

  /** Nobody waits for it any more. */
  forget(entry: Any): void {
    if (this.remove(entry) && entry.reads && !this.#readers.has(entry.taskId)) {
      this.put({ unsubscribes: [{ taskId: entry.taskId }] });
    }
  }

  /**
   * Lets an entry fail after so many milliseconds. `cancel`: and cancels its task then. Returns how to take that back.
   */
  limit(entry: Any, timeoutMs: number, cancel: boolean): () => void {
    entry.patient = true;
    const timer = setTimeout(() => {
      if (cancel) this.put({ cancels: [{ taskId: entry.taskId, reason: "the caller's time is over" }] });
      const text = `no answer within ${timeoutMs} ms; the task ${cancel ? "is cancelled" : "goes on"}`;
      const late = new Timeout(text, { reason: "WAIT_EXPIRED", metadata: { task_id: entry.taskId } });
      entry.failed(this.connection.up ? late : this.#unreachable());
    }, timeoutMs);
    return () => clearTimeout(timer);
  }

  /** Sends something that nobody waits for. */
  put(items: MessageInitShape<typeof DispatchStreamRequestSchema>): void {
    if (this.#open) this.connection.put(up(items));
  }

  /** Returns when what waits for the stream is within bounds. */
  async room(): Promise<void> {
    while (this.#open && this.connection.waiting > MOST_UNSENT) await new Promise((resolve) => setTimeout(resolve, 5));
  }

  /** The stream has ended for good. */
  failAll(error: ReachError): void {
    clearTimeout(this.#impatience);
    const entries = [...this.#entries.values()];
    this.#entries.clear();
    this.#readers.clear();
    for (const entry of entries) entry.failed(error);
  }

  /** Who speaks; and everything is asked again. */
  opening(): Uint8Array[] {
    this.#open = true;
    for (const entry of this.#entries.values()) {
      if (!entry.reads || this.#readers.get(entry.taskId)?.length === 1) this.connection.put(entry.ask());
    }
    for (const readers of this.#readers.values()) if (readers.length > 1) this.#askTogether(readers);
    return [up({ opening: { protocolVersion: PROTOCOL_VERSION } })];
  }

  gather(): void {}

  prefix(): Uint8Array {
    return NOTHING;
  }

  received(bytes: Buffer): void {
    const frame = fromBinary(DispatchStreamResponseSchema, bytes);
    if (frame.welcome !== undefined) this.#welcome(frame);
    if (frame.nodes !== undefined) this.#target.hear(frame.nodes.addresses);
    for (const answer of frame.acknowledgements) this.#entries.get(answer.reference)?.acknowledged(answer, this);
    for (const event of frame.events) {
      for (const entry of this.#readers.get(event.taskId) ?? []) entry.event(event, this);
    }
    for (const refusal of frame.refusals) {
      const entry = this.#entries.get(refusal.reference);
      if (refusal.error === undefined) continue;
      if (entry !== undefined) this.#refused(entry, errorFromMessage(refusal.error));
      // Of one who waits no longer, and the reader of all who do.
      else if (this.#readers.has(refusal.taskId)) this.#askLater(refusal.taskId, errorFromMessage(refusal.error));
    }
    for (const cancelled of frame.cancelled) {
      const entry = this.#entries.get(cancelled.reference);
      if (entry instanceof CancelEntry) entry.cancelled(stateName(cancelled.state), this);
    }
    // Nothing more comes on this one: all that waits is asked again on the next.
    if (frame.closing) this.connection.reopen();
  }

  lost(error: ReachError): void {
    this.#open = false;
    this.#lastError = error;
    if (this.#worked) {
      this.#worked = false;
      this.#downSince = performance.now();
    }
    if (this.#entries.size > 0) this.#impatience ??= setTimeout(() => this.#expire(), EXPIRE_EVERY_MS);
  }

  #welcome(frame: DispatchStreamResponse): void {
    this.payloadLimit = Number(frame.welcome?.payloadLimit ?? 0) || this.payloadLimit;
    this.#wasUp = this.#worked = true;
    for (const entry of this.#entries.values()) entry.since = 0;
    clearTimeout(this.#impatience);
    this.#impatience = undefined;
    this.connection.established();
  }

  #refused(entry: Any, error: ReachError): void {
    const now = performance.now();
    // A server that shuts down is one that is lost: another one takes its place.
    const limit = error.reason === "SHUTTING_DOWN" ? this.#reconnectTimeoutMs : this.#connectTimeoutMs;
    const waits = entry.patient || now - (entry.since || now) < limit;
    if (AGAIN.has(error.reason) && waits) {
      entry.since ||= now;
      if (entry.reads) this.#askLater(entry.taskId, error);
      else setTimeout(() => this.#askAgain(entry), delayOf(error));
      return;
    }
    this.remove(entry);
    entry.failed(error);
    if (entry.reads) this.#askFor(entry.taskId);
  }

  #askAgain(entry: Any): void {
    if (this.#open && this.#entries.get(entry.reference) === entry) this.connection.put(entry.ask());
  }

  /** The server tells nobody of a task any more, whoever of us it was that asked for its reader. */
  #askLater(taskId: string, error: ReachError): void {
    setTimeout(() => this.#askFor(taskId), delayOf(error));
  }

  /** Asks for all that read one task, if anybody does. */
  #askFor(taskId: string): void {
    const readers = this.#readers.get(taskId);
    if (readers === undefined || !this.#open) return;
    if (readers.length > 1) this.#askTogether(readers);
    else this.connection.put(readers[0]!.ask());
  }

  /**
   * Others read the same task already. The server has one reader for it: the latest, which must see all that any of us
   * wants.
   */
  #join(entry: Any): void {
    if (entry.item !== undefined) this.connection.put(entry.item);
    if (entry.item !== undefined || entry instanceof EventsEntry)
      this.#readTogether(this.#readers.get(entry.taskId) ?? []);
  }

  #askTogether(readers: Any[]): void {
    const submits = readers.flatMap((entry) => (entry.item === undefined ? [] : [entry.item]));
    for (const item of submits) this.connection.put(item);
    if (!this.#readTogether(readers) && submits.length === 0 && readers[0] !== undefined)
      this.connection.put(readers[0].ask());
  }

  /** Has the server's reader tell events, from the earliest that one of us lacks. False if nobody wants events. */
  #readTogether(readers: Any[]): boolean {
    const events = readers.filter((entry) => entry instanceof EventsEntry);
    const [first] = events;
    if (first === undefined) return false;
    const after = events.reduce((least, one) => (one.last < least ? one.last : least), first.last);
    this.connection.put(subscribeItem(first.reference, first.taskId, after, Interest.EVENTS));
    return true;
  }

  /** While there is no stream: gives up on what has waited too long and has no time limit of its own. */
  #expire(): void {
    this.#impatience = undefined;
    if (this.connection.up || this.#entries.size === 0) return;
    this.#impatience = setTimeout(() => this.#expire(), EXPIRE_EVERY_MS);
    const limit = this.#wasUp ? this.#reconnectTimeoutMs : this.#connectTimeoutMs;
    const now = performance.now();
    for (const entry of [...this.#entries.values()]) {
      if (!entry.patient && now - Math.max(entry.since, this.#downSince) > limit) {
        this.remove(entry);
        entry.failed(this.#unreachable());
      }
    }
  }

  #unreachable(): ReachError {
    const { address } = this.#target;
    const text = this.#wasUp
      ? `the connection to Agent-Reach at ${address} is lost; a task that was accepted goes on`
      : `cannot reach Agent-Reach at ${address}; is \`reach serve\` running? (${this.#lastError?.message ?? ""})`;
    return new Unavailable(text, { reason: "OWNER_UNAVAILABLE" });
  }
}

/** How many milliseconds to wait before it is asked again. */
function delayOf(error: ReachError): number {
  return (error.retryAfterMs ?? 500) * (0.5 + 0.5 * Math.random());
}
