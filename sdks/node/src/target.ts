/** Where the server is and how to speak to it; and which one is asked next, where several work as one. */

import { readFileSync } from "node:fs";
import { type ChannelOptions, Client, credentials, type ChannelCredentials, Metadata } from "@grpc/grpc-js";
import { InvalidRequest } from "./errors.js";

export const DEFAULT_ADDRESS = "127.0.0.1:8900";
export const PROTOCOL_VERSION = "1";
/** Servers that are given, and that servers tell of. */
const MOST_ADDRESSES = 64;

const OPTIONS: ChannelOptions = {
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  // What we send is checked by item against the limit that the server states; this bound only keeps a broken peer from
  // our memory.
  "grpc.max_send_message_length": -1,
  "grpc.max_receive_message_length": 66 << 20,
  // A connection of its own for each client and agent: one that does not read must not stop another.
  "grpc.use_local_subchannel_pool": 1,
};

/** Files for TLS, as PEM. */
export interface Tls {
  /** The authorities to trust; left out: those of the system. */
  ca?: string;
  /** Our certificate, for servers that ask for one (mTLS). */
  cert?: string;
  /** Its private key. */
  key?: string;
}

/** How to reach Agent-Reach. */
export interface TargetOptions {
  /**
   * `host:port`, or several nodes of a cluster, as `a:8900,b:8900` or a list; left out: AGENT_REACH_ADDR, else
   * 127.0.0.1:8900.
   */
  addr?: string | readonly string[];
  /**
   * A key or token, or a function that gives the one of now; it must not block. Left out: AGENT_REACH_API_KEY, else
   * what is in the file that AGENT_REACH_API_KEY_FILE names, read anew for each connection and call.
   */
  apiKey?: string | (() => string);
  /** A `Tls`, the path of a CA file, or true for the authorities of the system. */
  tls?: Tls | string | boolean;
}

/** A server, or several that work as one. */
export class Target {
  readonly addresses: readonly string[];
  /** Whether a call may show something else next time. */
  readonly renews: boolean;
  /** Servers that servers told of. */
  told: readonly string[] = [];
  /** The one that answered last. */
  works: string | undefined;
  readonly #credentials: ChannelCredentials;
  readonly #options: TargetOptions;
  readonly #give: () => string;
  #shown = "";

  constructor(options: TargetOptions) {
    this.#options = options;
    const addr = options.addr ?? process.env["AGENT_REACH_ADDR"] ?? "";
    const parts = (typeof addr === "string" ? [addr] : [...addr]).flatMap((text) => text.split(","));
    const found = [...new Set(parts.map((part) => part.trim()).filter(Boolean))];
    const url = found.find((one) => /^(https?|grpcs?):\/\//.test(one));
    if (url !== undefined) {
      throw new InvalidRequest(`the address of a server is host:port, without http:// or a path, not '${url}'`);
    }
    if (found.length > MOST_ADDRESSES) {
      throw new InvalidRequest(`${found.length} addresses were given, at most ${MOST_ADDRESSES} can be used`);
    }
    this.addresses = found.length > 0 ? found : [DEFAULT_ADDRESS];
    const given = options.apiKey ?? process.env["AGENT_REACH_API_KEY"] ?? "";
    const file = given === "" ? process.env["AGENT_REACH_API_KEY_FILE"] : undefined;
    this.renews = typeof given === "function" || Boolean(file);
    this.#give = file ? () => readFileSync(file, "ascii").trim() : typeof given === "function" ? given : () => given;
    if (file) this.key(); // throws if it cannot be read
    this.#credentials = credentialsOf(options.tls);
  }

  /** For another thread, which makes a target of its own of them. */
  options(): TargetOptions {
    const { tls } = this.#options;
    return { addr: this.addresses, apiKey: this.key(), ...(tls !== undefined && { tls }) };
  }

  /** What is shown to the server now. A file that is away for a moment, being replaced, changes nothing. */
  key(): string {
    try {
      this.#shown = this.#give();
    } catch (error) {
      if (this.#shown === "") throw error;
    }
    return this.#shown;
  }

  /** Of a call. */
  metadata(): Metadata {
    const made = new Metadata();
    const key = this.key();
    if (key !== "") made.set("authorization", `Bearer ${key}`);
    return made;
  }

  /** For people: all addresses that were given. */
  get address(): string {
    return this.addresses.join(",");
  }

  /** These are the other nodes now. */
  hear(addresses: readonly string[]): void {
    this.told = addresses.slice(0, MOST_ADDRESSES);
  }

  /** A connection of its own to one server. */
  connect(address: string): Client {
    return new Client(address, this.#credentials, OPTIONS);
  }
}

/**
 * One line of tries. A round asks each server that was given once, and one of those that servers told of: the next is
 * asked at once, the waits between rounds are the caller's. Chance chooses, so that all who lost a server spread over
 * the rest.
 */
export class Rotation {
  current: string;
  readonly #target: Target;
  readonly #tried = new Set<string>();
  #lastTold = -1;

  constructor(target: Target) {
    this.#target = target;
    this.current = target.works ?? oneOf(target.addresses);
  }

  /** Whether there is nobody else to ask. */
  get isAlone(): boolean {
    const { addresses, told } = this.#target;
    return addresses.length === 1 && told.every((address) => addresses.includes(address));
  }

  /** The current one answers: the next round begins when it fails. */
  worked(): void {
    this.#tried.clear();
    this.#target.works = this.current;
  }

  /** The current one does not answer: another is current. False: the round is over, wait before it is asked. */
  failed(): boolean {
    const given = this.#target.addresses;
    this.#tried.add(this.current);
    let left = given.filter((address) => !this.#tried.has(address));
    if (left.length === 0 && [...this.#tried].every((address) => given.includes(address))) left = this.#nextTold();
    if (left.length > 0) {
      this.current = oneOf(left);
      return true;
    }
    const others = given.filter((address) => address !== this.current);
    this.#tried.clear();
    this.current = oneOf(others.length > 0 ? others : given);
    return false;
  }

  /** One of those that were told of: each has its turn, for they may not be for us to reach. */
  #nextTold(): string[] {
    const { addresses, told } = this.#target;
    const others = told.filter((one) => !addresses.includes(one) && !this.#tried.has(one));
    if (others.length === 0) return [];
    this.#lastTold = this.#lastTold < 0 ? Math.floor(Math.random() * others.length) : this.#lastTold + 1;
    return [others[this.#lastTold % others.length] as string];
  }
}

function oneOf(items: readonly string[]): string {
  return items[Math.floor(Math.random() * items.length)] as string;
}

function credentialsOf(tls: TargetOptions["tls"]): ChannelCredentials {
  if (tls === undefined || tls === false) return credentials.createInsecure();
  const files: Tls = tls === true ? {} : typeof tls === "string" ? { ca: tls } : tls;
  if ((files.cert === undefined) !== (files.key === undefined))
    throw new InvalidRequest("tls needs cert and key together");
  const read = (path: string | undefined): Buffer | null => (path === undefined ? null : readFileSync(path));
  return credentials.createSsl(read(files.ca), read(files.key), read(files.cert));
}
