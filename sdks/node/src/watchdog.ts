/**
 * Beats while the loop is blocked. All of an agent lives on one loop, beats too, so that they prove that handlers run.
 * A thread watches: the loop touches a shared clock a few times a second, and when that stops, the thread beats by
 * unary calls over a connection of its own and says for how long the loop has been blocked. The server then knows both:
 * the process lives, and it takes nothing new.
 */

import { Worker } from "node:worker_threads";
import type { Target } from "./target.js";

/** What the thread is told when it begins. */
export interface Watched {
  /** When the loop was last seen to run (ms since 1970), and how often to beat (ms). */
  shared: SharedArrayBuffer;
  instanceId: string;
  bootId: string;
  target: ReturnType<Target["options"]>;
}

/** A thread that beats in the loop's stead. */
export class Watchdog {
  readonly #clock = new Float64Array(new SharedArrayBuffer(16));
  readonly #worker: Worker;
  readonly #touching: NodeJS.Timeout;

  constructor(target: Target, instanceId: string, bootId: string, intervalMs: number, beat: () => void) {
    this.setInterval(intervalMs);
    this.#clock[0] = Date.now();
    const workerData: Watched = {
      shared: this.#clock.buffer as SharedArrayBuffer,
      instanceId,
      bootId,
      target: target.options(),
    };
    // What node was told of the text of the program (--eval, --input-type), or of its loading, is not for this file.
    this.#worker = new Worker(new URL("./watchdog-thread.js", import.meta.url), { workerData, execArgv: [] });
    this.#worker.on("error", (error) =>
      process.emitWarning(`nobody beats while the loop is blocked: ${error.message}`),
    );
    this.#worker.unref();
    const every = Math.min(500, intervalMs / 8);
    this.#touching = setInterval(() => {
      const stalled = Date.now() - (this.#clock[0] as number);
      this.#clock[0] = Date.now();
      if (stalled > every + 1_000) beat(); // takes back what the thread said
    }, every);
  }

  /** The server wants beats this often. */
  setInterval(intervalMs: number): void {
    this.#clock[1] = intervalMs;
  }

  /** What it is to show to the server from now on. */
  show(key: string): void {
    this.#worker.postMessage(key);
  }

  /** Ends the thread. */
  stop(): void {
    clearInterval(this.#touching);
    void this.#worker.terminate();
  }
}
