/** Agents and callers of Agent-Reach. */

export { Agent, type AgentOptions } from "./agent.js";
export { Event, type EventKind, Result, type State, TaskInfo, type TextPiece } from "./answers.js";
export { Client, type ClientOptions, type TaskHandle, type WaitOptions } from "./client.js";
export {
  AgentError,
  type ErrorClassName,
  type ErrorOptions,
  Internal,
  InvalidRequest,
  ReachError,
  type Reason,
  ResourceExhausted,
  Timeout,
  Unavailable,
} from "./errors.js";
export type { HandlerFunction, Piece, RouteOptions } from "./handlers.js";
export { Answer, type AnswerOptions, Content, Delta, Progress } from "./payloads.js";
export { type AskOptions, Input } from "./questions.js";
export type { Session, TaskOptions } from "./specs.js";
export { currentTask, Task } from "./task.js";
export type { TargetOptions, Tls } from "./target.js";
export { VERSION } from "./version.js";
