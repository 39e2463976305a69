// Handlers of GEM's tools in TypeScript or JavaScript: plain tools, and durable ones that continue after a crash. See
// docs/sdk.md.

/** A tool's input and output, as `gem types typescript` writes them. */
type Shapes = Record<string, { input: any; output: any }>

/** A handler's view of its call. The methods record effects for the receipt. */
export interface Call {
  /** The call's id, the same in every attempt. Pass it to services that accept an idempotency key. */
  readonly id: string
  readonly tool: string
  /** The number of the attempt, from 1. */
  readonly attempt: number
  /** Groups the calls of one conversation. */
  readonly sessionId: string | null
  /** The user on whose behalf the call was made. */
  readonly createdBy: string | null
  /** Records a row that was written. */
  wrote(table: string, action: 'insert' | 'update' | 'delete', id: string | number): void
  /** Records how many rows of a table were read. */
  read(table: string, count: number): void
  /** Records a message that a service accepted. `type` is email or sms. */
  sent(type: string, recipient: string, messageId: string): void
  wroteFile(path: string): void
  /** Records a request to a service. The endpoint must not contain secrets. */
  called(service: string, endpoint: string, statusCode?: number): void
}

/** Something that a durable handler waits for. Awaiting it returns its result or throws its error. */
export interface Child<T> extends PromiseLike<T> {
  /** Its name in the journal. */
  readonly id: string
  /** Limits the wait, counted from the first await. After the limit, awaiting throws Timeout in every run. */
  within(ms: number): this
  /** Ends the wait at the given time, by Postgres's clock. */
  until(date: Date | string | number): this
  catch<U>(rejected: (error: unknown) => U | PromiseLike<U>): Promise<T | U>
  finally(done: () => void): Promise<T>
}

declare const output: unique symbol

/** The decision on a call whose output has the type T. */
export interface Decision<T = any> {
  approved: boolean
  /** The person who decided; absent if nobody decided in time. */
  by?: string
  at?: string
  /** The person's reason; `expired` if nobody decided in time. */
  reason?: string
  digest: string
  readonly [output]?: T // only a type
}

type Results<C> = { -readonly [K in keyof C]: C[K] extends PromiseLike<infer T> ? T : never }

/**
 * The call of a durable handler. The handler runs from its beginning each time; operations in the journal return at
 * once. So everything with an effect belongs in a step. Outside of steps, the handler may await only the operations
 * below. If two operations have the same name, they become `name` and `name#2` in the journal.
 */
export interface DurableCall<Tools extends Shapes = Shapes> extends Call {
  /** Aborts when the worker stops waiting for this exchange. Pass it to fetch. */
  readonly signal: AbortSignal
  /** Runs `fn` at least once and records its result, JSON of at most 1 MiB. A Transient error restarts the call. */
  step<T>(name: string, fn: (signal: AbortSignal) => T | PromiseLike<T>): Promise<T>
  /** A step that never runs twice. If it began and its outcome is lost, it throws Unknown in every later run. */
  stepOnce<T>(name: string, fn: (signal: AbortSignal) => T | PromiseLike<T>): Promise<T>
  /**
   * A step whose rows and end commit together, once. `fn` runs its own transaction and returns the result. The last
   * statement of the transaction is `select keep_tool_step(step, result)`, with both as JSON.
   */
  stepTx<T>(name: string, fn: (step: { token: string; before: number; name: string }) => PromiseLike<T>): Promise<T>
  /** Makes a call, once. The tool must be listed in `calls` of this tool's entry in the registry. */
  start<K extends keyof Tools & string>(name: string, tool: K, input: Tools[K]['input']): Child<Tools[K]['output']>
  /** Makes a call and waits for its result. */
  run<K extends keyof Tools & string>(name: string, tool: K, input: Tools[K]['input']): Promise<Tools[K]['output']>
  /** Asks a person. Without a schema, the answer is a text. */
  ask<T = string>(name: string, question: { text: string; schema?: object; by?: string[]; others?: boolean;
    until?: Date | string | number }): Child<T>
  /** Asks people to approve a call. A denial is a Decision, not an error. */
  approve<K extends keyof Tools & string>(name: string, approval: { tool: K; input: Tools[K]['input']; by: string[];
    text?: string; ownerToo?: boolean; until?: Date | string | number }): Child<Decision<Tools[K]['output']>>
  /** Makes exactly the approved call. Awaiting it throws a Failure with the code not_allowed if it was denied. */
  startApproved<T = any>(name: string, approval: Child<Decision<T>>): Child<T>
  /** Waits for an answer that somebody sends to this call under a name. The answer is not checked. */
  receive<T = unknown>(name: string): Child<T>
  /** Pauses the call. No process runs it in the meantime. */
  sleep(name: string, ms: number): Promise<void>
  /** Returns the version of the code that this call must run here; 0 if it passed here before there was one. */
  version(name: string, current: number): Promise<number>
  /** Returns the tools that this handler may call, as they were when it first asked. */
  tools(name: string): Promise<{ name: string; description: string; input_schema: object; closed?: string }[]>
  /** Waits for all children, and returns their results. Throws the first error, in the order of the children. */
  all<C extends readonly PromiseLike<any>[]>(children: readonly [...C]): Promise<Results<C>>
  all<C extends readonly PromiseLike<any>[]>(...children: C): Promise<Results<C>>
  /** Waits until one of the children has ended, and returns its index. */
  first(...children: Child<any>[]): Promise<number>
  /** Runs `fn`, whose operations may begin even after the call was cancelled. */
  cleanup<T>(fn: () => Promise<T>): Promise<T>
}

export interface Plain { run: (input: any, call: Call) => unknown; durable: false }
export interface Durable { run: (call: any, input: any) => unknown; durable: true }

/** A plain tool: its handler runs once for each attempt. */
export function tool<I = any, O = any>(run: (input: I, call: Call) => O | PromiseLike<O>): Plain
/** A durable tool: domains.json must list it under `durable`. */
export function durable<I = any, O = any>(run: (call: DurableCall<any>, input: I) => PromiseLike<O>): Durable

export interface Service {
  (request: Request): Promise<Response>
  /** Serves a request of node:http. */
  node(req: any, res: any): Promise<void>
  /** Serves on a port with node:http, on 127.0.0.1 unless a host is given. */
  listen(port: number, host?: string): Promise<any>
}

/**
 * Serves tools. `secret` is the value of the variable that `secret_env` in domains.json names. While you change the
 * secret, pass the old and the new one. `keep` runs `select keep_tool_step(step, result)`. With it, one request can end
 * many steps.
 */
export function serve<Tools extends Shapes = Shapes>(options: { secret: string | string[];
  tools: { [K in keyof Tools & string]?: Plain | Durable } & Record<string, Plain | Durable>;
  keep?: (step: object, result: unknown) => PromiseLike<unknown> }): Service

/** An error with a code and details, for the receipt. */
export class Failure extends Error {
  constructor(message: string, options?: { code?: string; details?: unknown })
  code: string
  details: any
}
/** A stepOnce may or may not have taken effect. */
export class Unknown extends Failure { constructor(message?: string) }
/** Nothing arrived in time. */
export class Timeout extends Failure { constructor(message?: string) }
/** Someone asked to cancel the call. */
export class Cancelled extends Failure { constructor(message?: string) }
/** The tool is not set up. */
export class NotConfigured extends Error {
  constructor(reason: string, options?: { requiredEnv?: string[]; nextSteps?: string[] })
}
/** A temporary error: the call runs again after a pause of at least `afterMs`, up to 15 minutes. */
export class Transient extends Error { constructor(cause: unknown, afterMs?: number) }
