/** The thread of the watchdog. */

import { parentPort, workerData } from "node:worker_threads";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { HeartbeatService } from "./gen/agentreach/v1/heartbeat_pb.js";
import { Target } from "./target.js";
import { UnaryCalls } from "./unary.js";
import type { Watched } from "./watchdog.js";

const { shared, instanceId, bootId, target } = workerData as Watched;
const clock = new Float64Array(shared);
let key = String(target.apiKey);
const calls = new UnaryCalls(new Target({ ...target, apiKey: () => key }));
parentPort?.on("message", (shown: string) => (key = shown));
let beatenAt = 0;

setInterval(() => {
  const [touchedAt = 0, intervalMs = 5_000] = clock;
  const now = Date.now();
  const stalledMs = now - touchedAt;
  if (stalledMs < Math.max(1_000, intervalMs / 2) || now - beatenAt < intervalMs / 2) return;
  beatenAt = now;
  const beat = { instanceId, bootId, status: { loopStalled: durationFromMs(stalledMs) } };
  calls.call(HeartbeatService.method.heartbeat, { beat }, intervalMs).catch(() => {}); // the next one may arrive
}, 250);
