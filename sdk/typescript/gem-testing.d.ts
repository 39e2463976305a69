import type { Service } from './gem-handlers.js'

/** An in-memory worker. It runs durable tools without a database; everything that they wait for arrives at once. */
export interface Test {
  /** Functions that replace the tools that the handler calls. Plain tools of the same service need none. */
  tools: Record<string, (input: any) => unknown>
  /** The journal of the last call. */
  readonly journal: { name: string; kind: string; tool?: string; result?: any; error?: any }[]
  /** Sets the answer to the question with this name. */
  answer(name: string, value: unknown): void
  approve(name: string, by?: string): void
  deny(name: string, reason?: string, by?: string): void
  /** Sends an answer for `receive`. If nothing was sent, a wait with a limit times out at once. */
  send(name: string, value: unknown): void
  /**
   * Runs a call to its end, and returns its result or throws its error. With `crash`, each answer of the service is lost
   * once, so steps run again, and a stepOnce throws Unknown.
   */
  run(tool: string, input?: unknown, options?: { crash?: boolean; cancelled?: boolean; id?: string;
    createdBy?: string | null }): Promise<any>
  /** Runs the handler of the last call again on its whole journal. Throws if it behaves differently. */
  replay(): Promise<void>
}

export function test(service: Service): Test
