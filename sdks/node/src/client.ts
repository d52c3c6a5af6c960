/** Callers: give tasks to agents and get their answers. */

import { randomUUID } from "node:crypto";
import { DispatchService, Interest } from "./gen/agentreach/v1/dispatch_pb.js";
import { Event, Result, type State, stateName, TaskInfo, type TextPiece } from "./answers.js";
import { AcceptanceEntry, CancelEntry, type Entry, EventsEntry, OutcomeEntry, up } from "./entries.js";
import { Internal, ReachError, Unavailable } from "./errors.js";
import { Line } from "./line.js";
import { checkSize, toPayload } from "./payloads.js";
import { ITEM_MARGIN, specOf, type TaskOptions } from "./specs.js";
import { Target, type TargetOptions } from "./target.js";
import { currentTask } from "./task.js";
import { UnaryCalls } from "./unary.js";

const UNARY_TIMEOUT_MS = 10_000;

/** How a client reaches its server. */
export interface ClientOptions extends TargetOptions {
  /** What asks, for people: the `source` of all tasks that name none. */
  source?: string;
  /** How long to wait for a server that was never reached, for calls without a time limit; default 10,000. */
  connectTimeoutMs?: number;
  /** The same for a server that is lost; default 60,000; Infinity: for ever. */
  reconnectTimeoutMs?: number;
}

/** What a call that waits can say. */
export interface WaitOptions {
  /** How long to wait. The task goes on after that, unless `cancelOnTimeout`. */
  timeoutMs?: number;
  /** Cancels the task when the time is over, or the reader of a stream leaves. */
  cancelOnTimeout?: boolean;
}

/** A task that was accepted. */
export interface TaskHandle {
  readonly taskId: string;
  /** An earlier call brought it. */
  readonly deduplicated: boolean;
  /** What is odd, for people. */
  readonly warnings: readonly string[];
  /** Waits until it ends. */
  result(timeoutMs?: number): Promise<Result>;
}

/** A caller. All its tasks share one stream, which opens with the first and comes back by itself when it breaks. */
export class Client {
  readonly #target: Target;
  readonly #options: ClientOptions;
  readonly #calls: UnaryCalls;
  #line: Line | undefined;

  constructor(options: ClientOptions = {}) {
    this.#target = new Target(options);
    this.#options = options;
    this.#calls = new UnaryCalls(this.#target);
  }

  /** Ends the stream. What waits gets Unavailable; tasks that were accepted go on. */
  close(): void {
    const line = this.#line;
    this.#line = undefined;
    line?.connection.stop();
    line?.failAll(new Unavailable("the client was closed", { reason: "OWNER_UNAVAILABLE" }));
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /**
   * Gives a task and waits for its result. A task that fails is a result too: look at `ok` and `error`. Throws the
   * refusal, if the task is not accepted; Timeout (WAIT_EXPIRED) after `timeoutMs`.
   */
  async send(method: string, payload?: unknown, options: TaskOptions & WaitOptions = {}): Promise<Result> {
    const line = this.#ready();
    const entry = this.#submit(line, OutcomeEntry, Interest.OUTCOME, method, payload, options);
    try {
      await line.room();
      return await wait(line, entry, options);
    } finally {
      line.forget(entry);
    }
  }

  /**
   * `send`, for those who want the output: text as string, JSON parsed, else bytes. Throws the error of a task that did
   * not succeed.
   */
  async call(method: string, payload?: unknown, options: TaskOptions & WaitOptions = {}): Promise<unknown> {
    const result = await this.send(method, payload, options);
    if (result.error !== undefined) throw result.error;
    return result.value;
  }

  /** Gives a task and returns when it is accepted. Throws the refusal, or Timeout. */
  async submit(method: string, payload?: unknown, options: TaskOptions & WaitOptions = {}): Promise<TaskHandle> {
    const line = this.#ready();
    const entry = this.#submit(line, AcceptanceEntry, Interest.ACCEPTANCE, method, payload, options);
    try {
      const { taskId, deduplicated, warnings } = await wait(line, entry, options);
      const result = (timeoutMs?: number): Promise<Result> => this.waitForResult(taskId, timeoutMs);
      return { taskId, deduplicated, warnings, result };
    } finally {
      line.forget(entry);
    }
  }

  /**
   * Gives a task and yields its events as they come; the last is `complete`, whether the task succeeded or not. After a
   * broken connection it goes on where it was: no event is missing, none comes twice. Leaving the loop early leaves the
   * task alone, unless `cancelOnTimeout`.
   */
  async *stream(
    method: string,
    payload?: unknown,
    options: TaskOptions & WaitOptions = {},
  ): AsyncGenerator<Event, void, undefined> {
    const line = this.#ready();
    const entry = this.#submit(line, EventsEntry, Interest.EVENTS, method, payload, options);
    yield* events(line, entry, options);
  }

  /** The events of a task that exists, from behind `afterSequence`. As `stream`. */
  async *follow(
    taskId: string,
    options: { afterSequence?: number; timeoutMs?: number } = {},
  ): AsyncGenerator<Event, void, undefined> {
    const line = this.#ready();
    const entry = new EventsEntry(line.newReference(), taskId, undefined, BigInt(options.afterSequence ?? 0));
    line.add(entry);
    yield* events(line, entry, options);
  }

  /**
   * Gives a task and yields the text of its answer, piece by piece. Throws the error of a task that fails. What was
   * yielded cannot be taken back: when the text begins again (another attempt, or pieces that were skipped), the next
   * piece has `restarts` set.
   */
  async *streamText(
    method: string,
    payload?: unknown,
    options: TaskOptions & WaitOptions = {},
  ): AsyncGenerator<TextPiece, void, undefined> {
    let [told, isVoid, lacking] = [false, false, false];
    for await (const event of this.stream(method, payload, options)) {
      let [text, restarts] = ["", false];
      if (event.kind === "attemptReset") {
        [isVoid, lacking] = [told, false];
      } else if (event.kind === "delta" && event.channel === "") {
        const replaces = event.mode === "replace";
        [text, restarts] = [event.text, replaces && told];
        lacking &&= !replaces;
      } else if (event.kind === "gap") {
        const whole = event.snapshot.get("");
        lacking = whole === undefined; // pieces are gone, and only the whole can make that good
        if (whole !== undefined) [text, restarts] = [whole, told];
      } else if (event.result !== undefined) {
        if (event.result.error !== undefined) throw event.result.error;
        if (!told || isVoid || lacking) [text, restarts] = [event.result.text, told];
      }
      if (text !== "" || restarts) {
        yield { text, restarts: restarts || isVoid };
        [told, isVoid] = [true, false];
      }
    }
  }

  /**
   * Waits until a task ends, whoever gave it. Throws InvalidRequest (TASK_NOT_FOUND), or Timeout: the task goes on
   * then.
   */
  async waitForResult(taskId: string, timeoutMs?: number): Promise<Result> {
    const line = this.#ready();
    const entry = new OutcomeEntry(line.newReference(), taskId, undefined);
    line.add(entry);
    try {
      return await wait(line, entry, timeoutMs === undefined ? {} : { timeoutMs });
    } finally {
      line.forget(entry);
    }
  }

  /** Cancels a task and its children, and returns the state it ended in: it may have ended before. */
  async cancel(taskId: string, options: { reason?: string; timeoutMs?: number } = {}): Promise<State> {
    const line = this.#ready();
    const reference = line.newReference();
    const entry = new CancelEntry(
      reference,
      taskId,
      up({ cancels: [{ reference, taskId, reason: options.reason ?? "" }] }),
    );
    line.add(entry);
    try {
      return await wait(line, entry, options);
    } finally {
      line.remove(entry);
    }
  }

  /** A task as the server sees it now. Throws InvalidRequest (TASK_NOT_FOUND). */
  async getTask(taskId: string, timeoutMs = UNARY_TIMEOUT_MS): Promise<TaskInfo> {
    const { task } = await this.#calls.call(DispatchService.method.getTask, { taskId }, timeoutMs);
    if (task === undefined) throw new Internal("the server answered without a task");
    return new TaskInfo(task);
  }

  /** Answers what a task asks that waits for input, and returns where the task stands. An `inputId` counts once. */
  async sendInput(
    taskId: string,
    value: unknown,
    options: { question?: string; inputId?: string; timeoutMs?: number } = {},
  ): Promise<State> {
    const { question = "", inputId = randomUUID(), timeoutMs = UNARY_TIMEOUT_MS } = options;
    const request = { taskId, inputId, question, payload: toPayload(value) };
    return stateName((await this.#calls.call(DispatchService.method.sendInput, request, timeoutMs)).state);
  }

  /** The stream, opened if it is not. */
  #ready(): Line {
    if (this.#line !== undefined) return this.#line;
    const { connectTimeoutMs = 10_000, reconnectTimeoutMs = 60_000 } = this.#options;
    const line = new Line(this.#target, connectTimeoutMs, reconnectTimeoutMs);
    this.#line = line;
    line.connection.run().catch((error: unknown) => {
      if (this.#line === line) this.#line = undefined;
      const broken = new Internal(`the connection broke: ${String(error)}`);
      line.failAll(error instanceof ReachError ? error : broken);
    });
    return line;
  }

  #submit<E extends Entry<unknown>>(
    line: Line,
    kind: new (reference: bigint, taskId: string, item: Uint8Array) => E,
    interest: Interest,
    method: string,
    payload: unknown,
    options: TaskOptions,
  ): E {
    const source = options.source ?? this.#options.source ?? "";
    const task = specOf(method, payload, { ...options, source }, line.payloadLimit, currentTask());
    const reference = line.newReference();
    const item = up({ submits: [{ reference, interest, task }] });
    // One message over the limit ends the stream.
    checkSize(item.length - ITEM_MARGIN, line.payloadLimit, "the task with its attachments");
    const entry = new kind(reference, task.taskId, item);
    line.add(entry);
    return entry;
  }
}

async function wait<T>(line: Line, entry: Entry<T>, options: WaitOptions): Promise<T> {
  if (options.timeoutMs === undefined) return entry.answer;
  const takeBack = line.limit(entry, options.timeoutMs, options.cancelOnTimeout ?? false);
  try {
    return await entry.answer;
  } finally {
    takeBack();
  }
}

async function* events(line: Line, entry: EventsEntry, options: WaitOptions): AsyncGenerator<Event, void, undefined> {
  const { timeoutMs, cancelOnTimeout: cancels = false } = options;
  const takeBack = timeoutMs === undefined ? undefined : line.limit(entry, timeoutMs, cancels);
  let ended = false;
  try {
    while (!ended) {
      const event = new Event(await entry.next(line));
      ended = event.kind === "complete";
      yield event;
    }
  } finally {
    takeBack?.();
    line.forget(entry);
    if (cancels && !ended) line.put({ cancels: [{ taskId: entry.taskId, reason: "the reader left" }] });
  }
}
