-- Requests to models of providers, and their money: see functions/llm.sql. Amounts are in units of 10⁻⁹ USD.

-- Every file of routes that a worker ran with. Rows stay.
create table if not exists public.core_llm_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  routes      jsonb       not null,
  recorded_at timestamptz not null
);

-- The ledger: a row for each request, written before it is sent. It has no word of prompts and answers. Rows leave with their call by
-- gem prune, and go into its line of the archive.
create table if not exists public.core_llm_requests (
  id                 bigint      generated always as identity primary key,
  call_id            uuid        not null,              -- whose step asked
  attempt            integer     not null,
  n                  integer     not null check (n between 1 and 1000), -- numbers the requests of the call
  label              text        not null,              -- which of them it is: main, member n, judge, repair n, or a step's name
  tool_name          text        not null,
  route              text        not null,
  arm                text        not null,
  provider           text        not null,
  model              text        not null,
  routes_version     text        not null,              -- whose prices it was reckoned by
  created_by         text,
  session_id         text,
  status             text        not null check (status in ('sent', 'done', 'failed', 'cut', 'cancelled', 'lost')),
  at                 timestamptz not null,
  ended_at           timestamptz check ((ended_at is null) = (status = 'sent')),
  reserved           bigint      not null check (reserved >= 0), -- the most that it may cost, taken from the budgets before it is sent
  cost               bigint      check (cost >= 0),     -- null: not known, and the reserve counts as spent
  provider_cost      bigint,                            -- the provider's own figure
  estimated_input    bigint      not null,              -- tokens
  input_tokens       bigint,
  output_tokens      bigint,
  cache_read_tokens  bigint,
  cache_write_tokens bigint,
  reasoning_tokens   bigint,
  usage_source       text        check (usage_source in ('provider', 'estimated')),
  reported           jsonb,                             -- the provider's figures, if they exceed what the request can have: the tokens above are then bounds
  http_status        integer,
  request_id         text,                              -- the provider's
  answered           text,                              -- the model that answered, as the provider names it
  error_kind         text,
  first_content_ms   bigint,
  ms                 bigint,
  spends             bigint[]    not null,              -- the rows of gem.llm_spend that it counts in
  unique (call_id, n)
);
-- What is under way, of each arm: few.
create index if not exists gem_llm_sent on public.core_llm_requests (arm, at) where status = 'sent';
-- What a caller used, and what all did.
create index if not exists gem_llm_of_caller on public.core_llm_requests (created_by, at) where created_by is not null;
create index if not exists gem_llm_by_time on public.core_llm_requests using brin (at);

-- What is left of a budget: a row for each period of each subject. Rows leave by gem prune a year after their period, once it has pruned
-- all their calls.
create table if not exists gem.llm_spend (
  id              bigint      generated always as identity primary key,
  budget          text        not null,                 -- a name of the routes file
  subject         text        not null,                 -- what it is counted for, such as a user; empty: for all
  period          text        not null check (period in ('hour', 'day', 'month')),
  starts          timestamptz not null,                 -- in UTC
  spent           bigint      not null default 0,       -- by requests that have ended, including those of pruned calls, and by corrections
  reserved        bigint      not null default 0,       -- for those that are under way
  requests        bigint      not null default 0,       -- of both kinds
  pruned          bigint      not null default 0,       -- the part of spent that calls had which were pruned
  pruned_requests bigint      not null default 0,
  unique (budget, subject, period, starts)
) with (fillfactor = 25); -- each request updates a row twice, which should stay on its page

-- Operators' corrections of what budgets spent, for example after an invoice: see gem.llm_correct. Rows never change, and are removed with
-- the row of gem.llm_spend that they correct.
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

-- What is known of the arms of all routes: which one rests, and how fast it is. Rows stay.
create table if not exists gem.llm_arms (
  arm              text        primary key,
  rests_until      timestamptz,                         -- null, or past: it may be asked
  why              text,                                -- it rests, or rested last
  failed_at        timestamptz[] not null default '{}', -- its failures within the last minute
  backoff          integer     not null default 0,      -- rests in a row that failures brought; with any, one request probes it after the rest
  rested_at        timestamptz,                         -- when the last of them began
  probe            bigint,                              -- the request that probes it
  probing_since    timestamptz,
  first_content_ms double precision,                    -- a moving mean, as the next
  tokens_per_s     double precision,
  output_tokens    double precision,                    -- the mean of all samples
  input_ratio      double precision,                    -- true tokens of input for each estimated one: the mean of all samples
  samples          bigint      not null default 0       -- whole answers
) with (fillfactor = 25);

alter table public.core_llm_versions enable row level security;
alter table public.core_llm_requests enable row level security;

-- What a call shows before it has its receipt: the answer of a model, while it comes. It is not the journal: it may have gaps at its end, and
-- the receipt is the truth. Rows leave ten minutes after the receipt, and with their call by gem prune.
create table if not exists public.core_tool_progress (
  call_id uuid        not null,
  attempt integer     not null,                         -- a reader starts over when it grows
  seq     integer     not null check (seq between 1 and 2000), -- numbers the rows of the call, of all its attempts
  at      timestamptz not null,
  kind    text        not null check (kind in ('text', 'thinking', 'tool_call', 'status')),
  data    jsonb       not null,
  primary key (call_id, seq)
);
-- One entry a call, by which those are found whose rows may leave.
create index if not exists gem_progress_first on public.core_tool_progress (at) where seq = 1;
alter table public.core_tool_progress enable row level security;
-- As of calls, receipts and events: estimates must not tell of the rows of others.
do $$
declare
  col text;
begin
  foreach col in array array['call_id', 'attempt', 'seq', 'at', 'kind', 'data'] loop
    execute format('alter table public.core_tool_progress alter column %I set statistics 0', col);
  end loop;
end
$$;
