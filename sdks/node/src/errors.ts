/** Errors: five fixed classes, the business failure of an agent, and a closed set of reasons. */

import { create, fromBinary } from "@bufbuild/protobuf";
import { anyUnpack, durationFromMs, durationMs } from "@bufbuild/protobuf/wkt";
import { status, type StatusObject } from "@grpc/grpc-js";
import { ErrorClass, type Error as ErrorMessage, ErrorReason, ErrorSchema } from "./gen/agentreach/v1/error_pb.js";
import { ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "./gen/google/rpc/status_pb.js";

/** The name of a reason, such as `TASK_NOT_FOUND`. */
export type Reason = Exclude<keyof typeof ErrorReason, "UNSPECIFIED">;

/** The name of a class. */
export type ErrorClassName = Exclude<keyof typeof ErrorClass, "UNSPECIFIED">;

/** What an error may say beside its message. */
export interface ErrorOptions {
  /** Why, from the closed set. */
  reason?: Reason;
  /** When to come back at the earliest. */
  retryAfterMs?: number;
  /** The variables of the message, for programs. */
  metadata?: Record<string, string>;
}

/** Base of all errors of this package. Decide by the class, then by `reason`; never by the text. */
export abstract class ReachError extends Error {
  /** One of the five classes, or `AGENT_ERROR`. */
  abstract readonly errorClass: ErrorClassName;
  /** Whether the same request may succeed later. */
  readonly retryable: boolean = false;
  /** Why, from the closed set. */
  readonly reason: Reason;
  /** When to come back at the earliest, where waiting helps. */
  readonly retryAfterMs: number | undefined;
  /** The variables of the message, for programs. */
  readonly metadata: Readonly<Record<string, string>>;

  protected constructor(message: string, otherwise: Reason, options: ErrorOptions) {
    super(message);
    this.name = new.target.name;
    this.reason = options.reason ?? otherwise;
    this.retryAfterMs = options.retryAfterMs;
    this.metadata = options.metadata ?? {};
  }
}

/** The request is wrong; sending it again changes nothing. */
export class InvalidRequest extends ReachError {
  override readonly errorClass = "INVALID_REQUEST";
  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "INVALID_FIELD", options);
  }
}

/** A limit is reached; later, or elsewhere, it may work. */
export class ResourceExhausted extends ReachError {
  override readonly errorClass = "RESOURCE_EXHAUSTED";
  override readonly retryable = true;
  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "AGENT_BUSY", options);
  }
}

/** Somebody cannot be reached or has left; another one may do it. */
export class Unavailable extends ReachError {
  override readonly errorClass = "UNAVAILABLE";
  override readonly retryable = true;
  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "AGENT_UNAVAILABLE", options);
  }
}

/** A time limit passed. */
export class Timeout extends ReachError {
  override readonly errorClass = "TIMEOUT";
  override readonly retryable = true;
  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "START_TO_CLOSE", options);
  }
}

/** A fault of Agent-Reach or of an agent's code. */
export class Internal extends ReachError {
  override readonly errorClass = "INTERNAL";
  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "INTERNAL_FAULT", options);
  }
}

/**
 * The agent worked, and says that the task cannot be done. Throw it in a handler: the caller is told, nothing is
 * retried.
 */
export class AgentError extends ReachError {
  override readonly errorClass = "AGENT_ERROR";
  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "AGENT_FAILED", options);
  }
}

const CLASSES = {
  INVALID_REQUEST: InvalidRequest,
  RESOURCE_EXHAUSTED: ResourceExhausted,
  UNAVAILABLE: Unavailable,
  TIMEOUT: Timeout,
  INTERNAL: Internal,
  AGENT_ERROR: AgentError,
} as const;

/** For a status without our details: a proxy's, or gRPC's own. All others are INTERNAL. */
const BY_CODE: Partial<Record<status, [ErrorClassName, Reason]>> = {
  [status.INVALID_ARGUMENT]: ["INVALID_REQUEST", "INVALID_FIELD"],
  [status.FAILED_PRECONDITION]: ["INVALID_REQUEST", "WRONG_STATE"],
  [status.ALREADY_EXISTS]: ["INVALID_REQUEST", "TASK_ID_REUSED"],
  [status.NOT_FOUND]: ["INVALID_REQUEST", "TASK_NOT_FOUND"],
  [status.RESOURCE_EXHAUSTED]: ["RESOURCE_EXHAUSTED", "RATE_LIMITED"],
  [status.UNAVAILABLE]: ["UNAVAILABLE", "OWNER_UNAVAILABLE"],
  [status.ABORTED]: ["UNAVAILABLE", "OWNER_UNAVAILABLE"],
  [status.DEADLINE_EXCEEDED]: ["TIMEOUT", "WAIT_EXPIRED"],
  [status.UNAUTHENTICATED]: ["INVALID_REQUEST", "UNAUTHENTICATED"],
  [status.PERMISSION_DENIED]: ["INVALID_REQUEST", "PERMISSION_DENIED"],
  [status.UNIMPLEMENTED]: ["INVALID_REQUEST", "NOT_IMPLEMENTED"],
  [status.CANCELLED]: ["INVALID_REQUEST", "CANCELLED"],
  [status.OUT_OF_RANGE]: ["INVALID_REQUEST", "SEQUENCE_OUT_OF_RANGE"],
};

function reasonOf(name: string | undefined): Reason | undefined {
  return name !== undefined && name !== "UNSPECIFIED" && name in ErrorReason && Number.isNaN(Number(name))
    ? (name as Reason)
    : undefined;
}

type Told = Omit<ErrorOptions, "reason"> & { reason?: Reason | undefined };

/** An error of a class. A reason that is not known here becomes the plain one of its class. */
export function errorOf(name: ErrorClassName, message: string, options: Told): ReachError {
  const { reason, ...rest } = options;
  return new CLASSES[name](message, reason === undefined ? rest : { ...rest, reason });
}

/** The error that a peer reported on a stream or in a result. */
export function errorFromMessage(message: ErrorMessage): ReachError {
  const named = ErrorClass[message.errorClass];
  const name = named !== undefined && named in CLASSES ? (named as ErrorClassName) : "INTERNAL";
  return errorOf(name, message.message, {
    reason: reasonOf(ErrorReason[message.reason]),
    metadata: message.metadata,
    ...(message.retryAfter === undefined ? {} : { retryAfterMs: durationMs(message.retryAfter) }),
  });
}

/** The error as an item of a stream. */
export function errorToMessage(error: ReachError): ErrorMessage {
  return create(ErrorSchema, {
    errorClass: ErrorClass[error.errorClass],
    reason: ErrorReason[error.reason],
    message: bounded(error.message, 4096),
    metadata: { ...error.metadata },
    retryable: error.retryable,
    ...(error.retryAfterMs === undefined
      ? {}
      : { retryAfter: durationFromMs(Math.max(0, Math.round(error.retryAfterMs))) }),
  });
}

/** The error that ended a call. Without our details the code alone decides. */
export function errorFromStatus(ended: Pick<StatusObject, "code" | "details" | "metadata">): ReachError {
  for (const value of ended.metadata.get("grpc-status-details-bin")) {
    const error = typeof value === "string" ? undefined : fromDetails(value, ended.details);
    if (error !== undefined) return error;
  }
  if (ended.code === status.RESOURCE_EXHAUSTED && /larger than max/.test(ended.details)) {
    return new InvalidRequest(ended.details, { reason: "PAYLOAD_TOO_LARGE" });
  }
  const [name, reason] = BY_CODE[ended.code] ?? (["INTERNAL", "INTERNAL_FAULT"] as const);
  return errorOf(name, ended.details || status[ended.code] || "the call failed", { reason });
}

function fromDetails(bytes: Uint8Array, message: string): ReachError | undefined {
  try {
    let name: ErrorClassName | undefined;
    const options: Told = {};
    for (const detail of fromBinary(StatusSchema, bytes).details) {
      const info = anyUnpack(detail, ErrorInfoSchema);
      if (info?.domain === "agentreach") {
        const { class: named, retryable: _, ...metadata } = info.metadata;
        name = named !== undefined && named in CLASSES ? (named as ErrorClassName) : "INTERNAL";
        options.reason = reasonOf(info.reason);
        options.metadata = metadata;
      }
      const retry = anyUnpack(detail, RetryInfoSchema);
      if (retry?.retryDelay !== undefined) options.retryAfterMs = durationMs(retry.retryDelay);
    }
    return name === undefined ? undefined : errorOf(name, message, options);
  } catch {
    return undefined; // not what it says it is
  }
}

/** A text of at most so many bytes of UTF-8. */
export function bounded(text: string, bytes: number): string {
  const data = Buffer.from(text);
  if (data.length <= bytes) return data.toString();
  return `${data
    .subarray(0, bytes - 16)
    .toString()
    .replace(/\uFFFD+$/, "")}… [cut]`;
}
