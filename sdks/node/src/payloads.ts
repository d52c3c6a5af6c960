/**
 * What goes into a task and comes out of it. A string is text, a Uint8Array is binary, anything else that JSON can say
 * is JSON, and `undefined` and `null` are empty. `Answer` says the media type and more.
 */

import { create } from "@bufbuild/protobuf";
import { type Payload, PayloadSchema } from "./gen/agentreach/v1/payload_pb.js";
import { InvalidRequest } from "./errors.js";

/** Bytes, until the server says another limit in its welcome. */
export const PAYLOAD_LIMIT = 4 << 20;
const JSON_TYPE = "application/json";

/** What an answer may say beside its data. */
export interface AnswerOptions {
  /** IANA media type; left out: by the kind of data. */
  mediaType?: string;
  /** 0 to 1, as the agent thinks. */
  confidence?: number;
  /** What else could be true. */
  conflictHint?: string;
  /** Figures such as tokens used. */
  usage?: Record<string, number>;
  /** The intent that was executed, if another than asked. */
  executedIntent?: string;
  /** Names and values that the user said, to be kept with the session. */
  entities?: Record<string, string>;
  /** Names and values that you made of it. */
  inferred?: Record<string, string>;
}

/** An answer with more than its data. */
export class Answer {
  constructor(
    readonly data: unknown,
    readonly options: AnswerOptions = {},
  ) {}
}

/** A piece of an answer that a generator yields, where plain text does not say enough. */
export class Delta {
  /** `channel`: several texts may grow side by side; the one without a name becomes the result. */
  constructor(
    readonly data: unknown,
    readonly options: { channel?: string; mode?: "append" | "replace"; mediaType?: string } = {},
  ) {}
}

/** A sign of life that a generator yields: how far it is (0 to 1) and a note for people. */
export class Progress {
  constructor(
    readonly fraction?: number,
    readonly note = "",
  ) {}
}

/** A value as a payload. Throws InvalidRequest if it has no form. */
export function toPayload(value: unknown, mediaType = ""): Payload {
  if (value instanceof Answer) return toPayload(value.data, value.options.mediaType ?? mediaType);
  if (value === undefined || value === null) return create(PayloadSchema, { mediaType });
  if (typeof value === "string") {
    const text = Buffer.from(value).toString(); // lone surrogates, which UTF-8 does not have, are replaced
    return create(PayloadSchema, { mediaType, content: { case: "text", value: text } });
  }
  if (value instanceof Uint8Array) return create(PayloadSchema, { mediaType, content: { case: "data", value } });
  return toPayload(jsonText(value), mediaType || JSON_TYPE);
}

function jsonText(value: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value, (_, part: unknown) => {
      if (typeof part === "number" && !Number.isFinite(part)) throw new TypeError(`${part} is not JSON`);
      return part;
    });
  } catch (error) {
    throw new InvalidRequest(`a payload must be what JSON can say: ${(error as Error).message}`);
  }
  if (text === undefined) throw new InvalidRequest(`a payload must be what JSON can say; ${typeof value} is not`);
  return text;
}

/** Bytes of the content. */
export function sizeOf(payload: Payload | undefined): number {
  const content = payload?.content;
  if (content?.case === "text") return Buffer.byteLength(content.value);
  return content?.case === "data" ? content.value.length : 0;
}

/** Throws InvalidRequest (PAYLOAD_TOO_LARGE) if `size` is over the limit: a message over it would end the stream. */
export function checkSize(size: number, limit: number, what: string): void {
  if (size > limit) {
    const metadata = { size: String(size), limit: String(limit) };
    const text = `${what} has ${size} bytes; this server takes at most ${limit}`;
    throw new InvalidRequest(text, { reason: "PAYLOAD_TOO_LARGE", metadata });
  }
}

/** Reads a payload in the ways one may want it. */
export class Content {
  readonly #payload: Payload | undefined;

  constructor(payload: Payload | undefined) {
    this.#payload = payload;
  }

  /** The content as bytes; text as UTF-8. */
  get bytes(): Uint8Array {
    const content = this.#payload?.content;
    if (content?.case === "data") return content.value;
    return Buffer.from(content?.case === "text" ? content.value : "");
  }

  /** The content as text; bytes that are not UTF-8 are replaced. */
  get text(): string {
    const content = this.#payload?.content;
    return content?.case === "text" ? content.value : Buffer.from(this.bytes).toString();
  }

  /** The content read as JSON. Throws InvalidRequest if it is not JSON. */
  get data(): unknown {
    try {
      return JSON.parse(this.text);
    } catch (error) {
      throw new InvalidRequest(`the payload is not JSON: ${(error as Error).message}`);
    }
  }

  /** The content by its media type: text as string, JSON parsed, else bytes; undefined if there is none. */
  get value(): unknown {
    const kind = this.#payload?.content.case;
    if (kind === undefined) return undefined;
    const essence = (this.mediaType.split(";")[0] ?? "").trim().toLowerCase();
    if (essence === JSON_TYPE || essence.endsWith("+json")) return this.data;
    return kind === "text" || essence.startsWith("text/") ? this.text : this.bytes;
  }

  /** The media type, also where it was left out. */
  get mediaType(): string {
    const kind = this.#payload?.content.case;
    return this.#payload?.mediaType || (kind === "data" ? "application/octet-stream" : "text/plain");
  }
}
