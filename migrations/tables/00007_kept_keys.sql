-- The data of pruned calls that hits need: see gem.prune. gem.prune_kept_keys removes a row when it is older than `gem
-- prune --keep-keys` allows, but not while a receipt repeats it.
create table if not exists gem.kept_keys (
  key        text        collate "C" primary key,
  receipt_id uuid        not null unique,  -- of the first success, which was pruned
  call_id    uuid        not null,
  created_by text,
  input_hash bigint,                       -- of the input without the key's field; null: the earlier input is unknown
  result     jsonb,
  ended_at   timestamptz not null
);
create index if not exists gem_kept_keys_age on gem.kept_keys (ended_at);
alter table gem.kept_keys enable row level security;
