/** What can be said about a task, and the message that it becomes. */

import { randomBytes } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Durability, Effects, type TaskSpec, TaskSpecSchema } from "./gen/agentreach/v1/task_pb.js";
import { InvalidRequest } from "./errors.js";
import { checkSize, sizeOf, toPayload } from "./payloads.js";
import type { Task } from "./task.js";

/** Bytes that a task may have beside a payload of the largest size, so that it fits the server's largest message. */
export const ITEM_MARGIN = 252 << 10;

/** The key of a conversation. */
export interface Session {
  appId: string;
  userId: string;
  sessionId: string;
}

/** Everything that can be said about a task beside its method and its payload. */
export interface TaskOptions {
  /** A logical agent. Who may take it: all given parts must match. */
  agentId?: string;
  /** A type of agents. */
  agentType?: string;
  /** A skill. */
  capability?: string;
  capabilityVersion?: string;
  /** A dotted intent, resolved by the routes of the server. */
  intent?: string;
  /** Free text, matched with what agents say of themselves. */
  text?: string;
  /** Tags that the instance must have. */
  tags?: readonly string[];
  preferredTags?: readonly string[];
  acceptedMediaTypes?: readonly string[];
  acceptedLanguages?: readonly string[];
  /** The region to prefer. */
  region?: string;
  instanceId?: string;
  excludedInstances?: readonly string[];
  /** Chosen by the caller; sending the same task again gives the first answer. Left out: made here. */
  taskId?: string;
  /** The conversation. */
  session?: Session;
  /** Names and values that the user said. Only with a session. */
  entities?: Record<string, string>;
  /** Content beside the payload, by name. */
  attachments?: Record<string, unknown>;
  /** 0 to 9, higher is earlier; left out: 3. */
  priority?: number;
  /** What running it twice would do. */
  effects?: "none" | "idempotent" | "irreversible";
  /** False: never written, lost if the server dies, and faster. */
  durable?: boolean;
  /** A retry policy by name. */
  retry?: string;
  labels?: Record<string, string>;
  startDelayMs?: number;
  scheduleToStartMs?: number;
  startToCloseMs?: number;
  scheduleToCloseMs?: number;
  silenceMs?: number;
  timeoutClass?: "qa" | "code" | "document";
  fairnessKey?: string;
  costSlots?: number;
  /** The task that asks for this one. Left out in a handler: that it works on, whose time is passed on; empty: none. */
  parentTaskId?: string;
  /** Name of a routing policy. */
  policy?: string;
  /** A URL that is told when it ends. */
  webhook?: string;
  source?: string;
  /** A `traceparent`. */
  trace?: string;
}

const EFFECTS = { none: Effects.NONE, idempotent: Effects.IDEMPOTENT, irreversible: Effects.IRREVERSIBLE };

/** A new task id: 128 random bits. */
export function newTaskId(): string {
  return randomBytes(16).toString("hex");
}

/** The message of a task. Throws InvalidRequest. `parent`: the task whose handler gives it. */
export function specOf(
  method: string,
  payload: unknown,
  options: TaskOptions,
  limit: number,
  parent: Task | undefined,
): TaskSpec {
  const { taskId = newTaskId(), session } = options;
  if (Buffer.byteLength(taskId) > 256) throw new InvalidRequest("a task_id has at most 256 bytes");
  if (session && !(session.appId && session.userId && session.sessionId)) {
    throw new InvalidRequest("a session has appId, userId and sessionId, three texts that are not empty");
  }
  const content = toPayload(payload);
  checkSize(sizeOf(content), limit, "the payload");
  const attachments = Object.entries(options.attachments ?? {}).map(([name, item]) => ({
    name,
    payload: toPayload(item),
  }));
  for (const one of attachments) checkSize(sizeOf(one.payload), limit, `the attachment ${one.name}`);
  const tree =
    parent !== undefined && options.parentTaskId === undefined ? parent.passesOn(options.scheduleToCloseMs) : undefined;
  return create(TaskSpecSchema, {
    taskId,
    method,
    payload: content,
    attachments,
    selector: {
      agentId: options.agentId ?? "",
      agentType: options.agentType ?? "",
      capability: options.capability ?? "",
      capabilityVersion: options.capabilityVersion ?? "",
      intent: options.intent ?? "",
      text: options.text ?? "",
      requiredTags: [...(options.tags ?? [])],
      preferredTags: [...(options.preferredTags ?? [])],
      acceptedMediaTypes: [...(options.acceptedMediaTypes ?? [])],
      acceptedLanguages: [...(options.acceptedLanguages ?? [])],
      region: options.region ?? "",
      instanceId: options.instanceId ?? "",
      excludedInstances: [...(options.excludedInstances ?? [])],
    },
    ...(session && { session }),
    ...(options.entities && { entities: options.entities }),
    ...(options.priority !== undefined && { priority: options.priority }),
    ...(options.effects && { effects: EFFECTS[options.effects] }),
    ...(options.durable === false && { durability: Durability.VOLATILE }),
    ...(options.retry && { retry: { name: options.retry } }),
    labels: options.labels ?? {},
    ...(options.startDelayMs !== undefined && { startDelay: durationFromMs(Math.round(options.startDelayMs)) }),
    ...timeoutsOf(options, tree?.scheduleToCloseMs),
    fairnessKey: options.fairnessKey ?? "",
    ...(options.costSlots !== undefined && { costSlots: options.costSlots }),
    parentTaskId: tree?.parentTaskId ?? options.parentTaskId ?? "",
    rootTaskId: tree?.rootTaskId ?? "",
    ...(tree?.budget && { budget: tree.budget }),
    policy: options.policy ?? "",
    ...(options.webhook && { webhook: { url: options.webhook } }),
    source: options.source ?? "",
    ...(options.trace && { trace: { traceparent: options.trace } }),
  });
}

function timeoutsOf(options: TaskOptions, left: number | undefined): object {
  const given = {
    scheduleToStart: options.scheduleToStartMs,
    startToClose: options.startToCloseMs,
    scheduleToClose: left ?? options.scheduleToCloseMs,
    silence: options.silenceMs,
  };
  const limits = Object.entries(given).flatMap(([name, ms]) =>
    ms === undefined ? [] : [[name, durationFromMs(Math.round(ms))]],
  );
  if (limits.length === 0 && options.timeoutClass === undefined) return {};
  return { timeouts: { ...Object.fromEntries(limits), timeoutClass: options.timeoutClass ?? "" } };
}
