import type { Receipt } from './receipt.d.ts'

export type * from './receipt.d.ts'

/** A map from the names of tools to their inputs and outputs: `Tools` of the file that `gem types typescript` writes. */
export type AnyTools = Record<string, { input: unknown; output: unknown }>

export interface Options {
  /** How long `call` and `wait` wait at most, in milliseconds. Default: ten minutes. */
  patience?: number
  /** Whether a call that takes longer is also waited for with Realtime, where the client has it. Default: true, and in Node, Deno and Bun false,
   * since the connection of supabase-js keeps a process alive for about a minute. */
  realtime?: boolean
}

export interface RequestOptions {
  /** Ends the request. The call itself goes on: `cancel` ends it. */
  signal?: AbortSignal
}

export interface WaitOptions extends RequestOptions {
  /** How long to wait at most, in milliseconds. Default: the client's `patience`. */
  timeout?: number
}

export interface CallOptions extends RequestOptions {
  /** A call to a safe-retry tool with the key of an earlier success has that result. At most 255 characters. */
  key?: string
  /** The conversation that the call belongs to. At most 255 characters. */
  session?: string
  /** The id of an own call that this one belongs to. */
  parent?: string
  /** From -10 to 0, unless the operator allows more: calls of a higher one run first. Default: 0. */
  priority?: number
  /** The earliest time to run. Default: at once. */
  runAt?: Date | string
  /** The call's id, a UUID. The same id, tool and input are the same call, from any device. Default: a new one. */
  id?: string
}

/** A question that the user may answer. */
export interface Question {
  id: string
  tool: string
  text: string
  /** What an answer must fit. */
  schema: unknown
  by: string[]
  since: string
  until: string | null
  /** The first call above the question: usually the one that the user made. */
  root: string
  /** Of an approval: all that it asks. */
  input: unknown
  /** Of an approval: the tool of the call that is to be approved. */
  about: string | null
  /** Of an approval: the input of that call. */
  arguments: unknown
  /** The call that waits for the answer; null if a frontend inserted the question. */
  call_id: string | null
  /** The created_by of the question's call: for whom it is asked. */
  asked_by: string | null
  /** With `user`, a user or a model chose its text, its arguments and the people who may answer: they are unverified. */
  asked_for: 'rule' | 'handler' | 'user'
  /** The place in a list: questions of rules and handlers come first. */
  place: number
  /** Numbers the open questions of one asked_by. A list shows a few of each asker, and how many more there are. */
  of_asker: number
  asker_open: number
}

/** A tool that the user may call. */
export interface Tool {
  name: string
  description: string
  input_schema: unknown
  output_schema: unknown
  [more: string]: unknown
}

export interface Gem<Tools> {
  /** Inserts a call, waits for its receipt, and returns it, whatever the outcome. It throws a `GemTimeout` when there is none in time. */
  call<Name extends keyof Tools & string>(tool: Name, input: InputOf<Tools, Name>, options?: CallOptions & WaitOptions): Promise<Receipt<OutputOf<Tools, Name>>>
  /** Inserts a call and returns its id. A request whose answer was lost is repeated, and makes no second call. */
  enqueue<Name extends keyof Tools & string>(tool: Name, input: InputOf<Tools, Name>, options?: CallOptions): Promise<string>
  /** Waits for the receipt of a call. It throws a `GemTimeout` when there is none in time. */
  wait<Output = unknown>(id: string, options?: WaitOptions): Promise<Receipt<Output>>
  /** The receipt of a call; null while it has none. */
  receipt<Output = unknown>(id: string, options?: RequestOptions): Promise<Receipt<Output> | null>
  /** Ends a call, or asks its worker to. It returns `cancelled` or `requested`. Of a call that had ended it returns the status, such as `failed`, and
   * changes nothing. */
  cancel(id: string, options?: RequestOptions): Promise<string>
  /** Answers a question or an approval. The same answer again changes nothing; another one is refused. */
  answer(id: string, value: unknown, options?: RequestOptions & { name?: string }): Promise<string>
  /** The open questions that the user may answer, the first hundred by `place`. */
  questions(options?: RequestOptions): Promise<Question[]>
  /** The tools that the user may call, with descriptions and schemas. */
  tools(options?: RequestOptions): Promise<Tool[]>
}

type InputOf<Tools, Name extends keyof Tools> = Tools[Name] extends { input: infer Input } ? Input : unknown
type OutputOf<Tools, Name extends keyof Tools> = Tools[Name] extends { output: infer Output } ? Output : unknown

/** As much of a client of supabase-js as is used. */
export interface SupabaseLike {
  rpc(name: string, args?: any): any
  from(table: string): any
  channel?(name: string): any
  removeChannel?(channel: any): any
}

/** Makes a client of GEM from a signed-in client of supabase-js: `gem<Tools>(supabase)`. */
export function gem<Tools = AnyTools>(supabase: SupabaseLike, options?: Options): Gem<Tools>

/** A refusal of the database, or a request that no answer came to. */
export class GemError extends Error {
  /** An SQLSTATE, such as 42501 for missing rights, or a code of PostgREST. */
  readonly code?: string
  readonly details?: string
  /** What to do about it. */
  readonly hint?: string
  /** Of HTTP; 0 if no answer came. */
  readonly status: number
  /** Whether the same request may go through later. */
  readonly passing: boolean
}

/** No receipt came in time. The call goes on. */
export class GemTimeout extends Error {
  readonly callId: string
}
