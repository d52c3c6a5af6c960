/**
 * One long stream to the server that comes back by itself, and the frames on it.
 *
 * An item (a task, a result, a beat) is put into the outbox as the bytes of a frame that holds only it: the
 * concatenation of messages is their merger, so a frame is made by joining items, and what must be sent again after a
 * reconnect is kept as bytes.
 */

import { type Client, type ClientDuplexStream, status } from "@grpc/grpc-js";
import { errorFromStatus, Internal, ReachError, type Reason, Unavailable } from "./errors.js";
import { Rotation, type Target } from "./target.js";

/** Bytes of a frame with several items; a single item may be larger. */
const FRAME_LIMIT = 512 << 10;
const FIRST_WAIT_MS = 100;
/** Running work is kept for 30 s for an agent that comes back; so the wait between tries is never longer than this. */
const LONGEST_WAIT_MS = 5_000;
/**
 * Longest wait as a share of the time that the server has been away: one that was restarted in a second is soon found
 * again.
 */
const WAIT_PER_AWAY = 0.5;
/** How long a server may take from the connection to its first frame. */
const OPENING_TIMEOUT_MS = 10_000;
/** How long a connection may take where there are others to ask: a machine that is gone does not even refuse. */
const CONNECT_TIMEOUT_MS = 2_000;
/** Refusals of a stream that trying again does not change. */
const FATAL: ReadonlySet<Reason> = new Set([
  "UNAUTHENTICATED",
  "PERMISSION_DENIED",
  "VERSION_NOT_SUPPORTED",
  "NOT_IMPLEMENTED",
]);

type Call = ClientDuplexStream<Buffer, Buffer>;

/** What speaks over a connection. */
export interface Peer {
  /** A new stream begins: the frames to start with. The outbox is empty. */
  opening(): Uint8Array[];
  /** A frame is about to be made: last chance to put items. */
  gather(): void;
  /** What each frame begins with. */
  prefix(): Uint8Array;
  /** A frame came. May throw a ReachError to end the connection for good, or Broken to end this stream. */
  received(frame: Buffer): void;
  /** The stream broke, or could not be opened. It will be tried again. */
  lost(error: ReachError): void;
}

/** Thrown in `received`: this stream is of no use, try another after a while. */
export class Broken extends Error {
  constructor(readonly error: ReachError) {
    super(error.message);
  }
}

/** How a stream ended. */
type End = { kind: "reopen" } | { kind: "fatal"; error: ReachError } | { kind: "lost"; error: ReachError };

/** Keeps one stream open, for ever, with full jitter from 100 ms to 5 s between tries. */
export class Connection {
  /** The peer said that the current stream works (`established`). */
  up = false;
  /** The last hello was answered: what is said of attempts before that may be lost, and is kept until then. */
  welcomed = false;
  readonly #items: Uint8Array[] = [];
  #size = 0;
  readonly #target: Target;
  readonly #method: string;
  readonly #peer: Peer;
  readonly #rotation: Rotation;
  #call: Call | undefined;
  #before: (() => void) | undefined;
  #flushes = false;
  #blocked = false;
  #reopen = false;
  #settle: ((end: End) => void) | undefined;
  #ended: (() => void) | undefined;
  #ending = false;
  #stopped = false;
  #lostAt: number | undefined;
  #wake: (() => void) | undefined;
  /** What was told last: that the server is there, or that it is not. */
  #told: boolean | undefined;
  #hasWorked = false;

  constructor(target: Target, method: string, peer: Peer) {
    this.#target = target;
    this.#method = method;
    this.#peer = peer;
    this.#rotation = new Rotation(target);
  }

  /** Bytes that wait for the stream. */
  get waiting(): number {
    return this.#size;
  }

  /** Adds an item. It leaves with everything else that is put in this turn of the loop. */
  put(item: Uint8Array): void {
    this.#items.push(item);
    this.#size += item.length;
    this.wake();
  }

  /** Makes a frame at the end of this turn of the loop, although nothing may be here yet. */
  wake(): void {
    if (this.#flushes) return;
    this.#flushes = true;
    setImmediate(() => this.#flush());
  }

  /** Runs until `stop` or `end`. Throws the ReachError of a refusal that trying again does not change. */
  async run(): Promise<void> {
    try {
      while (!this.#stopped) {
        const end = await this.#once();
        if (this.#ending || this.#stopped) return;
        if (end.kind === "reopen") continue;
        this.#closeBefore();
        const isFatal = FATAL.has(end.error.reason) && !this.#mayBeRenewed(end.error);
        if (end.kind === "fatal" || isFatal) throw end.error;
        this.#tell(false, end.error);
        this.#peer.lost(end.error);
        await this.#pause(end.error);
      }
    } finally {
      this.up = this.welcomed = false;
      this.#closeBefore();
    }
  }

  /** The peer has what it needs from the new stream: the wait starts small again, the old stream may go. */
  established(): void {
    this.#lostAt = undefined;
    this.up = this.welcomed = this.#hasWorked = true;
    this.#closeBefore();
    this.#rotation.worked();
    this.#tell(true);
  }

  /** Opens a new stream now. The old one is closed when the new one works, so that the server never sees us gone. */
  reopen(): void {
    this.#reopen = true;
  }

  /** Sends what is left, says that nothing more will come, and lets the server end the stream. */
  async end(timeoutMs: number): Promise<void> {
    this.#ending = true;
    if (this.#call === undefined) return this.stop();
    const ended = new Promise<void>((resolve) => (this.#ended = resolve));
    this.wake();
    const timer = setTimeout(() => this.stop(), timeoutMs);
    await ended;
    clearTimeout(timer);
  }

  /** Ends at once. */
  stop(): void {
    this.#stopped = true;
    this.#settle?.({ kind: "lost", error: new Unavailable("closed", { reason: "OWNER_UNAVAILABLE" }) });
    this.#wake?.();
  }

  /** One stream from opening to end. */
  #once(): Promise<End> {
    const client = this.#target.connect(this.#rotation.current);
    const call: Call = client.makeBidiStreamRequest(this.#method, asBuffer, asBuffer, this.#target.metadata());
    this.up = this.welcomed = this.#reopen = this.#blocked = false;
    this.#items.length = this.#size = 0;
    return new Promise((resolve) => {
      const timers = [
        setTimeout(() => settle(late("the server did not answer in time")), OPENING_TIMEOUT_MS),
        ...(this.#rotation.isAlone ? [] : [giveUpUnconnected(client, () => settle(late("no connection in time")))]),
      ];
      const settle = (end: End): void => {
        if (this.#call !== call) return;
        timers.forEach(clearTimeout);
        this.#call = this.#settle = undefined;
        this.up = this.welcomed = false;
        const close = (): void => {
          call.cancel();
          client.close();
        };
        if (end.kind === "reopen") {
          this.#closeBefore();
          this.#before = close;
        } else {
          close();
        }
        this.#ended?.();
        resolve(end);
      };
      this.#call = call;
      this.#settle = settle;
      call.on("error", () => {}); // `status` says it too
      call.on("status", (ended) =>
        settle({ kind: "lost", error: ended.code === status.OK ? goneInPeace() : errorFromStatus(ended) }),
      );
      call.on("data", (frame: Buffer) => {
        if (this.#call !== call) return;
        clearTimeout(timers[0]);
        const end = this.#receive(frame);
        if (end !== undefined) settle(end);
      });
      for (const frame of this.#peer.opening()) call.write(Buffer.from(frame));
      this.wake();
    });
  }

  #receive(frame: Buffer): End | undefined {
    try {
      this.#peer.received(frame);
    } catch (error) {
      if (error instanceof Broken) return { kind: "lost", error: error.error };
      if (error instanceof ReachError) return { kind: "fatal", error };
      process.emitWarning(`cannot handle what Agent-Reach sent: ${String(error)}`, "AgentReach");
      return { kind: "lost", error: new Internal(`cannot handle a frame: ${String(error)}`) };
    }
    return this.#reopen ? { kind: "reopen" } : undefined;
  }

  #flush(): void {
    this.#flushes = false;
    const call = this.#call;
    if (call === undefined || this.#blocked) return;
    this.#peer.gather();
    while (this.#items.length > 0) {
      if (!call.write(Buffer.concat([this.#peer.prefix(), ...this.#take()]))) {
        this.#blocked = true;
        call.once("drain", () => {
          if (this.#call !== call) return;
          this.#blocked = false;
          this.wake();
        });
        return;
      }
    }
    if (this.#ending) call.end();
  }

  /** The items of the next frame: at most `FRAME_LIMIT` bytes, or one item. */
  #take(): Uint8Array[] {
    let count = 0;
    let size = 0;
    for (const item of this.#items) {
      if (count > 0 && size + item.length > FRAME_LIMIT) break;
      size += item.length;
      count += 1;
    }
    this.#size -= size;
    return this.#items.splice(0, count);
  }

  async #pause(error: ReachError): Promise<void> {
    const now = performance.now();
    const first = this.#lostAt === undefined;
    this.#lostAt ??= now;
    let waitMs: number;
    if (this.#rotation.failed()) {
      waitMs = first ? Math.random() * FIRST_WAIT_MS : 0; // not at once: all who lost a server come to the others
    } else {
      const most = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS + WAIT_PER_AWAY * (now - this.#lostAt));
      const asked = Math.min(error.retryAfterMs ?? 0, LONGEST_WAIT_MS);
      waitMs = Math.max(Math.random() * most, asked * (0.8 + 0.2 * Math.random()));
    }
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = undefined;
  }

  /** Tokens expire, and the next one is there already, or in a moment: who was let in before tries again. */
  #mayBeRenewed(error: ReachError): boolean {
    return error.reason === "UNAUTHENTICATED" && this.#target.renews && this.#hasWorked;
  }

  /** Says that the server is lost, or found again: once per change, not once per try. */
  #tell(isUp: boolean, error?: ReachError): void {
    const before = this.#told;
    this.#told = isUp;
    if (before === isUp || (isUp && before === undefined)) return;
    const what = isUp ? "connected again to" : before === undefined ? "cannot reach" : "lost";
    const why = error === undefined ? "" : `: ${error.message}; trying on for ever`;
    process.emitWarning(`${what} Agent-Reach at ${this.#rotation.current}${why}`, "AgentReach");
  }

  #closeBefore(): void {
    this.#before?.();
    this.#before = undefined;
  }
}

function asBuffer(data: Buffer): Buffer {
  return data;
}

function goneInPeace(): ReachError {
  return new Unavailable("the server ended the stream", { reason: "OWNER_UNAVAILABLE" });
}

function late(text: string): End {
  return { kind: "lost", error: new Unavailable(text, { reason: "OWNER_UNAVAILABLE" }) };
}

/** A connection takes long: another server may be nearer than its end. */
function giveUpUnconnected(client: Client, giveUp: () => void): NodeJS.Timeout {
  let connected = false;
  client.waitForReady(Date.now() + CONNECT_TIMEOUT_MS, (error) => (connected = error === undefined || error === null));
  return setTimeout(() => {
    if (!connected) giveUp();
  }, CONNECT_TIMEOUT_MS);
}
