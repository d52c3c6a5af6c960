/** What a caller gets: results, events, and tasks as the server sees them. */

import { durationMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { DeltaMode, type TaskEvent } from "./gen/agentreach/v1/event_pb.js";
import { type Result as ResultMessage, type Task as TaskMessage, TaskState } from "./gen/agentreach/v1/task_pb.js";
import { AgentError, errorFromMessage, Internal, InvalidRequest, type ReachError } from "./errors.js";
import { Content } from "./payloads.js";

/** Where a task stands. */
export type State = Exclude<keyof typeof TaskState, "UNSPECIFIED">;

/** The name of a state. */
export function stateName(state: TaskState): State {
  return TaskState[state] as State;
}

/** What became of a task that ended. `message` is the message of the contract. */
export class Result extends Content {
  constructor(readonly message: ResultMessage) {
    super(message.output);
  }

  get taskId(): string {
    return this.message.taskId;
  }

  /** A terminal state. */
  get state(): State {
    return stateName(this.message.state);
  }

  /** Whether it succeeded. */
  get ok(): boolean {
    return this.message.state === TaskState.SUCCEEDED;
  }

  /** Why it did not succeed; undefined if it did. */
  get error(): ReachError | undefined {
    if (this.message.error !== undefined) return errorFromMessage(this.message.error);
    if (this.ok) return undefined;
    const text = `the task ended as ${this.state}`;
    if (this.state === "CANCELLED") return new InvalidRequest(text, { reason: "CANCELLED" });
    return this.state === "REJECTED" ? new AgentError(text, { reason: "AGENT_REJECTED" }) : new Internal(text);
  }

  /** The logical agent that answered. */
  get agentId(): string {
    return this.message.agentId;
  }

  /** The instance that answered. */
  get instanceId(): string {
    return this.message.instanceId;
  }

  /** How many attempts it took. */
  get attempts(): number {
    return this.message.attempts;
  }

  /** From accepted to the last start. */
  get queuedMs(): number {
    return this.message.queued === undefined ? 0 : durationMs(this.message.queued);
  }

  /** From the last start to the end. */
  get ranMs(): number {
    return this.message.ran === undefined ? 0 : durationMs(this.message.ran);
  }

  /** 0 to 1, as the agent thinks; undefined if it did not say. */
  get confidence(): number | undefined {
    return this.message.confidence;
  }

  /** Figures the agent reports, such as tokens used. */
  get usage(): Readonly<Record<string, number>> {
    return this.message.usage;
  }
}

/** What an event tells of. */
export type EventKind = Exclude<TaskEvent["kind"]["case"], undefined> | "unknown";

/**
 * One event of a task. `kind` says which parts mean something: `started` (agentId, instanceId), `delta` (text, channel,
 * mode), `progress` (fraction, note), `attemptReset` (keepUpToSequence), `retrying` (reason, note), `gap` (snapshot),
 * `waiting` (text: the question; question: its name), `complete` (result; always the last). `message` is the message of
 * the contract, with everything there is.
 */
export class Event extends Content {
  readonly kind: EventKind;

  constructor(readonly message: TaskEvent) {
    const { kind } = message;
    super(
      kind.case === "delta"
        ? kind.value.payload
        : kind.case === "complete"
          ? kind.value.output
          : kind.case === "waiting"
            ? kind.value.prompt
            : undefined,
    );
    this.kind = kind.case ?? "unknown";
  }

  get taskId(): string {
    return this.message.taskId;
  }

  /** Its position; only grows. Give it to `follow` to go on behind it. */
  get sequence(): number {
    return Number(this.message.sequence);
  }

  /** The attempt it belongs to; 0 before the first. */
  get attempt(): number {
    return this.message.attempt;
  }

  /** When the server saw it. */
  get time(): Date {
    return new Date(this.message.time === undefined ? 0 : timestampMs(this.message.time));
  }

  /** Of `started`: the logical agent. */
  get agentId(): string {
    return this.message.kind.case === "started" ? this.message.kind.value.agentId : "";
  }

  /** Of `started`: the instance. */
  get instanceId(): string {
    return this.message.kind.case === "started" ? this.message.kind.value.instanceId : "";
  }

  /** Of `delta`: which of several texts it belongs to; empty is the main one. */
  get channel(): string {
    return this.message.kind.case === "delta" ? this.message.kind.value.channel : "";
  }

  /** Of `delta`: how it changes the text of its channel. */
  get mode(): "append" | "replace" {
    const { kind } = this.message;
    return kind.case === "delta" && kind.value.mode === DeltaMode.REPLACE ? "replace" : "append";
  }

  /** Of `progress`: 0 to 1; undefined if unknown. */
  get fraction(): number | undefined {
    return this.message.kind.case === "progress" ? this.message.kind.value.fraction : undefined;
  }

  /** Of `progress` and `retrying`: for people. */
  get note(): string {
    const { kind } = this.message;
    return kind.case === "progress" ? kind.value.note : kind.case === "retrying" ? kind.value.message : "";
  }

  /** Of `retrying`: why the attempt failed. */
  get reason(): string {
    return this.message.kind.case === "retrying" ? this.message.kind.value.reason : "";
  }

  /** Of `attemptReset`: the text of all events after this one is void. */
  get keepUpToSequence(): number {
    return this.message.kind.case === "attemptReset" ? Number(this.message.kind.value.keepUpToSequence) : 0;
  }

  /** Of `gap`: the text of each channel as it stands. */
  get snapshot(): ReadonlyMap<string, string> {
    const deltas = this.message.kind.case === "gap" ? this.message.kind.value.snapshot : [];
    return new Map(deltas.map((delta) => [delta.channel, new Content(delta.payload).text]));
  }

  /** Of `waiting` and `inputGiven`: name of the question. */
  get question(): string {
    const { kind } = this.message;
    return kind.case === "waiting" || kind.case === "inputGiven" ? kind.value.question : "";
  }

  /** Of `complete`: what became of the task. */
  get result(): Result | undefined {
    return this.message.kind.case === "complete" ? new Result(this.message.kind.value) : undefined;
  }
}

/** A task as the server sees it. `message` is the message of the contract. */
export class TaskInfo {
  constructor(readonly message: TaskMessage) {}

  get taskId(): string {
    return this.message.spec?.taskId ?? "";
  }

  get state(): State {
    return stateName(this.message.state);
  }

  /** What became of it; undefined while it goes on. */
  get result(): Result | undefined {
    return this.message.result === undefined ? undefined : new Result(this.message.result);
  }

  /** How many attempts it had so far. */
  get attempts(): number {
    return Math.max(0, ...this.message.attempts.map((attempt) => attempt.number));
  }
}

/** A piece of text of a stream. `restarts`: all pieces before are void, the text begins again with this one. */
export interface TextPiece {
  readonly text: string;
  readonly restarts: boolean;
}
