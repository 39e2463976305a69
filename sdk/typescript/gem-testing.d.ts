import type { Service } from './gem-handlers.js'

/** A worker in memory: it runs durable tools without a database, and has everything that they wait for come at once. */
export interface Test {
  /** Functions in place of tools that the handler calls. Plain tools of the same service need none. */
  tools: Record<string, (input: any) => unknown>
  /** The journal of the last call. */
  readonly journal: { name: string; kind: string; tool?: string; result?: any; error?: any }[]
  /** Answers the question with a name. */
  answer(name: string, value: unknown): void
  approve(name: string, by?: string): void
  deny(name: string, reason?: string, by?: string): void
  /** Sends an answer for `receive`. A wait with a limit, for which nothing was sent, times out at once. */
  send(name: string, value: unknown): void
  /**
   * Runs a call to its end, and returns its result or throws its error. With `crash`, each answer of the service is lost
   * once: steps run again, and a stepOnce throws Unknown.
   */
  run(tool: string, input?: unknown, options?: { crash?: boolean; cancelled?: boolean; id?: string;
    createdBy?: string | null }): Promise<any>
  /** Runs the handler of the last call again, on its whole journal. Throws if it does anything else than before. */
  replay(): Promise<void>
}

export function test(service: Service): Test
