-- Calls as workers leave them behind, {{calls}} of them, by the hundred: what the benchmarks look at. Run in a
-- transaction, as a superuser, since it passes by the state machine.
set local session_replication_role = replica;

create temp table made on commit drop as
select n, md5('call ' || n)::uuid as id, md5('receipt ' || n)::uuid as receipt, 'w-' || n % 7 as worker,
  n % 100 as kind,
  now() - interval '100 days' + n * interval '10 ms' as began,
  case when n % 100 < 30 or n % 100 between 70 and 79 or n % 100 between 92 and 93 then 'leads.create'
    when n % 100 between 80 and 85 then 'os.create_note' when n % 100 = 95 then 'comms.send_sms'
      else 'os.create_task' end as tool,
  -- The call whose receipt is the first of the key: itself, or an earlier one.
  case when n % 100 < 30 then n when n % 100 between 70 and 79 then n - 70 when n % 100 between 92
    and 93 then n - 92 end as source,
  case
    when n % 100 between 80 and 85 then array['queued', 'claimed', 'failed']
    when n % 100 between 86 and 88 then array['queued', 'claimed', 'retried', 'claimed', 'succeeded']
    when n % 100 = 89 then array['queued', 'claimed', 'lost', 'claimed', 'succeeded']
    when n % 100 = 90 then array['queued', 'failed']
    when n % 100 = 91 then array['queued', 'claimed', 'cancel_requested', 'failed']
    when n % 100 between 92 and 93 then array['queued', 'claimed', 'waiting', 'woken', 'claimed', 'succeeded']
    when n % 100 = 94 then array['queued', 'claimed', 'released', 'claimed', 'succeeded']
    when n % 100 = 95 then array['queued', 'claimed', 'not_configured']
    when n % 100 between 96 and 98 then array['queued']
    when n % 100 = 99 then array['queued', 'claimed']
    else array['queued', 'claimed', 'succeeded']
  end as events
from generate_series(0, {{calls}} - 1) n;

insert into core_workers (worker_id, started_at, heartbeat_at, alive_until, concurrency, gem_version, registry_version)
select 'w-' || n, now(), now(), now() + interval '1 day', 10, 'dev', '1' from generate_series(0, 6) n;
insert into gem.levels values (0) on conflict do nothing;
insert into core_registry_versions (version, sha256, registry, recorded_at) values ('1', repeat('0', 64), '{}', now());

insert into core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
select id, e.seq, began + (e.seq - 1) * interval '5 ms', e.event,
  cardinality(array_positions(events[:e.seq::int], 'claimed')),
  case when e.event not in ('queued', 'cancel_requested') and kind <> 90 then worker end,
  case
    when e.event = 'queued' then jsonb_build_object('run_at', began, 'priority', 0)
    when e.event = 'retried' then jsonb_build_object('run_at', began + interval '1 s', 'error',
      jsonb_build_object('error_code', 'execution_error', 'message', 'later'))
    when e.event = 'waiting' then jsonb_build_object('key', 'leads.create:phone="' || source || '"', 'held_by',
      md5('call ' || source)::uuid)
    when e.event = 'lost' then jsonb_build_object('lost_worker', worker)
    when e.event in ('succeeded', 'failed', 'not_configured') then jsonb_build_object('receipt_id', receipt)
  end
from made, unnest(events) with ordinality e (event, seq);

insert into core_tool_calls (id, tool_name, input, status, attempt, claimed_by, claimed_at, error, cancel_requested_at,
  created_at, updated_at, run_at,
  priority, computed_key, retries, losses, events)
select id, tool, jsonb_build_object('name', 'Ada ' || n, 'phone', coalesce(source, n)::text, 'suburb', 'Carlton',
  'notes', repeat('x', 100)),
  case last when 'claimed' then 'running' else last end, cardinality(claims),
  case when cardinality(claims) > 0 then worker end,
  began + (claims[cardinality(claims)] - 1) * interval '5 ms',
  case when last = 'failed' then
    '{"error_code": "validation_error", "message": "The input does not fit", "details": null}'::jsonb end,
  case kind when 90 then began + interval '5 ms' when 91 then began + interval '10 ms' end,
  began, began + (cardinality(events) - 1) * interval '5 ms', began + case when kind between 86
    and 88 then interval '1 s' else '0' end, 0,
  'leads.create:phone="' || source || '"', (kind between 86 and 88)::int, (kind = 89)::int, cardinality(events)
from made, lateral (select events[cardinality(events)] as last, array_positions(events, 'claimed') as claims) e;

insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id,
  registry_version, idempotency_key,
  replay_of, duration)
select receipt, id, tool, last,
  case last
    when 'succeeded' then jsonb_build_object(case tool when 'leads.create' then 'lead_id' else 'task_id' end,
      md5('row ' || coalesce(source, n))::uuid)
    when 'failed' then '{"error": {"error_code": "validation_error", "message": "The input does not fit", "details": null}}'
    else '{"status": "not_configured", "reason": "Twilio is not set up", "required_env": [], "next_steps": []}' end,
  case
    when kind = 90 then '{}'
    when last <> 'succeeded' then '{"idempotency": {"mode": "none", "hit": false}}'
    when source <> n then jsonb_build_object('idempotency',
      jsonb_build_object('mode', 'keyed', 'hit', true, 'key_field', 'phone', 'key_value', source::text))
    else jsonb_build_object(
      'db_writes', jsonb_build_array(jsonb_build_object('table', case when source = n then 'leads' else 'tasks' end,
        'action', 'insert', 'id', md5('row ' || n)::uuid)),
      'idempotency', case when source = n then jsonb_build_object('mode', 'keyed', 'hit', false, 'key_field', 'phone',
        'key_value', source::text)
        else '{"mode": "none", "hit": false}' end)
  end,
  began + (cardinality(events) - 1) * interval '5 ms', cardinality(array_positions(events, 'claimed')),
  case when kind <> 90 then worker end, case when kind <> 90 then '1' end, 'leads.create:phone="' || source || '"',
  case when source <> n then md5('receipt ' || source)::uuid end, interval '5 ms'
from made, lateral (select events[cardinality(events)] as last) e
where kind < 96;

insert into leads (id, name, phone, suburb, call_id) select md5('row ' || n)::uuid, 'Ada', n::text, 'Carlton', id
  from made where source = n;
insert into tasks (id, title, domain, call_id) select md5('row ' || n)::uuid, 'Call', 'both', id from made
where tool = 'os.create_task' and events[cardinality(events)] = 'succeeded';
