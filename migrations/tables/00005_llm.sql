-- Requests to models of providers, and their costs: see functions/llm.sql. Amounts are in units of 10⁻⁹ USD.

-- Every routes file that a worker ran with. Rows are never removed.
create table if not exists public.core_llm_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  routes      jsonb       not null,
  recorded_at timestamptz not null
);

-- The ledger: a row for each request, written before the request is sent. It has no text of prompts or answers. gem
-- prune removes a row with its call, and writes it to the call's line of the archive.
create table if not exists public.core_llm_requests (
  id                 bigint      generated always as identity primary key,
  call_id            uuid        not null,              -- the call whose step made the request
  attempt            integer     not null,
  n                  integer     not null check (n between 1 and 1000), -- numbers the requests of the call
  -- the purpose of the request: main, member n, judge, repair n, or a step's name
  label              text        not null,
  tool_name          text        not null,
  route              text        not null,
  target                text        not null,
  provider           text        not null,
  model              text        not null,
  routes_version     text        not null,              -- the routes with the prices of this request
  created_by         text,
  session_id         text,
  status             text        not null check (status in ('sent', 'done', 'failed', 'cut', 'cancelled', 'lost')),
  at                 timestamptz not null,
  ended_at           timestamptz check ((ended_at is null) = (status = 'sent')),
  -- the maximum cost, taken from the budgets before the request is sent
  reserved           bigint      not null check (reserved >= 0),
  cost               bigint      check (cost >= 0),     -- null: unknown, and the reserve counts as spent
  provider_cost      bigint,                            -- the provider's own figure
  estimated_input    bigint      not null,              -- tokens
  input_tokens       bigint,
  output_tokens      bigint,
  cache_read_tokens  bigint,
  cache_write_tokens bigint,
  reasoning_tokens   bigint,
  usage_source       text        check (usage_source in ('provider', 'estimated')),
  -- the provider's figures, if they are impossible for the request; the tokens above are then upper limits
  reported           jsonb,
  http_status        integer,
  request_id         text,                              -- the provider's id of the request
  answered           text,                              -- the model that answered, in the provider's words
  error_kind         text,
  first_content_ms   bigint,
  ms                 bigint,
  spends             bigint[]    not null,              -- the rows of gem.llm_spend of its budgets
  unique (call_id, n)
);
-- The open requests of each target, which are few.
create index if not exists gem_llm_sent on public.core_llm_requests (target, at) where status = 'sent';
-- Requests of one caller, and of all callers.
create index if not exists gem_llm_of_caller on public.core_llm_requests (created_by, at) where created_by is not null;
create index if not exists gem_llm_by_time on public.core_llm_requests using brin (at);

-- The spending of a budget: a row for each period of each subject. gem prune removes a row a year after its period,
-- once it has pruned all calls of the period.
create table if not exists gem.llm_spend (
  id              bigint      generated always as identity primary key,
  budget          text        not null,                 -- a name of the routes file
  -- the value that it counts for, such as a user; empty: for all
  subject         text        not null,
  period          text        not null check (period in ('hour', 'day', 'month')),
  starts          timestamptz not null,                 -- in UTC
  -- by ended requests, including those of pruned calls, and by corrections
  spent           bigint      not null default 0,
  reserved        bigint      not null default 0,       -- by open requests
  requests        bigint      not null default 0,       -- open and ended
  last_at         timestamptz,                          -- when the last of them began
  pruned          bigint      not null default 0,       -- the part of spent that belongs to pruned calls
  pruned_requests bigint      not null default 0,
  unique (budget, subject, period, starts)
) with (fillfactor = 25); -- each request updates a row twice, and the updates should stay on one page

-- Operators' corrections of the spending of budgets, for example after an invoice: see gem.llm_correct. Rows never
-- change, and are removed with the row of gem.llm_spend that they correct.
create table if not exists gem.llm_corrections (
  id     bigint      generated always as identity primary key,
  spend  bigint      not null,                          -- the row of gem.llm_spend
  amount bigint      not null check (amount <> 0),      -- below 0: a refund
  by     text        not null,
  login  text,                                          -- the login role, if its name differs
  reason text        not null check (reason <> ''),
  at     timestamptz not null
);
create index if not exists gem_llm_corrections_of_spend on gem.llm_corrections (spend);

-- The state of the targets of all routes: which ones are cooling down, and how fast they are. Rows are never removed.
create table if not exists gem.llm_targets (
  target              text        primary key,
  cooldown_until      timestamptz,                         -- null or past: the target may be used
  why              text,                                -- the reason for the current or last cooldown
  failed_at        timestamptz[] not null default '{}', -- its failures within the last minute
  -- number of cooldowns in a row because of failures; if any, one request probes the target after the cooldown
  backoff          integer     not null default 0,
  cooldown_at        timestamptz,                         -- when the last cooldown began
  probe            bigint,                              -- the request that probes it
  probing_since    timestamptz,
  first_content_ms double precision,                    -- a moving mean, like the next
  tokens_per_s     double precision,
  output_tokens    double precision,                    -- the mean of all samples
  -- actual input tokens per estimated token: the mean of all samples
  input_ratio      double precision,
  samples          bigint      not null default 0       -- complete answers
) with (fillfactor = 25);

alter table public.core_llm_versions enable row level security;
alter table public.core_llm_requests enable row level security;

-- Output of a call before its receipt: the answer of a model as it arrives. It is not the journal: its end may be
-- missing, and the receipt is authoritative. Rows are removed ten minutes after the receipt, or by gem prune with the
-- call.
create table if not exists public.core_tool_progress (
  call_id uuid        not null,
  attempt integer     not null,                         -- a reader starts over when it increases
  seq     integer     not null check (seq between 1 and 2000), -- numbers the rows of the call over all its attempts
  at      timestamptz not null,
  kind    text        not null check (kind in ('text', 'thinking', 'tool_call', 'status')),
  data    jsonb       not null,
  primary key (call_id, seq)
);
-- One entry per call, to find the calls whose progress may be removed.
create index if not exists gem_progress_first on public.core_tool_progress (at) where seq = 1;
alter table public.core_tool_progress enable row level security;
-- As for calls, receipts and events: estimates must not reveal the rows of others.
do $$
declare
  col text;
begin
  foreach col in array array['call_id', 'attempt', 'seq', 'at', 'kind', 'data'] loop
    execute format('alter table public.core_tool_progress alter column %I set statistics 0', col);
  end loop;
end
$$;
