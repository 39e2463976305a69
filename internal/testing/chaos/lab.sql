-- What the tools of a run write: a row for each effect that is to happen once.
create table lab_rows (
  id      bigint generated always as identity primary key,
  call_id uuid    not null,
  attempt integer not null
);
create index on lab_rows (call_id);

-- The same, for a step of lab.flow.
create table lab_steps (call_id uuid not null);

-- Who answers questions may approve calls, too.
insert into gem.roles (subject, role) values (session_user, 'approver');

-- What was asked for, and what reached the server outside; filled in at the end, for the checks.
create table lab_plan (
  call_id   uuid    primary key,
  tool      text    not null,
  ending    text    not null,
  key       text,               -- shared with other calls to the tool
  cancelled boolean not null    -- somebody asked for its end
);
create table lab_arrivals (
  call_id uuid    not null,
  attempt integer not null,
  tool    text    not null,
  key     text
);
create index on lab_arrivals (call_id);
create table lab_requests (
  n             integer not null, -- the provider calls the request req_ and this
  call_id       uuid    not null,
  target           text    not null,
  input_tokens  bigint  not null,
  output_tokens bigint  not null
);
create index on lab_requests (call_id);
