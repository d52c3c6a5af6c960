/** What waits for an answer on the caller's stream. */

import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { DispatchStreamRequestSchema, Interest, type SubmitAcknowledgement } from "./gen/agentreach/v1/dispatch_pb.js";
import type { TaskEvent } from "./gen/agentreach/v1/event_pb.js";
import { Result, type State } from "./answers.js";
import type { Line } from "./line.js";
import { sizeOf } from "./payloads.js";

/** Room that a reader has made is told in steps of this many bytes. */
const CREDIT_STEP = 64 << 10;
/** What an event takes of a reader's credit beside its content, as the server counts it. */
const EVENT_OVERHEAD = 64;

/** Items for the caller's stream, as bytes. */
export function up(items: MessageInitShape<typeof DispatchStreamRequestSchema>): Uint8Array {
  return toBinary(DispatchStreamRequestSchema, create(DispatchStreamRequestSchema, items));
}

/** Asks to read a task that exists. */
export function subscribeItem(
  reference: bigint,
  taskId: string,
  afterSequence: bigint,
  interest: Interest,
): Uint8Array {
  return up({ subscribes: [{ reference, taskId, afterSequence, interest }] });
}

/** Something that waits for an answer. `item` asks for it; of one that only reads a task that exists there is none. */
export abstract class Entry<T> {
  /** It reads its task; the server has one reader for each task of a stream, which all that read it here share. */
  readonly reads: boolean = true;
  /** There is, or was, another one that reads the same task. */
  shared = false;
  /** Since when it has been waiting for a server that takes it. */
  since = 0;
  /** It has a time limit of its own. */
  patient = false;
  readonly answer: Promise<T>;
  #promise!: { resolve(value: T): void; reject(error: unknown): void };

  constructor(
    readonly reference: bigint,
    readonly taskId: string,
    public item: Uint8Array | undefined,
  ) {
    this.answer = new Promise((resolve, reject) => {
      this.#promise = { resolve, reject };
    });
    this.answer.catch(() => {}); // who waits hears of it; nobody may
  }

  /** The item that asks for the answer. */
  ask(): Uint8Array {
    return this.item ?? subscribeItem(this.reference, this.taskId, 0n, Interest.OUTCOME);
  }

  /** An event of its task. */
  event(_event: TaskEvent, _line: Line): void {}

  /** Its task was accepted. */
  acknowledged(_answer: SubmitAcknowledgement, _line: Line): void {}

  /** There will be no answer. */
  failed(error: unknown): void {
    this.#promise.reject(error);
  }

  /** This is the answer. */
  protected resolve(value: T): void {
    this.#promise.resolve(value);
  }
}

/** Waits for the result. */
export class OutcomeEntry extends Entry<Result> {
  override event(event: TaskEvent, line: Line): void {
    if (event.kind.case === "complete") {
      line.remove(this);
      this.resolve(new Result(event.kind.value));
    }
  }
}

/** Waits until the task is accepted. */
export class AcceptanceEntry extends Entry<SubmitAcknowledgement> {
  override readonly reads = false;

  override acknowledged(answer: SubmitAcknowledgement, line: Line): void {
    line.remove(this);
    this.resolve(answer);
  }
}

/** Waits until the task is cancelled. */
export class CancelEntry extends Entry<State> {
  override readonly reads = false;

  /** The server's answer. */
  cancelled(state: State, line: Line): void {
    line.remove(this);
    this.resolve(state);
  }
}

/** Reads the events of a task. Its buffer is bounded by the credit that the server has of us. */
export class EventsEntry extends Entry<never> {
  /** Sequence of the last event that came. */
  last: bigint;
  readonly #events: TaskEvent[] = [];
  #error: unknown;
  #wake: (() => void) | undefined;
  #taken = 0;

  constructor(reference: bigint, taskId: string, item: Uint8Array | undefined, last = 0n) {
    super(reference, taskId, item);
    this.last = last;
  }

  override ask(): Uint8Array {
    this.#taken = 0;
    return this.item ?? subscribeItem(this.reference, this.taskId, this.last, Interest.EVENTS);
  }

  override event(event: TaskEvent, line: Line): void {
    if (!this.#isNext(event)) return;
    this.last = event.sequence;
    this.item = undefined; // the task exists: from now on it is read, not submitted
    this.#events.push(event);
    if (event.kind.case === "complete") line.remove(this);
    this.#wake?.();
  }

  /**
   * Several that read one task share what the server tells: what was on its way for one may be too early for another.
   */
  #isNext(event: TaskEvent): boolean {
    if (event.sequence <= this.last) return false;
    if (!this.shared || event.sequence === this.last + 1n || event.kind.case === "resumed") return true;
    return event.kind.case === "gap" && event.kind.value.fromSequence <= this.last + 1n;
  }

  override acknowledged(): void {
    this.item = undefined;
  }

  override failed(error: unknown): void {
    this.#error = error;
    this.#wake?.();
  }

  /** The next event. */
  async next(line: Line): Promise<TaskEvent> {
    for (;;) {
      const event = this.#events.shift();
      if (event !== undefined) {
        this.#taken += weightOf(event);
        if (this.#taken >= CREDIT_STEP) {
          line.put({ credits: [{ taskId: this.taskId, bytes: BigInt(this.#taken) }] });
          this.#taken = 0;
        }
        return event;
      }
      if (this.#error !== undefined) throw this.#error;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}

function weightOf({ kind }: TaskEvent): number {
  if (kind.case === "delta") return EVENT_OVERHEAD + sizeOf(kind.value.payload);
  if (kind.case === "waiting") return EVENT_OVERHEAD + sizeOf(kind.value.prompt);
  if (kind.case === "gap")
    return kind.value.snapshot.reduce((sum, delta) => sum + sizeOf(delta.payload), EVENT_OVERHEAD);
  return EVENT_OVERHEAD;
}
