-- Views of single calls, for the dashboard and the commands that list calls. They show rows without inputs, results,
-- effects and the details of errors, which may hold anything. They show keys, sessions, callers and messages.
--
--   gem.calls           each call, and how it ended
--   gem.receipts        each receipt, with its outcome: the status, or refused or cancelled instead of failed
--   gem.journal         each event of each journal
--   gem.model_requests  each request to a model
--   gem.registries      each registry that a worker ran with, and how many live workers run with it
--
-- The views hide columns but no rows, so they need no security_barrier, and the tables' indexes serve them: client/view
-- uses these. Each view lists its columns, so that a column which a table gets later remains hidden until somebody adds
-- it here.

create or replace view gem.receipts as
select r.id, r.call_id, r.tool_name, r.status, r.created_at, r.attempt, r.worker_id, r.registry_version,
  r.idempotency_key, r.replay_of, r.duration,
  case when r.status = 'failed' then r.result -> 'error' ->> 'error_code' end as error_code,
  case when r.status = 'failed' then gem.failure_kind(r.result -> 'error' ->> 'error_code')
    else r.status end as outcome,
  case when r.status <> 'succeeded' then left(coalesce(r.result -> 'error' ->> 'message', r.result ->> 'reason'), 1000)
    end as message,
  r.status <> 'succeeded' and coalesce(r.result #>> '{error,error_code}', '') not in ('rule_blocked', 'limit_reached',
    -- the same list as in an index
    'approval_denied', 'approval_expired', 'rule_error', 'not_allowed', 'key_reused', 'cancelled') as failed
from public.core_tool_receipts r;

-- The columns of the receipt are null until the call has ended. progress is the number of its rows, and null once they
-- are removed. A query that does not select these does not read them.
create or replace view gem.calls as
select c.id, c.tool_name, c.status, c.waits_for, c.error ->> 'error_code' as error_code, c.created_by, c.signed_in,
  c.session_id, c.parent_call_id,
  c.parent_step, c.asked_for, c.claimed_by, c.computed_key, c.idempotency_key, c.needs, c.traceparent, c.priority,
    c.level, c.attempt, c.retries, c.losses, c.kills,
  c.steps, c.events, c.seq, c.cancel_requested_at, c.created_at, c.updated_at, c.run_at, c.claimed_at, c.wake_at,
  r.id as receipt_id, r.outcome, r.created_at as ended_at, r.duration, r.replay_of, r.registry_version, r.message,
  (select max(p.seq) from public.core_tool_progress p where p.call_id = c.id) as progress,
  c.status = 'waiting' and coalesce(c.waits[1] like '##%', false) as awaits_approval -- approvals that rules require
from public.core_tool_calls c
left join gem.receipts r on r.call_id = c.id;

-- The view shows the fields of an event's data that contain no payload, and the code and the message of an error.
create or replace view gem.journal as
select e.call_id, e.seq, e.at, e.event, e.attempt, e.worker_id,
  case when e.data is not null then (
    select coalesce(jsonb_object_agg(k.key, case when k.key = 'error'
      then jsonb_build_object('error_code', k.value -> 'error_code', 'message', left(k.value ->> 'message', 1000))
        else k.value end), '{}')
    from jsonb_each(e.data) k
    where k.key in ('again_of', 'by', 'call_id', 'code', 'error', 'for', 'held_by', 'key', 'kind', 'login',
      'lost_worker', 'name', 'names', 'needs', 'priority',
      'reason', 'receipt_id', 'rules', 'run_at', 'status', 'tool', 'until', 'was')
  ) end as data
from public.core_tool_events e;

create or replace view gem.model_requests as
select q.id, q.call_id, q.attempt, q.n, q.label, q.tool_name, q.route, q.target, q.provider, q.model, q.routes_version,
  q.created_by, q.session_id, q.status,
  q.at, q.ended_at, q.reserved, q.cost, q.estimated_input, q.input_tokens, q.output_tokens, q.cache_read_tokens,
    q.cache_write_tokens, q.reasoning_tokens,
  q.usage_source, q.http_status, q.answered, q.error_kind, q.first_content_ms, q.ms, q.reported
from public.core_llm_requests q;

create or replace view gem.registries as
select v.version, v.recorded_at, v.registry,
  (select count(*) from public.core_workers w where w.registry_version = v.version and w.stopped_at is null
    and w.alive_until > gem.now()) as workers
from public.core_registry_versions v;

select gem.grant_to('gem_monitor',
  'select on gem.calls, gem.receipts, gem.journal, gem.model_requests, gem.registries, gem.tools, gem.levels');
