// The tools of GEM's registry 1.5.0+b65c66c8, sha256 b8e98cef9b045adeaf2122897a0b342b0c243862f770aab6768b1279c1644487. Written by `gem types typescript`: change the registry instead.

/** The input and the output of each tool. */
export type Tools = {
  /** Lets a model work at a task with tools until it answers. Each turn and each call of a tool is kept, so that it goes on wherever it was. */
  "agent.run": { input: AgentRunInput; output: AgentRunOutput }
  /** Adds an event to the calendar. */
  "calendar.create_event": { input: CalendarCreateEventInput; output: CalendarCreateEventOutput }
  /** Adds a task that a message gave rise to, such as calling back. It is a business task, unless the type of its context_ref is personal. */
  "comms.create_followup_task_from_message": { input: CommsCreateFollowupTaskFromMessageInput; output: CommsCreateFollowupTaskFromMessageOutput }
  /** Records how a phone call went, with an entity, a lead or anyone else. It calls nobody. */
  "comms.log_call_outcome": { input: CommsLogCallOutcomeInput; output: CommsLogCallOutcomeOutput }
  /** Sends an e-mail, as plain text, to one address. Success means that the mail server took it. */
  "comms.send_email": { input: CommsSendEmailInput; output: CommsSendEmailOutput }
  /** Sends a text message to one phone. Success means that Twilio took it. */
  "comms.send_sms": { input: CommsSendSmsInput; output: CommsSendSmsOutput }
  /** Records what passed between an entity and the team: a call, a message, a meeting, a visit. For the outcome of a phone call, comms.log_call_outcome is shorter. It sends nothing. */
  "entity.add_interaction": { input: EntityAddInteractionInput; output: EntityAddInteractionOutput }
  /** Records a person or a company that one deals with. Look with entity.search first, since nothing stops a second entry of the same one. Someone who asks for work is a lead: leads.create. */
  "entity.create": { input: EntityCreateInput; output: EntityCreateOutput }
  /** Gives one person or company with the latest 20 interactions. */
  "entity.get": { input: EntityGetInput; output: EntityGetOutput }
  /** Finds people and companies in whose name, notes or contact every word of the query occurs, without regard to case; those with the words in the name first. */
  "entity.search": { input: EntitySearchInput; output: EntitySearchOutput }
  /** Changes an entity: what the patch names is set, the rest stays. contact is changed key by key, and a key with null is removed. */
  "entity.update": { input: EntityUpdateInput; output: EntityUpdateOutput }
  /** Adds a part to a document that is too large for one input, or begins a document with its first part. extract.run reads it by its document_id. Parts are added in order and stay as they are. */
  "extract.add_document": { input: ExtractAddDocumentInput; output: ExtractAddDocumentOutput }
  /** Reads a text, or a document that extract.add_document made, into extractions of the classes that the program declares. Each is a quote that stands in the text, with its place. The text is divided into shards, which models read side by side; what was answered before is not asked again. */
  "extract.run": { input: ExtractRunInput; output: ExtractRunOutput }
  /** Asks a model about a piece of a document, for extract.run, which makes these calls and reads the answers. A call whose request_hash is not that of its input runs nothing. */
  "extract.shard": { input: ExtractShardInput; output: ExtractShardOutput }
  /** Makes an HTTP request to a host that the worker's owner has allowed, and gives the answer, whatever its status code. Up to 5 redirects are followed. Every call makes the request again. */
  "http.request": { input: HttpRequestInput; output: HttpRequestOutput }
  /** Finds files in Google Drive. */
  "integrations.google_drive.search": { input: IntegrationsGoogleDriveSearchInput; output: IntegrationsGoogleDriveSearchOutput }
  /** Adds links to photos to a lead. */
  "leads.add_photos_link": { input: LeadsAddPhotosLinkInput; output: LeadsAddPhotosLinkOutput }
  /** Adds a further source to a lead, with the campaign if there was one. The lead's first source stays; the same source and campaign are kept once. */
  "leads.add_source": { input: LeadsAddSourceInput; output: LeadsAddSourceOutput }
  /** Records a new lead: someone who asked for work. One lead a phone number: a second call with the same phone, written the same way, gives the lead that exists. */
  "leads.create": { input: LeadsCreateInput; output: LeadsCreateOutput }
  /** Lists leads, the newest first, of one stage, suburb or source, with their history, sources and photo links. Without conditions it lists all. */
  "leads.list_by_stage": { input: LeadsListByStageInput; output: LeadsListByStageOutput }
  /** Moves a lead to the stage lost and keeps the reason. */
  "leads.mark_lost": { input: LeadsMarkLostInput; output: LeadsMarkLostOutput }
  /** Moves a lead to a stage of the sale and adds the change, with notes if there are any, to its history. For lost, leads.mark_lost also keeps the reason. */
  "leads.update_stage": { input: LeadsUpdateStageInput; output: LeadsUpdateStageOutput }
  /** Asks a model for an answer. It may propose calls of the tools that you describe; whoever called makes them. An idempotency_key stands for the whole request: take a hash of route and messages. */
  "llm.chat": { input: LlmChatInput; output: LlmChatOutput }
  /** Asks several models at once, and gives all answers, the best one, one made of all, or what most agree on. */
  "llm.ensemble": { input: LlmEnsembleInput; output: LlmEnsembleOutput }
  /** Lists the routes and the models behind them: what they can, what they cost, whether they have a key, and which are cooling down until when. */
  "llm.models": { input: LlmModelsInput; output: LlmModelsOutput }
  /** Asks a model for an output that fits a JSON Schema. It fits, or the call fails. */
  "llm.structured": { input: LlmStructuredInput; output: LlmStructuredOutput }
  /** Sums up requests, tokens and costs of models by day, route and target. */
  "llm.usage": { input: LlmUsageInput; output: LlmUsageOutput }
  /** Looks through the journal of tool calls: what was called, when, how it went. Give a call_id for one call's whole journal; without one, the 5,000 calls that were made last are searched. A user sees the events of their own calls. */
  "os.audit_log_search": { input: OsAuditLogSearchInput; output: OsAuditLogSearchOutput }
  /** Marks a task as done, with a note on how it went if there is one. A task that is done already stays done. */
  "os.complete_task": { input: OsCompleteTaskInput; output: OsCompleteTaskOutput }
  /** Keeps a note: something worth knowing later that nobody has to do. For something to do, use os.create_task. */
  "os.create_note": { input: OsCreateNoteInput; output: OsCreateNoteOutput }
  /** Keeps a reminder for a time. It is shown by os.get_state_snapshot; GEM itself sends nothing when the time comes. */
  "os.create_reminder": { input: OsCreateReminderInput; output: OsCreateReminderOutput }
  /** Adds a task: something that someone has to do, with or without a due date. For being reminded at a time, use os.create_reminder. */
  "os.create_task": { input: OsCreateTaskInput; output: OsCreateTaskOutput }
  /** Moves a task's due date, with the reason if there is one. */
  "os.defer_task": { input: OsDeferTaskInput; output: OsDeferTaskOutput }
  /** Says where things stand in a domain: open tasks, reminders, notes, leads, and what happened lately. It gives the latest stored snapshot, whose age as_of tells, and the current state where none is stored. Call os.refresh_state_snapshot first if it must be current. */
  "os.get_state_snapshot": { input: OsGetStateSnapshotInput; output: OsGetStateSnapshotOutput }
  /** Says whether GEM can work: ok, degraded (some tools can not) or down, with one line for each part that was checked. Use it when other tools fail in unexpected ways. */
  "os.health_check": { input: OsHealthCheckInput; output: OsHealthCheckOutput }
  /** Lists tasks: open ones by due date, done ones by when they were done (the last first), all of them by age (the newest first). */
  "os.list_tasks": { input: OsListTasksInput; output: OsListTasksOutput }
  /** Takes a snapshot of where things stand in a domain and stores it for os.get_state_snapshot. */
  "os.refresh_state_snapshot": { input: OsRefreshStateSnapshotInput; output: OsRefreshStateSnapshotOutput }
  /** Finds notes in whose title or content every word of the query occurs, in any order and without regard to case; the newest first. An empty query lists the newest notes. */
  "os.search_notes": { input: OsSearchNotesInput; output: OsSearchNotesOutput }
  /** Changes a task: what the patch names is set, the rest stays. To finish a task use os.complete_task, to move its due date os.defer_task. */
  "os.update_task": { input: OsUpdateTaskInput; output: OsUpdateTaskOutput }
  /** Makes the PDF of a quote. */
  "quote.generate_pdf": { input: QuoteGeneratePdfInput; output: QuoteGeneratePdfOutput }
  /** Asks a person, and waits for the answer, for as long as it takes. */
  "wait.answer": { input: WaitAnswerInput; output: WaitAnswerOutput }
  /** Asks people whether a call may be made, and waits for one who decides. */
  "wait.approval": { input: WaitApprovalInput; output: WaitApprovalOutput }
  /** Waits for something that happens outside, such as a payment or a webhook. */
  "wait.event": { input: WaitEventInput; output: WaitEventOutput }
}

export type ToolName = keyof Tools

// agent.run
export type AgentRunInput = {
  /** How to work: the model is told before the task. */
  instructions?: string
  /** What all turns may cost, such as "0.50". What its tools ask of models is not in it. */
  max_cost_usd?: string
  /** How long the answer of a turn may be, thoughts included. */
  max_output_tokens?: number
  /** How often the model may be asked. */
  max_turns?: number
  /** A name of the agent, for traces. Default: none. */
  name?: string
  /** A route of the operator's file: see llm.models. It stands for the models that may answer. */
  route?: string
  /** What is to be done, in words. */
  task: string
  /** The tools that the agent may call: names, and domains as in leads.*. wait.answer lets it ask a person. Default: none. */
  tools?: string[]
}
export type AgentRunOutput = {
  answer: string
  /** That answered. */
  models: string[]
  /** Tools of the input that the user of the call may not call. */
  not_offered?: {
    tool: string
    why: string
  }[]
  /** That the model asked for, also those that were refused. */
  tool_calls: number
  turns: number
  /** Of all turns. What the tools took stands on their own receipts. */
  usage: {
    /** Of the input: taken from the provider's cache. */
    cache_read_tokens?: number
    /** Of the input: put into the provider's cache. */
    cache_write_tokens?: number
    cost_usd: string | null
    /** With those of the provider's cache. */
    input_tokens: number
    output_tokens: number
    requests: number
    unknown_requests: number
  }
}

// calendar.create_event
export type CalendarCreateEventInput = {
  /** Their e-mail addresses. */
  attendees?: string[]
  /** More about it. */
  description?: string
  /** When it ends. */
  end_at: string
  /** Where. */
  location?: string
  /** When it begins. */
  start_at: string
  /** What it is. */
  title: string
  [key: string]: unknown
}
export type CalendarCreateEventOutput = {
  event_id: string
}

// comms.create_followup_task_from_message
export type CommsCreateFollowupTaskFromMessageInput = {
  /** The message, or what it is about. */
  context_ref: { [key: string]: unknown }
  /** When it has to be done. */
  due_at?: string
  /** What is to be done. */
  title: string
}
export type CommsCreateFollowupTaskFromMessageOutput = {
  task_id: string
}

// comms.log_call_outcome
export type CommsLogCallOutcomeInput = {
  /** What the call was about. */
  context_ref?: { [key: string]: unknown }
  /** The id of an entity or a lead. Any other is kept with the call, which is then linked to nothing. */
  entity_id: string
  /** What was said. */
  notes?: string
  outcome: "answered" | "no_answer" | "left_message" | "busy" | "other"
}
export type CommsLogCallOutcomeOutput = {
  interaction_id: string
  /** What has the id. */
  linked_to: "entity" | "lead" | "nothing"
}

// comms.send_email
export type CommsSendEmailInput = {
  /** Plain text. */
  body: string
  /** What the mail is about, such as {"type": "lead", "id": …}; kept in the log. */
  context_ref: { [key: string]: unknown }
  /** A single line. */
  subject: string
  /** Kept in the log. The body is sent as it is given. */
  template_id?: string
  /** The recipient's address. */
  to: string
}
export type CommsSendEmailOutput = {
  /** Its row in comms_log. */
  email_id: string
}

// comms.send_sms
export type CommsSendSmsInput = {
  /** What the message is about; kept in the log. */
  context_ref: {
    id: string
    type: "lead" | "quote" | "job" | "invoice" | "personal"
  }
  /** The text. */
  message: string
  /** Kept in the log. The message is sent as it is given. */
  template_id?: string
  /** The phone number with its country code, such as +15551234567. */
  to: string
}
export type CommsSendSmsOutput = {
  /** Its row in comms_log. */
  sms_id: string
}

// entity.add_interaction
export type EntityAddInteractionInput = {
  /** Whatever else is known: any keys. */
  details?: { [key: string]: unknown }
  /** The entity's id. */
  entity_id: string
  /** What it was. */
  interaction_type: "call" | "sms" | "email" | "meeting" | "site_visit" | "other"
  /** When; now by default. */
  occurred_at?: string
  /** What it came to. */
  summary: string
}
export type EntityAddInteractionOutput = {
  interaction_id: string
}

// entity.create
export type EntityCreateInput = {
  /** phone, email, address, …: any keys. */
  contact?: { [key: string]: unknown }
  /** What they are. */
  entity_type: "client" | "supplier" | "partner" | "friend" | "lead" | "other"
  /** The name. */
  name: string
  /** What is worth knowing. */
  notes?: string
}
export type EntityCreateOutput = {
  entity_id: string
}

// entity.get
export type EntityGetInput = {
  /** The entity's id. */
  entity_id: string
}
export type EntityGetOutput = {
  entity: {
    /** phone, email, address, … */
    contact?: unknown
    created_at?: string
    entity_id?: string
    entity_type?: string
    /** The latest 20, the latest first. */
    interactions?: {
      /** Whatever else is known. */
      details?: unknown
      interaction_id?: string
      interaction_type?: string
      occurred_at?: string
      summary?: string
    }[]
    name?: string
    notes?: string
    updated_at?: string
  }
}

// entity.search
export type EntitySearchInput = {
  /** Only this kind. */
  entity_type?: "client" | "supplier" | "partner" | "friend" | "lead" | "other"
  /** How many at most, 20 by default. */
  limit?: number
  /** Words to look for; empty for all. */
  query: string
}
export type EntitySearchOutput = {
  results: {
    /** phone, email, address, … */
    contact?: unknown
    created_at?: string
    entity_id?: string
    entity_type?: string
    name?: string
    notes?: string
    updated_at?: string
  }[]
}

// entity.update
export type EntityUpdateInput = {
  /** The entity's id. */
  entity_id: string
  /** Any of entity_type, name, contact, notes. notes can be null, which empties them. */
  patch: { [key: string]: unknown }
}
export type EntityUpdateOutput = {
  entity_id: string
}

// extract.add_document
export type ExtractAddDocumentInput = {
  /** The document. Without it a new one begins. */
  document_id?: string
  /** The number of the part, from 1 without gaps. Without it the part is the next one; with it the same part is not added twice. */
  seq?: number
  /** At most 512 KiB in UTF-8, and 8 MiB in all parts. */
  text: string
  /** Of a new document. */
  title?: string
}
export type ExtractAddDocumentOutput = {
  document_id: string
  /** Of the part, in bytes of UTF-8. */
  length: number
  seq: number
  /** Of the part, in UTF-8. */
  sha256: string
}

// extract.run
export type ExtractRunInput = {
  /** What was read is a result, also where some shards were not. Otherwise the call fails, and only those shards run when it is made again. */
  allow_partial?: boolean
  chunk?: {
    /** How many characters around it the model sees besides. */
    context?: number
    /** How many characters a shard has at most. */
    size?: number
  }
  /** A document of yours. In its place text. */
  document_id?: string
  /** How many answers models may be asked for. A shard takes one, or two where the first has to be mended. What a provider turns away is asked again and not counted. */
  max_llm_calls?: number
  /** What start and end count: units of UTF-16 as JavaScript does, characters as Python and Postgres do, or bytes of UTF-8. */
  offsets?: "utf16" | "codepoint" | "byte"
  /** What to extract. */
  program: {
    /** The kinds of things to find. */
    classes: {
      /** A JSON Schema of what each item has besides its quote, of: type, properties, required, items, enum, const, description, additionalProperties: false. */
      attributes?: { [key: string]: unknown }
      description?: string
      /** An item may be what the quote implies and does not say. */
      inferred?: boolean
      /** How many items a shard may have. */
      max?: number
      /** A small letter, then small letters, digits and _, such as line_item. */
      name: string
      /** Attributes whose value must stand in the quote. */
      verbatim?: string[]
    }[]
    /** They show the form of an answer. What they hold is never a result. */
    examples?: {
      extractions: {
        attributes?: { [key: string]: unknown }
        class: string
        inferred?: boolean
        quote: string
      }[]
      text: string
    }[]
    /** What the model is to look for. */
    instructions: string
  }
  /** A route of the operator's file: see llm.models. It stands for the models that may answer. */
  route?: string
  /** The text itself, where it fits into an input. In its place document_id. */
  text?: string
} & ({
  text: unknown
} | {
  document_id: unknown
})
export type ExtractRunOutput = {
  completeness: {
    failed: number
    kind: "complete" | "partial"
    read: number
    shards: number
  }
  document: {
    document_id?: string
    /** In the unit of offsets. */
    length: number
    offsets: "utf16" | "codepoint" | "byte"
    /** Of the text as it was given, in UTF-8. */
    sha256: string
  }
  /** In the order of the text. text[start:end] is the quote. */
  extractions: {
    attributes: { [key: string]: unknown }
    class: string
    end: number
    inferred: boolean
    /** In which it begins, from 1. */
    line: number
    /** How the model's quote was found: as it is, apart from spaces and signs, or also apart from capitals. */
    match: "exact" | "folded" | "caseless"
    quote: string
    shard: number
    start: number
  }[]
  /** Those that answered. */
  models: string[]
  /** How the text that was read differs from the one that was given. Offsets count the given one. */
  normalisation: {
    count: number
    step: string
  }[]
  program_hash: string
  /** What models claimed and does not count: the first hundred. */
  rejected: {
    class: string
    quote: string
    reason: string
    shard: number
  }[]
  rejected_count: number
  /** empty_by_evidence: every shard was read, and nothing was claimed. empty_by_failure: something was claimed, or not read. */
  result_kind: "non_empty" | "empty_by_evidence" | "empty_by_failure"
  /** In the order of the text. One whose answer was cut off is divided: its halves follow it, under its index. */
  shards: {
    /** It was answered before: no model was asked. */
    cached: boolean
    call_id?: string
    /** Answers that the model was asked for. */
    calls: number
    code?: string
    /** Which share of its lines the extractions touch. */
    covered: number
    end: number
    index: number
    start: number
    status: "read" | "failed" | "divided" | "blank"
  }[]
  /** Of all shards that were not answered before, failed ones too. */
  usage: {
    cached_shards: number
    /** Of all requests whose cost is known. */
    cost_usd: string | null
    input_tokens: number
    /** Answers that models were asked for. */
    llm_calls: number
    output_tokens: number
    /** All requests that this took. */
    requests: number
    /** Requests whose cost is not known. */
    unknown_requests: number
  }
}

// extract.shard
export type ExtractShardInput = {
  after: string
  /** How many answers may be asked for. */
  answers?: number
  before: string
  /** The models of the route's targets, in their order and joined by commas. */
  model: string
  /** Of the request to the model. There are none yet. */
  params: Record<string, never>
  /** What to extract. */
  program: {
    /** The kinds of things to find. */
    classes: {
      /** A JSON Schema of what each item has besides its quote, of: type, properties, required, items, enum, const, description, additionalProperties: false. */
      attributes?: { [key: string]: unknown }
      description?: string
      /** An item may be what the quote implies and does not say. */
      inferred?: boolean
      /** How many items a shard may have. */
      max?: number
      name: string
      /** Attributes whose value must stand in the quote. */
      verbatim?: string[]
    }[]
    /** They show the form of an answer. What they hold is never a result. */
    examples?: {
      extractions: {
        attributes?: { [key: string]: unknown }
        class: string
        inferred?: boolean
        quote: string
      }[]
      text: string
    }[]
    /** What the model is to look for. */
    instructions: string
  }
  /** The number of the prompt's wording. */
  prompt: number
  /** Of all fields but route, answers and whole. */
  request_hash: string
  route: string
  /** Who shares the answer: the caller, or everybody if it is empty. See EXTRACT_CACHE_SCOPE. */
  scope: string
  text: string
  /** An answer that was cut off is a failure. */
  whole?: boolean
}
export type ExtractShardOutput = {
  /** The model's last answer, as it is. */
  answer: string
  /** The call that asked. */
  call_id: string
  /** Why the last answer ended: max_tokens if it was cut off. */
  finish: string
  /** The one before it. */
  first_answer?: string
  /** How many extractions of the answers count. */
  items: number
  /** Who answered. */
  models: string[]
  /** How many answers there are. */
  passes: number
  usage: {
    /** Of all requests whose cost is known. */
    cost_usd: string | null
    input_tokens: number
    /** Answers that models were asked for. */
    llm_calls: number
    output_tokens: number
    /** All requests that this took. */
    requests: number
    /** Requests whose cost is not known. */
    unknown_requests: number
  }
}

// http.request
export type HttpRequestInput = {
  /** At most 1 MiB. */
  body?: string
  /** Request headers. Those of the connection, such as Host and Content-Length, are set by the worker. */
  headers?: {
    [key: string]: string
  }
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD"
  /** http or https, without user and password. */
  url: string
}
export type HttpRequestOutput = {
  /** At most 256 KiB, as UTF-8. */
  body: string
  /** A repeated header is joined by ", ". Set-Cookie is left out. */
  headers: {
    [key: string]: string
  }
  status_code: number
  /** The body was longer. */
  truncated: boolean
}

// integrations.google_drive.search
export type IntegrationsGoogleDriveSearchInput = {
  /** How many files at most, 20 by default. */
  limit?: number
  /** Words to look for. */
  query: string
  [key: string]: unknown
}
export type IntegrationsGoogleDriveSearchOutput = {
  results: { [key: string]: unknown }[]
}

// leads.add_photos_link
export type LeadsAddPhotosLinkInput = {
  /** The lead's id. */
  lead_id: string
  /** The links, in the order to show them. */
  links: string[]
}
export type LeadsAddPhotosLinkOutput = {
  lead_id: string
}

// leads.add_source
export type LeadsAddSourceInput = {
  /** What is known of the campaign: any keys. */
  campaign?: { [key: string]: unknown }
  /** The lead's id. */
  lead_id: string
  /** Where the lead came from as well. */
  source: "gmb" | "google_ads" | "meta" | "referral" | "repeat" | "other"
}
export type LeadsAddSourceOutput = {
  lead_id: string
}

// leads.create
export type LeadsCreateInput = {
  /** An e-mail address. */
  email?: string
  /** The person's name. */
  name: string
  /** What they asked for. */
  notes?: string
  /** The phone number, the key of a lead: write it the same way each time. */
  phone: string
  /** Where the lead came from; other by default. */
  source?: "gmb" | "google_ads" | "meta" | "referral" | "repeat" | "other"
  /** Where the work is. */
  suburb: string
}
export type LeadsCreateOutput = {
  lead_id: string
}

// leads.list_by_stage
export type LeadsListByStageInput = {
  /** How many leads at most, 50 by default. */
  limit?: number
  /** Only leads that came from there. */
  source?: "gmb" | "google_ads" | "meta" | "referral" | "repeat" | "other"
  /** Only leads in this stage. */
  stage?: "new" | "contacted" | "inspection_scheduled" | "quoted" | "won" | "lost"
  /** Only leads in this suburb, without regard to case. */
  suburb?: string
}
export type LeadsListByStageOutput = {
  leads: {
    created_at?: string
    email?: string
    /** The latest 10 changes of stage and notes, the latest first. */
    history?: {
      at?: string
      from_stage?: string
      notes?: string
      reason?: string
      to_stage?: string
    }[]
    lead_id?: string
    lost_reason?: string
    name?: string
    notes?: string
    phone?: string
    /** Links to photos, at most 50. */
    photo_links?: string[]
    source?: string
    /** Sources that were added to the first one, at most 50. */
    sources?: {
      added_at?: string
      /** What is known of the campaign. */
      campaign?: unknown
      source?: string
    }[]
    stage?: string
    suburb?: string
    updated_at?: string
  }[]
}

// leads.mark_lost
export type LeadsMarkLostInput = {
  /** The lead's id. */
  lead_id: string
  /** More about it. */
  notes?: string
  /** Why it was lost. */
  reason: string
}
export type LeadsMarkLostOutput = {
  lead_id: string
}

// leads.update_stage
export type LeadsUpdateStageInput = {
  /** The lead's id. */
  lead_id: string
  /** What happened. */
  notes?: string
  /** The new stage. */
  stage: "new" | "contacted" | "inspection_scheduled" | "quoted" | "won" | "lost"
}
export type LeadsUpdateStageOutput = {
  lead_id: string
}

// llm.chat
export type LlmChatInput = {
  /** The provider is asked to keep the conversation for the next call that begins the same. Anthropic charges 1.25 times the input for it, and a tenth for what it finds. */
  cache?: boolean
  /** How long the model may think, where it can. */
  effort?: "auto" | "low" | "medium" | "high"
  /** What the call may cost in all, such as "0.05". */
  max_cost_usd?: string
  /** How long the answer may be, thoughts included. */
  max_output_tokens?: number
  /** The conversation so far, oldest first. Thoughts and calls of tools go back as they came. */
  messages: {
    /** A text, or parts. */
    content: string | ({
      signature?: string
      target?: string
      text: string
      type: "text"
    } | {
      redacted?: boolean
      signature?: string
      target: string
      text?: string
      type: "thinking"
    } | {
      arguments: { [key: string]: unknown }
      arguments_raw?: string
      id: string
      name: string
      signature?: string
      target?: string
      type: "tool_call"
    } | {
      content: string
      is_error?: boolean
      tool_call_id: string
      type: "tool_result"
    })[]
    role: "user" | "assistant" | "tool"
  }[]
  /** For you: it is kept, and not sent. */
  metadata?: {
    [key: string]: string
  }
  /** Show the answer while it comes, in core_tool_progress. */
  progress?: boolean
  /** A route of the operator's file: see llm.models. It stands for the models that may answer. */
  route?: string
  stop?: string[]
  /** What the model is told before the conversation. */
  system?: string
  temperature?: number
  tool_choice?: "auto" | "required" | "none"
  /** What the model may ask to call. Nothing is called: the answer proposes. */
  tools?: {
    description?: string
    name: string
    parameters: { [key: string]: unknown }
  }[]
  top_p?: number
}
export type LlmChatOutput = {
  model: string
  parts: {
    arguments?: { [key: string]: unknown }
    arguments_raw?: string
    content?: string
    id?: string
    is_error?: boolean
    name?: string
    redacted?: boolean
    /** It goes back to the same target as it came. */
    signature?: string
    target?: string
    text?: string
    tool_call_id?: string
    type: "text" | "thinking" | "tool_call"
  }[]
  provider_stop?: string
  routing: {
    route: string
    routes_version: string
    /** Who was not asked. */
    skipped?: {
      target?: string
      until?: string
      why?: string
    }[]
    target?: string
    /** Who was asked in this attempt and did not answer. */
    tried?: {
      message?: string
      outcome?: string
      status?: number
      target?: string
    }[]
  }
  stop_reason: "end_turn" | "max_tokens" | "tool_use" | "stop_sequence" | "refusal"
  text: string
  tool_calls: {
    arguments: { [key: string]: unknown }
    /** What the model wrote, where that is no object. */
    arguments_raw?: string
    /** Against the tool's parameters. */
    faults?: {
      keyword?: string
      message?: string
      path?: string
    }[]
    id: string
    name: string
  }[]
  usage: {
    cache_read_tokens?: number
    cache_write_tokens?: number
    /** Of all requests of the call. */
    call: {
      cost_usd: string | null
      requests: number
      unknown_requests: number
    }
    cost_usd: string | null
    input_tokens: number
    output_tokens: number
    reasoning_tokens?: number
    source: "provider" | "estimated"
  }
}

// llm.ensemble
export type LlmEnsembleInput = {
  /** Of the model that judges or fuses. */
  judge_route?: string
  /** What the call may cost in all, such as "0.05". */
  max_cost_usd?: string
  /** How long the answer may be, thoughts included. */
  max_output_tokens?: number
  member_timeout_s?: number
  members: {
    route: string
    /** In place of the system above. */
    system?: string
  }[]
  /** The conversation so far, oldest first. Thoughts and calls of tools go back as they came. */
  messages: {
    /** A text, or parts. */
    content: string | ({
      signature?: string
      target?: string
      text: string
      type: "text"
    } | {
      redacted?: boolean
      signature?: string
      target: string
      text?: string
      type: "thinking"
    } | {
      arguments: { [key: string]: unknown }
      arguments_raw?: string
      id: string
      name: string
      signature?: string
      target?: string
      type: "tool_call"
    } | {
      content: string
      is_error?: boolean
      tool_call_id: string
      type: "tool_result"
    })[]
    role: "user" | "assistant" | "tool"
  }[]
  /** For you: it is kept, and not sent. */
  metadata?: {
    [key: string]: string
  }
  /** How many members must answer. Default: all. */
  quorum?: number
  /** What each output must be, as a JSON Schema: vote needs one. */
  schema?: { [key: string]: unknown }
  /** all gives every answer; judge lets a model choose one; fuse lets it write one out of all; vote takes what most agree on. */
  strategy: "all" | "judge" | "fuse" | "vote"
  /** What the model is told before the conversation. */
  system?: string
}
export type LlmEnsembleOutput = {
  /** What each member came to, in their order. */
  candidates: {
    call_id: string
    error?: {
      error_code?: string
      message?: string
    }
    member: number
    model?: string
    output?: unknown
    routing?: {
      route: string
      routes_version: string
      /** Who was not asked. */
      skipped?: {
        target?: string
        until?: string
        why?: string
      }[]
      target?: string
      /** Who was asked in this attempt and did not answer. */
      tried?: {
        message?: string
        outcome?: string
        status?: number
        target?: string
      }[]
    }
    text?: string
    usage?: {
      cache_read_tokens?: number
      cache_write_tokens?: number
      /** Of all requests of the call. */
      call: {
        cost_usd: string | null
        requests: number
        unknown_requests: number
      }
      cost_usd: string | null
      input_tokens: number
      output_tokens: number
      reasoning_tokens?: number
      source: "provider" | "estimated"
    }
  }[]
  judge?: {
    call_id: string
    model?: string
    reason?: string
    routing?: {
      route: string
      routes_version: string
      /** Who was not asked. */
      skipped?: {
        target?: string
        until?: string
        why?: string
      }[]
      target?: string
      /** Who was asked in this attempt and did not answer. */
      tried?: {
        message?: string
        outcome?: string
        status?: number
        target?: string
      }[]
    }
    usage?: {
      cache_read_tokens?: number
      cache_write_tokens?: number
      /** Of all requests of the call. */
      call: {
        cost_usd: string | null
        requests: number
        unknown_requests: number
      }
      cost_usd: string | null
      input_tokens: number
      output_tokens: number
      reasoning_tokens?: number
      source: "provider" | "estimated"
    }
    winner?: number
  }
  output?: unknown
  text?: string
  tie?: boolean
  /** Of all calls together. */
  usage: {
    cost_usd?: string | null
    input_tokens?: number
    output_tokens?: number
    requests?: number
    unknown_requests?: number
  }
  /** The place of the chosen member, from 1. */
  winner?: number
}

// llm.models
export type LlmModelsInput = Record<string, never>
export type LlmModelsOutput = {
  routes: {
    max_cost_usd?: string
    name: string
    order: "listed" | "cheapest" | "fastest" | "weighted"
    targets: string[]
  }[]
  targets: {
    capabilities?: string[]
    context?: number
    cooldown_reason?: string
    cooldown_until?: string
    /** It is set, or none is needed. */
    key: boolean
    max_output?: number
    model: string
    name: string
    provider: string
    running?: number
    usd_per_mtok?: {
      above_input?: number
      cache_read?: string
      cache_write?: string
      input?: string
      output?: string
    }[]
  }[]
  version?: string
}

// llm.structured
export type LlmStructuredInput = {
  /** The provider is asked to keep the conversation for the next call that begins the same. Anthropic charges 1.25 times the input for it, and a tenth for what it finds. */
  cache?: boolean
  /** How long the model may think, where it can. */
  effort?: "auto" | "low" | "medium" | "high"
  /** What the call may cost in all, such as "0.05". */
  max_cost_usd?: string
  /** How long the answer may be, thoughts included. */
  max_output_tokens?: number
  /** How often the model is shown what is wrong with its output. */
  max_repairs?: number
  /** The conversation so far, oldest first. Thoughts and calls of tools go back as they came. */
  messages: {
    /** A text, or parts. */
    content: string | ({
      signature?: string
      target?: string
      text: string
      type: "text"
    } | {
      redacted?: boolean
      signature?: string
      target: string
      text?: string
      type: "thinking"
    } | {
      arguments: { [key: string]: unknown }
      arguments_raw?: string
      id: string
      name: string
      signature?: string
      target?: string
      type: "tool_call"
    } | {
      content: string
      is_error?: boolean
      tool_call_id: string
      type: "tool_result"
    })[]
    role: "user" | "assistant" | "tool"
  }[]
  /** For you: it is kept, and not sent. */
  metadata?: {
    [key: string]: string
  }
  /** What the output is, for the model. */
  name?: string
  /** A route of the operator's file: see llm.models. It stands for the models that may answer. */
  route?: string
  /** What the output must be, as a JSON Schema: at most 32 KiB. */
  schema: { [key: string]: unknown }
  /** What the model is told before the conversation. */
  system?: string
  temperature?: number
  top_p?: number
}
export type LlmStructuredOutput = {
  model: string
  output: unknown
  repairs: number
  routing: {
    route: string
    routes_version: string
    /** Who was not asked. */
    skipped?: {
      target?: string
      until?: string
      why?: string
    }[]
    target?: string
    /** Who was asked in this attempt and did not answer. */
    tried?: {
      message?: string
      outcome?: string
      status?: number
      target?: string
    }[]
  }
  usage: {
    cache_read_tokens?: number
    cache_write_tokens?: number
    /** Of all requests of the call. */
    call: {
      cost_usd: string | null
      requests: number
      unknown_requests: number
    }
    cost_usd: string | null
    input_tokens: number
    output_tokens: number
    reasoning_tokens?: number
    source: "provider" | "estimated"
  }
}

// llm.usage
export type LlmUsageInput = {
  /** Default: day and target. */
  by?: ("day" | "route" | "target")[]
  /** Of one user. A signed-in caller sees its own in any case. */
  created_by?: string
  /** Default: 30 days ago. */
  since?: string
}
export type LlmUsageOutput = {
  rows: {
    cache_read_tokens?: number
    cache_write_tokens?: number
    cost_usd: string | null
    day?: string
    input_tokens?: number
    output_tokens?: number
    reasoning_tokens?: number
    requests: number
    route?: string
    target?: string
    unknown_requests?: number
  }[]
}

// os.audit_log_search
export type OsAuditLogSearchInput = {
  /** The id of one call. */
  call_id?: string
  /** One kind of event: queued, claimed, waiting, woken, retried, released, lost, succeeded, failed or not_configured. */
  event_type?: string
  /** How many events at most, 50 by default. */
  limit?: number
  /** Words that occur in the tool's name, the event or its data. */
  query?: string
  /** Only events since then. */
  since?: string
}
export type OsAuditLogSearchOutput = {
  /** The newest first. */
  items: {
    at?: string
    attempt?: number
    call_id?: string
    /** What the event carries, such as an error. */
    data?: { [key: string]: unknown }
    event_type?: string
    /** Its number in the journal of its call, from 1. */
    seq?: number
    tool_name?: string
    worker_id?: string
  }[]
}

// os.complete_task
export type OsCompleteTaskInput = {
  /** How it went. */
  note?: string
  /** The task's id. */
  task_id: string
}
export type OsCompleteTaskOutput = {
  task_id: string
}

// os.create_note
export type OsCreateNoteInput = {
  /** The note itself. */
  content: string
  /** The part of life it belongs to. */
  domain: "business" | "personal" | "both"
  /** The people, leads or jobs that it is about. */
  entity_refs?: {
    /** Its id. */
    id: string
    /** What kind of thing it is, such as client. */
    type: string
  }[]
  /** A line to find it by. */
  title: string
}
export type OsCreateNoteOutput = {
  note_id: string
}

// os.create_reminder
export type OsCreateReminderInput = {
  /** What the reminder is about. */
  context_ref?: {
    /** Its id. */
    id?: string
    /** What kind of thing it is, such as lead. */
    type?: string
  }
  /** The part of life it belongs to; both by default. */
  domain?: "business" | "personal" | "both"
  /** When. */
  remind_at: string
  /** What to be reminded of. */
  title: string
}
export type OsCreateReminderOutput = {
  reminder_id: string
}

// os.create_task
export type OsCreateTaskInput = {
  /** What the task is about, such as a lead. */
  context_ref?: {
    /** Its id. */
    id?: string
    /** What kind of thing it is, such as lead. */
    type?: string
  }
  /** More about it. */
  description?: string
  /** The part of life it belongs to. */
  domain: "business" | "personal" | "both"
  /** When it has to be done. */
  due_at?: string
  /** normal by default. */
  priority?: "low" | "normal" | "high"
  /** What is to be done. */
  title: string
}
export type OsCreateTaskOutput = {
  task_id: string
}

// os.defer_task
export type OsDeferTaskInput = {
  /** The new due date. */
  due_at: string
  /** Why it has to wait. */
  reason?: string
  /** The task's id. */
  task_id: string
}
export type OsDeferTaskOutput = {
  task_id: string
}

// os.get_state_snapshot
export type OsGetStateSnapshotInput = {
  /** The part of life; both is everything. */
  domain: "business" | "personal" | "both"
}
export type OsGetStateSnapshotOutput = {
  /** The moment that the state describes. */
  as_of: string
  domain: string
  /** tasks, reminders, notes, activity; leads and business_activity too, except for personal. */
  state: { [key: string]: unknown }
}

// os.health_check
export type OsHealthCheckInput = Record<string, never>
export type OsHealthCheckOutput = {
  /** A part, and ok or what is wrong with it. */
  checks: { [key: string]: unknown }
  status: "ok" | "degraded" | "down"
}

// os.list_tasks
export type OsListTasksInput = {
  /** Only rows of this part of life, with those that belong to both; both, or nothing, is all rows. */
  domain?: "business" | "personal" | "both"
  /** How many tasks at most, 50 by default. */
  limit?: number
  /** open by default. */
  status?: "open" | "done" | "all"
}
export type OsListTasksOutput = {
  tasks: {
    completed_at?: string
    completion_note?: string
    /** What it is about. */
    context_ref?: unknown
    created_at?: string
    /** Why it was deferred the last time. */
    defer_reason?: string
    description?: string
    domain?: string
    due_at?: string
    priority?: string
    status?: string
    task_id?: string
    title?: string
    updated_at?: string
  }[]
}

// os.refresh_state_snapshot
export type OsRefreshStateSnapshotInput = {
  /** The part of life; both is everything. */
  domain: "business" | "personal" | "both"
  /** Count what happened since then; the last 7 days by default. */
  since?: string
}
export type OsRefreshStateSnapshotOutput = {
  as_of: string
  snapshot_id: string
}

// os.search_notes
export type OsSearchNotesInput = {
  /** Only rows of this part of life, with those that belong to both; both, or nothing, is all rows. */
  domain?: "business" | "personal" | "both"
  /** How many notes at most, 20 by default. */
  limit?: number
  /** Words to look for. */
  query: string
}
export type OsSearchNotesOutput = {
  results: {
    content?: string
    created_at?: string
    domain?: string
    /** What it is about. */
    entity_refs?: unknown
    note_id?: string
    title?: string
    updated_at?: string
  }[]
}

// os.update_task
export type OsUpdateTaskInput = {
  /** Any of title, domain, description, due_at, context_ref, priority, status (open or done). description, due_at and context_ref can be null, which empties them. */
  patch?: { [key: string]: unknown }
  /** The task's id. */
  task_id: string
}
export type OsUpdateTaskOutput = {
  task_id: string
}

// quote.generate_pdf
export type QuoteGeneratePdfInput = {
  /** The quote's id. */
  quote_id: string
}
export type QuoteGeneratePdfOutput = {
  /** Where the PDF is. */
  file: string
}

// wait.answer
export type WaitAnswerInput = {
  /** Who may answer: owner (who made the call; the default), user:SUBJECT, role:ROLE, service. */
  by?: string[]
  /** Whoever made the call, or one above it, may not answer. The default is false. */
  others?: boolean
  /** What the answer must be: text, a number, a truth value, or an object of such fields. */
  schema?: {
    description?: string
    enum?: (string | number | boolean)[]
    maxLength?: number
    maximum?: number
    minLength?: number
    minimum?: number
    title?: string
    type: "string" | "number" | "integer" | "boolean"
  } | {
    description?: string
    properties: {
      [key: string]: {
        description?: string
        enum?: (string | number | boolean)[]
        maxLength?: number
        maximum?: number
        minLength?: number
        minimum?: number
        title?: string
        type: "string" | "number" | "integer" | "boolean"
      }
    }
    required?: string[]
    title?: string
    type: "object"
  }
  /** The question. */
  text: string
  /** The time after which it takes no answer, with its zone: 2027-01-31T15:04:05Z. */
  until?: string
}
export type WaitAnswerOutput = {
  answer: unknown
  at: string
  /** Who answered: the sub of a token, service_role, or a role of Postgres. */
  by: string
}

// wait.approval
export type WaitApprovalInput = {
  /** Earlier calls of the session. */
  before?: {
    /** When it ended. */
    at: string
    error_code?: string
    status: string
    tool: string
    [key: string]: unknown
  }[]
  /** Who may decide: user:SUBJECT, role:ROLE. */
  by: string[]
  /** The call that waits for it, where a rule asks. */
  call_id?: string
  /** The sha256 of what is approved. */
  digest: string
  /** Its input. */
  input: { [key: string]: unknown }
  /** Whoever made the call, or one above it, may not decide. The default is true. */
  others?: boolean
  /** The rules that ask. */
  rules?: {
    message?: string
    name: string
    [key: string]: unknown
  }[]
  /** What it is for. */
  text?: string
  /** The tool of the call that is to be approved. */
  tool: string
  /** The time after which it takes no answer, with its zone: 2027-01-31T15:04:05Z. */
  until?: string
}
export type WaitApprovalOutput = {
  approved: boolean
  at?: string
  /** Who answered: the sub of a token, service_role, or a role of Postgres. */
  by?: string
  digest: string
  /** As given; expired, without `by`, if nobody decided in time. */
  reason?: string
}

// wait.event
export type WaitEventInput = {
  /** Who may tell: owner, user:SUBJECT, role:ROLE, service (a server of yours; the default). */
  by?: string[]
  /** What the answer must be: text, a number, a truth value, or an object of such fields. */
  schema?: {
    description?: string
    enum?: (string | number | boolean)[]
    maxLength?: number
    maximum?: number
    minLength?: number
    minimum?: number
    title?: string
    type: "string" | "number" | "integer" | "boolean"
  } | {
    description?: string
    properties: {
      [key: string]: {
        description?: string
        enum?: (string | number | boolean)[]
        maxLength?: number
        maximum?: number
        minLength?: number
        minimum?: number
        title?: string
        type: "string" | "number" | "integer" | "boolean"
      }
    }
    required?: string[]
    title?: string
    type: "object"
  }
  /** What it waits for. */
  text?: string
  /** The time after which it takes no answer, with its zone: 2027-01-31T15:04:05Z. */
  until?: string
}
export type WaitEventOutput = {
  at: string
  /** Who answered: the sub of a token, service_role, or a role of Postgres. */
  by: string
  event: unknown
}

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
