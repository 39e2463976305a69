/** The one final record of a call. `status` says which of the three outcomes it has. */
export type Receipt<Output = unknown> = Succeeded<Output> | Failed | NotConfigured

/** The receipt of a tool of this registry. */
export type ReceiptOf<Name extends ToolName> = Receipt<Tools[Name]["output"]>

export type Succeeded<Output = unknown> = ReceiptFields & { status: "succeeded"; result: Output }

export type Failed = ReceiptFields & { status: "failed"; result: { error: CallError } }

export type NotConfigured = ReceiptFields & {
  status: "not_configured"
  result: { status: "not_configured"; reason: string; required_env: string[]; next_steps: string[] }
}

/** The reason of a failure. The details of a `validation_error` and of an `output_invalid` are a list of `Fault`. */
export type CallError = { error_code: ErrorCode; message: string; details: unknown }

/** GEM's own codes, and those of the tools. */
export type ErrorCode =
  | "unknown_tool"
  | "validation_error"
  | "execution_error"
  | "timeout"
  | "panic"
  | "output_invalid"
  | "outcome_unknown"
  | "worker_lost"
  | "cancelled"
  | "not_allowed"
  | "key_reused"
  | "journal_full"
  | "key_deadlock"
  | "rule_blocked"
  | "limit_reached"
  | "approval_denied"
  | "approval_expired"
  | "rule_error"
  | (string & {})

/** One thing that is wrong with an input or an output. `path` is a JSON pointer. */
export type Fault = { path: string; keyword: string; message: string }

/** What all receipts have. Times are in ISO 8601. */
export type ReceiptFields = {
  id: string
  call_id: string
  tool_name: string
  /** The attempt that ended the call, counted from 1; 0 if none ran. */
  attempt: number
  effects: Effects
  /** The registry that the call was checked against; null where no worker took it. */
  registry_version: string | null
  /** The key under which a later call gets this result; null where there is none. */
  idempotency_key: string | null
  /** The id of the receipt that this one repeats; null for a call that ran. */
  replay_of: string | null
  /** The time that the attempt took, as an interval of Postgres; null where none ran. */
  duration: string | null
  created_at: string
}

/** What the call did to the world, over all attempts. */
export type Effects = {
  db_writes?: { table: string; action: "insert" | "update" | "delete"; id: string }[]
  db_reads?: { table: string; count: number }[]
  messages_sent?: { type: string; recipient: string; message_id: string }[]
  files_written?: string[]
  /** `status_code` is 0 if there was no response. `llm` is there for a request to a model. */
  external_calls?: { service: string; endpoint: string; status_code: number; llm?: ModelRequest }[]
  idempotency?: {
    mode: string
    /** The receipt repeats an earlier one: `replay_of`. */
    hit: boolean
    input_differs?: boolean
    key_ignored?: boolean
    key_field?: string
    key_value?: unknown
  }
  durable?: { steps: number; calls: number; unread?: string[] }
  /** What the operator's rules said. */
  rules?: { version: string; verdicts: Verdict[]; approvals?: Approval[]; at?: string }
}

export type ModelRequest = {
  request: number
  target: string
  model: string
  request_id?: string
  input_tokens: number
  output_tokens: number
  /** In decimal digits; null if it is not known. */
  cost_usd: string | null
  outcome: string
  /** The provider reported more tokens than the request can have: the numbers are bounds. */
  usage_bounded?: boolean
  first_content_ms?: number
  ms: number
}

export type Verdict = { rule: string; action: string; message: string; seen?: unknown; undecided?: boolean }

export type Approval = { rule: string; id: string; by: string; at: string; digest: string; reason?: string }
